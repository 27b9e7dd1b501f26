"""What the model and the reference say about sampled tokens, before credit and before the update.

Each rank computes its share of the trajectories and all ranks get everything: credit has statistics
over the whole batch, and every rank must come to the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from educe.algorithms.catalogue import Bundle
from educe.core.types import Group, Trajectory
from educe.models.logprobs import token_logprobs
from educe.parallel.collectives import rank_slice
from educe.rollout.packing import TrainingSample, pack_samples, trajectory_sequences
from educe.trainers.reference_policy import ReferencePolicy
from educe.trainers.step import TrainerState, trained_rows
from educe.trainers.token_credit import ActionStreams

Key = tuple[int, int]
_POLICY, _REFERENCE, _VALUES = "policy_logprobs", "reference_logprobs", "values"


def action_streams(
    state: TrainerState,
    reference: ReferencePolicy | None,
    groups: Sequence[Group],
    bundles: Mapping[str, Bundle],
    *,
    keep_logprobs: bool = False,
) -> list[list[ActionStreams]]:
    """Return, per group and sample, arrays over action tokens of what the bundle's credit reads.

    ``policy_logprobs`` and ``reference_logprobs`` where the KL is taken off the reward, ``values``
    where credit needs them; nothing elsewhere.

    Args:
        keep_logprobs: return ``policy_logprobs`` with values too: later updates need them, and
            they come from the same forward.
    """
    wanted = {
        (g, i): bundle
        for g, group in enumerate(groups)
        for i, trajectory in enumerate(group.trajectories)
        if (bundle := bundles[group.request.domain]) and _is_needed(group, i, trajectory, bundle)
    }
    collectives = state.collectives
    mine = rank_slice(list(wanted), collectives.rank, collectives.world_size)
    found = _measured(state, reference, groups, {key: wanted[key] for key in mine}, keep_logprobs)
    merged: dict[Key, ActionStreams] = {}
    for part in collectives.gather(
        [[key, {n: v.tolist() for n, v in s.items()}] for key, s in found.items()]
    ):
        for key, streams in part:
            merged[tuple(key)] = {n: np.array(v, np.float64) for n, v in streams.items()}
    return [
        [merged.get((g, i), {}) for i in range(len(group.trajectories))]
        for g, group in enumerate(groups)
    ]


def _is_needed(group: Group, sample: int, trajectory: Trajectory, bundle: Bundle) -> bool:
    return (
        (bundle.kl_in_reward or bundle.needs_values)
        and trajectory.score.is_scored
        and trajectory.num_completion_tokens > 0
        and sample < group.request.num_sampled
    )


def _measured(
    state: TrainerState,
    reference: ReferencePolicy | None,
    groups: Sequence[Group],
    wanted: Mapping[Key, Bundle],
    keep_logprobs: bool,
) -> dict[Key, ActionStreams]:
    samples: list[TrainingSample] = []
    for g, i in wanted:
        for tokens, mask, _, temperature in trajectory_sequences(groups[g].trajectories[i]):
            streams = {"temperature": temperature}
            samples.append(
                TrainingSample(tokens, mask, streams, g, len(samples), loss="", origin=(g, i))
            )
    needs_logprobs = keep_logprobs or any(b.kl_in_reward for b in wanted.values())
    _fill_policy(state, samples, needs_logprobs)
    with_reference = [s for s in samples if wanted[s.origin].kl_in_reward]
    if with_reference:
        if reference is None:
            raise RuntimeError("a KL in the reward needs a reference policy, and there is none")
        reference.fill(state, with_reference, _REFERENCE)
    return _by_trajectory(samples)


@torch.no_grad()
def _fill_policy(
    state: TrainerState, samples: Sequence[TrainingSample], needs_logprobs: bool
) -> None:
    """Write the policy's log-probabilities and the head's values from one forward."""
    for pack in pack_samples(samples, state.settings.micro_batch_tokens):
        rows, temperature, targets = trained_rows(state.model, pack, state.compute_dtype)
        found = {}
        if needs_logprobs:
            outputs = token_logprobs(rows, state.model.head_weight(), targets, temperature)
            found[_POLICY] = outputs.logprobs_N
        if state.value_head is not None:
            found[_VALUES] = state.value_head(rows)
        for name, values in found.items():
            pack.write_back(name, values.double().cpu().numpy())


def _by_trajectory(samples: Sequence[TrainingSample]) -> dict[Key, ActionStreams]:
    """Join a trajectory's sequences: its action tokens in the order they were sampled."""
    joined: dict[Key, dict[str, list[np.ndarray]]] = {}
    for sample in samples:
        own = joined.setdefault(sample.origin, {})
        for name in (_POLICY, _REFERENCE, _VALUES):
            if name in sample.streams:
                own.setdefault(name, []).append(sample.streams[name][sample.mask])
    return {
        key: {name: np.concatenate(parts) for name, parts in own.items()}
        for key, own in joined.items()
    }
