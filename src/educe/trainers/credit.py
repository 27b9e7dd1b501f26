"""From scored groups to training samples: credit, the two masks and global denominators.

Each domain may use its own bundle. Domains with the same bundle are one cohort: its denominators
and batch statistics are counted over the cohort alone, and its share of the loss is its share of
the prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from educe.algorithms.advantages import has_spread
from educe.algorithms.aggregate import sequence_weights
from educe.algorithms.catalogue import Bundle
from educe.algorithms.losses import LossFunction, build_loss
from educe.algorithms.shaping import without_truncated
from educe.core.metrics import Tally
from educe.core.types import Group, Trajectory
from educe.rollout.packing import TrainingSample, trajectory_sequences
from educe.trainers.shaping import ShapedGroup
from educe.trainers.token_credit import ActionStreams, Attempt, Credit, assign_credit

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GroupCredit:
    """Rewards, masks and credit of one group, in sample order.

    Attributes:
        rewards_G: the raw scores: what filters and reports read.
        shaped_G: what was trained on, NaN where nothing was.
        advantages_G: the mean over a sample's action tokens.
        credits_G: the advantage of each action token, and returns where values learn them.
        streams_G: what the model said about the action tokens before the update.
    """

    group: Group
    rewards_G: tuple[float | None, ...]
    in_baseline_G: tuple[bool, ...]
    in_loss_G: tuple[bool, ...]
    shaped_G: tuple[float, ...]
    credits_G: tuple[Credit, ...]
    streams_G: tuple[ActionStreams, ...]

    @property
    def advantages_G(self) -> tuple[float, ...]:
        return tuple(c.mean for c in self.credits_G)

    @property
    def has_signal(self) -> bool:
        return any(
            c.is_nonzero and used for c, used in zip(self.credits_G, self.in_loss_G, strict=True)
        )

    @property
    def has_spread(self) -> bool:
        """Whether the raw scores of what was sampled differ."""
        sampled = self.rewards_G[: self.group.request.num_sampled]
        scores = np.array([np.nan if r is None else r for r in sampled], np.float64)
        return has_spread(scores, np.isfinite(scores))

    @property
    def num_sampled(self) -> int:
        """Samples that are no greedy baseline; they come first."""
        return self.group.request.num_sampled


def credit_group(
    group: Group,
    bundle: Bundle,
    shaped: ShapedGroup | None = None,
    streams: Sequence[ActionStreams] | None = None,
    kl_coefficient: float | None = None,
) -> GroupCredit:
    """Return a group's credit, before any whitening over the batch.

    Unscored siblings are outside both masks and change nothing; a greedy sample is a baseline and
    in neither.

    Args:
        shaped: rewards to train on; None takes the raw scores.
        streams: per sample, arrays over its action tokens: ``policy_logprobs`` and
            ``reference_logprobs`` for a KL in the reward, ``values`` for GAE.
        kl_coefficient: of the KL in the reward; None takes the bundle's.
    """
    raw = tuple(t.score.value for t in group.trajectories)
    rewards = np.array([np.nan if r is None else r for r in raw], np.float64)
    trained = rewards if shaped is None else np.where(np.isnan(rewards), np.nan, shaped.rewards_G)
    sampled = np.arange(len(raw)) < group.request.num_sampled
    parts = trained[None] if shaped is None else shaped.parts_KG
    weights = (1.0,) if shaped is None else shaped.weights_K
    in_baseline = np.isfinite(trained) & sampled
    if bundle.advantage == "multi_reward":
        # A missing part leaves its own statistics only.
        in_baseline = np.isfinite(rewards) & np.isfinite(parts).any(0) & sampled
    told = tuple(streams or [{}] * len(raw))
    attempts = [
        Attempt.of(t, float(r), s)
        for t, r, s in zip(group.trajectories, trained, told, strict=True)
    ]
    credits = assign_credit(
        attempts,
        in_baseline,
        bundle,
        parts=(parts, weights),
        num_greedy=group.request.num_greedy,
        kl_coefficient=bundle.kl_coefficient if kl_coefficient is None else kl_coefficient,
    )
    in_loss = tuple(bool(used) for used in in_baseline)
    if bundle.mask_truncated:
        in_loss = without_truncated(in_loss, [t.is_truncated for t in group.trajectories])
    return GroupCredit(
        group,
        raw,
        tuple(bool(b) for b in in_baseline),
        in_loss,
        tuple(float(r) for r in trained),
        tuple(credits),
        told,
    )


def has_raw_signal(group: Group, bundle: Bundle) -> bool:
    """Whether a group would train anything by its raw scores: the filter of dynamic sampling.

    Where the group is the baseline that is a spread of the raw scores, before any shaping; with
    another baseline (values, the batch) one scored sample is enough.
    """
    if bundle.advantage in ("returns", "gae"):
        return any(t.score.is_scored and t.num_completion_tokens for t in group.trajectories)
    return credit_group(group, replace(bundle, kl_coefficient=0.0)).has_signal


def losses_of(bundles: Mapping[str, Bundle]) -> dict[str, LossFunction]:
    """Return the per-token losses by the id that :func:`training_samples` writes."""
    return {bundle.formula(): build_loss(bundle) for bundle in bundles.values()}


def training_samples(
    credits: Sequence[GroupCredit],
    bundles: Mapping[str, Bundle],
    max_length: int = 0,
    coefficients: Mapping[str, Mapping[str, float]] | None = None,
    *,
    by_domain: bool = False,
) -> list[TrainingSample]:
    """Return the samples of one optimizer step, with their streams.

    Args:
        credits: the step's groups.
        bundles: by domain name.
        max_length: Lmax of ``seq-mean-token-sum-norm``; 0 takes what each request allows, so that
            a domain's gradient does not depend on the limits of its neighbours in the batch.
        coefficients: by bundle name, the streams that controllers steer (``kl_coefficient``,
            ``entropy_coefficient``) and their numbers in this step.
        by_domain: count denominators over a domain's own tokens instead of its cohort's, so that
            its share of the loss is its share of the prompts, however long its completions are.

    Samples with advantage 0 and no other term of the loss have no gradient; they count in the
    denominators and are left out.
    """
    entries = [
        (number, credit, i, trajectory)
        for number, credit in enumerate(credits)
        for i, trajectory in enumerate(credit.group.trajectories)
        if credit.in_baseline_G[i] and trajectory.turns
    ]
    weights = _weights(entries, bundles, max_length, by_domain)
    samples: list[TrainingSample] = []
    for (number, credit, i, trajectory), weight in zip(entries, weights, strict=True):
        bundle = bundles[credit.group.request.domain]
        idle = not (credit.credits_G[i].is_nonzero or bundle.trains_without_advantage)
        if idle or not credit.in_loss_G[i] or weight == 0:
            continue
        steered = (coefficients or {}).get(bundle.name, {})
        own = credit.credits_G[i]
        whole = {"weight": float(weight), "advantage": own.value, **steered}
        for sample in _samples(trajectory, own, credit.streams_G[i], whole):
            if bundle.proximal == "behaviour":
                sample.streams["proximal_logprobs"] = sample.streams["behaviour_logprobs"]
            sample.group, sample.sequence = number, len(samples)
            sample.loss, sample.origin = bundle.formula(), credit.group.request.domain
            samples.append(sample)
    return samples


_KEPT = {
    "policy_logprobs": "start_logprobs",
    "reference_logprobs": "reference_logprobs",
    "values": "old_values",
}
"""What the model said before the update, and the stream that a sample keeps it in."""


def _samples(
    trajectory: Trajectory,
    credit: Credit,
    streams: ActionStreams,
    whole: Mapping[str, float],
) -> list[TrainingSample]:
    """Return a trajectory's sequences; arrays over action tokens go where the mask is true.

    ``whole`` are the numbers that all its tokens share.
    """
    own_credit = {"advantage": credit.tokens_A, "returns": credit.returns_A}
    by_action = {name: values for name, values in own_credit.items() if values is not None}
    by_action |= {_KEPT[name]: values for name, values in streams.items() if name in _KEPT}
    samples, done = [], 0
    for tokens, mask, behaviour, temperature in trajectory_sequences(trajectory):
        count = int(mask.sum())
        own: dict[str, FloatArray] = {n: np.full(len(tokens), v) for n, v in whole.items()}
        for name, values in by_action.items():
            own[name] = np.zeros(len(tokens))
            own[name][mask] = values[done : done + count]
        own |= {"behaviour_logprobs": behaviour, "temperature": temperature}
        samples.append(TrainingSample(tokens, mask, own, group=0, sequence=0, loss=""))
        done += count
    return samples


def _weights(
    entries: Sequence[tuple[int, GroupCredit, int, Trajectory]],
    bundles: Mapping[str, Bundle],
    max_length: int,
    by_domain: bool,
) -> FloatArray:
    """Return each entry's token weight: its cohort's aggregation times its cohort's share.

    A cohort is the domains of one bundle, or each domain for itself.
    """
    weights = np.zeros(len(entries))
    cohorts: dict[tuple[Bundle, str], list[int]] = {}
    for position, (_, credit, _, _) in enumerate(entries):
        domain = credit.group.request.domain
        cohort = (bundles[domain], domain if by_domain else "")
        cohorts.setdefault(cohort, []).append(position)
    num_prompts = len({entry[0] for entry in entries})
    for (bundle, _), rows in cohorts.items():
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


# What a review of rollouts says (rewards.review.policy), where there is one.
_REVIEWED = {"unsafe": "review/unsafe", "task_score": "review/task_score"}


def rollout_metrics(
    credits: Sequence[GroupCredit], floors: Mapping[str, float]
) -> dict[str, float]:
    """Return what a rollout batch says, overall (``NAME``) and per domain (``domain/D/NAME``).

    ``reward`` and ``score`` are of the raw scores of what was sampled; ``score`` is
    chance-corrected: (value - floor) / (1 - floor). ``shaped`` is what was trained on,
    ``greedy_reward`` the raw score of greedy baselines, ``part_NAME`` the named parts of scores.
    """
    tally = Tally()
    for credit in credits:
        domain = credit.group.request.domain
        floor = floors.get(domain, 0.0)
        for prefix in ("", f"domain/{domain}/"):
            _tell_group(tally, prefix, credit, floor)
            for i, trajectory in enumerate(credit.group.trajectories[: credit.num_sampled]):
                tally.mean(prefix + "advantage_size", _size(credit.credits_G[i]))
                tally.mean(prefix + "completion_tokens", trajectory.num_completion_tokens)
                tally.mean(prefix + "truncated", float(trajectory.is_truncated))
                tally.mean(prefix + "turns", len(trajectory.turns))
                for name, part in _REVIEWED.items():
                    told = trajectory.score.parts.get(part)
                    if told is not None:
                        tally.mean(prefix + name, told)
    return tally.values()


def _size(credit: Credit) -> float:
    """Mean |A| of a sample's action tokens."""
    if credit.tokens_A is None:
        return abs(credit.value)
    return float(np.abs(credit.tokens_A).mean()) if len(credit.tokens_A) else 0.0


