"""Runs held-out tasks through a sampler and keeps every completion.

The runner builds requests, collects groups and remembers what is done; it never imports an engine.
Finished groups are appended to a JSONL file, so an interrupted evaluation continues where it was.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from educe.core.errors import DomainError, EduceError
from educe.core.protocols import Domain
from educe.core.types import JSON, Group, Score, Split, Task, TaskRequest, Trajectory
from educe.evaluation.records import FORMAT_VERSION, EvalResult, EvalRow, Outcome, rows_of


class Sampler(Protocol):
    """Turns requests into finished, scored groups, in any order."""

    def run_requests(self, requests: Sequence[TaskRequest]) -> Iterable[Group]: ...


SampleRequests = Callable[[Sequence[TaskRequest]], Iterable[Group]]
Scorer = Callable[[Domain, Task, Trajectory], Score]


@dataclass(frozen=True, slots=True)
class Limits:
    """What replaces a domain's own limits; None keeps the domain's."""

    max_completion_tokens: int | None = None
    max_turns: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an evaluation is. ``left_s`` is None until something was finished in this session."""

    done: int
    total: int
    num_resumed: int
    elapsed_s: float
    left_s: float | None
    domain: str


@dataclass(frozen=True, slots=True)
class JournalFile:
    """Where an evaluation keeps its rows, and what they depend on besides the settings.

    ``identity`` (model, weights, prompt) is part of the file's header, so that rows of another
    model are never mixed in.
    """

    path: Path
    identity: JSON = None


class EvalJournal:
    """An append-only JSONL file of finished groups' rows, with a header that says what they are.

    A line torn by a crash is cut off on opening; rows of other settings are refused.
    """

    def __init__(self, path: Path, settings: Mapping[str, JSON]) -> None:
        self.path = path
        self.settings = json.loads(json.dumps(dict(settings)))
        self.rows: dict[tuple[str, int], list[EvalRow]] = {}
        self._synced = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size:
            self._load()
        if not path.exists() or not path.stat().st_size:
            self._append({"format_version": FORMAT_VERSION, "settings": self.settings})

    def _load(self) -> None:
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        lines = whole.splitlines()
        if not lines:
            return
        header = json.loads(lines[0])
        found = header.get("settings")
        if header.get("format_version") != FORMAT_VERSION or found != self.settings:
            raise EduceError(
                f"{self.path} holds rows of another evaluation. "
                f"{_difference(found or {}, self.settings)} "
                f"Give another output folder, or delete the file to start again."
            )
        for number, line in enumerate(lines[1:], start=2):
            try:
                raw = json.loads(line)
                rows = [EvalRow.from_json(r) for r in raw["rows"]]
            except (ValueError, KeyError, TypeError) as error:
                raise EduceError(
                    f"{self.path}:{number}: not a group of evaluated rows ({error}); "
                    f"delete the file to start again"
                ) from error
            self.rows[(raw["domain"], raw["index"])] = rows

    def add(self, group_rows: Sequence[EvalRow]) -> None:
        """Append the rows of one finished group and hand them to the system at once."""
        first = group_rows[0]
        self.rows[(first.domain, first.index)] = list(group_rows)
        self._append(
            {
                "domain": first.domain,
                "index": first.index,
                "rows": [r.to_json() for r in group_rows],
            }
        )

    def _append(self, raw: Mapping[str, JSON]) -> None:
        line = json.dumps(raw, ensure_ascii=False).encode() + b"\n"
        with self.path.open("ab") as file:
            file.write(line)
            file.flush()
            # A killed process loses nothing that was flushed; only a power cut could, and a
            # second of work is cheaper than a sync for every task.
            if time.monotonic() - self._synced >= 1.0:
                os.fsync(file.fileno())
                self._synced = time.monotonic()


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    keys = sorted(k for k in {*found, *wanted} if found.get(k) != wanted.get(k))
    return "; ".join(f"{k}: there {found.get(k)!r}, wanted {wanted.get(k)!r}" for k in keys) + "."


