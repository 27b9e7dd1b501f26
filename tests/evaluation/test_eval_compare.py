"""Comparisons and reports: verdicts, refusals, and what a reader sees."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scripted_domain import Scripted, Sums

from educe.core.errors import EduceError
from educe.core.types import Fault, Score, Verdict
from educe.evaluation.compare import Finding, compare
from educe.evaluation.multi_turn import compare_repair, repair_rates
from educe.evaluation.report import build_report, to_html, to_markdown, write_report
from educe.evaluation.report.charts import ticks
from educe.evaluation.runner import evaluate


def run(rates: dict[str, float], *, tasks=100, label="run", shift=0, samples=1, **kwargs):
    """Evaluate domains whose tasks with index % 100 < 100 * rate (from ``shift``) are right."""
    domains = {name: Sums(name) for name in rates}

    def answer(task, sample):
        position = (task.index * 37 + shift) % 100
        return task.gold if position < 100 * rates[task.domain] else "0"

    return evaluate(
        Scripted(domains, answer), domains, tasks_per_domain=tasks, samples=samples, label=label,
        **kwargs,
    )  # fmt: skip


def test_verdicts_learned_and_forgotten():
    before = run({"up": 0.2, "down": 0.6, "same": 0.5}, label="before")
    after = run({"up": 0.6, "down": 0.2, "same": 0.5}, label="after")
    comparison = compare(before, after)
    found = {d.domain: d for d in comparison.domains}
    assert found["up"].finding is Finding.BETTER
    assert found["down"].finding is Finding.WORSE
    assert found["same"].finding is Finding.NO_DIFFERENCE
    assert (found["up"].flow.learned, found["up"].flow.forgotten) == (40, 0)
    assert (found["down"].flow.learned, found["down"].flow.forgotten) == (0, 40)
    assert found["same"].flow.to_json() == {
        "learned": 0, "forgotten": 0, "kept_right": 50, "kept_wrong": 50
    }  # fmt: skip
    assert found["up"].difference.estimate.value == pytest.approx(0.4)
    assert found["up"].difference.estimate.low > 0.25
    assert comparison.macro_difference.value == pytest.approx(0.0)
    assert comparison.macro_finding is Finding.NO_DIFFERENCE
    assert comparison.flow.learned == comparison.flow.forgotten == 40


def test_too_few_tasks_are_underpowered_not_equal():
    comparison = compare(run({"a": 0.5}, tasks=20), run({"a": 0.5}, tasks=20, shift=10))
    domain = comparison.domains[0]
    assert domain.finding is Finding.UNDERPOWERED
    assert domain.detectable > 0.1
    assert "more tasks are needed" in domain.reason


def test_a_task_without_score_on_one_side_is_left_out_and_counted():
    domains = {"sums": Sums()}

    def lossy(task, sample):
        return Score.unscored(Fault.GRADER, "x") if task.index == 3 else task.gold

    before = evaluate(Scripted(domains, lambda t, k: "0"), domains, tasks_per_domain=10)
    after = evaluate(Scripted(domains, lossy), domains, tasks_per_domain=10)
    domain = compare(before, after).domains[0]
    assert (domain.num_pairs, domain.num_lost_pairs) == (9, 1)
    assert domain.difference.estimate.value == 1.0
    nothing = evaluate(
        Scripted(domains, lambda t, k: Score.unscored(Fault.GRADER, "x")), domains,
        tasks_per_domain=10,
    )  # fmt: skip
    lost = compare(before, nothing).domains[0]
    assert lost.difference is None
    assert lost.finding is Finding.UNDERPOWERED


def test_what_cannot_be_compared_is_refused():
    a = run({"a": 0.5})
    with pytest.raises(EduceError, match="nothing to compare"):
        compare(a, run({"b": 0.5}))
    with pytest.raises(EduceError, match="differ in temperature"):
        compare(a, run({"a": 0.5}, temperature=1.0))
    with pytest.raises(EduceError, match="differ in samples"):
        compare(a, run({"a": 0.5}, samples=2))
    domains = {"a": Sums("a", repeat=3)}
    other = evaluate(Scripted(domains, lambda t, k: "0"), domains, tasks_per_domain=10)
    with pytest.raises(EduceError, match="task 3 is not the same task"):
        compare(a, other)
    partial = compare(run({"a": 0.5, "b": 0.5}), a)
    assert partial.notes == ("only in run, left out: b",)


def test_many_domains_hold_the_false_discovery_rate():
    """With 40 domains of pure noise, single tests at 5 % would find some; q-values find none."""
    import numpy as np

    rng = np.random.default_rng(5)
    names = [f"d{i:02d}" for i in range(40)]
    domains = {n: Sums(n) for n in names}
    sides = []
    for _ in range(2):
        right = {n: rng.random(60) < 0.5 for n in names}
        sides.append(
            evaluate(
                Scripted(domains, lambda t, k, r=right: t.gold if r[t.domain][t.index] else "0"),
                domains,
                tasks_per_domain=60,
            )
        )
    comparison = compare(*sides)
    assert min(d.difference.p_value for d in comparison.domains) < 0.05
    assert comparison.count(Finding.BETTER) == comparison.count(Finding.WORSE) == 0


def coded(task, *, first: bool, fixed: bool) -> Score:
    right = first or fixed
    return Score(
        1.0 if right else 0.0, Verdict.RIGHT if right else Verdict.WRONG,
        reason="def f(x):\n    return x",
        proof={"first_attempt_right": first, "num_attempts": 1 if first else 2,
               "fixed_after_feedback": fixed},
    )  # fmt: skip


def code_run(first_below: int, fixed_below: int, label: str):
    domains = {"code": Sums("code", max_turns=3), "once": Sums("once"), "sums": Sums()}

    def answer(task, sample):
        if task.domain == "sums":
            return task.gold
        first = task.index < first_below
        return coded(task, first=first, fixed=not first and task.index < fixed_below)

    return evaluate(Scripted(domains, answer), domains, tasks_per_domain=40, label=label)


def test_multi_turn_rates():
    rates = repair_rates(code_run(10, 25, "x"), "code")
    assert rates.first_attempt.value == 0.25
    assert rates.final.value == 0.625
    assert (rates.num_repaired, rates.num_failed_first) == (15, 30)
    assert rates.repaired.value == 0.5
    assert rates.repaired.low < 0.35 < 0.65 < rates.repaired.high
    assert rates.mean_attempts == 1.75
    both = compare_repair(code_run(10, 25, "x"), code_run(20, 40, "y"), "code")
    assert both.first_difference.value == 0.25
    assert both.final_difference.value == 0.375
    assert both.after.repaired.value == 1.0
    assert repair_rates(code_run(40, 40, "z"), "code").repaired is None
    with pytest.raises(ValueError, match="no scored rows with recorded attempts"):
        repair_rates(code_run(1, 2, "x"), "sums")


VOID = ("meta", "line", "circle", "br")


class Page(HTMLParser):
    """Collects what a page loads and whether its tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.stack: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self.links += [v for k, v in attrs if k in ("src", "href") and v]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.stack.pop() == tag


