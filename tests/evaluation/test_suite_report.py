"""Two models on one suite: verdicts by item, one page that a person can read, and the gate."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scripted_engine import ScriptedSubject, gold

from educe.core.errors import EduceError
from educe.evaluation.compare import Finding, compare
from educe.evaluation.dimensions.protocol import ItemValue, Measure
from educe.evaluation.measures import compare_measures, estimate_measure
from educe.evaluation.report.suite_content import build_suite_report, lead_text
from educe.evaluation.report.suite_pages import (
    suite_to_html,
    suite_to_markdown,
    write_suite_report,
)
from educe.evaluation.saved import load_saved
from educe.evaluation.suite import SuitePlan, run_suite
from educe.evaluation.suite_compare import compare_suites

DOMAINS = ["arithmetic/percent/tiny", "word-problems/part-of/tiny"]
PLAN = SuitePlan(
    tier="small",
    dimensions=("completion", "stability"),
    options={
        "completion": {"domains": DOMAINS, "tasks": 8},
        "stability": {"domains": DOMAINS[0], "tasks": 12, "samples": 2, "templates": 2},
    },
)


def weak(domain, task, sample, turn):
    return gold(domain, task, sample, turn) if task.index == 0 else "999"


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("suite")
    before = run_suite(ScriptedSubject(weak, label="start"), PLAN, out=out, name="before")
    after = run_suite(ScriptedSubject(gold, label="trained"), PLAN, out=out)
    return before, after, out


def test_the_trained_model_is_better_in_both_dimensions(sides):
    before, after, _ = sides
    comparison = compare_suites(before, after)
    tops = {d.name: d.headline for d in comparison.dimensions}
    assert {n: m.finding for n, m in tops.items()} == dict.fromkeys(tops, Finding.BETTER)
    assert tops["completion"].difference.value == pytest.approx(14 / 16)
    assert tops["completion"].num_pairs == 16
    back = compare_suites(after, before)
    assert {d.headline.finding for d in back.dimensions} == {Finding.WORSE}
    # Fewer flips and a lower entropy are better: the direction is the measure's.
    errors = next(d for d in comparison.dimensions if d.name == "stability").measures
    wrong = next(m for m in errors if m.name == "consistently wrong")
    assert wrong.difference.value < 0 and wrong.finding is Finding.BETTER


def test_a_model_against_itself_shows_nothing(sides):
    _, after, _ = sides
    same = compare_suites(after, after)
    assert not {Finding.BETTER, Finding.WORSE} & {
        m.finding for d in same.dimensions for m in d.measures
    }
    assert all(m.difference.value == 0 for d in same.dimensions for m in d.measures)


def test_saved_suites_are_compared_by_the_ordinary_command(sides):
    """``educe compare`` and ``educe gate`` read a suite's folder as any evaluation."""
    _, after, out = sides
    loaded = load_saved(out / "before.json"), load_saved(out)
    assert loaded[1].rows == after.rows.rows
    found = compare(*loaded)
    assert {d.domain.partition("/")[0] for d in found.domains} == {"completion", "stability"}
    assert found.flow.learned > 0 and found.flow.forgotten == 0


def test_the_compare_command_reads_suites(sides, tmp_path: Path, capsys):
    import shutil

    from educe.cli.main import main

    _, _, out = sides
    for name in ("json", "jsonl"):
        shutil.copy(out / f"before.{name}", tmp_path / f"after.{name}")
    assert main(["compare", str(tmp_path), str(out), "--out", str(tmp_path / "report")]) == 0
    shown = capsys.readouterr().out
    assert "Better: task completion, output stability." in shown
    assert (tmp_path / "report" / "report.html").is_file()


def test_other_tiers_and_strategies_do_not_compare(sides):
    before, after, _ = sides
    other = replace(after, rows=replace(after.rows, settings={**after.rows.settings,
                                                              "tier": "large"}))  # fmt: skip
    with pytest.raises(EduceError, match="differ in tier"):
        compare_suites(before, other)


