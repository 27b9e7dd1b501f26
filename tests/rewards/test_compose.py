"""Composition keeps unscored apart from zero and logs every part."""

from __future__ import annotations

import pytest

from educe.core.types import Fault, Score, Verdict
from educe.rewards.compose import first_match, gate, product, weighted_sum

LOST = Score.unscored(Fault.INFRASTRUCTURE, "judge is down")


def parts(**values: float | None) -> dict[str, Score]:
    return {n: LOST if v is None else Score.graded(v) for n, v in values.items()}


def test_weighted_sum() -> None:
    score = weighted_sum(parts(a=1.0, b=0.5, c=0.0), {"a": 2, "b": 1})
    assert score.value == pytest.approx(2.5 / 3)
    assert score.verdict is Verdict.PARTIAL
    assert score.parts == {"a": 1.0, "b": 0.5, "c": 0.0}
    assert weighted_sum(parts(a=1.0, b=1.0), {"a": 3, "b": -1}).value == pytest.approx(0.5)


def test_an_unscored_part_makes_the_sum_unscored_unless_optional() -> None:
    scores = parts(a=1.0, b=None)
    lost = weighted_sum(scores, {"a": 1, "b": 1})
    assert lost.value is None and lost.fault is Fault.INFRASTRUCTURE
    assert "'b'" in lost.reason and "judge is down" in lost.reason
    assert lost.parts == {"a": 1.0, "b": None}
    assert weighted_sum(scores, {"a": 1, "b": 1}, optional=["b"]).value == 1.0
    assert weighted_sum(parts(b=None), {"b": 1}, optional=["b"]).value is None


def test_nan_becomes_the_graders_fault_not_a_number() -> None:
    scores = {"a": Score(float("nan")), "b": Score.right()}
    assert weighted_sum(scores, {"a": 1, "b": 1}).fault is Fault.GRADER
    assert weighted_sum(scores, {"a": 1, "b": 1}, optional=["a"]).value == 1.0
    assert product(scores, ["a", "b"]).value is None


def test_gate() -> None:
    assert gate(parts(f=1.0, a=0.4), gates=["f"], then="a").value == 0.4
    closed = gate(parts(f=0.0, a=1.0), gates=["f"], then="a")
    assert closed.value == 0.0 and closed.parts == {"f": 0.0, "a": 1.0}
    assert gate(parts(f=0.0, a=None), gates=["f"], then="a").value == 0.0
    assert gate(parts(f=None, a=1.0), gates=["f"], then="a").value is None
    assert gate(parts(f=1.0, a=None), gates=["f"], then="a").value is None
    assert gate(parts(f=0.6, a=1.0), gates=["f"], then="a", threshold=0.5).value == 1.0


def test_product_and_first_match() -> None:
    assert product(parts(a=0.5, b=0.5), ["a", "b"]).value == 0.25
    assert product(parts(a=0.0, b=None), ["a", "b"]).value == 0.0
    assert product(parts(a=0.5, b=None), ["a", "b"]).value is None
    assert product(parts(a=0.5, b=None), ["a", "b"], optional=["b"]).value == 0.5
    assert first_match(parts(a=None, b=0.0, c=1.0), ["a", "b", "c"]).value == 0.0
    assert first_match(parts(a=None), ["a"]).fault is Fault.INFRASTRUCTURE


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="no score named 'x'"):
        weighted_sum(parts(a=1.0), {"x": 1})
    with pytest.raises(ValueError, match="weights"):
        weighted_sum(parts(a=1.0), {"a": float("inf")})
    with pytest.raises(ValueError, match="weights"):
        weighted_sum(parts(a=1.0), {})
