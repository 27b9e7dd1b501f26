"""The domain: the model repairs a package with tools over several turns; hidden tests decide."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from educe.core.errors import DomainError, UnscoredError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import draw_task, split_of
from educe.core.types import JSON, Message, Reply, Score, Split, Task, ToolCall, Verdict, user
from educe.domains.builtin.repo_repair import attacks
from educe.domains.builtin.repo_repair.checkout import MemoryFiles, SessionFiles
from educe.domains.builtin.repo_repair.defects import Problem, build, draw_api_change, draw_bug
from educe.domains.builtin.repo_repair.grading import (
    RequiredRun,
    package_files,
    run_required,
    score_run,
)
from educe.domains.builtin.repo_repair.package import SIZES
from educe.domains.builtin.repo_repair.tools import (
    TOOLS,
    describe_run,
    edits_between,
    read_arguments,
    run_tests,
    use_tool,
)
from educe.domains.builtin.stateful_tools.tools import ToolFailure, call_text, describe_tools
from educe.models.chat import parse_tool_calls

_MAX_DRAWS, _MAX_WORDINGS, _MAX_CALLS = 5000, 200, 8
_SHOWN_CALLS = 2  # edits of one file that a demonstration makes in one turn
_OPENING_TAG = "<tool_call>"
_FINISHED = "Done."


class RepoRepair(DomainBase):
    """Repair a generated package by editing its files; all required tests must pass.

    Args:
        spec: the domain's spec, named ``repo-repair/bug/SIZE`` or ``repo-repair/api/SIZE``.
        kinds: of bugs or API changes to draw.
        partial: pay the share of repaired tests when no other test was broken.
    """

    def __init__(self, spec: DomainSpec, *, kinds: Sequence[str], partial: bool = False) -> None:
        self.spec = spec
        _, self._defects, size = spec.name.split("/")
        self._size = SIZES[size]
        self._kinds = tuple(kinds)
        self._is_partial = partial

    def task(self, split: Split, index: int) -> Task:
        return draw_task(lambda rng: self._make(rng, split), self.spec.name, split, index)

    def _make(self, rng: random.Random, split: Split) -> Task:
        """Draw a task whose defect belongs to the split, like its content."""
        draw = draw_bug if self._defects == "bug" else draw_api_change
        for _ in range(_MAX_DRAWS):
            defect = draw(rng, self._kinds)
            if split_of(defect.key) is not split:
                continue
            problem = build(rng, self._size, defect)
            if problem is None:
                continue
            task = self._task_of(problem, split)
            for _ in range(_MAX_WORDINGS):
                task = self._worded(task, problem, rng)
                if split_of(task.content_hash) is split:
                    return task
        raise DomainError(f"{self.spec.name}: no {split} task found in {_MAX_DRAWS} draws")

    def _task_of(self, problem: Problem, split: Split) -> Task:
        edits = [
            [path, old, new]
            for path in problem.goal
            for old, new in edits_between(problem.start.get(path, ""), problem.goal[path])
        ]
        calls: list[list[Any]] = [
            ["edit_file", {"path": path, "old": old, "new": new}] for path, old, new in edits
        ]
        metadata: dict[str, Any] = {
            "package": problem.package,
            "kind": problem.defect.kind,
            "key": problem.defect.key,
            "files": dict(problem.start),
            "required": [[c.test_id, c.program, list(e)] for c, e in problem.required],
            "failing": list(problem.failing),
            "shown": [c.test_id for c, _ in problem.required if c.shown],
            "shown_failing": list(problem.shown_failing),
            "target": problem.target,
            "first_looks": [list(look) for look in problem.first_looks],
            "calls": calls,
            "before": dict(problem.before),
            "known": [problem.known[0], [list(row) for row in problem.known[1]]]
            if problem.known
            else None,
        }
        gold = "\n".join(call_text(name, arguments) for name, arguments in calls)
        return Task(self.spec.name, split, 0, (), gold=gold, metadata=metadata, tools=TOOLS)

    def _worded(self, task: Task, problem: Problem, rng: random.Random) -> Task:
        """Return the task with a ticket number, which lets its content fall into the split."""
        modules = [path for path in problem.start if not path.endswith("__init__.py")]
        if self._size.shows_files:
            shown = [path for path in modules if path.startswith(f"{problem.package}/")]
            files = "\n".join(f"# {path}\n{problem.start[path]}" for path in shown)
        else:
            files = "\n".join(["Files:", *modules])
        text = (
            f"Ticket {rng.randint(100, 99999)} of the Python package {problem.package}.\n"
            f"{problem.story}\n{files}\n{describe_tools(TOOLS)}\n"
            f"When all is done, reply: {_FINISHED}"
        )
        return replace(task, messages=(user(text),))

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        """Look, edit file by file, run the tests, say that it is done."""
        files = MemoryFiles(task.metadata["files"])
        looks = () if self._size.shows_files else task.metadata["first_looks"]
        turns: list[list[Any]] = [[look] for look in looks]
        for call in task.metadata["calls"]:
            last: list[Any] = turns[-1][0] if turns else ["", {}]
            is_same_file = last[0] == "edit_file" and last[1]["path"] == call[1]["path"]
            if is_same_file and len(turns[-1]) < _SHOWN_CALLS:
                turns[-1].append(call)
            else:
                turns.append([call])
        messages: list[Message] = []
        for calls in turns:
            messages.append(_calling(calls))
            messages += [
                Message("tool", use_tool(files, call), name=call.name)
                for call in messages[-1].tool_calls
            ]
        if not self._size.shows_files:
            messages.append(_calling([["run_tests", {}]]))
            passed = [(name, "passed", "") for name in task.metadata["shown"]]
            messages.append(Message("tool", describe_run(passed, [], []), name="run_tests"))
        return (*messages, Message("assistant", _FINISHED))

    def attacks(self, task: Task) -> Mapping[str, tuple[Message, ...]]:
        """Return attempts to be paid without a repair; each must score 0."""
        return attacks.attempts(task)

    def initial_state(self, task: Task) -> JSON:
        return {"edits": {}, "num_turns": 0, "num_calls": 0, "num_errors": 0, "num_runs": 0}

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        state, replies = _take_turn(task, state, transcript[-1], services)
        return Reply(tuple(replies), done=not replies, state=state)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        turns = [m for m in transcript[len(task.messages) :] if m.role == "assistant"]
        state = state or self.initial_state(task)
        if turns and state["num_turns"] < len(turns):  # the last turn got no reply: run it here
            state, _ = _take_turn(task, state, turns[-1], services, is_last=True)
        tree = _tree(task, state)
        parts = {name: float(state[name]) for name in ("num_calls", "num_errors", "num_runs")}
        if package_files(task, tree) == package_files(task, task.metadata["files"]):
            failing = dict.fromkeys(task.metadata["failing"], "as at the start")
            run = RequiredRun(failing, False, "no file of the package was changed")
        else:
            run = run_required(task, tree, services)
        score = score_run(task, run, parts, is_partial=self._is_partial)
        if state["num_calls"] == 0 and state["num_errors"]:
            score = replace(score, verdict=Verdict.UNPARSEABLE)
        return score


def _tree(task: Task, state: JSON) -> dict[str, str]:
    """Return the checkout: the task's files with the edits of a state (None deletes)."""
    files = {**task.metadata["files"], **state["edits"]}
    return {path: text for path, text in files.items() if text is not None}


