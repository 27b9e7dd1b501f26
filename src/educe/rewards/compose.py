"""Many named scores into one reward, every part kept: sums, gates, products, first match.

A part without a value (None) makes the whole unscored unless it is declared optional, so that a
judge's failure is never a zero and never shifts its siblings. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from educe.core.types import Fault, Score, Verdict

Parts = Mapping[str, Score]


def weighted_sum(
    scores: Parts, weights: Mapping[str, float], *, optional: Collection[str] = ()
) -> Score:
    """Return Σ w·s / Σ |w| over the parts that have a value.

    Args:
        scores: one score for each name in ``weights``; others are logged, not summed.
        weights: finite; a negative one is a penalty.
        optional: names that may be unscored; they then leave both sums.

    Raises:
        ValueError: no weight, a weight that is not finite, or a name without a score.
    """
    _check_names(scores, weights)
    if not weights or not all(math.isfinite(w) for w in weights.values()):
        raise ValueError(f"weights must be finite and not empty, got {dict(weights)}")
    missing = _missing(scores, weights, optional)
    if missing:
        return _unscored(scores, missing)
    values = {n: v for n in weights if (v := scores[n].value) is not None}
    total = sum(abs(weights[n]) for n in values)
    if total == 0:
        return _unscored(scores, next(iter(weights)))
    value = math.fsum(weights[n] * v for n, v in values.items()) / total
    return _graded(scores, value)


def gate(scores: Parts, *, gates: Sequence[str], then: str, threshold: float = 1.0) -> Score:
    """Return the score named ``then`` when all gates reach the threshold, else 0.

    A closed gate decides even when later parts are unscored; an unscored gate does not.
    """
    _check_names(scores, [*gates, then])
    for name in gates:
        value = scores[name].value
        if value is None:
            return _unscored(scores, name)
        if value < threshold:
            closed = Score.wrong(f"gate {name!r} closed: {scores[name].reason}".rstrip(": "))
            return replace(closed, parts=_values(scores), fault=scores[name].fault)
    if scores[then].value is None:
        return _unscored(scores, then)
    return replace(scores[then], parts={**_values(scores), **scores[then].parts})


def product(scores: Parts, names: Sequence[str], *, optional: Collection[str] = ()) -> Score:
    """Return the product of the named scores; a zero decides even when others are unscored."""
    _check_names(scores, names)
    if any(scores[n].value == 0 for n in names):
        return _graded(scores, 0.0)
    missing = _missing(scores, names, optional)
    if missing:
        return _unscored(scores, missing)
    return _graded(scores, math.prod(v for n in names if (v := scores[n].value) is not None))


def first_match(scores: Parts, names: Sequence[str]) -> Score:
    """Return the first named score that has a value; unscored when none has.

    For cascades such as exact match, then symbolic check, then judge.
    """
    _check_names(scores, names)
    for name in names:
        if scores[name].value is not None:
            chosen = scores[name]
            return replace(chosen, parts={**_values(scores), **chosen.parts})
    return _unscored(scores, names[0] if names else "")


def _check_names(scores: Parts, names: Collection[str]) -> None:
    unknown = [n for n in names if n not in scores]
    if unknown:
        raise ValueError(f"no score named {unknown[0]!r}; there are {sorted(scores)}")


def _missing(scores: Parts, names: Collection[str], optional: Collection[str]) -> str | None:
    return next((n for n in names if scores[n].value is None and n not in optional), None)


def _values(scores: Parts) -> dict[str, float | None]:
    return {name: score.value for name, score in scores.items()}


def _unscored(scores: Parts, name: str) -> Score:
    part = scores.get(name)
    is_ours = part is not None and part.fault in (Fault.GRADER, Fault.INFRASTRUCTURE)
    fault = part.fault if part is not None and is_ours else Fault.GRADER
    reason = f"part {name!r} is unscored"
    if part is not None and part.reason:
        reason += f": {part.reason}"
    return Score(None, None, fault, reason, parts=_values(scores))


def _graded(scores: Parts, value: float) -> Score:
    """A composed value outside [0, 1] keeps its sign; the verdict follows the value."""
    verdict = Verdict.RIGHT if value >= 1 else Verdict.WRONG if value <= 0 else Verdict.PARTIAL
    return Score(value, verdict, parts=_values(scores))
