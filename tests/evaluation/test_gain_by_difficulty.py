"""The gain by difficulty: right where there is one, and none where only luck differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from educe.core.seeds import numpy_random
from educe.evaluation.bands import BandGain, gain_by_difficulty
from educe.evaluation.records import EvalResult, EvalRow, Outcome
from educe.evaluation.report import build_report, to_html, to_markdown

Rate = Callable[[str], float]


def result(label: str, domains: list[str], rate: Rate, tasks: int = 40) -> EvalResult:
    rows = []
    for domain in domains:
        for index in range(tasks):
            value = float(numpy_random("band", label, domain, index).random() < rate(domain))
            outcome = Outcome.RIGHT if value else Outcome.WRONG
            rows.append(
                EvalRow(
                    domain,
                    index,
                    0,
                    f"{domain}-{index}",
                    value,
                    outcome,
                    False,
                    3,
                    1,
                    "",
                    (),
                    (),
                    None,
                )
            )
    return EvalResult(label, tuple(rows), dict.fromkeys(domains, 0.0))


def by_band(gains: tuple[BandGain, ...]) -> dict[str, BandGain]:
    return {g.band: g for g in gains}


def test_hard_and_easy_domains_are_told_apart() -> None:
    names = [f"hard-{i}/x" for i in range(6)] + [f"easy-{i}/x" for i in range(6)]
    before = result("a", names, lambda d: 0.03 if d.startswith("hard") else 0.85)
    after = result("b", names, lambda d: 0.4 if d.startswith("hard") else 0.85)
    found = by_band(gain_by_difficulty(before, after))
    low, high = found["0 to 10 % at the start"], found["70 to 100 % at the start"]
    assert low.difference.low > 0.25 and low.num_domains == 6
    assert abs(high.difference.value) < 0.1 and high.before == pytest.approx(0.85, abs=0.05)
    assert sum(g.num_tasks for g in found.values()) == 12 * 40


def test_luck_at_the_start_is_no_gain() -> None:
    """All domains are alike and nothing changed: banded by the tasks of the gain themselves, the
    lucky ones would fall by some ten points and the unlucky ones rise."""
    names = [f"d{i}/x" for i in range(300)]
    before = result("a", names, lambda d: 0.4, tasks=12)
    after = result("b", names, lambda d: 0.4, tasks=12)
    gains = gain_by_difficulty(before, after)
    assert len(gains) >= 3
    for gain in gains:
        if gain.num_domains > 50:
            assert abs(gain.difference.value) < 0.04, gain.band


def test_chance_is_not_skill() -> None:
    names = ["guess/x"]
    before = result("a", names, lambda d: 0.5)
    guessed = EvalResult("a", before.rows, {"guess/x": 0.5})
    (gain,) = gain_by_difficulty(guessed, result("b", names, lambda d: 0.5))[:1]
    assert gain.band in ("0 to 10 % at the start", "10 to 40 % at the start")


def test_levels_are_told_where_there_are_several() -> None:
    names = ["a/tiny", "b/tiny", "a/hard"]
    before = result("a", names, lambda d: 0.3)
    after = result("b", names, lambda d: 0.9 if d.endswith("tiny") else 0.3)
    found = by_band(gain_by_difficulty(before, after))
    assert found["tiny"].num_domains == 2 and found["tiny"].difference.low > 0.3
    assert abs(found["hard"].difference.value) < 0.3
    alone = gain_by_difficulty(*(result(x, names[:2], lambda d: 0.3) for x in "ab"))
    assert "tiny" not in by_band(alone)


def test_a_few_tasks_or_none_in_common_make_no_band() -> None:
    short = result("a", ["d/x"], lambda d: 0.5, tasks=3)
    assert gain_by_difficulty(short, short) == ()
    other = result("b", ["e/x"], lambda d: 0.5)
    assert gain_by_difficulty(short, other) == ()


def test_the_report_tells_it() -> None:
    names = ["a/tiny", "a/hard"]
    before, after = (result(x, names, lambda d: 0.4) for x in "ab")
    report = build_report(after, before)
    for text in (to_markdown(report), to_html(report)):
        assert "Gain by difficulty" in text and "10 to 40 % at the start" in text
    assert report.to_json()["by_difficulty"][-1]["band"] == "hard"
    assert "Gain by difficulty" not in to_markdown(build_report(after))