class Checker(HTMLParser):
    """Counts tags that do not close, and looks for anything that is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.loads += [v for k, v in attributes if k in ("src", "href") and v]
        if tag not in ("meta", "line", "circle", "br", "i"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("line", "circle", "i"):
            assert self.open.pop() == tag


def test_the_report_in_three_formats(sides, tmp_path: Path):
    before, after, _ = sides
    comparison = compare_suites(before, after)
    report = build_suite_report(after, comparison, title="A & B <now>", facts={"machine": "two"})
    text = suite_to_markdown(report)
    assert text.startswith("# A & B <now>\n\nBetter: task completion, output stability.")
    assert "| Task completion | better | accuracy |" in text
    assert "What became of every completion" in text and "- machine: two" in text
    page = suite_to_html(report)
    checker = Checker()
    checker.feed(page)
    assert not checker.open and not checker.loads
    assert "A &amp; B &lt;now&gt;" in page and "<svg" in page
    paths = write_suite_report(report, tmp_path, name="suite")
    raw = json.loads(paths.json.read_text())
    assert [d["name"] for d in raw["dimensions"]] == ["completion", "stability"]
    assert raw["dimensions"][0]["measures"][0]["finding"] == "better"


def test_a_report_on_one_model(sides):
    _, after, _ = sides
    report = build_suite_report(after)
    assert lead_text(report).startswith("Task completion 100.0 [")
    assert "before" not in suite_to_markdown(report).split("## How to read")[0]
    assert json.dumps(report.to_json(), default=float)


def test_withheld_headlines_are_said_and_not_drawn():
    refuses = run_suite(ScriptedSubject(lambda *_: "I'm sorry, but I cannot help with that."), PLAN)
    report = build_suite_report(refuses)
    assert "no headline" in lead_text(report) and "<svg" not in suite_to_html(report)
    assert "were refused" in suite_to_markdown(report)


def items(values, group="g"):
    return tuple(ItemValue(f"{group}#{i}", group, f"{group}{i}", v) for i, v in enumerate(values))


def test_groups_weigh_the_same_whatever_their_size():
    measure = Measure("m", items([1.0] * 90, "big") + items([0.0] * 10, "small"))
    found = estimate_measure(measure)
    assert found.estimate.value == pytest.approx(0.5) and found.num_groups == 2
    assert estimate_measure(Measure("m", ())).estimate is None


def test_a_corrected_measure_has_the_interval_of_what_it_corrects():
    from educe.evaluation.statistics import wilson

    values = items([0.0] * 20, "a")
    found = estimate_measure(Measure("m", values, floors={"a": 0.5})).estimate
    plain = wilson(0, 20)
    assert found.value == pytest.approx(-1.0) and found.high > found.low
    assert found.high == pytest.approx((plain.high - 0.5) / 0.5)
    right = items([1.0] * 20, "a")
    (pair,) = compare_measures(
        [Measure("m", values, floors={"a": 0.5})], [Measure("m", right, floors={"a": 0.5})]
    )
    assert pair.difference.value == pytest.approx(2.0) and pair.finding is Finding.BETTER


def test_only_common_items_are_paired_and_signs_are_tested_over_all_groups():
    before = Measure("m", items([0.0] * 6, "a") + items([0.0] * 6, "b"))
    after = Measure("m", items([1.0] * 5, "a") + items([1.0] * 7, "b"))
    (found,) = compare_measures([before], [after])
    assert found.num_pairs == 11 and found.difference.value == pytest.approx(1.0)
    assert found.p_value == pytest.approx(2**-11, rel=0.5) or found.p_value < 2e-3
    nothing = compare_measures([before], [Measure("m", items([1.0], "z"))])[0]
    assert nothing.difference is None and nothing.finding is Finding.UNDERPOWERED


def test_verdicts_raise_few_false_alarms():
    """Sign flips over several groups keep their level where nothing differs."""
    import random

    rng = random.Random(7)
    alarms = 0
    for _ in range(200):
        pair = []
        for _side in range(2):
            values = [float(rng.random() < 0.4) for _ in range(30)]
            pair.append(Measure("m", items(values[:20], "a") + items(values[20:], "b")))
        alarms += compare_measures([pair[0]], [pair[1]])[0].finding in (
            Finding.BETTER, Finding.WORSE
        )  # fmt: skip
    assert alarms / 200 <= 0.09