def _edits(task: Task, tree: Mapping[str, str]) -> dict[str, str | None]:
    start = task.metadata["files"]
    found: dict[str, str | None] = {p: t for p, t in tree.items() if start.get(p) != t}
    return {**found, **{path: None for path in start if path not in tree}}


def _take_turn(
    task: Task, state: JSON, message: Message, services: Services, *, is_last: bool = False
) -> tuple[JSON, list[Message]]:
    """Carry out the calls of an assistant turn; return the new state and one reply a call.

    No reply means that the turn made no call, not even a malformed one. After the last turn
    nobody reads what a test run says, so none is made.
    """
    state = {**state, "num_turns": state["num_turns"] + 1}
    calls = message.tool_calls or _calls_in(message.content)
    replies: list[Message] = []
    if calls:
        if services.sandbox is None:
            raise UnscoredError(f"{task.domain} needs Services.sandbox, and none was given")
        files = SessionFiles(services.sandbox, _tree(task, state))
        try:
            for call in calls[:_MAX_CALLS]:
                state["num_calls"] += 1
                text = _answer(task, state, files, call, is_last=is_last)
                replies.append(Message("tool", text, name=call.name[:40]))
        finally:
            files.close()
        state["edits"] = _edits(task, files.tree)
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


def _answer(
    task: Task, state: dict[str, JSON], files: SessionFiles, call: ToolCall, *, is_last: bool
) -> str:
    try:
        if call.name != "run_tests":
            return use_tool(files, call)
        read_arguments(call)
        if is_last:
            return ""
        state["num_runs"] += 1
        return run_tests(files, task.metadata["shown"], task.metadata["shown_failing"])
    except ToolFailure as failure:
        state["num_errors"] += 1
        return f"error: {failure}"


def _calls_in(text: str) -> tuple[ToolCall, ...]:
    """Return the calls in a text nobody has parsed yet; none when one cannot even be read."""
    try:
        return parse_tool_calls(text)
    except (ValueError, RecursionError):  # numbers of too many digits, brackets nested too deep
        return ()


def _calling(calls: Sequence[Sequence[Any]]) -> Message:
    text = "\n".join(call_text(name, arguments) for name, arguments in calls)
    return Message("assistant", text, parse_tool_calls(text))
