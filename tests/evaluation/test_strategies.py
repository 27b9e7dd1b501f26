"""Strategies: the same tasks and graders, other words and more tokens."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from scripted_engine import ScriptedSubject, gold

from educe.config.settings import DomainSettings
from educe.core.errors import EduceError
from educe.core.protocols import Services
from educe.core.types import Message, Split, Verdict, assistant
from educe.domains.registry import load_domain
from educe.evaluation.answers import RIGHT, answer_class
from educe.evaluation.strategies import STRATEGIES, strategy_named
from educe.evaluation.suite import SuitePlan, run_suite
from educe.evaluation.suite_compare import strategy_board
from educe.evaluation.wordings import (
    RewordedDomain,
    reworded_settings,
    wording_named,
    worker_settings,
)

PLAN = SuitePlan(
    tier="small",
    dimensions=("completion",),
    options={"completion": {"domains": "arithmetic/percent/tiny", "tasks": 6}},
)


def accuracy(result) -> float:
    return next(m for m in result.dimensions[0].measures if m.name == "accuracy").estimate.value


@pytest.mark.parametrize("name", [n for n in STRATEGIES if n != "tools"])
def test_golds_score_one_hundred_under_every_strategy(name: str):
    result = run_suite(ScriptedSubject(gold), replace(PLAN, strategy=name))
    assert accuracy(result) == 1.0
    direct = run_suite(ScriptedSubject(gold), PLAN)
    pairs = zip(result.rows.rows, direct.rows.rows, strict=True)
    assert all(a.key == b.key and a.content_hash == b.content_hash for a, b in pairs)


def test_reasoning_stands_before_the_answer_and_is_not_graded():
    def reasons(domain, task, sample, turn):
        return f"First 99, then 12.\n{gold(domain, task, sample, turn)}".replace(
            "\n", "\nAnswer: ", 1
        )

    subject = ScriptedSubject(reasons)
    result = run_suite(subject, replace(PLAN, strategy="cot"))
    assert accuracy(result) == 1.0
    assert "step by step" in result.rows.rows[0].prompt[-1].content
    assert subject.asked[0].max_completion_tokens > 256


def test_self_consistency_takes_the_majority_and_counts_all_tokens():
    def votes(domain, task, sample, turn):
        right = gold(domain, task, sample, turn)
        # Task 0: three right, five wrong but scattered; task 1: five alike and wrong.
        if task.index == 0:
            return right if sample in (1, 4, 6) else str(900 + sample)
        return "777" if sample < 5 else right

    result = run_suite(ScriptedSubject(votes), replace(PLAN, strategy="self-consistency"))
    rows = {r.index: r for r in result.rows.rows}
    assert len(result.rows.rows) == 6 and rows[0].value == 1.0 and rows[1].value == 0.0
    assert rows[1].proof["oracle_right"] and rows[1].proof["num_right"] == 3
    direct = run_suite(ScriptedSubject(votes), PLAN)
    assert rows[0].num_tokens > 5 * direct.rows.rows[0].num_tokens


def test_no_answer_wins_no_vote_and_lost_draws_are_left_out():
    def votes(domain, task, sample, turn):
        return gold(domain, task, sample, turn) if sample == 7 else ""

    result = run_suite(ScriptedSubject(votes), replace(PLAN, strategy="self-consistency"))
    assert accuracy(result) == 1.0


def test_best_of_n_takes_the_likeliest_never_the_one_the_verifier_likes():
    from educe.evaluation.strategies import most_likely

    class Turn:
        def __init__(self, logprob: float) -> None:
            self.behaviour_logprobs = (logprob, logprob)

    class Drawn:
        def __init__(self, logprob: float, cut: bool = False) -> None:
            self.turns, self.is_truncated = [Turn(logprob)], cut

    class Row:
        def __init__(self, value: float | None) -> None:
            self.value = value

    drawn = [Drawn(-0.9), Drawn(-0.2), Drawn(-0.01, cut=True), Drawn(-0.1)]
    rows = [Row(1.0), Row(0.0), Row(0.0), Row(None)]
    assert most_likely(rows, drawn) == 1
    assert most_likely([Row(None)], [Drawn(-1.0)]) is None


def test_reflection_asks_once_more_and_records_the_first_attempt():
    def second_thoughts(domain, task, sample, turn):
        return "999" if turn == 0 else gold(domain, task, sample, 0)

    result = run_suite(ScriptedSubject(second_thoughts), replace(PLAN, strategy="reflect"))
    assert accuracy(result) == 1.0
    row = result.rows.rows[0]
    assert row.num_turns == 2 and row.proof["first_attempt_right"] is False
    assert row.proof["fixed_after_feedback"] is True


class Box:
    """Stands for the sandbox's interface: runs nothing, answers as told."""

    def __init__(self, text: str, verdict: str = "OK") -> None:
        self.text, self.verdict = text, verdict

    def run(self, job):
        from types import SimpleNamespace

        from educe.sandbox.contract import BoxVerdict

        return SimpleNamespace(
            verdict=BoxVerdict(self.verdict), stdout_text=self.text, stderr_text="E: bad", reason=""
        )