def plan_requests(
    domains: Mapping[str, Domain],
    *,
    tasks_per_domain: int,
    samples: int,
    temperature: float,
    split: Split = Split.EVAL,
    limits: Mapping[str, Limits] | None = None,
) -> tuple[list[TaskRequest], list[str]]:
    """Return all requests of an evaluation, and notes on domains with fewer tasks than asked.

    Index-major over domains, so that a part of the list is a fair part of every domain. Request
    ids number this list: they do not depend on what was done before, nor on the model.
    """
    if tasks_per_domain < 1 or samples < 1:
        raise EduceError(
            f"an evaluation needs at least one task and one sample, got {tasks_per_domain} tasks "
            f"and {samples} samples"
        )
    notes, counts = [], {}
    for name, domain in domains.items():
        size = domain.size(split)
        counts[name] = tasks_per_domain if size is None else min(size, tasks_per_domain)
        if counts[name] == 0:
            raise DomainError(f"{name} has no {split} tasks; leave it out or give it held-out rows")
        if counts[name] < tasks_per_domain:
            notes.append(f"{name}: only {size} {split} tasks exist, {tasks_per_domain} were asked")
    requests: list[TaskRequest] = []
    for index in range(max(counts.values(), default=0)):
        for name, domain in domains.items():
            if index >= counts[name]:
                continue
            own = (limits or {}).get(name, Limits())
            requests.append(
                TaskRequest(
                    request_id=len(requests),
                    domain=name,
                    split=split,
                    index=index,
                    num_samples=samples,
                    temperature=temperature if own.temperature is None else own.temperature,
                    max_completion_tokens=own.max_completion_tokens
                    or domain.spec.max_completion_tokens,
                    max_turns=own.max_turns or domain.spec.max_turns,
                )
            )
    return requests, notes


