"""The strongest fair baseline of an untrained model: its best prompt, and a lenient extractor.

A trained model must not win by having learned a format only. So the base model may be asked with
and without worked examples, each domain takes the better one, and every plausible reading of its
answer is scored: the best one counts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from educe.core.protocols import Domain
from educe.core.seeds import derive
from educe.core.types import Group, Message, Score, Split, Task, TaskRequest, Trajectory
from educe.evaluation.records import EvalResult
from educe.evaluation.summary import summarise
from educe.rollout.outcomes import Outcome
from educe.rollout.scoring import Scoring
from educe.session import Session

_LABELLED = re.compile(
    r"(?:answer|result|output|solution)\b\s*(?:is|are|:|=)*\s*[:=]?\s*(.+)", re.I
)
_QUOTED = re.compile(r"\*\*(.+?)\*\*|\"([^\"\n]+)\"|`([^`\n]+)`|\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")
_MAX_READINGS = 16


def few_shot_prompt(domains: Mapping[str, Domain], count: int) -> Callable[[Task], list[Message]]:
    """Return a prompt maker that puts ``count`` solved training tasks before the question."""

    def prepare(task: Task) -> list[Message]:
        domain = domains[task.domain]
        head = [m for m in task.messages if m.role == "system"]
        shots: list[Message] = []
        size = domain.size(Split.TRAIN)
        for number in range(count):
            index = derive("few-shot", task.domain, number) % (size or 10_000)
            example = domain.task(Split.TRAIN, index)
            shots += [m for m in example.messages if m.role != "system"]
            shots += domain.demonstration(example)
        return [*head, *shots, *(m for m in task.messages if m.role != "system")]

    return prepare


def readings(text: str) -> list[str]:
    """Return what a lenient reader may take as the answer, most literal first, no duplicates."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found: list[str] = []
    if lines:
        found += [lines[-1], lines[0]]
    for line in lines:
        labelled = _LABELLED.search(line)
        if labelled:
            found.append(labelled.group(1))
        if "=" in line:
            found.append(line.rpartition("=")[2])
        if ":" in line:
            found.append(line.rpartition(":")[2])
    found += [next(g for g in m.groups() if g) for m in _QUOTED.finditer(text) if any(m.groups())]
    numbers = _NUMBER.findall(text)
    found += [numbers[-1], numbers[0]] if numbers else []
    cleaned = [f.strip().strip(".!*`\"' ") for f in found]
    return list(dict.fromkeys(c for c in cleaned if c))[:_MAX_READINGS]


def _submit(scoring: Scoring, task: Task, trajectory: Trajectory, number: int) -> list[str]:
    """Have every reading of a trajectory's last message scored; return their keys."""
    *before, last = trajectory.messages
    keys = []
    for place, reading in enumerate(readings(last.content)):
        keys.append(f"lenient/{task.task_id}/{number}/{place}")
        transcript = [*before, Message("assistant", reading)]
        scoring.submit_score(keys[-1], task, trajectory.state, transcript)
    return keys


def _better(best: Score, outcome: Outcome) -> Score:
    if isinstance(outcome, Score) and (outcome.value or 0.0) > (best.value or 0.0):
        return replace(outcome, reason=f"lenient reading: {outcome.reason}")
    return best


def best_reading(scoring: Scoring, task: Task, trajectory: Trajectory) -> Score:
    """Return the best score over all readings of the last message, the one given included.

    ``scoring`` is this caller's alone: every outcome that it returns is one of these readings.
    """
    best = trajectory.score
    waiting = set(_submit(scoring, task, trajectory, trajectory.sample_index))
    while waiting:
        for key, outcome in scoring.poll(0.1):
            waiting.discard(str(key))
            best = _better(best, outcome)
    return best


@dataclass(slots=True)
class LenientSession:
    """An evaluation session whose wrong single-turn answers are read in every plausible way.

    ``scoring`` is a pool of its own: in the session's pool the answers that its rollouts wait for
    would be taken away from them.
    """

    session: Session
    scoring: Scoring

    @property
    def label(self) -> str:
        return self.session.label

    @property
    def identity(self) -> object:
        return [self.session.identity, "lenient"]

    @property
    def domains(self) -> Mapping[str, Domain]:
        return self.session.domains

    @property
    def limits(self) -> Mapping[str, object]:
        return self.session.limits

    def run_requests(self, requests: Sequence[TaskRequest]) -> Iterator[Group]:
        """Yield one group a request, in order; readings are scored while others still sample."""
        opened: deque[_Read] = deque()
        by_key: dict[str, _Read] = {}
        for group in self.session.run_requests(requests):
            opened.append(self._read(group, by_key))
            self._collect(by_key, 0.0)
            while opened and not opened[0].waiting:
                yield opened.popleft().group()
        while opened:
            while opened[0].waiting:
                self._collect(by_key, 0.1)
            yield opened.popleft().group()

    def _read(self, group: Group, by_key: dict[str, _Read]) -> _Read:
        """Submit every reading of a group's wrong single-turn answers."""
        read = _Read(group, [t.score for t in group.trajectories])
        spec = self.domains[group.task.domain].spec
        for number, trajectory in enumerate(group.trajectories):
            right = (trajectory.score.value or 0.0) >= 1
            if spec.executes_code or len(trajectory.turns) != 1 or right:
                continue
            for key in _submit(self.scoring, group.task, trajectory, number):
                by_key[key] = read
                read.waiting[key] = number
        return read

    def _collect(self, by_key: dict[str, _Read], wait_s: float) -> None:
        for key, outcome in self.scoring.poll(wait_s) if by_key else ():
            by_key.pop(str(key)).take(str(key), outcome)


@dataclass(slots=True)
class _Read:
    """A finished group whose answers are being read leniently; the best reading counts.

    ``waiting`` maps the key of each reading that is not scored yet to its trajectory's number.
    """

    finished: Group
    best: list[Score]
    waiting: dict[str, int] = field(default_factory=dict)

    def take(self, key: str, outcome: Outcome) -> None:
        number = self.waiting.pop(key)
        self.best[number] = _better(self.best[number], outcome)

    def group(self) -> Group:
        pairs = zip(self.finished.trajectories, self.best, strict=True)
        return replace(self.finished, trajectories=tuple(replace(t, score=s) for t, s in pairs))


def best_per_domain(results: Sequence[EvalResult], label: str) -> EvalResult:
    """Return one result that takes, for each domain, the rows of whichever scored higher."""
    means = []
    for result in results:
        summary = summarise(result)
        means.append({d.domain: d.score.value if d.score else -1.0 for d in summary.domains})
    first = results[0]
    rows = []
    for domain in first.domains:
        winner = max(range(len(results)), key=lambda i: means[i].get(domain, -1.0))
        rows += results[winner].rows_in(domain)
    names = " or ".join(r.label for r in results)
    return replace(
        first,
        label=label,
        rows=tuple(sorted(rows, key=lambda r: r.key)),
        notes=(*first.notes, f"each domain takes the better of: {names}, read leniently"),
        wall_time_s=sum(r.wall_time_s for r in results),
    )
