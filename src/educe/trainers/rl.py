"""The reinforcement loop: sample -> score -> step -> publish.

Synchronous training is staleness 0 of the same buffer that asynchronous training would use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from educe.algorithms.catalogue import Bundle
from educe.algorithms.steering import scheduled
from educe.config.algorithm_settings import AlgorithmSettings, ShapingSettings
from educe.config.settings import DomainSettings, ReinforceSettings
from educe.core.protocols import Domain, MetricRow, Recorder
from educe.core.types import Group, Split, TaskRequest
from educe.rollout.buffer import GroupBuffer
from educe.rollout.ledger import Ledger, Standing
from educe.rollout.packing import TrainingSample
from educe.trainers.balance import Balance
from educe.trainers.batch_credit import CreditStage, advantages_by_unit, value_metrics
from educe.trainers.coefficients import Coefficients
from educe.trainers.credit import (
    GroupCredit,
    has_raw_signal,
    losses_of,
    rollout_metrics,
    training_samples,
)
from educe.trainers.domain_gradients import GradientProbe
from educe.trainers.guards import batch_health
from educe.trainers.idle_steps import reason_without_update
from educe.trainers.mixing import TaskOrder
from educe.trainers.optimizers import learning_rate_at
from educe.trainers.reference_policy import ReferencePolicy
from educe.trainers.rehearsal import LOSSES, Rehearsal
from educe.trainers.shaping import RewardShaper
from educe.trainers.step import StepResult, TrainerState, fill_logprobs, optimizer_step

_MAX_REFILLS = 10


class GroupSource(Protocol):
    """Turns issued orders into groups, in any order, and tells the ledger what runs."""

    def run_requests(self, requests: Sequence[TaskRequest], ledger: Ledger) -> Iterable[Group]: ...

    def publish(self, version: int) -> None:
        """Make the trainer's current weights the ones that are sampled from."""
        ...

    def rest(self) -> None:
        """Give memory back that sampling does not need before the next publish."""
        ...


class SpanTimer(Protocol):
    """Measures named phases (``observability.timing.Spans``)."""

    def measure(self, name: str) -> AbstractContextManager[None]: ...

    def drain(self) -> dict[str, float]: ...