def _tell_group(tally: Tally, prefix: str, credit: GroupCredit, floor: float) -> None:
    raw = credit.rewards_G[: credit.num_sampled]
    scored = [r for r in raw if r is not None]
    tally.mean(prefix + "unscored", len(raw) - len(scored), len(raw))
    # One scored sibling has no baseline: advantage 0 where the group is one, and counted here.
    tally.mean(prefix + "lone_scored", float(len(scored) == 1 and len(raw) > 1))
    if len(scored) > 1:
        flat = max(scored) == min(scored)
        tally.mean(prefix + "trivial_right", float(flat and scored[0] >= 1))
        tally.mean(prefix + "trivial_wrong", float(flat and scored[0] <= 0))
        tally.mean(prefix + "has_signal", float(credit.has_signal))
    for reward in scored:
        tally.mean(prefix + "reward", reward)
        tally.mean(prefix + "score", (reward - floor) / (1.0 - floor))
    for i, value in enumerate(raw):
        if value is not None and np.isfinite(credit.shaped_G[i]):
            tally.mean(prefix + "shaped", credit.shaped_G[i])
    tally.mean(prefix + "temperature", credit.group.request.temperature)
    for trajectory in credit.group.trajectories[: credit.num_sampled]:
        for name, part in trajectory.score.parts.items():
            if part is not None and np.isfinite(part) and name not in _REVIEWED.values():
                tally.mean(f"{prefix}part_{name.replace('/', '_')}", part)
    for greedy in credit.rewards_G[credit.num_sampled :]:
        if greedy is not None:
            tally.mean(prefix + "greedy_reward", greedy)