def test_the_report_in_three_formats(tmp_path: Path):
    report = build_report(
        code_run(20, 40, "after"), code_run(10, 25, "before"), title="A <b> report",
        facts={"model": "tiny & small"},
    )  # fmt: skip
    paths = write_report(report, tmp_path / "out")
    text = paths.markdown.read_text()
    assert "+37.5 [" in text
    assert "first attempt +25.0 [" in text
    assert "| code | better |" in text
    assert "learned" in text and "Reference: `7`" in text
    assert "no difference detectable below" in text or "underpowered" in text
    for line in text.splitlines():
        if line.startswith("| code"):
            assert line.endswith("|")
    page = Page()
    html = paths.html.read_text()
    page.feed(html)
    assert page.stack == [] and page.links == [] and page.scripts == 0
    assert "<b> report" not in html and "tiny &amp; small" in html
    assert html.count("<svg") == 2 and "nan" not in html.lower().replace("nance", "")
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)
    raw = json.loads(paths.json.read_text())
    assert raw["comparison"]["findings"]["better"] == 2
    assert [r["before"]["domain"] for r in raw["multi_turn"]] == ["code"]
    assert raw["multi_turn"][0]["final_difference"]["value"] == pytest.approx(0.375)
    assert {e["domain"] for e in raw["examples"]} == {"code", "once", "sums"}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "report.html", "report.json", "report.md"
    ]  # fmt: skip


def test_a_report_on_one_side_and_hostile_texts():
    domains = {"sums": Sums()}
    hostile = "</pre><script>alert(1)</script> ``` | pipe"
    result = evaluate(Scripted(domains, lambda t, k: hostile), domains, tasks_per_domain=3)
    report = build_report(result)
    assert "<script>" not in to_html(report)
    markdown = to_markdown(report)
    assert "````text" in markdown
    assert "hold no recognisable answer" in markdown
    assert "Macro score 0.0 [0.0, " in markdown


def test_a_withheld_headline_says_so_and_still_shows_the_table():
    domains = {"sums": Sums()}
    cut = evaluate(Scripted(domains, lambda t, k: "so …"), domains, tasks_per_domain=9, label="b")
    full = evaluate(Scripted(domains, lambda t, k: t.gold), domains, tasks_per_domain=9, label="a")
    text = to_markdown(build_report(full, cut))
    assert "No headline: b: 100.0% of completions ended at a token or time limit" in text
    assert "+100.0 [" in text


def test_of_many_domains_the_charts_show_the_largest_moves():
    names = [f"d{i:02d}" for i in range(70)]
    before = run(dict.fromkeys(names, 0.3), tasks=20, label="b")
    after = run({n: 0.9 if n == "d69" else 0.3 for n in names}, tasks=20, label="a")
    html = to_html(build_report(after, before, examples_per_domain=0))
    scores, differences = html.split("<svg")[1:3]
    assert "60 of 70 domains" in html
    assert scores.index(">d69<") < scores.index(">d00<") and ">d68<" not in scores
    assert differences.split("</svg>")[0].count("<circle") == 61
    assert html.count('<td class="t">d68</td>') == 3  # every table has all


def test_ticks_are_round():
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(-10, 10) == [-10, -5, 0, 5, 10]
    assert ticks(0.0, 0.9) == [0.0, 0.2, 0.4, 0.6, 0.8]
