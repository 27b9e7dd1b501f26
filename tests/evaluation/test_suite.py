"""The suite: golds, empties and constants score what they should, whatever the order and batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_engine import ScriptedSubject, gold

from educe.core.errors import EduceError
from educe.core.types import Message
from educe.evaluation.dimensions import load_dimension, load_suite_dimensions
from educe.evaluation.records import Outcome
from educe.evaluation.saved import load_saved
from educe.evaluation.suite import SuitePlan, read_suite, run_suite

COMPLETION = SuitePlan(
    dimensions=("completion",),
    tier="small",
    options={
        "completion": {
            "domains": ["arithmetic/percent/tiny", "tools/notes/tiny", "instructions/1-*/tiny"],
            "tasks": 4,
        }
    },
)


def measures(result, name="completion"):
    dimension = next(d for d in result.dimensions if d.name == name)
    return {m.name: m for m in dimension.measures}


def value(result, measure="accuracy", name="completion"):
    return measures(result, name)[measure].estimate.value


def test_golds_score_one_hundred_in_every_built_in_part():
    result = run_suite(ScriptedSubject(gold), COMPLETION)
    assert value(result) == 1.0
    assert value(result, "accuracy above chance") == pytest.approx(1.0)
    headline = result.dimensions[0].headline
    assert headline is not None and headline.name == "accuracy" and headline.num_groups == 3
    assert {r.domain for r in result.rows.rows} == {
        "completion/arithmetic/percent/tiny",
        "completion/instructions/1-constraints/tiny",
        "completion/tools/notes/tiny",
    }


@pytest.mark.slow
def test_golds_score_one_hundred_in_every_dimension():
    """All five at the small tier; safety's harmful requests have no gold to give."""
    result = run_suite(ScriptedSubject(gold, context_length=2048), SuitePlan(tier="small"))
    assert {d.name for d in result.dimensions} >= {"completion", "stability", "long_context",
                                                   "code_quality", "safety"}  # fmt: skip
    for dimension in result.dimensions:
        top = next(m for m in dimension.measures if m.is_headline)
        wanted = 0.5 if dimension.name == "safety" else 1.0
        assert top.estimate.value == wanted, dimension.name


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("", Outcome.UNPARSEABLE),
        ("I'm sorry, but I can't help with that.", Outcome.REFUSED),
        ("I cannot assist with this request.", Outcome.REFUSED),
    ],
)
def test_empty_texts_and_refusals_score_nothing_and_are_told_apart(said, outcome):
    plan = replace(
        COMPLETION,
        options={"completion": {"domains": "arithmetic/percent/tiny", "tasks": 4}},
    )
    result = run_suite(ScriptedSubject(lambda *_: said), plan)
    assert value(result) == 0.0
    assert {r.outcome for r in result.rows.rows} == {outcome}
    withheld = result.dimensions[0].withheld
    assert bool(withheld) == (outcome is Outcome.REFUSED)


def test_the_gold_of_another_task_and_the_prompt_itself_score_at_most_the_floor():
    def neighbour(domain, task, sample, turn):
        other = domain.task(task.split, (task.index + 1) % 4)
        return gold(domain, other, sample, turn) if other.gold != task.gold else "zebra"

    def dump(domain, task, sample, turn):
        return "\n".join(m.content for m in task.messages)

    assert value(run_suite(ScriptedSubject(neighbour), COMPLETION)) <= 0.1
    numbers = {
        "completion": {"domains": ["arithmetic/multiply/easy", "tools/notes/tiny"], "tasks": 4}
    }
    assert value(run_suite(ScriptedSubject(dump), replace(COMPLETION, options=numbers))) <= 0.1


def test_batch_size_and_order_change_nothing():
    def sometimes(domain, task, sample, turn):
        return gold(domain, task, sample, turn) if task.index % 2 else "17"

    first = run_suite(ScriptedSubject(sometimes, max_rows=64), COMPLETION)
    for rows, backwards, open_ in ((1, False, 256), (3, True, 2), (64, True, 256)):
        subject = ScriptedSubject(sometimes, max_rows=rows, backwards=backwards, max_open=open_)
        again = run_suite(subject, COMPLETION)
        assert again.rows.rows == first.rows.rows


