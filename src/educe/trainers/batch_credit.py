"""Credit of a whole rollout batch: rewards shaped, measured, credited, whitened.

This stage sees all groups of the update, the same on every rank. Statistics are over one cohort
(the domains of one bundle), so that an algorithm's advantages do not depend on its neighbours'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from educe.algorithms.advantages import explained_variance, whitened
from educe.algorithms.catalogue import Bundle
from educe.core.types import JSON, Group
from educe.trainers.coefficients import Coefficients
from educe.trainers.credit import GroupCredit, credit_group
from educe.trainers.reference_policy import ReferencePolicy
from educe.trainers.shaping import RewardShaper, ShapedGroup
from educe.trainers.signals import action_streams
from educe.trainers.step import TrainerState
from educe.trainers.token_credit import ActionStreams, Credit, FloatArray


@dataclass(slots=True)
class CreditStage:
    """Turns groups into credit. What it remembers between batches is in its state.

    Attributes:
        takes_several_updates: of one batch, so that log-probabilities from before the first are
            worth keeping.
    """

    state: TrainerState
    bundles: Mapping[str, Bundle]
    shaper: RewardShaper
    coefficients: Coefficients
    reference: ReferencePolicy | None = None
    takes_several_updates: bool = False

    def credit(self, groups: Sequence[Group]) -> list[GroupCredit]:
        """Return the batch's credit, in the order of its groups."""
        shaped = self.shaper.shape(groups)
        streams = action_streams(
            self.state,
            self.reference,
            groups,
            self.bundles,
            keep_logprobs=self.takes_several_updates,
        )
        kl = {b.name: self.coefficients.kl_of(b) for b in self.bundles.values()}
        return credit_batch(groups, self.bundles, shaped, streams, kl)

    def progress(self) -> dict[str, JSON]:
        """Return everything that the next batch's credit depends on, as JSON."""
        return {"rewards": self.shaper.state(), "coefficients": self.coefficients.state()}

    def restore(self, progress: Mapping[str, JSON]) -> None:
        self.shaper.restore(progress["rewards"])
        self.coefficients.restore(progress["coefficients"])


def credit_batch(
    groups: Sequence[Group],
    bundles: Mapping[str, Bundle],
    shaped: Sequence[ShapedGroup] | None = None,
    streams: Sequence[Sequence[ActionStreams]] | None = None,
    kl_coefficients: Mapping[str, float] | None = None,
) -> list[GroupCredit]:
    """Return the credit of a batch, each cohort whitened where its bundle says so.

    Args:
        bundles: by domain name.
        shaped, streams: see ``credit_group``; one entry a group.
        kl_coefficients: by bundle name.
    """
    credits = []
    for position, group in enumerate(groups):
        bundle = bundles[group.request.domain]
        credits.append(
            credit_group(
                group,
                bundle,
                None if shaped is None else shaped[position],
                None if streams is None else streams[position],
                (kl_coefficients or {}).get(bundle.name),
            )
        )
    for bundle in dict.fromkeys(bundles.values()):
        if bundle.whitening:
            own = [i for i, c in enumerate(credits) if bundles[c.group.request.domain] == bundle]
            for i, credit in zip(own, _whitened([credits[i] for i in own], bundle), strict=True):
                credits[i] = credit
    return credits


def _whitened(credits: Sequence[GroupCredit], bundle: Bundle) -> list[GroupCredit]:
    """Whiten a cohort: over its action tokens, or over its samples.

    A group without a baseline (a single scored sample) stays out of the statistics and at 0.
    """
    places = [(g, i) for g, c in enumerate(credits) for i in _with_credit(c, bundle)]
    arrays = [_values(credits[g], i, bundle) for g, i in places]
    scaled = whitened(arrays, [np.ones(len(a), np.bool_) for a in arrays])
    changed = [list(c.credits_G) for c in credits]
    for (g, i), values in zip(places, scaled, strict=True):
        old = changed[g][i]
        if old.tokens_A is not None:
            changed[g][i] = replace(old, tokens_A=values)
        else:
            changed[g][i] = Credit(float(values[0]))
    return [
        replace(credit, credits_G=tuple(own)) for credit, own in zip(credits, changed, strict=True)
    ]


def _with_credit(credit: GroupCredit, bundle: Bundle) -> list[int]:
    sizes = [t.num_completion_tokens for t in credit.group.trajectories]
    used = [i for i, known in enumerate(credit.in_baseline_G) if known and sizes[i]]
    return used if len(used) > 1 or not bundle.needs_group else []


def _values(credit: GroupCredit, sample: int, bundle: Bundle) -> FloatArray:
    own = credit.credits_G[sample]
    if own.tokens_A is not None:
        return own.tokens_A
    # A long completion counts as often as it has tokens, or once.
    tokens = credit.group.trajectories[sample].num_completion_tokens
    return own.over(tokens if bundle.whitening == "tokens" else 1)


def advantages_by_unit(
    credits: Sequence[GroupCredit], bundles: Mapping[str, Bundle]
) -> list[tuple[float, ...]]:
    """Return the advantages of those groups whose advantages tell the rewards' unit.

    A large one says that rewards are not of a scale of about 1. That of a scale-free algorithm says
    that success was rare.
    """
    return [c.advantages_G for c in credits if not bundles[c.group.request.domain].is_scale_free]


def value_metrics(credits: Sequence[GroupCredit]) -> dict[str, float]:
    """Return how well the values foresaw the returns; nothing where no values were learned.

    ``explained_variance`` is 1 - var(return - value) / var(return) over the batch's action tokens:
    0 is no better than a constant.
    """
    pairs = [
        (own.returns_A, streams["values"])
        for credit in credits
        for own, streams in zip(credit.credits_G, credit.streams_G, strict=True)
        if own.returns_A is not None
    ]
    if not pairs:
        return {}
    returns, values = [r for r, _ in pairs], [v for _, v in pairs]
    told = {
        "returns": float(np.concatenate(returns).mean()),
        "values": float(np.concatenate(values).mean()),
    }
    explained = explained_variance(returns, values, [np.ones(len(r), np.bool_) for r in returns])
    return told if explained is None else {**told, "explained_variance": explained}
