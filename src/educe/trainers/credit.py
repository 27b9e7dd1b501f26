"""From scored groups to training samples: advantages, the two masks and global denominators.

Each domain may use its own bundle. Domains with the same bundle are one cohort: its denominators
are counted over the cohort alone, and its share of the loss is its share of the prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from educe.algorithms.advantages import ADVANTAGES
from educe.algorithms.aggregate import sequence_weights
from educe.algorithms.catalogue import Bundle
from educe.algorithms.losses import LossFunction, build_loss
from educe.core.metrics import Tally
from educe.core.types import Group, Trajectory
from educe.rollout.packing import TrainingSample, trajectory_sequences


@dataclass(frozen=True, slots=True)
class GroupCredit:
    """Rewards, masks and advantages of one group, in sample order."""

    group: Group
    rewards_G: tuple[float | None, ...]
    in_baseline_G: tuple[bool, ...]
    in_loss_G: tuple[bool, ...]
    advantages_G: tuple[float, ...]

    @property
    def has_signal(self) -> bool:
        return any(
            a != 0 and used for a, used in zip(self.advantages_G, self.in_loss_G, strict=True)
        )


def credit_group(group: Group, bundle: Bundle) -> GroupCredit:
    """Return a group's credit. Unscored siblings are outside both masks and change nothing."""
    rewards = tuple(t.score.value for t in group.trajectories)
    in_baseline = np.array([r is not None for r in rewards])
    scores = np.array([0.0 if r is None else r for r in rewards])
    advantages = ADVANTAGES[bundle.advantage](scores, in_baseline, bundle.advantage_eps)
    in_loss = [
        bool(used) and not (bundle.mask_truncated and trajectory.is_truncated)
        for used, trajectory in zip(in_baseline, group.trajectories, strict=True)
    ]
    return GroupCredit(
        group,
        rewards,
        tuple(bool(b) for b in in_baseline),
        tuple(in_loss),
        tuple(float(a) for a in advantages),
    )


def losses_of(bundles: Mapping[str, Bundle]) -> dict[str, LossFunction]:
    """Return the per-token losses by the id that :func:`training_samples` writes."""
    return {bundle.formula(): build_loss(bundle) for bundle in bundles.values()}


def training_samples(
    credits: Sequence[GroupCredit], bundles: Mapping[str, Bundle], max_length: int = 0
) -> list[TrainingSample]:
    """Return the samples of one optimizer step, with their streams.

    Args:
        credits: the step's groups.
        bundles: by domain name.
        max_length: Lmax of ``seq-mean-token-sum-norm``; 0 takes what each request allows, so that
            a domain's gradient does not depend on the limits of its neighbours in the batch.

    Samples with advantage 0 and neither a KL nor an entropy term have no gradient; they count in
    the denominators and are left out.
    """
    entries = [
        (number, credit, i, trajectory)
        for number, credit in enumerate(credits)
        for i, trajectory in enumerate(credit.group.trajectories)
        if credit.in_baseline_G[i] and trajectory.turns
    ]
    weights = _weights(entries, credits, bundles, max_length)
    samples: list[TrainingSample] = []
    for (number, credit, i, trajectory), weight in zip(entries, weights, strict=True):
        bundle = bundles[credit.group.request.domain]
        idle = credit.advantages_G[i] == 0 and not bundle.trains_without_advantage
        if idle or not credit.in_loss_G[i] or weight == 0:
            continue
        for tokens, mask, behaviour, temperature in trajectory_sequences(trajectory):
            length = len(tokens)
            streams = {
                "advantage": np.full(length, credit.advantages_G[i]),
                "weight": np.full(length, weight),
                "behaviour_logprobs": behaviour,
                "temperature": temperature,
            }
            if bundle.proximal == "behaviour":
                streams["proximal_logprobs"] = behaviour
            samples.append(
                TrainingSample(
                    tokens,
                    mask,
                    streams,
                    group=number,
                    sequence=len(samples),
                    loss=bundle.formula(),
                    origin=credit.group.request.domain,
                )
            )
    return samples


def _weights(
    entries: Sequence[tuple[int, GroupCredit, int, Trajectory]],
    credits: Sequence[GroupCredit],
    bundles: Mapping[str, Bundle],
    max_length: int,
) -> np.ndarray:
    """Return each entry's token weight: its cohort's aggregation times its cohort's share."""
    weights = np.zeros(len(entries))
    cohorts: dict[Bundle, list[int]] = {}
    for position, (_, credit, _, _) in enumerate(entries):
        cohorts.setdefault(bundles[credit.group.request.domain], []).append(position)
    num_prompts = len({entry[0] for entry in entries})
    for bundle, rows in cohorts.items():
        prompts = [entries[r][0] for r in rows]
        own = sequence_weights(
            bundle.aggregation,
            [entries[r][3].num_completion_tokens for r in rows],
            prompts,
            max_length or [_longest(entries[r][1]) for r in rows],
        )
        weights[rows] = own * (len(set(prompts)) / num_prompts)
    return weights


def _longest(credit: GroupCredit) -> int:
    """Completion tokens that a trajectory of this group may have."""
    request = credit.group.request
    return request.max_completion_tokens * request.max_turns


def rollout_metrics(
    credits: Sequence[GroupCredit], floors: Mapping[str, float]
) -> dict[str, float]:
    """Return what a rollout batch says, overall (``NAME``) and per domain (``domain/D/NAME``).

    ``score`` is chance-corrected: (value - floor) / (1 - floor).
    """
    tally = Tally()
    for credit in credits:
        domain = credit.group.request.domain
        floor = floors.get(domain, 0.0)
        scored = [r for r in credit.rewards_G if r is not None]
        for prefix in ("", f"domain/{domain}/"):
            tally.mean(
                prefix + "unscored", len(credit.rewards_G) - len(scored), len(credit.rewards_G)
            )
            # One scored sibling has no baseline: advantage 0, and counted here.
            lone = len(scored) == 1 and len(credit.rewards_G) > 1
            tally.mean(prefix + "lone_scored", float(lone))
            if len(scored) > 1:
                flat = max(scored) == min(scored)
                tally.mean(prefix + "trivial_right", float(flat and scored[0] >= 1))
                tally.mean(prefix + "trivial_wrong", float(flat and scored[0] <= 0))
                tally.mean(prefix + "has_signal", float(credit.has_signal))
            for reward in scored:
                tally.mean(prefix + "reward", reward)
                tally.mean(prefix + "score", (reward - floor) / (1.0 - floor))
            for advantage in credit.advantages_G:
                tally.mean(prefix + "advantage_size", abs(advantage))
            for trajectory in credit.group.trajectories:
                tally.mean(prefix + "completion_tokens", trajectory.num_completion_tokens)
                tally.mean(prefix + "truncated", float(trajectory.is_truncated))
                tally.mean(prefix + "turns", len(trajectory.turns))
    return tally.values()