def test_other_dimensions_and_tiers_do_not_move_a_draw():
    """A request's id decides the draws: a part keeps its ids in any company."""
    alone, both = ScriptedSubject(gold), ScriptedSubject(gold)
    plan = replace(COMPLETION, options={"completion": {"domains": "arithmetic/percent/tiny"}})
    run_suite(alone, plan)
    more = {"completion": {"domains": ["arithmetic/add/tiny", "arithmetic/percent/tiny"]},
            "stability": {"domains": "arithmetic/percent/tiny", "tasks": 2}}  # fmt: skip
    run_suite(both, replace(plan, dimensions=("stability", "completion"), options=more))
    ids = {(r.domain, r.index): r.request_id for r in both.asked}
    assert len(alone.asked) == 8
    assert all(ids[r.domain, r.index] == r.request_id for r in alone.asked)


def test_an_interrupted_suite_continues_and_a_finished_one_can_be_read(tmp_path: Path):
    stopping = ScriptedSubject(gold, stop_after=5)
    with pytest.raises(KeyboardInterrupt):
        run_suite(stopping, COMPLETION, out=tmp_path)
    resumed = ScriptedSubject(gold)
    seen = []
    result = run_suite(resumed, COMPLETION, out=tmp_path, progress=seen.append)
    assert len(resumed.asked) == 12 - 5
    assert (seen[0].done, seen[0].total, seen[0].num_resumed) == (6, 12, 5)
    assert seen[-1].done == 12 and seen[-1].left_s == pytest.approx(0.0)
    again = ScriptedSubject(gold)
    run_suite(again, COMPLETION, out=tmp_path)
    assert again.asked == []
    read = read_suite(load_saved(tmp_path))
    assert read.to_json() == result.to_json()


def test_what_broke_on_our_side_is_asked_again(tmp_path: Path):
    from scripted_domain import Scripted, Sums

    from educe.core.types import Fault, Score
    from educe.evaluation.runner import JournalFile, evaluate

    def broken(task, sample):
        lost = Score.unscored(Fault.INFRASTRUCTURE, "a worker died")
        return lost if task.index == 1 else task.gold

    domains = {"sums": Sums()}
    journal = JournalFile(tmp_path / "rows.jsonl", "m")
    first = evaluate(Scripted(domains, broken), domains, tasks_per_domain=3, journal=journal)
    assert [r.outcome for r in first.rows].count(Outcome.ERRORED) == 1
    mended = Scripted(domains, lambda t, k: t.gold)
    again = evaluate(mended, domains, tasks_per_domain=3, journal=journal)
    assert [r.index for r in mended.requests] == [1]
    assert {r.outcome for r in again.rows} == {Outcome.RIGHT}


def test_rows_of_another_model_are_refused_and_not_mixed(tmp_path: Path):
    run_suite(ScriptedSubject(gold, label="one"), COMPLETION, out=tmp_path)
    with pytest.raises(EduceError, match="another evaluation"):
        run_suite(ScriptedSubject(gold, label="two"), COMPLETION, out=tmp_path)


def test_the_cache_knows_content_not_folders(tmp_path: Path):
    cache = tmp_path / "cache"
    first = run_suite(ScriptedSubject(gold), COMPLETION, out=tmp_path / "a", cache=cache)
    again = ScriptedSubject(lambda *_: "wrong")
    second = run_suite(again, COMPLETION, out=tmp_path / "b", cache=cache)
    assert again.asked == [] and second.rows.rows == first.rows.rows
    other = ScriptedSubject(gold, label="other")
    run_suite(other, COMPLETION, cache=cache)
    assert len(other.asked) == 12
    warmer = replace(
        COMPLETION,
        options={"completion": {**COMPLETION.options["completion"], "temperature": 0.5}},
    )
    warm = ScriptedSubject(gold)
    run_suite(warm, warmer, cache=cache)
    assert len(warm.asked) == 12


def test_a_damaged_cache_entry_is_sampled_again(tmp_path: Path):
    run_suite(ScriptedSubject(gold), COMPLETION, cache=tmp_path)
    for path in list(tmp_path.rglob("*.json"))[:3]:
        path.write_text("{")
    again = ScriptedSubject(gold)
    assert value(run_suite(again, COMPLETION, cache=tmp_path)) == 1.0
    assert len(again.asked) == 3


