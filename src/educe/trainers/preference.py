"""Preference training: from pairs (or labelled completions) to one coefficient a sequence.

C cases, each with two sides. Of a pair the sides are chosen and rejected, and both are trained. Of
a labelled case (KTO) they are the completion and another prompt's completion under this prompt,
which only measures the distance to the reference.

A forward without gradient gives each side's log-probability; the loss turns them into one
coefficient a side (``losses.preference.sequence_coefficients``), and -A log p with A = -coefficient
has the very gradient of the loss. So a pair need not fit into one pack, ranks may cut a batch
anywhere, and the sides share their prompt segment where they are in one pack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from educe.algorithms.losses import reinforce
from educe.algorithms.losses.preference import (
    dpo,
    ipo,
    kto,
    kto_reference_point,
    orpo,
    sequence_coefficients,
    simpo,
)
from educe.algorithms.preferences import Preference
from educe.core.metrics import Tally
from educe.models.load import LoadedModel
from educe.rollout.packing import FloatArray, TrainingSample
from educe.trainers.rendering import Side
from educe.trainers.step import StepResult, TrainerState, fill_logprobs, optimizer_step

_LOSSES = {"preference": reinforce}
_OWN = "own_logprobs"


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to learn from. ``is_wanted`` is the label of an unpaired case."""

    origin: str
    sides: tuple[Side, Side]
    is_wanted: bool = True


@dataclass(frozen=True, slots=True)
class Credit:
    """What a loss says of C cases.

    ``coefficients_C2`` is d loss of the case / d log-probability of the side (summed over its
    tokens); ``rewards_C2`` are the implicit rewards; of a labelled case the second
    one is that of the reference point.
    """

    losses_C: FloatArray
    coefficients_C2: FloatArray
    rewards_C2: FloatArray


def preference_credit(
    loss: Preference,
    policy_C2: FloatArray,
    reference_C2: FloatArray | None,
    lengths_C2: FloatArray,
    wanted_C: Sequence[bool],
) -> Credit:
    """Return losses, coefficients and implicit rewards of cases.

    Args:
        policy_C2, reference_C2: log-probabilities of the sides, summed over tokens.
        lengths_C2: trained tokens of the sides.
        wanted_C: labels, read by unpaired losses.
    """
    policy = torch.as_tensor(policy_C2, dtype=torch.float64)
    lengths = torch.as_tensor(lengths_C2, dtype=torch.float64)
    reference = None if reference_C2 is None else torch.as_tensor(reference_C2, dtype=torch.float64)
    if not loss.is_paired:
        return _unpaired(loss, policy, _known(loss, reference), lengths, torch.tensor(wanted_C))
    function = _pair_loss(loss, reference, lengths)
    losses, slopes = sequence_coefficients(function, policy[:, 0], policy[:, 1])
    if reference is not None:
        rewards = loss.beta * (policy - reference)
    else:
        rewards = (loss.beta or loss.odds_weight) * policy / lengths
    return Credit(losses.numpy(), torch.stack(slopes, 1).numpy(), rewards.numpy())


def _pair_loss(
    loss: Preference, reference: Tensor | None, lengths: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of C pairs as a function of the two sides' summed log-probabilities."""
    by_name: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "simpo": lambda c, r: simpo(
            c / lengths[:, 0], r / lengths[:, 1], beta=loss.beta, margin=loss.margin
        ),
        "orpo": lambda c, r: orpo(c / lengths[:, 0], r / lengths[:, 1], weight=loss.odds_weight),
    }
    if loss.needs_reference:
        known = _known(loss, reference)
        against: dict[str, Callable[..., Tensor]] = {
            "dpo": partial(dpo, beta=loss.beta, label_smoothing=loss.label_smoothing),
            "ipo": partial(ipo, beta=loss.beta),
            "ipo_mean": partial(ipo, beta=loss.beta),
        }
        inner = against[loss.name]
        # The same formula on log-probabilities a token.
        per_side = lengths if loss.name == "ipo_mean" else torch.ones_like(lengths)
        sides = known / per_side
        by_name[loss.name] = lambda c, r: inner(
            c / per_side[:, 0], r / per_side[:, 1], sides[:, 0], sides[:, 1]
        )
    chosen = by_name[loss.name]
    if not loss.sft_weight:
        return chosen
    return lambda c, r: chosen(c, r) - loss.sft_weight * c / lengths[:, 0]


def _unpaired(
    loss: Preference, policy: Tensor, reference: Tensor, lengths: Tensor, wanted: Tensor
) -> Credit:
    gap = policy - reference
    z = kto_reference_point(float(gap[:, 1].sum()), len(gap))

    def function(own: Tensor) -> Tensor:
        value = kto(
            own,
            reference[:, 0],
            wanted,
            z,
            beta=loss.beta,
            desirable_weight=loss.desirable_weight,
            undesirable_weight=loss.undesirable_weight,
        )
        imitated = loss.sft_weight * wanted.to(own) * own / lengths[:, 0]
        return value - imitated

    losses, (slopes,) = sequence_coefficients(function, policy[:, 0])
    coefficients = torch.stack([slopes, torch.zeros_like(slopes)], 1)
    rewards = loss.beta * gap
    rewards[:, 1] = loss.beta * z
    return Credit(losses.numpy(), coefficients.numpy(), rewards.numpy())


def _known(loss: Preference, reference: Tensor | None) -> Tensor:
    if reference is None:
        raise ValueError(f"{loss.name} needs the reference's log-probabilities")
    return reference


