"""educe's suites and domains as tasks of Inspect (the extra ``inspect``).

    inspect eval educe/suite -T tier=small -T dimensions=completion --model openai-api/educe/NAME
    inspect eval educe/domains -T names=rg/gcd/easy,arithmetic/add/tiny -T tasks=50 --model …

Inspect asks the model and keeps the log; tasks, environments and scores are educe's own, scored in
killable workers as everywhere. What has no score is NaN there, which Inspect counts as unscored,
and never as wrong. ``suite_result`` reads a finished log back: the dimensions' own numbers, with
their intervals, as ``educe eval`` prints them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from educe.config.settings import DomainSettings
from educe.core.errors import EduceError, MissingExtraError
from educe.core.protocols import Domain
from educe.core.types import JSON, Message, Reply, Score, Task, TaskRequest
from educe.domains.registry import resolve
from educe.evaluation.asking import Asked, ask
from educe.evaluation.dimensions import load_suite_dimensions
from educe.evaluation.dimensions.protocol import TIERS, Part, PlanContext
from educe.evaluation.records import EvalResult, EvalRow, outcome_of
from educe.evaluation.strategies import strategy_named
from educe.evaluation.suite import SuitePlan, SuiteResult, read_suite, refused_row, suite_settings
from educe.models.chat import parse_tool_calls
from educe.rollout.outcomes import Outcome, ReplyFailure

if TYPE_CHECKING:
    from educe.rollout.scoring import ScoringPool

try:
    import inspect_ai
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )
    from inspect_ai.scorer import Score as InspectScore
    from inspect_ai.scorer import Scorer, Target, grouped, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
except ImportError as missing:
    raise MissingExtraError("inspect_ai", "inspect", "running suites as Inspect tasks") from missing

ROW = "educe_row"
_STORE = "educe"
_LIMITS = ("max_tokens", "model_length")


class ScoringDesk:
    """Scores and environments for samples that run side by side: one pool, one thread that polls.

    Opened when first used; the pool's workers end with the process.
    """

    def __init__(
        self,
        settings: Mapping[str, DomainSettings],
        domains: Mapping[str, Domain],
        *,
        num_workers: int = 1,
        timeout_s: float = 20.0,
        sandbox_minimum: str = "namespaces",
    ) -> None:
        self.domains = domains
        self._settings = settings
        self._options = (num_workers, timeout_s, sandbox_minimum)
        self._condition = threading.Condition()
        self._pool: ScoringPool | None = None
        self._waiting: dict[int, Future[Outcome]] = {}
        self._next_key = 0

    async def score(self, task: Task, state: JSON, transcript: Sequence[Message]) -> Score:
        outcome = await self._ask("submit_score", task, state, transcript)
        if not isinstance(outcome, Score):
            raise EduceError(f"{task.task_id}: expected a score, got {outcome!r}")
        return outcome

    async def respond(self, task: Task, state: JSON, transcript: Sequence[Message]) -> Outcome:
        """Return the environment's reply, or how it failed."""
        return await self._ask("submit_respond", task, state, transcript)

    async def _ask(
        self, operation: str, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> Outcome:
        from anyio import to_thread

        with self._condition:
            pool = self._pool or self._open()
            key, self._next_key = self._next_key, self._next_key + 1
            future = self._waiting[key] = Future()
            getattr(pool, operation)(key, task, state, list(transcript))
            self._condition.notify()
        return await to_thread.run_sync(future.result)

    def _open(self) -> ScoringPool:
        from educe.rollout.scoring import ScoringPool

        num_workers, timeout_s, minimum = self._options
        sandbox = None
        if any(domain.spec.executes_code for domain in self.domains.values()):
            from educe.sandbox import open_sandbox

            sandbox = open_sandbox(minimum=minimum)
        self._pool = ScoringPool(
            self._settings,
            num_workers=num_workers,
            timeout_s=timeout_s,
            sandbox=sandbox,
            sandbox_minimum=minimum,
        )
        threading.Thread(target=self._deliver, name="educe-scores", daemon=True).start()
        return self._pool

    def _deliver(self) -> None:
        assert self._pool is not None
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting)
            try:
                outcomes = self._pool.poll(1.0)
            except Exception as error:
                with self._condition:
                    lost, self._waiting = list(self._waiting.values()), {}
                for future in lost:
                    future.set_exception(error)
                return
            for key, outcome in outcomes:
                with self._condition:
                    future = self._waiting.pop(int(str(key)))
                future.set_result(outcome)


