"""Balance of domains in a step: sizes of advantages, weights of losses, factors of rates.

Everything comes out as one factor a domain: of its advantages before the step, of its samples'
weights in it, and one of the run's learning rate. Decided from what all ranks know alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from educe.config.balance_settings import BackOffSettings, BalanceSettings
from educe.core.metrics import Tally
from educe.core.protocols import DomainSpec
from educe.core.types import JSON
from educe.rollout.packing import TrainingSample
from educe.scheduling.gradients import AdvantageScale
from educe.scheduling.interference import Interference, Matrix, clusters_of
from educe.scheduling.learning_rate import DomainRates, RateBackOff
from educe.trainers.credit import GroupCredit
from educe.trainers.domain_gradients import GradientProbe, GradientSketcher
from educe.trainers.step import TrainerState
from educe.trainers.token_credit import Credit


@dataclass(slots=True)
class Balance:
    """What balances a stage; parts that the recipe does not ask for are None and cost nothing.

    Attributes:
        measure_every: rollout batches between measurements of gradients.
        splits_denominators: whether token weights count over each domain's own tokens.
        clusters: of the domains that are measured.
        kl_of: which KL the back-off follows.
    """

    measure_every: int = 0
    splits_denominators: bool = False
    clusters: Mapping[str, str] | None = None
    advantages: AdvantageScale | None = None
    interference: Interference | None = None
    rates: DomainRates | None = None
    back_off: RateBackOff | None = None
    kl_of: str = "update"
    sketch: tuple[int, int, int] = (4096, 2**22, 0)
    _sketcher: GradientSketcher | None = None

    @staticmethod
    def of(
        settings: BalanceSettings,
        back_off: BackOffSettings,
        specs: Mapping[str, DomainSpec],
        seed: int,
    ) -> Balance:
        """Return what [balance] and [optimizer.back_off] ask for.

        Args:
            specs: of the domains with a weight, by name.
            seed: of the sketches.
        """
        made = Balance(
            settings.measure_every,
            settings.denominators == "domain",
            clusters_of(
                {n: s.family for n, s in specs.items()},
                {n: s.kind for n, s in specs.items()},
                settings.clusters,
            ),
            kl_of=back_off.of,
            sketch=(settings.sketch, settings.sample, seed),
        )
        if settings.advantages == "alike":
            made.advantages = AdvantageScale(limit=settings.advantage_limit)
        if settings.measure_every:
            made.interference = Interference(
                tuple(sorted(set(made.clusters.values()))) if made.clusters else (),
                settings.memory,
                settings.norms,
                settings.conflicts == "project",
                settings.weight_limit,
            )
        if settings.rates == "follow":
            made.rates = DomainRates(
                settings.rate_kl, settings.rate_step, settings.rate_least, settings.rate_most
            )
        if back_off.kl:
            made.back_off = RateBackOff(
                back_off.kl, back_off.factor, back_off.recovery, back_off.least
            )
        return made

    # Before the step

    def scaled(self, credits: Sequence[GroupCredit]) -> list[GroupCredit]:
        """Return the credit with every domain's advantages at the run's usual size."""
        if self.advantages is None:
            return list(credits)
        sums: dict[str, list[float]] = {}
        for credit in credits:
            square = _mean_square(credit)
            if square is not None:
                sums.setdefault(credit.group.request.domain, []).append(square)
        for domain in sorted(sums):
            self.advantages.observe(domain, float(np.sum(sums[domain])), len(sums[domain]))
        factors = self.advantages.factors()
        return [_times(c, factors.get(c.group.request.domain, 1.0)) for c in credits]

    def weigh(self, samples: Sequence[TrainingSample]) -> None:
        """Multiply the samples' weights by their domains' factors."""
        for domain, factor in self._factors({s.origin for s in samples}).items():
            for sample in samples:
                if sample.origin == domain:
                    sample.streams["weight"] = sample.streams["weight"] * factor

    def _factors(self, domains: set[Any]) -> dict[str, float]:
        """Return the factors that are not 1."""
        weights = {} if self.interference is None else self.interference.weights
        rates = {} if self.rates is None else self.rates.factors()
        clusters = self.clusters or {}
        found = {
            d: weights.get(clusters.get(d, ""), 1.0) * rates.get(d, 1.0)
            for d in sorted(d for d in domains if isinstance(d, str))
        }
        return {d: f for d, f in found.items() if f != 1.0}

    # Around the step

    def probe(self, number: int, state: TrainerState) -> GradientProbe | None:
        """Return what measures the updates of rollout batch ``number``; None when it is not due."""
        if self.interference is None or self.clusters is None or number % self.measure_every:
            return None
        if self._sketcher is None:
            sizes = [p.numel() for _, p in state.model.trainable()]
            self._sketcher = GradientSketcher(sizes, *self.sketch)
        return GradientProbe(self._sketcher, self.interference.names, self.clusters)

    def measured(self, probe: GradientProbe, credits: Sequence[GroupCredit]) -> Matrix | None:
        """Take in what a probe found in the update of these groups.

        The clusters' weights are taken out of it (and the rates, on average over the cluster's
        groups): they would otherwise be measured, and undone.
        """
        interference = self.interference
        if interference is None or self.clusters is None:
            return None
        rates = {} if self.rates is None else self.rates.factors()
        counts = dict.fromkeys(interference.names, 0.0)
        pace = dict.fromkeys(interference.names, 0.0)
        num_groups = 0
        for credit in credits:
            if any(credit.in_baseline_G):
                domain = credit.group.request.domain
                num_groups += 1
                if domain in self.clusters:
                    counts[self.clusters[domain]] += 1
                    pace[self.clusters[domain]] += rates.get(domain, 1.0)
        if not num_groups:
            return None
        weights = interference.weights
        own = np.array([weights[n] * (pace[n] / counts[n] if counts[n] else 1.0) for n in counts])
        shares = np.array([counts[n] / num_groups for n in counts])
        interference.observe(probe.halves_R2K / own[:, None, None], shares)
        return interference.matrix()

    def observe(
        self,
        tallies: Sequence[Tally],
        scores: Mapping[str, float | None],
        *,
        reference_kl: float,
    ) -> None:
        """Move the rates by what a rollout batch's updates said.

        Args:
            tallies: of the updates, over all ranks.
            scores: mean score of the batch, by domain.
            reference_kl: to the reference, 0 where none is measured.
        """
        if not tallies:
            return
        last = tallies[-1].values()
        if self.rates is not None:
            for domain, score in sorted(scores.items()):
                known = (last.get(f"domain/{domain}/{k}") for k in ("kl_k3", "update_k3"))
                self.rates.observe(domain, next((k for k in known if k is not None), None), score)
        if self.back_off is not None:
            kl = reference_kl if self.kl_of == "reference" else last.get("update_k3")
            self.back_off.observe(kl)

    @property
    def rate_factor(self) -> float:
        """What the run's learning rate is multiplied by."""
        return 1.0 if self.back_off is None else self.back_off.factor

    # Told and kept

    def metrics(self) -> dict[str, float]:
        """Return the factors in force, per domain and for the run."""
        told: dict[str, float] = {}
        if self.advantages is not None:
            for name, factor in self.advantages.factors().items():
                told[f"domain/{name}/advantage_factor"] = factor
        if self.interference is not None and self.clusters is not None:
            weights = self.interference.weights
            for name, cluster in self.clusters.items():
                told[f"domain/{name}/loss_factor"] = weights[cluster]
        if self.rates is not None:
            for name, factor in self.rates.factors().items():
                told[f"domain/{name}/rate_factor"] = factor
        if self.back_off is not None:
            told["rate_factor"] = self.back_off.factor
        return told

    def state(self) -> dict[str, JSON]:
        """Return everything that the next step depends on, as JSON."""
        return {
            "advantages": None if self.advantages is None else self.advantages.state(),
            "interference": None if self.interference is None else self.interference.state(),
            "rates": None if self.rates is None else self.rates.state(),
            "back_off": self.rate_factor,
        }

    def restore(self, state: Mapping[str, JSON]) -> None:
        """Continue from a saved state; what it does not know starts afresh."""
        for part, name in (
            (self.advantages, "advantages"),
            (self.interference, "interference"),
            (self.rates, "rates"),
        ):
            if part is not None and state.get(name):
                part.restore(state[name])
        if self.back_off is not None:
            self.back_off.factor = float(state.get("back_off", 1.0))


def _mean_square(credit: GroupCredit) -> float | None:
    """Return a group's mean squared advantage; None for a group without a baseline."""
    used = [c for c, known in zip(credit.credits_G, credit.in_baseline_G, strict=True) if known]
    if not used:
        return None
    squares = [
        c.value**2
        if c.tokens_A is None
        else float((c.tokens_A**2).mean())
        if len(c.tokens_A)
        else 0
        for c in used
    ]
    return float(np.mean(squares))


def _times(credit: GroupCredit, factor: float) -> GroupCredit:
    if factor == 1.0:
        return credit
    return replace(
        credit,
        credits_G=tuple(
            Credit(
                c.value * factor, None if c.tokens_A is None else c.tokens_A * factor, c.returns_A
            )
            for c in credit.credits_G
        ),
    )