def case_samples(cases: Sequence[Case], which: Sequence[int] = (0, 1)) -> list[TrainingSample]:
    """Return the sequences of the sides in ``which``; a case's sides are one group."""
    samples = []
    for number, case in enumerate(cases):
        for side in which:
            for sequence in case.sides[side]:
                length = len(sequence)
                samples.append(
                    TrainingSample(
                        sequence.token_ids,
                        sequence.mask,
                        {"weight": np.ones(length), "temperature": np.ones(length)},
                        group=number,
                        sequence=2 * number + side,
                        loss="preference",
                        origin=case.origin,
                    )
                )
    return samples


def side_lengths(cases: Sequence[Case]) -> FloatArray:
    """Return the trained tokens of each side, [C, 2]."""
    return np.array(
        [[sum(s.num_trained for s in side) for side in case.sides] for case in cases], np.float64
    ).reshape(len(cases), 2)


def side_logprobs(model: LoadedModel, cases: Sequence[Case], state: TrainerState) -> FloatArray:
    """Return the model's log-probability of each side, summed over its trained tokens, [C, 2].

    Every rank computes its share of the cases and gets all.
    """
    collectives = state.collectives
    mine = range(collectives.rank, len(cases), collectives.world_size)
    samples = case_samples([cases[i] for i in mine])
    fill_logprobs(model, samples, _OWN, state.settings.micro_batch_tokens, state.compute_dtype)
    sums = np.zeros((len(mine), 2))
    for sample in samples:
        case, side = divmod(sample.sequence, 2)
        sums[case, side] += sample.streams[_OWN][sample.mask].sum()
    found = np.empty((len(cases), 2))
    for part in collectives.gather([[i, *row] for i, row in zip(mine, sums.tolist(), strict=True)]):
        for i, first, second in part:
            found[i] = first, second
    return found


def preference_step(
    state: TrainerState,
    cases: Sequence[Case],
    loss: Preference,
    reference_C2: FloatArray | None,
    learning_rate: float,
) -> StepResult:
    """Take one optimizer step on a batch: each case weighs 1 / cases of the batch."""
    if not cases:
        return optimizer_step(state, [], _LOSSES, learning_rate)
    policy = side_logprobs(state.model, cases, state)
    lengths = side_lengths(cases)
    credit = preference_credit(loss, policy, reference_C2, lengths, [c.is_wanted for c in cases])
    samples = _trained(cases, credit, loss)
    result = optimizer_step(state, samples, _LOSSES, learning_rate)
    # The step's own loss has our gradient and not our value.
    tally = result.tally.without("loss", "token_loss")
    tally.merge(preference_metrics(cases, loss, credit, policy))
    return replace(result, tally=tally)


def _trained(cases: Sequence[Case], credit: Credit, loss: Preference) -> list[TrainingSample]:
    samples = case_samples(cases, (0, 1) if loss.is_paired else (0,))
    for sample in samples:
        case, side = divmod(sample.sequence, 2)
        length = len(sample.token_ids)
        sample.streams["weight"] = np.full(length, 1.0 / len(cases))
        sample.streams["advantage"] = np.full(length, -credit.coefficients_C2[case, side])
    # Which sides are one sequence matters to no loss here; each sequence is its own.
    return [replace(s, sequence=i) for i, s in enumerate(samples)]


def preference_metrics(
    cases: Sequence[Case], loss: Preference, credit: Credit, policy_C2: FloatArray
) -> Tally:
    """Return loss, accuracy, margin and rewards, overall and of each source.

    ``accuracy`` is the share of pairs whose chosen side has the higher implicit reward; of labelled
    cases the share that lies on its label's side of the reference point. ``margin`` is the mean
    difference of these rewards.
    """
    tally = Tally()
    lengths = side_lengths(cases)
    for number, case in enumerate(cases):
        first, second = credit.rewards_C2[number]
        sign = 1.0 if case.is_wanted else -1.0
        for prefix in ("", f"domain/{case.origin}/"):
            tally.mean(f"{prefix}loss", float(credit.losses_C[number]))
            tally.mean(f"{prefix}accuracy", float(sign * (first - second) > 0))
            tally.mean(f"{prefix}margin", sign * (first - second))
            wanted = "chosen" if case.is_wanted else "rejected"
            tally.mean(f"{prefix}reward_{wanted}", first)
            tally.mean(f"{prefix}logprob_{wanted}", policy_C2[number, 0] / lengths[number, 0])
            if loss.is_paired:
                tally.mean(f"{prefix}reward_rejected", second)
                tally.mean(f"{prefix}logprob_rejected", policy_C2[number, 1] / lengths[number, 1])
    return tally


def evaluate_preferences(
    state: TrainerState, cases: Sequence[Case], loss: Preference, reference_C2: FloatArray | None
) -> Tally:
    """Return the metrics on held-out cases, their names with ``eval_`` before them."""
    tally = Tally()
    if not cases:
        return tally
    policy = side_logprobs(state.model, cases, state)
    wanted = [c.is_wanted for c in cases]
    credit = preference_credit(loss, policy, reference_C2, side_lengths(cases), wanted)
    found = preference_metrics(cases, loss, credit, policy)
    for name, total in found.sums.items():
        head, slash, last = name.rpartition("/")
        tally.mean(f"{head}{slash}eval_{last}", total, found.counts[name])
    return tally