@dataclass(slots=True)
class _Attempt:
    """What a sample's solver leaves for its scorer."""

    transcript: list[Message]
    state: JSON
    failure: Score | None = None
    num_turns: int = 0
    num_tokens: int = 0
    is_truncated: bool = False

    def take(self, state: TaskState) -> None:
        """Add the turn that the model has just made."""
        text = state.output.completion
        self.transcript.append(Message("assistant", text, parse_tool_calls(text)))
        self.num_turns += 1
        self.num_tokens += 0 if state.output.usage is None else state.output.usage.output_tokens
        self.is_truncated = state.output.stop_reason in _LIMITS

    def to_json(self) -> dict[str, JSON]:
        return {
            **dataclasses.asdict(self),
            "transcript": [m.to_json() for m in self.transcript],
            "failure": None if self.failure is None else self.failure.to_json(),
        }

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> _Attempt:
        failure = raw["failure"]
        told = {
            "transcript": [Message.from_json(m) for m in raw["transcript"]],
            "failure": None if failure is None else Score.from_json(failure),
        }
        return _Attempt(**{**raw, **told})

    def row(self, task: Task, score: Score, sample: int) -> EvalRow:
        start = len(task.messages)
        return refused_row(
            EvalRow(
                domain=task.domain,
                index=task.index,
                sample=sample,
                # The same task under two wordings stays one item.
                content_hash=str(task.metadata.get("base_hash") or task.content_hash),
                value=score.value,
                outcome=outcome_of(score, self.is_truncated),
                is_truncated=self.is_truncated,
                num_tokens=self.num_tokens,
                num_turns=self.num_turns,
                reason=score.reason,
                prompt=tuple(self.transcript[:start]),
                completion=tuple(self.transcript[start:]),
                gold=task.gold,
                parts=dict(score.parts),
                proof=dict(score.proof),
            )
        )


@inspect_ai.task  # type: ignore[untyped-decorator]
def suite(
    tier: str = "small", dimensions: str = "", name: str = "standard", tool_replies: str = "tool"
) -> inspect_ai.Task:
    """A suite as one Inspect task; ``dimensions`` separated by commas, empty for all.

    ``tool_replies`` is the role of an environment's replies to tool calls: ``tool`` for educe's
    own server, ``user`` for providers that take such replies only after calls of their own kind.
    """
    wanted = tuple(d.strip() for d in dimensions.split(",") if d.strip())
    if tier not in TIERS:
        raise EduceError(f"tier must be one of {', '.join(TIERS)}, got {tier!r}")
    plan = SuitePlan(suite=name, tier=tier, dimensions=wanted)
    return suite_task(plan, tool_replies=tool_replies)


@inspect_ai.task  # type: ignore[untyped-decorator]
def domains(
    names: str, tasks: int = 50, samples: int = 1, temperature: float = 0.0, max_tokens: int = 0,
    tool_replies: str = "tool",
) -> inspect_ai.Task:  # fmt: skip
    """Held-out tasks of domains as one Inspect task; names or globs separated by commas.

    ``max_tokens`` of a turn; 0 takes each domain's own limit.
    """
    if samples > 1 and temperature == 0:
        raise EduceError(f"{samples} samples at temperature 0 are {samples} times the same text")
    wanted = [n.strip() for n in names.split(",") if n.strip()]
    settings = resolve({n: DomainSettings() for n in wanted})
    parts = [
        Part(
            n, own, source=n, num_tasks=tasks, samples=samples, temperature=temperature,
            max_completion_tokens=max_tokens or own.max_completion_tokens, max_turns=own.max_turns,
        )
        for n, own in settings.items()
    ]  # fmt: skip
    return _task_of("domains", SuitePlan(suite="domains"), {"domains": parts}, tool_replies)


def suite_task(
    plan: SuitePlan, *, context: PlanContext | None = None, tool_replies: str = "tool"
) -> inspect_ai.Task:
    """Return a suite as an Inspect task.

    Args:
        context: with ``count_tokens`` and ``context_length`` where the tokenizer is at hand, which
            long documents are cut by; the tier, seed, domains and options are the plan's.

    Raises:
        EduceError: an unknown suite or dimension, a package that cannot be had, or a strategy
            other than ``direct`` (Inspect has solvers of its own).
    """
    if plan.strategy != "direct":
        raise EduceError(f"as Inspect tasks suites are asked directly, not by {plan.strategy!r}")
    parts: dict[str, Sequence[Part]] = {}
    for dimension in load_suite_dimensions(plan.suite, plan.dimensions):
        own = replace(
            context or PlanContext(),
            tier=plan.tier,
            seed=plan.seed,
            domains=plan.domains,
            options=plan.options.get(dimension.name, {}),
        )
        parts[dimension.name] = dimension.plan(own)
    return _task_of(f"educe-{plan.suite}", plan, parts, tool_replies)


def _task_of(
    name: str, plan: SuitePlan, parts: Mapping[str, Sequence[Part]], tool_replies: str
) -> inspect_ai.Task:
    if tool_replies not in ("tool", "user"):
        raise EduceError(f"tool_replies must be 'tool' or 'user', got {tool_replies!r}")
    notes: list[str] = []
    direct = strategy_named("direct")
    asked = [ask(group, part, direct, notes) for group, own in parts.items() for part in own]
    sources = {a.name: a for a in asked}
    desk = ScoringDesk({a.name: a.settings for a in asked}, {a.name: a.domain for a in asked})
    samples = [
        _sample(a, request, sample)
        for a in asked
        for request in a.requests
        for sample in range(request.num_samples)
    ]
    settings = suite_settings(plan, asked, None)
    return inspect_ai.Task(
        dataset=MemoryDataset(samples, name=name),
        solver=educe_solver(sources, desk, tool_replies),
        scorer=educe_scorer(sources, desk),
        name=name,
        metadata={
            "educe_settings": json.dumps(settings),
            "educe_floors": {a.name: a.domain.spec.floor for a in asked},
            "educe_kinds": {a.name: a.domain.spec.kind for a in asked},
            "educe_notes": notes,
        },
    )


