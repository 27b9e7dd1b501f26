"""Stateful tools: real state changes, errors that do not end the episode, goals on the state."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

from educe.core.errors import DomainError
from educe.core.protocols import Domain, Services
from educe.core.splits import split_of
from educe.core.types import JSON, Message, Score, Split, Task, ToolCall, Verdict, assistant
from educe.domains.builtin import stateful_tools
from educe.domains.builtin.stateful_tools.bank import BANK
from educe.domains.builtin.stateful_tools.calendar import CALENDAR
from educe.domains.builtin.stateful_tools.composition import WORLDS
from educe.domains.builtin.stateful_tools.tools import (
    ToolFailure,
    call_message,
    call_text,
    check_arguments,
    describe_tools,
)
from educe.domains.builtin.stateful_tools.world import World
from educe.models.chat import parse_tool_calls

SPECS = stateful_tools.specs()
NONE = Services()


def play(
    domain: Domain, task: Task, texts: Sequence[str | Message]
) -> tuple[Score, JSON, list[Message]]:
    """Play assistant turns as the rollout does: no reply after the last allowed turn."""
    state, transcript = domain.initial_state(task), list(task.messages)
    for number, text in enumerate(texts, 1):
        transcript.append(_spoken(text) if isinstance(text, str) else text)
        if number == domain.spec.max_turns:
            break
        reply = domain.respond(task, state, transcript, NONE)
        state = json.loads(json.dumps(reply.state))
        transcript += reply.messages
        if reply.done:
            break
    return domain.score(task, state, transcript, NONE), state, transcript


def _spoken(text: str) -> Message:
    return Message("assistant", text, parse_tool_calls(text))


def bank_task(level: str = "medium", **balances: int) -> Task:
    """A hand-made task: ana must get all the money of ben."""
    goal = {**balances, "ana": balances["ana"] + balances["ben"], "ben": 0}
    return Task(
        f"tools/bank/{level}",
        Split.TRAIN,
        0,
        (Message("user", "Transfer all the money of ben to ana."),),
        metadata={"state": {"bank": balances}, "goal": {"bank": goal}, "calls": [], "key": ""},
        tools=tuple(tool.spec for tool in BANK.tools),
    )


def call(name: str, **arguments: JSON) -> str:
    return call_text(name, arguments)


def test_there_are_enough_tools_and_worlds() -> None:
    tools = [tool.name for world in WORLDS.values() for tool in world.tools]
    assert len(tools) == len(set(tools)) >= 12
    assert len(WORLDS) >= 3
    assert len({s.name for s in SPECS}) == len(SPECS) == 4 * (len(WORLDS) + 1)
    assert all(s.max_turns > 1 and s.kind == "tools" for s in SPECS)
    hard = stateful_tools.create("tools/bank/hard").task(Split.TRAIN, 0)
    assert len(hard.tools) >= 12


def test_listing_does_not_import_torch() -> None:
    code = (
        "import sys, educe.domains.builtin.stateful_tools as t; t.specs(); "
        "t.create('tools/bank/tiny'); assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(DomainError, match="tools/bank/tiny"):
        stateful_tools.create("tools/bnk/tiny")


@pytest.mark.parametrize("name", [s.name for s in SPECS])
def test_demonstrations_are_right_and_their_replies_real(name: str) -> None:
    domain = stateful_tools.create(name)
    for split in Split:
        for index in range(4):
            task = domain.task(split, index)
            assert split_of(task.metadata["key"]) is split
            assert domain.task(split, index) == task
            again = Task.from_json(json.loads(json.dumps(task.to_json())))
            assert again == task
            demonstration = domain.demonstration(again)
            turns = [m for m in demonstration if m.role == "assistant"]
            assert len(turns) <= domain.spec.max_turns
            assert all(m.tool_calls == parse_tool_calls(m.content) for m in turns)
            score, state, transcript = play(domain, again, turns)
            assert tuple(transcript[1:]) == demonstration
            assert score.value == 1.0 and score.verdict is Verdict.RIGHT, score
            assert state["num_errors"] == 0 and score.parts["subgoals"] == 1.0


@pytest.mark.parametrize("name", [s.name for s in SPECS])
def test_idle_wrong_and_foreign_answers_score_nothing(name: str) -> None:
    domain = stateful_tools.create(name)
    tasks = [domain.task(Split.TRAIN, index) for index in range(4)]
    for task, other in itertools.pairwise(tasks):
        for text in ("", "Done.", call("get_balance", account="nobody"), other.gold or ""):
            score, _, _ = play(domain, task, [text, "Done."])
            assert score.value == 0.0, text
        assert play(domain, task, [task.gold or "", "Done."])[0].value == 1.0


def test_the_sample_is_distinct_and_the_space_large() -> None:
    hashes, keys, total = set(), set(), 0
    for spec in SPECS:
        domain = stateful_tools.create(spec.name)
        for index in range(25):
            task = domain.task(Split.TRAIN, index)
            hashes.add(task.content_hash)
            keys.add(task.metadata["key"])
            total += 1
    assert len(hashes) >= total - 5
    assert len(keys) > 0.9 * total


def test_tiny_prompts_are_short() -> None:
    for world in WORLDS:
        task = stateful_tools.create(f"tools/{world}/tiny").task(Split.TRAIN, 1)
        assert len(task.tools) <= 3
        assert len(task.messages[0].content) < 380
        assert len(describe_tools(task.tools)) < 300


def test_errors_are_answered_and_the_episode_goes_on() -> None:
    domain = stateful_tools.create("tools/bank/medium")
    task = bank_task(ana=10, ben=50)
    mistakes = [
        (call("transfer", source="ben", target="ana", amount=60), "insufficient funds: ben has 50"),
        (call("transfer", source="bob", target="ana", amount=5), "no account 'bob'"),
        (call("transfer", source="ben", target="ana"), "'amount' is missing"),
        (call("transfer", source="ben", target="ana", amount="50"), "must be an integer"),
        (call("transfer", source="ben", target="ana", amount=True), "must be an integer"),
        (call("transfer", source="ben", target="ana", amount=-5), "must be above 0"),
        (call("transfer", source="ben", target="ana", amount=5, fee=1), "has no argument 'fee'"),
        (call("tranfer", source="ben", target="ana", amount=5), "Did you mean 'transfer'"),
        ("<tool_call>{'name': transfer}</tool_call>", "malformed tool call"),
        ("<tool_call>transfer ben ana 50", "malformed tool call"),
        ('<tool_call>{"name": "transfer", "arguments": [1]}</tool_call>', "must be a JSON object"),
    ]
    for text, words in mistakes:
        score, state, transcript = play(domain, task, [text])
        assert transcript[-1].role == "tool"
        assert transcript[-1].content.startswith("error: ") and words in transcript[-1].content
        assert state["world"] == task.metadata["state"] and state["num_errors"] == 1
        assert score.value == 0.0
        right = call("transfer", source="ben", target="ana", amount=50)
        score, _, _ = play(domain, task, [text, right, "Done."])
        assert score.value == 1.0 and score.parts["num_errors"] == 1.0


def test_malformed_and_good_calls_in_one_turn() -> None:
    domain = stateful_tools.create("tools/bank/medium")
    good = call("transfer", source="ben", target="ana", amount=50)
    score, _, transcript = play(
        domain, bank_task(ana=10, ben=50), [good + "<tool_call>{oops}</tool_call>", "Done."]
    )
    assert [m.role for m in transcript[2:4]] == ["tool", "tool"]
    assert transcript[2].content == "transferred" and "malformed" in transcript[3].content
    assert score.value == 1.0


def test_only_malformed_calls_are_unparseable_and_no_call_is_wrong() -> None:
    domain = stateful_tools.create("tools/bank/medium")
    task = bank_task(ana=10, ben=50)
    assert play(domain, task, ["<tool_call>x</tool_call>"])[0].verdict is Verdict.UNPARSEABLE
    score = play(domain, task, ["I moved the money."])[0]
    assert score.verdict is Verdict.WRONG and "no tool was called" in score.reason


def test_the_call_of_the_last_allowed_turn_counts() -> None:
    domain = stateful_tools.create("tools/bank/medium")
    turns = [call("list_accounts")] * (domain.spec.max_turns - 1)
    last = call("transfer", source="ben", target="ana", amount=50)
    score, state, _ = play(domain, bank_task(ana=10, ben=50), [*turns, last])
    assert state["num_turns"] == domain.spec.max_turns - 1
    assert score.value == 1.0


def test_a_call_is_made_once_however_often_it_is_scored() -> None:
    domain = stateful_tools.create("tools/bank/medium")
    task = bank_task(ana=10, ben=50)
    state = domain.initial_state(task)
    message = call_message("transfer", {"source": "ben", "target": "ana", "amount": 50})
    transcript = [*task.messages, message]
    before = json.dumps([state, task.to_json()])
    reply = domain.respond(task, state, transcript, NONE)
    assert json.dumps([state, task.to_json()]) == before, "arguments must not be changed"
    for _ in range(2):
        assert domain.score(task, reply.state, transcript, NONE).value == 1.0


def test_unwanted_changes_and_forbidden_tools_cost_the_score() -> None:
    domain = stateful_tools.create("tools/bank/medium")
    task = bank_task(ana=10, ben=50, cleo=7)
    right = call("transfer", source="ben", target="ana", amount=50)
    spoiled, _, _ = play(domain, task, [right, call("deposit", account="cleo", amount=1), "Done."])
    assert spoiled.value == 0.0 and spoiled.parts["subgoals"] == 1.0
    assert spoiled.parts["side_effects"] == 1.0 and "/bank/cleo" in spoiled.reason
    detour = [call(tool, account="cleo", amount=1) for tool in ("deposit", "withdraw")]
    restored, _, _ = play(
        domain,
        task,
        [right, *detour, "Done."],
    )
    assert restored.value == 1.0, "harmless detours are allowed"
    reopen = call("close_account", account="cleo") + call("open_account", account="cleo")
    destroyed, _, _ = play(
        domain,
        task,
        [reopen, call("deposit", account="cleo", amount=7), right, "Done."],
    )
    assert destroyed.value == 0.0 and destroyed.proof["forbidden"] == ["close_account"]


def test_partial_pay_is_the_share_of_wanted_changes() -> None:
    task = bank_task(ana=10, ben=50)
    half = call("withdraw", account="ben", amount=50)
    strict = stateful_tools.create("tools/bank/medium")
    lenient = stateful_tools.create("tools/bank/medium", partial=True)
    assert play(strict, task, [half, "Done."])[0].value == 0.0
    score = play(lenient, task, [half, "Done."])[0]
    assert score.value == 0.5 and score.verdict is Verdict.PARTIAL
    assert play(lenient, task, ["Done."])[0].value == 0.0


def test_tools_that_are_not_listed_cannot_be_called() -> None:
    domain = stateful_tools.create("tools/bank/tiny")
    task = domain.task(Split.TRAIN, 0)
    listed = {tool.name for tool in task.tools}
    hidden = next(tool.name for tool in BANK.tools if tool.name not in listed)
    _, state, transcript = play(domain, task, [call(hidden, account="ana")])
    assert "there is no tool" in transcript[-1].content
    assert state["world"] == task.metadata["state"]


def test_calls_already_parsed_and_calls_in_the_text_do_the_same() -> None:
    domain = stateful_tools.create("tools/bank/medium")
    task = bank_task(ana=10, ben=50)
    arguments = {"source": "ben", "target": "ana", "amount": 50}
    parsed = Message("assistant", "", (ToolCall("transfer", json.dumps(arguments)),))
    for message in (parsed, assistant(call_text("transfer", arguments))):
        assert play(domain, task, [message, "Done."])[0].value == 1.0


def test_calls_that_cannot_be_read_are_answered_as_malformed() -> None:
    domain = stateful_tools.create("tools/bank/medium")
    task = bank_task(ana=10, ben=50)
    for nasty in ("9" * 5000, "[" * 5000 + "]" * 5000):
        text = f'<tool_call>{{"name": "deposit", "arguments": {{"amount": {nasty}}}}}</tool_call>'
        reply = domain.respond(
            task, domain.initial_state(task), [*task.messages, assistant(text)], NONE
        )
        assert not reply.done and reply.messages[0].content.startswith("error: ")


def test_a_flood_of_calls_is_cut() -> None:
    domain = stateful_tools.create("tools/bank/medium")
    flood = call("deposit", account="ana", amount=1) * 40
    _, state, transcript = play(domain, bank_task(ana=0, ben=5), [flood])
    assert state["world"]["bank"]["ana"] == 16
    assert "only the first 16 calls" in transcript[-1].content


def test_arguments_of_odd_size_are_refused() -> None:
    deposit = next(tool for tool in BANK.tools if tool.name == "deposit")
    for raw in (
        "{",
        "[" * 5000,
        '"x"',
        '{"account": "ana", "amount": 1e400}',
        '{"account": "ana", "amount": NaN}',
        '{"account": "ana", "amount": 99999999999}',
        '{"account": "ana", "amount": ' + "9" * 5000 + "}",
        json.dumps({"account": "a" * 500, "amount": 1}),
    ):
        with pytest.raises(ToolFailure):
            check_arguments(deposit, raw)


def test_event_ids_do_not_matter_but_slots_do() -> None:
    first = {"e1": {"day": "monday", "hour": 9, "title": "yoga"}}
    second = {"e7": {"day": "monday", "hour": 9, "title": "yoga"}}
    third = {"e1": {"day": "monday", "hour": 10, "title": "yoga"}}
    assert CALENDAR.view(first) == CALENDAR.view(second) != CALENDAR.view(third)


@pytest.mark.parametrize("world", WORLDS.values(), ids=lambda w: w.name)
def test_failed_calls_name_what_is_wrong(world: World) -> None:
    """Every tool with arguments refuses an entry that does not exist, or a value out of range."""
    values: dict[str, JSON] = {"string": "nothing/here", "integer": -1, "boolean": True}
    num_refused = 0
    for tool in world.tools:
        try:
            tool.run({}, {name: values[kind] for name, kind in tool.parameters.items()})
        except ToolFailure as failure:
            assert str(failure)
            num_refused += 1
    assert num_refused >= 4
