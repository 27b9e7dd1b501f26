"""Coefficients that follow training from step to step: of the reference KL, of the entropy bonus.

A loss is built once and reads them from streams; this holds the numbers, moves them after each
rollout batch, and keeps their state for checkpoints. Each algorithm of a run has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from educe.algorithms.catalogue import Bundle
from educe.algorithms.kl_control import AdaptiveKL
from educe.algorithms.steering import EntropyTarget
from educe.config.algorithm_settings import AlgorithmSettings, ExplorationSettings
from educe.core.metrics import Tally
from educe.core.types import JSON


@dataclass(slots=True)
class Coefficients:
    """The steered numbers of a run's algorithms, by bundle name."""

    kl: dict[str, AdaptiveKL] = field(default_factory=dict)
    entropy: dict[str, EntropyTarget] = field(default_factory=dict)

    @staticmethod
    def of(
        bundles: Iterable[Bundle], algorithm: AlgorithmSettings, exploration: ExplorationSettings
    ) -> Coefficients:
        """Return controllers for the bundles whose coefficients have targets."""
        found = Coefficients()
        for bundle in bundles:
            target = bundle.option("kl_target", 0.0)
            if target > 0 and bundle.kl_coefficient > 0:
                found.kl.setdefault(
                    bundle.name, AdaptiveKL(bundle.kl_coefficient, target, algorithm.kl.horizon)
                )
            target = bundle.option("entropy_target", 0.0)
            if target > 0:
                found.entropy.setdefault(
                    bundle.name,
                    EntropyTarget(
                        max(bundle.entropy_coefficient, 0.0),
                        target,
                        exploration.entropy_step,
                        exploration.entropy_most,
                    ),
                )
        return found

    def kl_of(self, bundle: Bundle) -> float:
        """Return the bundle's KL coefficient in the next update."""
        steered = self.kl.get(bundle.name)
        return bundle.kl_coefficient if steered is None else steered.coefficient

    def streams(self) -> dict[str, dict[str, float]]:
        """Return, by bundle name, the streams that the losses read and their numbers now."""
        out: dict[str, dict[str, float]] = {}
        for name, kl in self.kl.items():
            out.setdefault(name, {})["kl_coefficient"] = kl.coefficient
        for name, entropy in self.entropy.items():
            out.setdefault(name, {})["entropy_coefficient"] = entropy.coefficient
        return out

    def observe(
        self,
        tallies: Sequence[Tally],
        bundles: Mapping[str, Bundle],
        num_sequences: Mapping[str, int],
    ) -> None:
        """Move the coefficients by what a rollout batch's updates measured.

        Args:
            tallies: of the optimizer steps, over all ranks, with values per domain.
            bundles: by domain.
            num_sequences: trained sequences, by bundle name.
        """
        for name, kl in self.kl.items():
            value = _mean_over(tallies, "kl_k3", _domains(bundles, name))
            if value is not None:
                kl.update(value, num_sequences.get(name, 0))
        for name, entropy in self.entropy.items():
            value = _mean_over(tallies, "entropy", _domains(bundles, name))
            if value is not None:
                entropy.update(value)

    def metrics(self) -> dict[str, float]:
        """Return the numbers, by algorithm where a run has several."""
        told: dict[str, float] = {}
        for label, found in (("kl_coefficient", self.kl), ("entropy_coefficient", self.entropy)):
            for name, controller in found.items():
                told[label if len(found) == 1 else f"{label}_{name}"] = controller.coefficient
        return told

    def state(self) -> dict[str, JSON]:
        """Return everything that the next update depends on, as JSON."""
        return {
            "kl": {n: c.state() for n, c in self.kl.items()},
            "entropy": {n: c.state() for n, c in self.entropy.items()},
        }

    def restore(self, state: Mapping[str, JSON]) -> None:
        for name, controller in self.kl.items():
            if name in state["kl"]:
                # Target and horizon are the recipe's, which may have been changed for the resume.
                controller.coefficient = float(state["kl"][name]["coefficient"])
        for name, target in self.entropy.items():
            if name in state["entropy"]:
                target.restore(state["entropy"][name])


def _domains(bundles: Mapping[str, Bundle], name: str) -> list[str]:
    return [domain for domain, bundle in bundles.items() if bundle.name == name]


def _mean_over(tallies: Sequence[Tally], metric: str, domains: Sequence[str]) -> float | None:
    """Return a metric's mean over all tokens of some domains; None where none was measured."""
    total = count = 0.0
    for tally in tallies:
        for domain in domains:
            total += tally.sums.get(f"domain/{domain}/{metric}", 0.0)
            count += tally.counts.get(f"domain/{domain}/{metric}", 0.0)
    return total / count if count else None
