"""What the loop tells the mixture: results of groups, by order of issue, with their costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from educe.config.settings import Recipe
from educe.core.errors import DomainError
from educe.core.protocols import Domain
from educe.core.types import JSON, Group, Split, Task, TaskRequest
from educe.rollout.ledger import Ledger, place_in_epoch
from educe.scheduling.batches import BatchSize, limit_of
from educe.scheduling.choice import build_mixture, build_ramp, build_tasks
from educe.scheduling.mixture import Mixture
from educe.scheduling.results import GroupResult
from educe.scheduling.tasks import TaskChooser

CostOfBatch = Callable[[int, Sequence[GroupResult], float], Mapping[str, float]]


@dataclass(slots=True)
class TaskOrder:
    """Says which task is next and how many make a batch, and learns from what came of it.

    Attributes:
        mixture: names the domain.
        size: says how many orders make a rollout batch.
        chooser: names the task of a finite domain; None takes tasks in turn.
        costs: measured seconds by domain of (batch number, results, seconds of the rollout); None
            leaves costs to tokens.
        first_index: where each domain begins; a repeated stage goes on behind the first one.
    """

    mixture: Mixture
    size: BatchSize
    chooser: TaskChooser | None = None
    costs: CostOfBatch | None = None
    first_index: int = 0

    def next_task(self, ledger: Ledger, domains: Mapping[str, Domain]) -> tuple[str, int]:
        """Return the next domain and the index of its next task."""
        name = self.mixture.next_domain()
        size = domains[name].size(Split.TRAIN)
        issued = ledger.next_index(name)
        if self.chooser is not None and size is not None:
            return name, self.chooser.next_index(name, issued)
        return name, place_in_epoch(self.first_index + issued, size)[1]

    def observe(
        self, number: int, groups: Iterable[Group], ledger: Ledger, rollout_s: float
    ) -> None:
        """Take in all groups of rollout batch ``number``, dropped ones included."""
        ordered = sorted(groups, key=lambda g: g.request.request_id)
        results = [group_result(g) for g in ordered]
        if not results:
            return
        self._sizes(ordered, results)
        if self.chooser is not None:
            for result in results:
                scored = [r for r in result.rewards if r is not None]
                issued = ledger.next_index(result.domain)
                self.chooser.observe(result.domain, result.index, scored, issued)
        seconds = self.costs(number, results, rollout_s) if self.costs is not None else None
        self.mixture.observe(results, seconds)

    def _sizes(self, groups: Sequence[Group], results: Sequence[GroupResult]) -> None:
        limits = [limit_of(g.request) for g in groups]
        self.size.forecast.observe(
            (r.domain, r.tokens, limit) for r, limit in zip(results, limits, strict=True)
        )

    def is_full(self, orders: Sequence[TaskRequest]) -> bool:
        """Return whether these orders make a rollout batch."""
        return self.size.is_full(orders)

    def planned(self, orders: Sequence[TaskRequest]) -> dict[str, float]:
        """Return how a batch of these orders was planned, as flat metrics."""
        if not self.size.tokens:
            return {}
        return {
            "mixture/planned_prompts": float(len(orders)),
            "mixture/planned_tokens": self.size.planned(orders),
        }

    def metrics(self) -> dict[str, float]:
        """Return the shares of the next batch and what they rest on, as flat metrics."""
        values = self.mixture.metrics()
        if self.chooser is not None:
            values["mixture/groups_saved"] = float(self.chooser.num_saved)
        return values

    def state(self) -> dict[str, JSON]:
        chosen = None if self.chooser is None else self.chooser.state()
        sizes = self.size.forecast.state()
        return {"mixture": self.mixture.state(), "tasks": chosen, "sizes": sizes}

    def restore(self, progress: Mapping[str, JSON]) -> None:
        self.mixture.restore(progress["mixture"])
        if self.chooser is not None and progress.get("tasks"):
            self.chooser.restore(progress["tasks"])
        self.size.forecast.restore(progress.get("sizes", {}))


def typical_lengths(
    domains: Mapping[str, Domain], count_tokens: Callable[[Task], int], num_tasks: int = 8
) -> dict[str, int]:
    """Return the median prompt tokens of each domain's first training tasks."""
    lengths = {}
    for name, domain in domains.items():
        size = domain.size(Split.TRAIN)
        wanted = num_tasks if size is None else min(num_tasks, size)
        found = sorted(count_tokens(domain.task(Split.TRAIN, i)) for i in range(wanted))
        lengths[name] = found[len(found) // 2] if found else 0
    return lengths


def group_result(group: Group) -> GroupResult:
    """Return what the mixture is told of a group."""
    turns = [t.turns for t in group.trajectories]
    prompt = max((len(t[0].context_token_ids) for t in turns if t), default=0)
    return GroupResult(
        order=group.request.request_id,
        domain=group.request.domain,
        index=group.request.index,
        rewards=tuple(t.score.value for t in group.trajectories[: group.request.num_sampled]),
        tokens=prompt + sum(t.num_completion_tokens for t in group.trajectories),
    )


def order_of(
    recipe: Recipe,
    domains: Mapping[str, Domain],
    weights: Mapping[str, float],
    costs: CostOfBatch | None = None,
    lengths: Mapping[str, int] | None = None,
) -> TaskOrder:
    """Return what says which task comes next, as [mixture] and [curriculum] ask for it.

    Args:
        weights: by domain, with globs resolved.
        costs: measures seconds; used when ``mixture.cost`` is seconds.
        lengths: typical prompt tokens by domain, for ``curriculum.lengths = "growing"``.

    Raises:
        DomainError: a domain with a weight has no training tasks.
    """
    specs = {n: d.spec for n, d in domains.items()}
    sizes = {n: d.size(Split.TRAIN) for n, d in domains.items()}
    empty = [n for n, size in sizes.items() if size == 0 and weights.get(n, 0.0) > 0]
    if empty:
        raise DomainError(
            f"{', '.join(empty)}: no training tasks, so nothing can be sampled; give it rows "
            "(eval_fraction may have taken them all), or a weight of 0"
        )
    forgetting = recipe.forgetting
    return TaskOrder(
        build_mixture(
            recipe.mixture,
            recipe.curriculum,
            weights,
            specs,
            recipe.run.seed,
            ramp=build_ramp(recipe.curriculum, lengths or {}, recipe.rl.steps),
            may_boost=bool(forgetting.every) and "raise_share" in forgetting.actions,
            num_prompts=_num_prompts(recipe),
        ),
        BatchSize(recipe.rl.prompts, recipe.rl.batch_tokens, recipe.rl.updates),
        build_tasks(recipe.curriculum, sizes, recipe.rl.group_size),
        costs if recipe.mixture.cost == "seconds" else None,
    )


def _num_prompts(recipe: Recipe) -> int:
    """Return the prompts of the rl stage, 0 where minutes or tokens decide how many they are."""
    rl = recipe.rl
    return 0 if rl.minutes or rl.tokens or rl.batch_tokens else rl.steps * rl.prompts
