"""Sampling tasks outside the reinforcement loop: orders in, scored groups out, none lost.

Distillation samples a batch a step; rejection and mining harvest all their groups before the first
step and keep them in a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from educe.config.settings import DomainSettings
from educe.core.errors import CheckpointError
from educe.core.metrics import Tally
from educe.core.protocols import Domain
from educe.core.types import Group, Split, TaskRequest
from educe.parallel.collectives import Collectives
from educe.rollout.ledger import Ledger, Standing, place_in_epoch
from educe.scheduling.mixture import StaticMixture


class GroupSource(Protocol):
    """Turns issued orders into groups, in any order (see ``trainers.rl``)."""

    def run_requests(self, requests: Sequence[TaskRequest], ledger: Ledger) -> Iterable[Group]: ...


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """What is asked of every task; 0 tokens takes each domain's own need."""

    group_size: int
    temperature: float
    max_completion_tokens: int = 0


@dataclass(slots=True)
class TaskSampler:
    """Orders the next tasks of a mixture and returns their groups in the order of issue.

    The same on every rank: rank 0 samples.

    Attributes:
        first_index: where each domain begins; a repeated stage goes on behind the first one.
    """

    source: GroupSource
    domains: Mapping[str, Domain]
    domain_settings: Mapping[str, DomainSettings]
    plan: SamplingPlan
    mixture: StaticMixture
    collectives: Collectives
    first_index: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    num_batches: int = 0

    def sample(self, num_prompts: int) -> list[Group]:
        """Return the groups of the next ``num_prompts`` tasks."""
        return self.shared(self._run(num_prompts) if self.collectives.rank == 0 else [])

    def shared(self, groups: list[Group]) -> list[Group]:
        """Return rank 0's groups on every rank."""
        if self.collectives.world_size == 1:
            return groups
        raw = self.collectives.broadcast([g.to_json() for g in groups])
        return [Group.from_json(one) for one in raw]

    def _run(self, num_prompts: int) -> list[Group]:
        requests = self.ledger.requests(Standing.ISSUED)
        requests += [self.issue() for _ in range(num_prompts - len(requests))]
        done = {}
        for group in self.source.run_requests(requests, self.ledger):
            self.ledger.mark_scored(group.request.request_id)
            done[group.request.request_id] = group
        return self.close_batch([done[r.request_id] for r in requests])

    def close_batch(self, groups: list[Group]) -> list[Group]:
        """Count a batch of scored groups as used; returns it."""
        self.ledger.mark_trained([g.request.request_id for g in groups], step=self.num_batches)
        self.num_batches += 1
        return groups

    def issue(self) -> TaskRequest:
        """Order the next task: the mixture names the domain, the ledger its next index."""
        name = self.mixture.next_domain()
        own, spec = self.domain_settings[name], self.domains[name].spec
        _, index = place_in_epoch(
            self.first_index + self.ledger.next_index(name), self.domains[name].size(Split.TRAIN)
        )
        request = TaskRequest(
            request_id=self.ledger.next_request_id,
            domain=name,
            split=Split.TRAIN,
            index=index,
            num_samples=self.plan.group_size,
            temperature=own.temperature or self.plan.temperature,
            max_completion_tokens=own.max_completion_tokens
            or self.plan.max_completion_tokens
            or spec.max_completion_tokens,
            max_turns=own.max_turns or spec.max_turns,
        )
        self.ledger.issue(request)
        return request

    def progress(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger.state(),
            "mixture": self.mixture.state(),
            "batches": self.num_batches,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.ledger = Ledger.from_state(saved["ledger"])
        self.ledger.recover()
        self.mixture.restore(saved["mixture"])
        self.num_batches = saved["batches"]


def harvest(
    sampler: TaskSampler,
    num_prompts: int,
    file: Path,
    *,
    progress: Callable[[int], None] = lambda number: None,
) -> list[Group]:
    """Return the groups of the next ``num_prompts`` tasks, each kept in ``file`` as it is done.

    What an earlier attempt left there is not redone. The weights do not change meanwhile, and a
    sample is a function of its order: an interrupted harvest ends with the groups of a whole one.

    Raises:
        CheckpointError: the file is of other orders: the recipe has changed since.
    """
    here = _harvest(sampler, num_prompts, file, progress) if sampler.collectives.rank == 0 else []
    return sampler.shared(here)


def _harvest(
    sampler: TaskSampler, num_prompts: int, file: Path, progress: Callable[[int], None]
) -> list[Group]:
    orders = [sampler.issue() for _ in range(num_prompts)]
    wanted = {order.request_id: order for order in orders}
    done = {g.request.request_id: g for g in read_groups(file)}
    for number, group in done.items():
        if wanted.get(number) != group.request:
            raise CheckpointError(
                f"{file} holds samples of other orders than this recipe gives (domains, weights or "
                f"limits have changed); start the run again under another name"
            )
        sampler.ledger.mark_scored(number)
    missing = [order for order in orders if order.request_id not in done]
    with Lines(file) as lines:
        for group in sampler.source.run_requests(missing, sampler.ledger):
            sampler.ledger.mark_scored(group.request.request_id)
            done[group.request.request_id] = group
            lines.write(json.dumps(group.to_json()))
            progress(len(done))
    return sampler.close_batch([done[order.request_id] for order in orders])


class Lines:
    """Appends whole lines to a file; a torn last one of a killed attempt is cut off first."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.read_bytes().rfind(b"\n") + 1 if file.exists() else 0
        self._stream = file.open("ab", buffering=0)
        self._stream.truncate(whole)

    def write(self, line: str) -> None:
        self._stream.write((line + "\n").encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def read_groups(file: Path) -> list[Group]:
    """Return the groups of a harvest file; a torn last line is left out."""
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")[:-1]
    return [Group.from_json(json.loads(line)) for line in lines]


def group_metrics(groups: Iterable[Group], floors: Mapping[str, float]) -> Tally:
    """Return what sampled groups say, overall and by domain; ``score`` is chance-corrected."""
    tally = Tally()
    for group in groups:
        domain = group.request.domain
        floor = floors.get(domain, 0.0)
        for trajectory in group.trajectories:
            value = trajectory.score.value
            for prefix in ("", f"domain/{domain}/"):
                tally.mean(f"{prefix}unscored", float(value is None))
                if value is not None:
                    tally.mean(f"{prefix}reward", value)
                    tally.mean(f"{prefix}score", (value - floor) / (1.0 - floor))
                tally.mean(f"{prefix}completion_tokens", trajectory.num_completion_tokens)
                tally.mean(f"{prefix}truncated", float(trajectory.is_truncated))
    return tally