def test_tools_run_then_the_last_text_is_the_answer():
    domain = RewordedDomain(load_domain("arithmetic/percent/tiny"), wording_named("tools"))
    task = domain.task(Split.EVAL, 0)
    call = Message("assistant", "<tool_call>…</tool_call>")
    from educe.core.types import ToolCall

    call = replace(call, tool_calls=(ToolCall("python", '{"code": "print(7)"}'),))
    services = Services(sandbox=Box("7\n"))
    reply = domain.respond(task, None, [*task.messages, call], services)
    assert reply.messages[0].content == "7" and not reply.done
    done = domain.respond(task, None, [*task.messages, assistant("It is 7")], services)
    assert done.done and not done.messages
    said = [*task.messages, call, reply.messages[0], assistant(f"So.\nAnswer: {task.gold}")]
    assert domain.score(task, None, said, services).verdict is Verdict.RIGHT
    for arguments in ("{", '{"code": 3}', "[]"):
        bad = replace(call, tool_calls=(ToolCall("python", arguments),))
        told = domain.respond(task, None, [*task.messages, bad], services)
        assert told.messages[0].content.startswith("error:") and not told.done
    other = replace(call, tool_calls=(ToolCall("shell", "{}"),))
    assert (
        "no tool"
        in domain.respond(task, None, [*task.messages, other], services).messages[0].content
    )


def test_tools_really_run_in_a_suite():
    def computes(domain, task, sample, turn):
        if turn == 0:
            code = f"print('It is', {float(task.gold)!r} + 1)"
            call = {"name": "python", "arguments": {"code": code}}
            return f"<tool_call>{json.dumps(call)}</tool_call>"
        return f"So one less.\nAnswer: {task.gold}"

    plan = replace(PLAN, strategy="tools", options={"completion": {
        "domains": "arithmetic/percent/tiny", "tasks": 2}})  # fmt: skip
    result = run_suite(ScriptedSubject(computes), plan)
    assert accuracy(result) == 1.0
    told = [m.content for r in result.rows.rows for m in r.completion if m.role == "tool"]
    assert len(told) == 2 and all(t.startswith("It is ") for t in told)


def test_a_domain_with_turns_of_its_own_is_asked_directly_and_told():
    plan = replace(PLAN, options={"completion": {"domains": "tools/notes/tiny", "tasks": 2}},
                   strategy="reflect")  # fmt: skip
    result = run_suite(ScriptedSubject(gold), plan)
    assert accuracy(result) == 1.0
    assert any("does not apply" in note for note in result.rows.notes)


def test_workers_load_the_same_reworded_domain():
    inner = worker_settings("arithmetic/percent/tiny", DomainSettings())
    settings = reworded_settings("cot", inner, "here/there")
    loaded = load_domain("here/there", settings)
    ours = RewordedDomain(load_domain("arithmetic/percent/tiny"), wording_named("cot"))
    there, here = loaded.task(Split.EVAL, 3), ours.task(Split.EVAL, 3)
    assert there.messages == here.messages
    score = loaded.score(there, None, [*there.messages, assistant(there.gold)], Services())
    assert score.verdict is Verdict.RIGHT


def test_code_and_written_texts_reason_apart_from_their_form():
    for name in ("python/string-edit/tiny", "instructions/1-constraints/tiny"):
        domain = RewordedDomain(load_domain(name), wording_named("cot"))
        text = domain.task(Split.EVAL, 0).messages[-1].content
        assert "<think>" in text and "Answer:" not in text.rpartition("\n\n")[2]


def test_answer_classes():
    def row(said: str, **kinds):
        subject = ScriptedSubject(lambda *_: said)
        return run_suite(subject, PLAN).rows.rows[0]

    assert answer_class(row("1,000,000")) == answer_class(row("Answer: 1000000"))
    assert answer_class(row("")) is None
    assert answer_class(row("I'm sorry, I cannot answer this.")) is None
    right = run_suite(ScriptedSubject(gold), PLAN).rows.rows[0]
    assert answer_class(right) == RIGHT
    with pytest.raises(ValueError, match="no score"):
        answer_class(replace(right, value=None))


def test_the_board_sets_score_against_tokens():
    def thinks(domain, task, sample, turn):
        return "so and so " * 30 + f"\nAnswer: {gold(domain, task, sample, turn)}"

    def half(domain, task, sample, turn):
        return gold(domain, task, sample, turn) if task.index % 2 else "999"

    plan = replace(PLAN, options={"completion": {"domains": "arithmetic/percent/tiny",
                                                 "tasks": 12}})  # fmt: skip
    results = {
        "direct": run_suite(ScriptedSubject(half), plan),
        "cot": run_suite(ScriptedSubject(thinks), replace(plan, strategy="cot")),
    }
    direct, cot = strategy_board(results)
    assert direct.score is None and math.isnan(direct.points_per_1000_tokens)
    assert cot.score.difference.value == pytest.approx(0.5)
    assert cot.score.num_pairs == 12 and cot.tokens > direct.tokens
    spent = cot.tokens - direct.tokens
    assert cot.points_per_1000_tokens == pytest.approx(100 * 0.5 / spent * 1000)


def test_unknown_strategies_are_told():
    with pytest.raises(EduceError, match="Did you mean 'reflect'"):
        strategy_named("reflct")