@dataclass(slots=True)
class ReinforceLoop:
    """One RL stage.

    Attributes:
        bundles: the resolved algorithm of each domain.
        order: says which task is next.
        algorithm: horizon, refresh and limits of the KL.
        shaping: of domains without a shaping of their own.
        reference: the policy that the KL is measured against, None when no bundle needs one.
        balance: how much each domain moves the weights.
        rehearsal: what of the stage's start is trained on besides.
        folder: where batches with a non-finite gradient are kept for inspection.
        version: policy version; counts publishes over the whole run.
        name: of the stage; metrics carry it.
    """

    state: TrainerState
    source: GroupSource
    domains: Mapping[str, Domain]
    settings: ReinforceSettings
    domain_settings: Mapping[str, DomainSettings]
    bundles: Mapping[str, Bundle]
    order: TaskOrder
    recorder: Recorder
    spans: SpanTimer
    folder: Path
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    shaping: ShapingSettings = field(default_factory=ShapingSettings)
    reference: ReferencePolicy | None = None
    balance: Balance = field(default_factory=Balance)
    rehearsal: Rehearsal = field(default_factory=Rehearsal)
    version: int = 0
    name: str = "rl"
    ledger: Ledger = field(default_factory=Ledger)
    num_completion_tokens: int = 0
    _planned: dict[str, float] = field(init=False, default_factory=dict)
    _dropped: list[str] = field(init=False, default_factory=list)
    _sampled: tuple[int, int] = field(init=False, default=(0, 0))
    _reference_kl: float = field(init=False, default=0.0)
    _credit: CreditStage = field(init=False)

    def __post_init__(self) -> None:
        lacking = [n for n, b in self.bundles.items() if b.needs_values]
        if lacking and self.state.value_head is None:
            raise ValueError(f"{lacking[0]} trains with values, but the state has no value head")
        self._credit = CreditStage(
            self.state,
            self.bundles,
            RewardShaper.of(self.shaping, self.domain_settings),
            Coefficients.of(self.bundles.values(), self.algorithm, self.settings.exploration),
            self.reference,
            takes_several_updates=self.settings.updates * self.settings.epochs > 1,
        )

    def step(self, number: int) -> dict[str, float]:
        """Do rollout batch ``number``: sample -> score -> step -> publish; return its metrics."""
        with self.spans.measure("rollout"):
            groups = self._collect(number)
            self.source.rest()
        with self.spans.measure("credit"):
            credits = self.balance.scaled(self._credit.credit(groups))
        with self.spans.measure("train"):
            results = self._update(number, credits)
        with self.spans.measure("publish"):
            self.version += 1
            self.source.publish(self.version)
        return self._record(number, credits, results)

    # Sample and score

    def _collect(self, number: int) -> list[Group]:
        """Return the batch's groups, in submission order, the same on every rank."""
        collectives = self.state.collectives
        groups = self._sample(number) if collectives.rank == 0 else []
        if collectives.world_size == 1:
            return groups
        shared = collectives.broadcast([g.to_json() for g in groups])
        return [Group.from_json(raw) for raw in shared]

    def _sample(self, number: int) -> list[Group]:
        batch = None
        groups: list[Group] = []
        begin = time.monotonic()
        self._planned = self.order.metrics()
        num_orders = self._order_batch(number)
        buffer = GroupBuffer(self.ledger, batch_size=num_orders, reject=self._reason_to_drop)
        for _ in range(_MAX_REFILLS):
            # Orders that a lost worker or an earlier attempt left come first.
            requests = self.ledger.requests(Standing.ISSUED)
            missing = num_orders - len(buffer) - len(requests)
            requests += [self._issue(number) for _ in range(missing)]
            arriving = self.source.run_requests(requests, self.ledger)
            groups += [group for group in arriving if buffer.add(group)]
            batch = buffer.next_batch(self.version)
            if batch is not None:
                break
        batch = batch or buffer.next_batch(self.version, is_last=True) or ()
        if batch:
            buffer.mark_trained(batch, step=number)
        self._dropped = [reason for _, reason in buffer.take_dropped()]
        lengths = [t.num_completion_tokens for g in groups for t in g.trajectories]
        self._sampled = (len(lengths), sum(lengths))
        self.num_completion_tokens += sum(lengths)
        self.order.observe(number, groups, self.ledger, time.monotonic() - begin)
        return list(batch)

    def _order_batch(self, number: int) -> int:
        """Order the tasks of rollout batch ``number``; return how many groups it is to have."""
        orders = self.ledger.requests(Standing.ISSUED)
        while not self.order.is_full(orders):
            orders.append(self._issue(number))
        self._planned |= self.order.planned(orders)
        return len(orders)

    def _issue(self, step: int) -> TaskRequest:
        """Order the next task."""
        name, index = self.order.next_task(self.ledger, self.domains)
        own, spec = self.domain_settings[name], self.domains[name].spec
        num_greedy = int(self.bundles[name].needs_greedy)
        request = TaskRequest(
            request_id=self.ledger.next_request_id,
            domain=name,
            split=Split.TRAIN,
            index=index,
            num_samples=self.settings.group_size + num_greedy,
            num_greedy=num_greedy,
            temperature=self._temperature(own, step),
            max_completion_tokens=own.max_completion_tokens
            or self.settings.max_completion_tokens
            or spec.max_completion_tokens,
            max_turns=own.max_turns or spec.max_turns,
        )
        self.ledger.issue(request)
        return request

    def _temperature(self, own: DomainSettings, step: int) -> float:
        """Return a domain's sampling temperature; its schedule is the run's, in proportion."""
        first, plan = self.settings.temperature, self.settings.exploration
        start = own.temperature or first
        if not plan.temperature:
            return start
        last = start * plan.temperature / first
        return scheduled(start, last, step, plan.steps or self.settings.steps, plan.shape)

    def _reason_to_drop(self, group: Group) -> str:
        bundle = self.bundles[group.request.domain]
        if not (self.settings.drop_trivial or bundle.drop_trivial):
            return ""
        return "" if has_raw_signal(group, bundle) else "trivial"

    # Step

    def _update(self, number: int, credits: Sequence[GroupCredit]) -> list[StepResult]:
        """Take the batch's optimizer steps, each on its own share of the prompts."""
        losses = {**losses_of(self.bundles), **LOSSES}
        parts = self._parts(number, credits)
        rate = self.balance.rate_factor * learning_rate_at(
            number, self.settings.learning_rate, self.state.settings, self.settings.steps
        )
        results: list[StepResult] = []
        for own, part in parts * self.settings.epochs:
            if results:
                _measure_from_start(part)
            probe = self.balance.probe(number, self.state)
            result = optimizer_step(self.state, part, losses, rate, probe=probe)
            if probe is not None:
                self._tell_interference(number, probe, own)
            if result.skipped:
                self._keep_for_inspection(number, part, result)
            results.append(result)
            if self._has_gone_far(number, result):
                break
        self._steer(number, credits, results)
        return results

    def _parts(
        self, number: int, credits: Sequence[GroupCredit]
    ) -> list[tuple[list[GroupCredit], list[TrainingSample]]]:
        """Return each update's groups and its samples, ready to be trained on; those of none, left
        out."""
        steered = self._credit.coefficients.streams()
        parts = []
        for own in _cut(credits, self.settings.updates):
            samples = training_samples(
                own, self.bundles, coefficients=steered, by_domain=self.balance.splits_denominators
            )
            if samples:
                self.balance.weigh(samples)
                parts.append((own, samples))
        self._fill_streams([samples for _, samples in parts])
        for _, samples in parts:
            # Behind the last group and sequence, which number the samples of this update.
            first = 1 + max(max(s.group, s.sequence) for s in samples)
            samples += self.rehearsal.samples(number, first)
        return parts

    def _tell_interference(
        self, number: int, probe: GradientProbe, credits: Sequence[GroupCredit]
    ) -> None:
        matrix = self.balance.measured(probe, credits)
        if matrix is not None:
            told = {"stage": self.name, "step": number, **matrix.to_json()}
            self.recorder.record_event("interference", told)

    def _fill_streams(self, parts: Sequence[Sequence[TrainingSample]]) -> None:
        """Compute reference and starting log-probabilities where the losses need them.

        Before the first step the proximal policy is the policy itself, by construction of the
        loss; ``start_logprobs`` become it from the second step on.
        """
        limit = self.state.settings.micro_batch_tokens
        if self.reference is not None:
            for part in parts:
                lacking = [
                    s
                    for s in part
                    if self.bundles[s.origin].needs_reference
                    and "reference_logprobs" not in s.streams
                ]
                self.reference.fill(self.state, lacking, "reference_logprobs")
        for part in parts if self.settings.epochs > 1 else parts[1:]:
            known = ("start_logprobs", "proximal_logprobs")
            later = [s for s in part if not any(name in s.streams for name in known)]
            fill_logprobs(
                self.state.model, later, "start_logprobs", limit, self.state.compute_dtype
            )

    def _has_gone_far(self, number: int, result: StepResult) -> bool:
        """Return whether the policy is too far from where this batch's updates began."""
        limit, kl = self.algorithm.kl.stop_update, result.tally.values().get("update_k3", 0.0)
        if not 0 < limit < kl:
            return False
        told = {"stage": self.name, "step": number, "kl": kl, "limit": limit}
        self.recorder.record_event("updates_ended", told)
        return True

    def _steer(
        self, number: int, credits: Sequence[GroupCredit], results: Sequence[StepResult]
    ) -> None:
        """Move what follows the updates: coefficients, the reference."""
        counts: dict[str, int] = {}
        for credit in credits:
            name = self.bundles[credit.group.request.domain].name
            counts[name] = counts.get(name, 0) + sum(credit.in_loss_G)
        tallies = [r.tally for r in results]
        self._credit.coefficients.observe(tallies, self.bundles, counts)
        if results:
            self._reference_kl = results[-1].tally.values().get("kl_k3", 0.0)
        self.balance.observe(tallies, _mean_scores(credits), reference_kl=self._reference_kl)
        every = self.algorithm.kl.refresh_steps
        if self.reference is not None and every and (number + 1) % every == 0:
            self.reference.refresh(self.state)
            self.recorder.record_event("reference", {"stage": self.name, "step": number})

    @property
    def is_far_from_reference(self) -> bool:
        """Whether the KL to the reference went over the limit that ends the stage."""
        return 0 < self.algorithm.kl.stop < self._reference_kl

    def _keep_for_inspection(
        self, number: int, samples: Sequence[TrainingSample], result: StepResult
    ) -> None:
        path = self.folder / f"step-{number:06d}-{self.state.step}.jsonl"
        if self.state.collectives.rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                for sample in samples:
                    row = {
                        "origin": sample.origin,
                        "token_ids": sample.token_ids.tolist(),
                        "mask": sample.mask.tolist(),
                        "streams": {
                            n: [repr(float(x)) for x in v] for n, v in sample.streams.items()
                        },
                    }
                    file.write(json.dumps(row) + "\n")
        self.recorder.record_event(
            "non_finite",
            {"stage": self.name, "step": number, "reason": result.skipped, "batch": path.name},
        )

    # Record

    def _record(
        self, number: int, credits: Sequence[GroupCredit], results: Sequence[StepResult]
    ) -> dict[str, float]:
        floors = {name: domain.spec.floor for name, domain in self.domains.items()}
        overall = rollout_metrics(credits, floors) | value_metrics(credits)
        overall |= self._credit.coefficients.metrics() | self.balance.metrics()
        overall |= batch_health(
            [c.rewards_G for c in credits], advantages_by_unit(credits, self.bundles)
        )
        for result in results:
            overall.update(result.tally.values())
        if results:
            overall["grad_norm"] = max(r.grad_norm for r in results)
            overall["skipped"] = float(any(r.skipped for r in results))
        else:
            reason = reason_without_update(credits, self._dropped)
            told = {"stage": self.name, "step": number, "reason": reason}
            self.recorder.record_event("no_update", told)
        trained = sum(r.num_tokens for r in results)
        tokens = sum(t.num_completion_tokens for c in credits for t in c.group.trajectories)
        overall |= {"tokens": tokens, "trained_tokens": trained, "updates": len(results)}
        overall["sampled_tokens"] = float(self.num_completion_tokens)
        overall["dropped"] = float(len(self._dropped))
        rollouts, sampled = self._sampled
        overall |= {"rollouts": float(rollouts), "rollout_tokens": float(sampled)}
        prefix = f"{self.name}/"
        values = {n if n.startswith("domain/") else prefix + n: v for n, v in overall.items()}
        times = self.spans.drain()
        values |= times | self._planned
        if self.state.collectives.rank == 0:
            self.recorder.record_metrics(
                MetricRow(self.name, number, values, times.get("time/step_s", 0.0))
            )
            for credit in credits:
                record_group(self.recorder, self.name, number, credit)
        return values

    # Resume

    def progress(self) -> dict[str, Any]:
        """Return everything that the loop needs to continue, as JSON."""
        return {
            "ledger": self.ledger.state(),
            **self.order.state(),
            "version": self.version,
            "completion_tokens": self.num_completion_tokens,
            "credit": self._credit.progress(),
            "balance": self.balance.state(),
            "rehearsal": self.rehearsal.state(),
            "reference_kl": self._reference_kl,
        }

    def restore(self, progress: Mapping[str, Any]) -> None:
        self.ledger = Ledger.from_state(progress["ledger"])
        self.ledger.recover()
        # A domain may have left the recipe since: what was ordered of it is not run any more.
        gone = [r.request_id for r in self.ledger.open_requests() if r.domain not in self.domains]
        self.ledger.mark_dropped(gone, "domain_removed")
        self.order.restore(progress)
        self.version = progress["version"]
        self.num_completion_tokens = progress["completion_tokens"]
        self._credit.restore(progress["credit"])
        self.balance.restore(progress.get("balance", {}))
        self.rehearsal.restore(progress.get("rehearsal", {}))
        self._reference_kl = progress["reference_kl"]
        if self.reference is not None:
            self.reference.restore(self.state)


