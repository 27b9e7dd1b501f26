"""A domain proves itself before it may train on, or be believed in evaluation.

:func:`check_domain` plays attempts through ``respond`` and ``score`` and asks that

- the gold attempt scores 1 on every task;
- an empty completion, the gold attempt of *another* task, and the best *constant* attempt score at
  most the declared floor;
- where the domain knows attempts to be paid without solving anything (``attacks(task)``), none of
  them scores more than the floor, on any of the tasks they are tried on;
- train, eval and screen have no content in common, item *i* is the same twice, and tasks survive
  JSON (scoring uses the round-tripped task, as a remote worker would).

The best constant attempt is chosen on one half of the tasks and measured on the other, so choosing
among many does not flatter it. "At most the floor" allows for sampling: a kind of attempt fails
when a domain whose true score is ``floor + 0.05`` would show at least the measured mean with a
probability below 1e-4 (exact binomial tail; a partial score counts as its share of a success).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from educe.core.errors import DomainError
from educe.core.protocols import Domain, Services
from educe.core.types import JSON, Message, Score, Split, Task, assistant

MARGIN = 0.05
TAIL = 1e-4
GENERIC_ANSWERS = ("0", "1", "2", "-1", "True", "False", "Yes", "No", "A", "[]")
_MAX_CONSTANTS = 12
_MAX_ATTACKED = 8
# Tasks of the small splits cost more draws (core.splits), so fewer of them are looked at.
_SHARES = {Split.TRAIN: 1, Split.EVAL: 4, Split.SCREEN: 8}

Attempt = tuple[Message, ...]
"""The assistant's messages of one attempt, in order."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check measured; ``problems`` is empty when the domain may be used.

    ``gold``, ``empty``, ``other_gold`` and ``constant`` are mean scores (None when not measured);
    ``attack`` is the highest score of an attack, of ``num_attacks`` that were played;
    ``num_distinct_tasks`` estimates the distinct tasks of the train split from repeated ones, None
    when too few repeat.
    """

    name: str
    floor: float
    num_tasks: int
    problems: tuple[str, ...] = ()
    skipped: str = ""
    gold: float | None = None
    empty: float | None = None
    other_gold: float | None = None
    constant: float | None = None
    constant_attempt: str = ""
    attack: float | None = None
    num_attacks: int = 0
    num_distinct_tasks: int | None = None
    task_ms: float = 0.0
    score_ms: float = 0.0
    max_prompt_chars: int = 0
    max_gold_chars: int = 0

    @property
    def is_ok(self) -> bool:
        return not self.problems and not self.skipped

    def to_json(self) -> dict[str, JSON]:
        row: dict[str, JSON] = {name: getattr(self, name) for name in self.__slots__}
        return {**row, "problems": list(self.problems), "is_ok": self.is_ok}


def play(domain: Domain, task: Task, attempt: Sequence[Message], services: Services) -> Score:
    """Return the score of an attempt, with the environment's replies between its messages.

    Stops as a rollout does: when the environment is done, at the last allowed turn, or when the
    attempt has no more messages.
    """
    state, transcript = domain.initial_state(task), list(task.messages)
    for turn, message in enumerate(attempt, start=1):
        transcript.append(message)
        if turn >= domain.spec.max_turns or turn == len(attempt):
            break
        reply = domain.respond(task, state, transcript, services)
        state = reply.state
        transcript.extend(reply.messages)
        if reply.done:
            break
    return domain.score(task, state, transcript, services)


def play_demonstration(domain: Domain, task: Task, services: Services) -> tuple[Score, str]:
    """Return the demonstration's score, and a complaint if its replies are not the real ones."""
    demonstration = domain.demonstration(task)
    state, transcript, complaint = domain.initial_state(task), list(task.messages), ""
    position, turn = 0, 0
    while position < len(demonstration):
        transcript.append(demonstration[position])
        position, turn = position + 1, turn + 1
        if turn >= domain.spec.max_turns:
            break
        reply = domain.respond(task, state, transcript, services)
        state = reply.state
        transcript.extend(reply.messages)
        shown = demonstration[position : position + len(reply.messages)]
        is_last = position >= len(demonstration)
        if not is_last and tuple(shown) != tuple(reply.messages):
            complaint = complaint or f"shows {shown}, but the environment replies {reply.messages}"
        position += len(reply.messages)
        if reply.done:
            break
    return domain.score(task, state, transcript, services), complaint


def check_domain(
    domain: Domain, *, num_tasks: int = 64, services: Services | None = None
) -> CheckReport:
    """Return what this module measures on ``num_tasks`` train tasks and some of the other splits.

    Errors of the domain become problems of the report; nothing is raised for them. A domain that
    executes code is skipped, saying so, when ``services`` has no sandbox.
    """
    services = services or Services()
    if domain.spec.executes_code and services.sandbox is None:
        return CheckReport(
            domain.spec.name, domain.spec.floor, 0, skipped="needs a sandbox, none was given"
        )
    return _Check(domain, num_tasks, services).run()