def test_too_many_cut_texts_leave_no_headline():
    """Known: a small token limit has halved published scores without a word."""

    def endless(domain, task, sample, turn):
        return "thinking " * 20_000 if task.index == 0 else gold(domain, task, sample, turn)

    result = run_suite(ScriptedSubject(endless), COMPLETION)
    dimension = result.dimensions[0]
    assert dimension.headline is None and "limit" in dimension.withheld
    assert dimension.counts.by_outcome[Outcome.TRUNCATED] == 3
    assert value(result) == pytest.approx(0.75)


def test_reasoning_is_not_graded_as_the_answer():
    """Known: format rules judged the thinking block."""

    def thinks(domain, task, sample, turn):
        return f"<think>Maybe 12, or 99? Commas, commas.</think>{gold(domain, task, sample, turn)}"

    assert value(run_suite(ScriptedSubject(thinks), COMPLETION)) == 1.0


def test_several_samples_are_all_used():
    """Known: a harness kept only the first of several repeats."""
    plan = replace(
        COMPLETION,
        options={"completion": {"domains": "arithmetic/percent/tiny", "tasks": 5, "samples": 3,
                                "temperature": 1.0}},
    )  # fmt: skip

    def first_only(domain, task, sample, turn):
        return gold(domain, task, sample, turn) if sample == 0 else "no"

    result = run_suite(ScriptedSubject(first_only), plan)
    assert value(result) == pytest.approx(1 / 3)
    assert value(result, "pass@2") == pytest.approx(2 / 3)
    assert len(result.rows.rows) == 15


def test_names_and_options_that_do_not_exist_are_told():
    with pytest.raises(EduceError, match="Did you mean 'completion'"):
        load_dimension("compleiton")
    with pytest.raises(EduceError, match="no suite"):
        load_suite_dimensions("standrad")
    plan = replace(COMPLETION, options={"completion": {"sample": 3}})
    with pytest.raises(EduceError, match="no option 'sample'"):
        run_suite(ScriptedSubject(gold), plan)


def test_every_suite_dimension_plans_without_a_network(monkeypatch: pytest.MonkeyPatch):
    from educe.evaluation.sets import packages

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the small tier must not fetch anything")

    monkeypatch.setattr(packages, "_download", refuse)
    for name in ("completion", "stability", "code_quality"):
        dimension = load_dimension(name)
        from educe.evaluation.dimensions import PlanContext

        parts = dimension.plan(PlanContext(tier="small"))
        assert parts and len({p.name for p in parts}) == len(parts)
        assert json.dumps([dict(p.facts) for p in parts])


OWN = """
from dataclasses import dataclass
from educe.evaluation.dimensions import Findings, Measure, Part
from educe.evaluation.dimensions.protocol import mean_score, mean_values

@dataclass(frozen=True)
class Brevity:
    name: str = "brevity"
    title: str = "Brevity"
    question: str = "Is it short?"

    def plan(self, context):
        return [Part("add", source="arithmetic/add/tiny", num_tasks=context.choose(3, 9, 27))]

    def measure(self, result, context):
        score = Measure("score", mean_values(result.rows, mean_score), is_headline=True)
        return Findings((score,), withheld="too few")

BREVITY = Brevity()
"""


def test_a_dimension_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_dimension.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = SuitePlan(tier="small", dimensions=("own_dimension:BREVITY", "completion"),
                     options=COMPLETION.options)  # fmt: skip
    result = run_suite(ScriptedSubject(gold), plan, out=tmp_path / "out")
    own = result.dimensions[0]
    assert own.name == "brevity" and own.measures[0].estimate.num_items == 3
    assert own.headline is None and own.withheld == "too few"
    read = read_suite(load_saved(tmp_path / "out"))
    assert read.to_json() == result.to_json()
    with pytest.raises(EduceError, match="does not load"):
        load_dimension("own_dimension:NOTHING")


def test_lengths_are_counted_in_the_models_own_tokens_with_the_template():
    subject = ScriptedSubject(gold)
    text = "hello " * 40
    bare = len(subject.chat.encode(text))
    assert 4 * subject.count_tokens([Message("user", text)]) > bare
