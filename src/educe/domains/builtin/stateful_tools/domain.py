"""The domain: calls in the model's turns act on a JSON state, which is compared with a goal."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from educe.core.errors import DomainError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import draw_task, split_of
from educe.core.types import JSON, Message, Reply, Score, Split, Task, ToolCall, Verdict, user
from educe.domains.builtin.stateful_tools.composition import (
    WORLDS,
    Scenario,
    draw_scenario,
    views,
)
from educe.domains.builtin.stateful_tools.tools import (
    ToolFailure,
    call_message,
    call_text,
    check_arguments,
    describe_tools,
    unknown_tool,
)
from educe.domains.builtin.stateful_tools.world import find_tool
from educe.models.chat import parse_tool_calls

_MAX_DRAWS = 5000
_MAX_WORDINGS = 12
_MAX_CALLS = 16
_OPENING_TAG = "<tool_call>"
_CLOSINGS = (
    "When all is done, reply: Done.",
    "Reply Done. when you have finished.",
    "At the end say Done.",
)


class StatefulTools(DomainBase):
    """Do what the user asks with tools, over several turns; only the final state counts.

    Args:
        spec: the domain's spec, named ``tools/WORLD/LEVEL``.
        partial: pay the share of the wanted changes that were made, when nothing else changed.
    """

    def __init__(self, spec: DomainSpec, *, partial: bool = False) -> None:
        self.spec = spec
        _, self._world, self._level = spec.name.split("/")
        self._is_partial = partial

    def task(self, split: Split, index: int) -> Task:
        return draw_task(lambda rng: self._make(rng, split), self.spec.name, split, index)

    def _make(self, rng: random.Random, split: Split) -> Task:
        """Draw a task whose calls (and so what is asked) belong to the split, like its content."""
        for _ in range(_MAX_DRAWS):
            scenario = draw_scenario(self._world, self._level, rng)
            if split_of(scenario.key) is not split:
                continue
            task = _task_of(scenario, self.spec.name, split)
            for _ in range(_MAX_WORDINGS):
                task = _worded(task, scenario, rng)
                if split_of(task.content_hash) is split:
                    return task
        raise DomainError(f"{self.spec.name}: no {split} task found in {_MAX_DRAWS} draws")

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        messages: list[Message] = []
        state = self.initial_state(task)
        for name, arguments in task.metadata["calls"]:
            messages.append(call_message(name, arguments))
            state, replies = _run_calls(task, state, messages[-1])
            messages += replies
        return (*messages, Message("assistant", "Done."))

    def initial_state(self, task: Task) -> JSON:
        return {
            "world": copy.deepcopy(dict(task.metadata["state"])),
            "num_turns": 0,
            "num_calls": 0,
            "num_errors": 0,
            "forbidden": [],
        }

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        state, replies = _run_calls(task, state, transcript[-1])
        return Reply(tuple(replies), done=not replies, state=state)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        turns = [m for m in transcript[len(task.messages) :] if m.role == "assistant"]
        state = state or self.initial_state(task)
        if turns and state["num_turns"] < len(turns):  # the last turn got no reply: run it here
            state, _ = _run_calls(task, state, turns[-1])
        return _judge(task, state, is_partial=self._is_partial)


def _worded(task: Task, scenario: Scenario, rng: random.Random) -> Task:
    """Return the task with its tools in a fresh order and one of the closing sentences."""
    specs = [tool.spec for tool in scenario.tools]
    rng.shuffle(specs)
    text = f"{describe_tools(specs)}\n{scenario.request} {rng.choice(_CLOSINGS)}"
    return replace(task, messages=(user(text),), tools=tuple(specs))


def _task_of(scenario: Scenario, domain: str, split: Split) -> Task:
    return Task(
        domain,
        split,
        0,
        (),
        gold="\n".join(call_text(name, arguments) for name, arguments in scenario.calls),
        metadata={
            "state": scenario.state,
            "goal": scenario.goal,
            "calls": [[name, arguments] for name, arguments in scenario.calls],
            "key": scenario.key,
        },
    )


def _run_calls(task: Task, state: JSON, message: Message) -> tuple[JSON, list[Message]]:
    """Run the calls of one assistant turn; return the new state and one reply a call.

    No reply means that the turn made no call, not even a malformed one.
    """
    state = copy.deepcopy(state)
    state["num_turns"] += 1
    calls = message.tool_calls or _calls_in(message.content)
    replies = [
        Message("tool", _run_call(task, state, call), name=call.name[:40])
        for call in calls[:_MAX_CALLS]
    ]
    num_malformed = max(0, message.content.count(_OPENING_TAG) - len(calls))
    if num_malformed:
        state["num_errors"] += 1
        text = 'error: malformed tool call; write {"name": ..., "arguments": {...}} as JSON'
        replies.append(Message("tool", text, name="error"))
    if len(calls) > _MAX_CALLS:
        state["num_errors"] += 1
        text = f"error: only the first {_MAX_CALLS} calls of a turn were made"
        replies.append(Message("tool", text, name="error"))
    return state, replies


def _calls_in(text: str) -> tuple[ToolCall, ...]:
    """Return the calls in a text nobody has parsed yet; none when one cannot even be read."""
    try:
        return parse_tool_calls(text)
    except (ValueError, RecursionError):  # numbers of too many digits, brackets nested too deep
        return ()


def _run_call(task: Task, state: dict[str, JSON], call: ToolCall) -> str:
    """Run one call on the state in place; a failed call changes nothing but the counters."""
    state["num_calls"] += 1
    listed = [tool.name for tool in task.tools]
    world = state["world"]
    try:
        if call.name not in listed:
            raise unknown_tool(call.name, listed)
        section, tool = find_tool({name: WORLDS[name] for name in world}, call.name)
        arguments = check_arguments(tool, call.arguments)
        changed = copy.deepcopy(world[section])
        reply = tool.run(changed, arguments)
    except ToolFailure as failure:
        state["num_errors"] += 1
        return f"error: {failure}"
    world[section] = changed
    if tool.is_destructive:
        state["forbidden"].append(tool.name)
    return reply


def _judge(task: Task, state: JSON, *, is_partial: bool) -> Score:
    start, goal = (_flat(views(task.metadata[k])) for k in ("state", "goal"))
    final = _flat(views(state["world"]))
    wanted = {p for p in start.keys() | goal.keys() if _at(start, p) != _at(goal, p)}
    reached = {p for p in wanted if _at(final, p) == _at(goal, p)}
    others = (final.keys() | goal.keys()) - wanted
    spoiled = sorted(p for p in others if _at(final, p) != _at(goal, p))
    share = len(reached) / len(wanted)
    is_clean = not spoiled and not state["forbidden"]
    value = float(share == 1.0) if is_clean else 0.0
    if is_partial and is_clean and share < 1.0:
        value = share
    return replace(
        Score.graded(value, _reason(state, len(reached), len(wanted), spoiled)),
        verdict=_verdict(state, value),
        parts={
            "subgoals": share,
            "side_effects": float(len(spoiled) + len(state["forbidden"])),
            "num_calls": float(state["num_calls"]),
            "num_errors": float(state["num_errors"]),
        },
        proof={"spoiled": spoiled[:10], "forbidden": list(state["forbidden"])},
    )


def _verdict(state: JSON, value: float) -> Verdict:
    if value >= 1.0:
        return Verdict.RIGHT
    if state["num_calls"] == 0 and state["num_errors"]:
        return Verdict.UNPARSEABLE
    return Verdict.PARTIAL if value > 0 else Verdict.WRONG


def _reason(state: JSON, num_reached: int, num_wanted: int, spoiled: Sequence[str]) -> str:
    parts = [f"{num_reached} of {num_wanted} wanted changes"]
    if not state["num_calls"]:
        parts.append("no tool was called")
    if state["forbidden"]:
        parts.append(f"forbidden: {', '.join(state['forbidden'])}")
    if spoiled:
        parts.append(f"unwanted changes: {', '.join(spoiled[:3])}")
    return "; ".join(parts)


def _flat(value: JSON, path: str = "") -> dict[str, str]:
    """Return leaf paths to typed values as text; empty dictionaries are leaves."""
    if isinstance(value, Mapping) and value:
        found: dict[str, str] = {}
        for key, inner in value.items():
            found |= _flat(inner, f"{path}/{key.replace('/', '|')}")
        return found
    return {path: json.dumps(value)}


def _at(flat: Mapping[str, str], path: str) -> str | None:
    return flat.get(path)