def evaluate(
    sampler: Sampler | SampleRequests,
    domains: Mapping[str, Domain],
    *,
    tasks_per_domain: int,
    samples: int = 1,
    temperature: float = 0.0,
    split: Split = Split.EVAL,
    scorer: Scorer | None = None,
    limits: Mapping[str, Limits] | None = None,
    label: str = "model",
    journal: JournalFile | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> EvalResult:
    """Evaluate on the first ``tasks_per_domain`` tasks of a split of every domain.

    Args:
        sampler: ``run_requests`` or an object that has it; returns groups with scored trajectories.
        samples: completions a task; more than one wants a temperature above 0.
        scorer: judges anew, e.g. by a lenient extractor; None keeps the scores that came.
        limits: per domain, what replaces its own token and turn limits.
        journal: where finished groups are kept; what is there is not sampled again, unless our
            side broke.
        progress: called after every finished group.

    Raises:
        EduceError: the journal belongs to other settings, or the sampler dropped requests.
    """
    requests, notes = plan_requests(
        domains,
        tasks_per_domain=tasks_per_domain,
        samples=samples,
        temperature=temperature,
        split=split,
        limits=limits,
    )
    settings: dict[str, JSON] = {
        "split": str(split),
        "samples": samples,
        "temperature": temperature,
        "limits": {r.domain: [r.max_completion_tokens, r.max_turns] for r in requests},
        "identity": None if journal is None else journal.identity,
        "scorer": None if scorer is None else getattr(scorer, "__qualname__", repr(scorer)),
    }
    result = evaluate_requests(
        sampler,
        domains,
        requests,
        settings=settings,
        to_rows=rows_of
        if scorer is None
        else lambda g: rows_of(_rescore(g, domains[g.task.domain], scorer)),
        label=label,
        journal=None if journal is None else journal.path,
        progress=progress,
    )
    return replace(
        result, settings={**settings, "tasks_per_domain": tasks_per_domain}, notes=tuple(notes)
    )


class RowCache(Protocol):
    """Finished rows by what they depend on, shared by evaluations (see ``evaluation.cache``)."""

    def find(self, request: TaskRequest) -> list[EvalRow] | None: ...

    def keep(self, request: TaskRequest, rows: Sequence[EvalRow]) -> None: ...


def evaluate_requests(
    sampler: Sampler | SampleRequests,
    domains: Mapping[str, Domain],
    requests: Sequence[TaskRequest],
    *,
    settings: Mapping[str, JSON],
    to_rows: Callable[[Group], list[EvalRow]] = rows_of,
    label: str = "model",
    journal: Path | None = None,
    cache: RowCache | None = None,
    progress: Callable[[Progress], None] | None = None,
    cost: Callable[[TaskRequest], float] = lambda _: 1.0,
) -> EvalResult:
    """Evaluate requests that were planned elsewhere; each (domain, index) at most once.

    Args:
        settings: what the rows depend on; kept in the journal and checked when it is opened.
        to_rows: makes the rows of a finished group.
        cache: looked into before anything is sampled.
        cost: what a request takes relative to others, for the time that is left.

    Raises:
        EduceError: see :func:`evaluate`.
    """
    book = None if journal is None else EvalJournal(journal, settings)
    finished = {} if book is None else dict(book.rows)
    start = time.monotonic()
    tracker = _Tracker(requests, cost, start, progress)
    open_requests = []
    for request in requests:
        key = (request.domain, request.index)
        found = finished.get(key)
        if found and any(r.outcome is Outcome.ERRORED for r in found):
            found = None  # what broke on our side deserves another try
        if found is None and cache is not None:
            found = cache.find(request)
        if found is None:
            open_requests.append(request)
            continue
        if finished.get(key) is not found and book is not None:
            book.add(found)
        finished[key] = found
    # What takes several turns goes first: begun last, it would keep a few rows busy for long.
    open_requests.sort(key=lambda r: -r.max_turns)
    tracker.resume(open_requests)
    for request, group in _run(sampler, open_requests):
        rows = to_rows(group)
        finished[(request.domain, request.index)] = rows
        if book is not None:
            book.add(rows)
        if cache is not None:
            cache.keep(request, rows)
        tracker.finished(request)
    wanted = [(r.domain, r.index) for r in requests]
    missing = [key for key in wanted if key not in finished]
    if missing:
        raise EduceError(
            f"the sampler returned no group for {len(missing)} of {len(requests)} requests, "
            f"e.g. {missing[0][0]} task {missing[0][1]}"
        )
    return EvalResult(
        label=label,
        rows=tuple(sorted((r for key in wanted for r in finished[key]), key=lambda r: r.key)),
        floors={name: d.spec.floor for name, d in domains.items()},
        kinds={name: d.spec.kind for name, d in domains.items()},
        settings=dict(settings),
        wall_time_s=time.monotonic() - start,
    )


def _run(
    sampler: Sampler | SampleRequests, requests: list[TaskRequest]
) -> Iterator[tuple[TaskRequest, Group]]:
    """Yield one checked group for every request."""
    if not requests:
        return
    wanted = {(r.domain, r.index): r for r in requests}
    run = sampler if callable(sampler) else sampler.run_requests
    for group in run(requests):
        request = wanted.pop((group.task.domain, group.task.index), None)
        if request is None:
            raise EduceError(
                f"the sampler returned {group.task.task_id}, which was not asked for or came twice"
            )
        if len(group.trajectories) != request.num_samples:
            raise EduceError(
                f"{group.task.task_id}: asked for {request.num_samples} samples, "
                f"got {len(group.trajectories)}"
            )
        yield request, group


def _rescore(group: Group, domain: Domain, scorer: Scorer) -> Group:
    trajectories = tuple(
        replace(t, score=scorer(domain, group.task, t)) for t in group.trajectories
    )
    return replace(group, trajectories=trajectories)


class _Tracker:
    """Counts finished requests and says how long the rest will take, by their costs."""

    def __init__(
        self,
        requests: Sequence[TaskRequest],
        cost: Callable[[TaskRequest], float],
        start: float,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self._total, self._cost, self._start, self._report = len(requests), cost, start, report
        self._num_resumed = self._done = 0
        self._open_cost = self._done_cost = 0.0

    def resume(self, open_requests: Sequence[TaskRequest]) -> None:
        """Take note of what is left; the rest was there before."""
        self._num_resumed = self._done = self._total - len(open_requests)
        self._open_cost = sum(map(self._cost, open_requests))
        self._start = time.monotonic()

    def finished(self, request: TaskRequest) -> None:
        self._done += 1
        self._done_cost += self._cost(request)
        if self._report is None:
            return
        elapsed = time.monotonic() - self._start
        rest = max(0.0, self._open_cost - self._done_cost)
        left = elapsed / self._done_cost * rest if self._done_cost > 0 else None
        self._report(
            Progress(self._done, self._total, self._num_resumed, elapsed, left, request.domain)
        )