def _measure_from_start(samples: Sequence[TrainingSample]) -> None:
    """Let the ratio be against the policy before the batch's first step."""
    for sample in samples:
        if "start_logprobs" in sample.streams:
            sample.streams.setdefault("proximal_logprobs", sample.streams["start_logprobs"])


def _mean_scores(credits: Sequence[GroupCredit]) -> dict[str, float | None]:
    """Return each domain's mean raw score in a batch, None where nothing was scored."""
    scores: dict[str, list[float]] = {}
    for credit in credits:
        known = [r for r in credit.rewards_G[: credit.num_sampled] if r is not None]
        scores.setdefault(credit.group.request.domain, []).extend(known)
    return {n: sum(own) / len(own) if own else None for n, own in scores.items()}


def _cut(credits: Sequence[GroupCredit], parts: int) -> list[list[GroupCredit]]:
    """Deal groups to ``parts`` updates in turn, so that each sees every domain it can."""
    return [list(credits[i::parts]) for i in range(parts)]


def record_group(recorder: Recorder, stage: str, step: int, credit: GroupCredit) -> None:
    """Write a group's samples to the run store."""
    for i, trajectory in enumerate(credit.group.trajectories):
        recorder.record_sample(
            stage,
            step,
            {
                **trajectory.to_json(),
                "domain": credit.group.request.domain,
                "task_id": credit.group.task.task_id,
                "split": str(credit.group.request.split),
                "gold": credit.group.task.gold,
                "reward": credit.rewards_G[i],
                "advantage": credit.advantages_G[i],
                "in_loss": credit.in_loss_G[i],
            },
        )