def _sample(asked: Asked, request: TaskRequest, sample: int) -> Sample:
    task = asked.domain.task(request.split, request.index)
    return Sample(
        input=[_to_inspect(m, "tool") for m in task.messages],
        target=task.gold or "",
        id=f"{asked.name}#{request.index}" + (f"~{sample}" if request.num_samples > 1 else ""),
        metadata={"part": asked.name, "index": request.index, "sample": sample},
    )


@solver  # type: ignore[untyped-decorator]
def educe_solver(sources: Mapping[str, Asked], desk: ScoringDesk, tool_replies: str) -> Solver:
    """Let the model answer, its environment reply, and so on until the environment is done."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        asked = sources[state.metadata["part"]]
        request = asked.requests[state.metadata["index"]]
        task = asked.domain.task(request.split, request.index)
        attempt = _Attempt(list(task.messages), asked.domain.initial_state(task))
        while True:
            state = await generate(
                state,
                tool_calls="none",
                max_tokens=request.max_completion_tokens,
                temperature=request.temperature_of(state.metadata["sample"]),
            )
            attempt.take(state)
            replies = await _replies(attempt, request, task, desk)
            # In the store, so that a log can be scored again.
            state.store.set(_STORE, attempt.to_json())
            if replies is None:
                return state
            state.messages += [_to_inspect(m, tool_replies) for m in replies]

    return solve


async def _replies(
    attempt: _Attempt, request: TaskRequest, task: Task, desk: ScoringDesk
) -> tuple[Message, ...] | None:
    """Let the environment answer the last turn; None when the attempt is over."""
    if attempt.num_turns >= request.max_turns or attempt.is_truncated:
        return None
    reply = await desk.respond(task, attempt.state, attempt.transcript)
    if isinstance(reply, ReplyFailure):
        attempt.failure = reply.as_score()
    if not isinstance(reply, Reply):
        return None
    attempt.state = reply.state
    attempt.transcript.extend(reply.messages)
    return None if reply.done else reply.messages


@scorer(metrics=[grouped(mean(), "part"), stderr()])  # type: ignore[untyped-decorator]
def educe_scorer(sources: Mapping[str, Asked], desk: ScoringDesk) -> Scorer:
    """Score with the domain's own scorer; the whole row is kept in the score's metadata."""

    async def score(state: TaskState, target: Target) -> InspectScore:
        asked = sources[state.metadata["part"]]
        request = asked.requests[state.metadata["index"]]
        task = asked.domain.task(request.split, request.index)
        attempt = _Attempt.from_json(state.store.get(_STORE))
        found = attempt.failure or await desk.score(task, attempt.state, attempt.transcript)
        row = attempt.row(task, found, state.metadata["sample"])
        return InspectScore(
            value=math.nan if found.value is None else found.value,
            answer=state.output.completion,
            explanation=f"{row.outcome}: {found.reason}".rstrip(": "),
            metadata={ROW: json.dumps(row.to_json())},
        )

    return score


def suite_result(log: Any, label: str = "") -> SuiteResult:
    """Return the dimensions' numbers of a finished log of a suite (``inspect_ai.log.EvalLog``).

    Raises:
        EduceError: the log is of no suite of educe's.
    """
    return read_suite(eval_result(log, label))


def eval_result(log: Any, label: str = "") -> EvalResult:
    """Return the rows of a finished log, for every report and comparison of ``evaluation``."""
    facts = log.eval.metadata or {}
    if "educe_settings" not in facts:
        raise EduceError(f"the log of {log.eval.task!r} is of no suite of educe's")
    rows = [
        EvalRow.from_json(json.loads(score.metadata[ROW]))
        for sample in log.samples or ()
        for score in (sample.scores or {}).values()
        if score.metadata and ROW in score.metadata
    ]
    return EvalResult(
        label=label or log.eval.model,
        rows=tuple(sorted(rows, key=lambda r: r.key)),
        floors=facts["educe_floors"],
        kinds=facts["educe_kinds"],
        settings=json.loads(facts["educe_settings"]),
        notes=tuple(facts["educe_notes"]),
    )


def _to_inspect(message: Message, tool_role: str) -> ChatMessage:
    role = message.role
    if role == "tool":
        role = tool_role
    if role == "tool":
        return ChatMessageTool(
            content=message.content, function=message.name or None, tool_call_id=message.name
        )
    kinds = {"system": ChatMessageSystem, "user": ChatMessageUser}
    return kinds.get(role, ChatMessageAssistant)(content=message.content)