@dataclass(slots=True)
class _Check:
    domain: Domain
    num_tasks: int
    services: Services
    problems: list[str] = field(default_factory=list)
    num_scores: int = 0
    score_s: float = 0.0

    def run(self) -> CheckReport:
        spec = self.domain.spec
        started = time.perf_counter()
        tasks = self._tasks()
        task_s = time.perf_counter() - started
        train = tasks.get(Split.TRAIN, [])
        if not train:
            return self._report({}, tasks)
        self._check_splits(tasks)
        measured: dict[str, Any] = {"task_ms": 1e3 * task_s / sum(map(len, tasks.values()))}
        attempts = self._gold(train, measured) if spec.has_gold else []
        measured["empty"] = self._mean("an empty completion", train, [(assistant(""),)])
        if len(attempts) > 1:
            shifted = [self._differing(attempts, i) for i in range(len(attempts))]
            pairs = [(t, a) for t, a in zip(train, shifted, strict=True) if a is not None]
            if pairs:
                measured["other_gold"] = self._pairs("the gold of another task", pairs)
        self._constant(train, attempts, measured)
        self._attack(train, measured)
        for kind in ("empty", "other_gold", "constant"):
            self._compare(kind, measured.get(kind), len(train))
        measured["score_ms"] = 1e3 * self.score_s / max(1, self.num_scores)
        return self._report(measured, tasks)

    def _report(
        self, measured: Mapping[str, Any], tasks: Mapping[Split, list[Task]]
    ) -> CheckReport:
        train = tasks.get(Split.TRAIN, [])
        return CheckReport(
            self.domain.spec.name,
            self.domain.spec.floor,
            len(train),
            problems=tuple(dict.fromkeys(self.problems)),
            num_distinct_tasks=estimate_distinct([t.content_hash for t in train]),
            max_prompt_chars=max(
                (sum(len(m.content) for m in t.messages) for t in train), default=0
            ),
            max_gold_chars=max((len(t.gold or "") for t in train), default=0),
            **measured,
        )

    def _tasks(self) -> dict[Split, list[Task]]:
        """Return the tasks of each split, round-tripped through JSON."""
        found: dict[Split, list[Task]] = {}
        for split in Split:
            size = self.domain.size(split)
            count = max(2, self.num_tasks // _SHARES[split])
            count = count if size is None else min(count, size)
            if count == 0:
                self.problems.append(f"the {split} split is empty")
                continue
            try:
                tasks = [self.domain.task(split, i) for i in range(count)]
                self._check_reproducible(split, tasks)
                found[split] = [self._round_trip(task) for task in tasks]
            except Exception as error:
                self.problems.append(f"{split} tasks cannot be made: {_describe(error)}")
        return found

    def _check_reproducible(self, split: Split, tasks: Sequence[Task]) -> None:
        for index in {0, len(tasks) // 2, len(tasks) - 1}:
            again = self.domain.task(split, index)
            if again != tasks[index]:
                self.problems.append(f"task {tasks[index].task_id} differs when made again")
            if (again.domain, again.split, again.index) != (self.domain.spec.name, split, index):
                self.problems.append(f"task {split}:{index} calls itself {again.task_id}")

    def _round_trip(self, task: Task) -> Task:
        try:
            again = Task.from_json(json.loads(json.dumps(task.to_json())))
        except (TypeError, ValueError) as error:
            self.problems.append(f"task {task.task_id} is not JSON: {error}")
            return task
        if again != task:
            self.problems.append(
                f"task {task.task_id} changes on its way through JSON (tuples or non-text keys in "
                f"its metadata?)"
            )
        return again

    def _check_splits(self, tasks: Mapping[Split, list[Task]]) -> None:
        hashes = {split: {t.content_hash for t in found} for split, found in tasks.items()}
        for first, second in (
            (Split.TRAIN, Split.EVAL),
            (Split.TRAIN, Split.SCREEN),
            (Split.EVAL, Split.SCREEN),
        ):
            shared = hashes.get(first, set()) & hashes.get(second, set())
            if shared:
                self.problems.append(f"{first} and {second} share {len(shared)} tasks")

    def _gold(self, train: Sequence[Task], measured: dict[str, Any]) -> list[Attempt]:
        attempts: list[Attempt] = []
        values: list[float] = []
        for task in train:
            try:
                score, complaint = self._timed(play_demonstration, task)
                demonstration = self.domain.demonstration(task)
            except Exception as error:
                self.problems.append(f"the gold of {task.task_id} fails: {_describe(error)}")
                return []
            if complaint:
                self.problems.append(f"the demonstration of {task.task_id} {complaint}")
            if score.value is None or score.value < 1:
                self.problems.append(
                    f"the gold of {task.task_id} scores {score.value}: "
                    f"{score.reason or task.gold!r}"
                )
            values.append(score.value or 0.0)
            attempts.append(tuple(m for m in demonstration if m.role == "assistant"))
        measured["gold"] = sum(values) / len(values)
        return attempts

    @staticmethod
    def _differing(attempts: Sequence[Attempt], index: int) -> Attempt | None:
        """Return the next attempt that is not the same as attempt ``index``."""
        for offset in range(1, len(attempts)):
            other = attempts[(index + offset) % len(attempts)]
            if other != attempts[index]:
                return other
        return None

    def _constant(
        self, train: Sequence[Task], attempts: Sequence[Attempt], measured: dict[str, Any]
    ) -> None:
        """Measure on the second half of the tasks the attempt that is best on the first half."""
        half = max(1, len(train) // 2)
        counted = Counter(attempts[:half])
        frequent = [attempt for attempt, _ in counted.most_common(_MAX_CONSTANTS)]
        generic: list[Attempt] = [(assistant(text),) for text in GENERIC_ANSWERS]
        candidates = list(dict.fromkeys(frequent + generic))
        means = [self._mean("a constant attempt", train[:half], [c]) for c in candidates]
        best = max(range(len(candidates)), key=means.__getitem__)
        measured["constant"] = self._mean("a constant attempt", train[half:], [candidates[best]])
        measured["constant_attempt"] = " ⏎ ".join(m.content for m in candidates[best])[:200]

    def _attack(self, train: Sequence[Task], measured: dict[str, Any]) -> None:
        """Play the domain's own list of cheats, if it has one, on tasks spread over the sample."""
        attacks: Callable[[Task], Mapping[str, Attempt]] | None
        attacks = getattr(self.domain, "attacks", None)
        if attacks is None:
            return
        step = -(-len(train) // _MAX_ATTACKED)
        pairs = [(task, item) for task in train[::step] for item in attacks(task).items()]
        values = []
        for task, (name, attempt) in pairs:
            value = self._pairs(f"the attack {name!r}", [(task, attempt)])
            values.append(value)
            if value > self.domain.spec.floor:
                self.problems.append(f"the attack {name!r} scores {value} on {task.task_id}")
        measured["attack"], measured["num_attacks"] = max(values, default=0.0), len(values)

    def _mean(self, what: str, tasks: Sequence[Task], attempts: Sequence[Attempt]) -> float:
        pairs = [(task, attempt) for task in tasks for attempt in attempts]
        return self._pairs(what, pairs) if pairs else 0.0

    def _pairs(self, what: str, pairs: Iterable[tuple[Task, Attempt]]) -> float:
        values: list[float] = []
        for task, attempt in pairs:
            try:
                score = self._timed(play, task, attempt)
            except Exception as error:
                self.problems.append(f"scoring {what} fails: {_describe(error)}")
                return 0.0
            if score.value is None:
                self.problems.append(
                    f"{what} is unscored on {task.task_id}: {score.fault} {score.reason}"
                )
            values.append(score.value or 0.0)
        return sum(values) / len(values)

    def _timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        started = time.perf_counter()
        result = work(self.domain, *arguments, self.services)
        self.score_s += time.perf_counter() - started
        self.num_scores += 1
        return result

    def _compare(self, kind: str, mean: float | None, count: int) -> None:
        if mean is None:
            return
        count = count // 2 if kind == "constant" else count
        floor = self.domain.spec.floor
        if is_above_floor(mean, count, floor):
            name = {"empty": "an empty completion", "other_gold": "the gold of another task"}
            self.problems.append(
                f"{name.get(kind, 'a constant attempt')} scores {mean:.3f} on {count} tasks, more "
                f"than the declared floor of {floor:.3f}"
            )


def is_above_floor(mean: float, count: int, floor: float) -> bool:
    """Return whether a mean over ``count`` tasks is too high for the floor, by the rule above."""
    limit = min(1.0, floor + MARGIN)
    if count == 0 or mean <= limit:
        return False
    return binomial_tail(count, round(mean * count), limit) < TAIL


def binomial_tail(count: int, successes: int, probability: float) -> float:
    """Return P(X >= successes) for X of Binomial(count, probability)."""
    from math import comb

    return sum(
        comb(count, k) * probability**k * (1 - probability) ** (count - k)
        for k in range(successes, count + 1)
    )


def estimate_distinct(hashes: Sequence[str]) -> int | None:
    """Estimate the size of the space that uniform draws come from, by the birthday problem.

    With n draws and c equal pairs the estimate is n (n - 1) / (2 c); None when fewer than 3 pairs
    are equal, i.e. the space is too large to tell.
    """
    pairs = sum(k * (k - 1) // 2 for k in Counter(hashes).values())
    if pairs < 3:
        return None
    return max(len(set(hashes)), round(len(hashes) * (len(hashes) - 1) / (2 * pairs)))


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, DomainError) else f"{type(error).__name__}: {error}"
