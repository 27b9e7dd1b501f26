"""The dimension of long context in a suite: golds, degenerate replies, controls, what it tells."""

from __future__ import annotations

import pytest
from scripted_engine import ScriptedSubject, gold

from educe.core.errors import EduceError
from educe.core.types import Split
from educe.evaluation.dimensions import load_dimension
from educe.evaluation.dimensions.protocol import PlanContext
from educe.evaluation.suite import SuitePlan, run_suite


def plan(**options):
    known = {
        "kinds": ["needle-multivalue-number", "chat-state"],
        "lengths": [1200, 2400],
        "tasks": 5,
        "control_length": 1200,
    }
    return SuitePlan(dimensions=("long_context",), options={"long_context": {**known, **options}})


def found(subject, chosen=None):
    result = run_suite(subject, chosen or plan())
    return {m.name: m for m in result.dimensions[0].measures}, result


def test_gold_replies_score_one_hundred_at_every_length_and_control():
    subject = ScriptedSubject(gold)
    measures, result = found(subject)
    for name in ("score", "score at 1200", "score at 2400", "control: oracle"):
        assert measures[name].estimate.value == 1.0
    assert measures["items found (recall)"].estimate.value == 1.0
    assert result.dimensions[0].headline.name == "score"
    notes = " ".join(result.dimensions[0].findings.notes)
    assert "0 of 20 replies met the token limit; no prompt was cut" in notes
    # A scripted model is right without the document too, and then there is no effective length.
    assert "Effective length: none" in notes
    for request in subject.asked:
        assert request.num_samples == 1


def test_only_a_reader_has_an_effective_length():
    """Right when the document is there and not too long: what a model that forgets does."""

    def reader(domain, task, sample, turn):
        text = "".join(m.content for m in task.messages)
        is_there = all(a in text for a in task.metadata["answers"])
        return task.gold if is_there and len(text) < 6000 else "1000000"

    measures, result = found(ScriptedSubject(reader), plan(kinds="needle-multivalue-number"))
    assert measures["score at 1200"].estimate.value == 1.0
    assert measures["score at 2400"].estimate.value == 0.0
    assert measures["control: no-context"].estimate.value == 0.0
    assert measures["control: oracle"].estimate.value == 1.0
    notes = " ".join(result.dimensions[0].findings.notes)
    assert "Effective length: 1200 tokens [1200, 1200]" in notes
    titles = [t.title for t in result.dimensions[0].tables]
    assert titles == ["Score by length, percent", "Score by depth, percent"]


@pytest.mark.parametrize("said", ["", "I'm sorry, but I can't help with that.", "1234567", "DUMP"])
def test_degenerate_replies_score_nothing(said):
    def answer(domain, task, sample, turn):
        return "\n".join(m.content for m in task.messages) if said == "DUMP" else said

    measures, _ = found(
        ScriptedSubject(answer), plan(kinds="needle-multivalue-number", lengths=[1200], controls=[])
    )
    assert measures["score"].estimate.value == 0.0


def test_prompts_fit_the_models_own_tokens():
    subject = ScriptedSubject(gold)
    _, result = found(subject, plan(controls=[]))
    for row in result.rows.rows:
        length = int(row.domain.split("/")[2])
        used = subject.count_tokens(row.prompt)
        assert 0.9 * length < used + 80 <= length + 80
        assert used <= length


def test_lengths_without_room_for_the_question_are_left_out():
    """A vocabulary of bytes needs four times the tokens: that is no reason to fail the suite."""
    dimension = load_dimension("long_context")
    said = []

    def count(messages):
        return sum(len(m.content) + 30 for m in messages)

    context = PlanContext(tier="small", count_tokens=count, announce=said.append)
    parts = dimension.plan(context)
    by_kind = {}
    for part in parts:
        by_kind.setdefault(part.facts["kind"], set()).add(part.facts["length"])
        task = part.domain.task(Split.EVAL, 0)
        assert count(task.messages) + part.max_completion_tokens <= part.facts["length"]
    assert {1024} in by_kind.values() and len(by_kind) == 4
    assert any("shorter lengths are left out" in line for line in said)
    with pytest.raises(EduceError, match="none of the lengths"):
        dimension.plan(PlanContext(tier="small", count_tokens=count, options={"lengths": 60}))


def test_lengths_beyond_the_model_are_left_out_and_wrong_options_named():
    dimension = load_dimension("long_context")
    said = []
    context = PlanContext(
        context_length=4000,
        options={"kinds": "count", "lengths": [2000, 8000]},
        announce=said.append,
    )
    assert {p.facts["length"] for p in dimension.plan(context)} == {2000}
    assert any("above 4000" in line for line in said)
    for options, message in (
        ({"lengths": [8000]}, "context is 4000"),
        ({"kinds": "cuont"}, "no kind of long prompt"),
        ({"controls": ["none"]}, "unknown"),
        ({"size": 3}, "no option 'size'"),
    ):
        with pytest.raises(EduceError, match=message):
            dimension.plan(PlanContext(context_length=4000, options=options))
