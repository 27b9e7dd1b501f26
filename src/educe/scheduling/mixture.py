"""Which domain comes next: static weights met exactly at every prefix, or shares that follow gain.

The next prompt goes to the domain that is furthest behind its share (Hamilton's largest deficit),
so shares hold over any stretch of the run, no draw is needed, and the state is a few numbers each.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from educe.core.errors import DomainError
from educe.core.seeds import derive
from educe.core.types import JSON
from educe.scheduling.controller import ControlSettings, Reason, ShareController
from educe.scheduling.evidence import STATE, Evidence
from educe.scheduling.lengths import LengthRamp
from educe.scheduling.levels import LevelControl, Standing
from educe.scheduling.results import GroupResult, RewardRange, count_results

STATE_FORMAT = 1
_LAST_PART = 0.02


class Mixture(Protocol):
    """What the loop asks: who is next, and here is what came of it."""

    @property
    def shares(self) -> Mapping[str, float]:
        """Current shares by domain; they add up to 1."""
        ...

    def next_domain(self) -> str:
        """Return the domain whose turn it is, and count it."""
        ...

    def observe(
        self, results: Sequence[GroupResult], seconds: Mapping[str, float] | None = None
    ) -> None:
        """Take in the groups of one rollout batch (in any order), and their measured costs."""
        ...

    def boost(self, domain: str, factor: float) -> None:
        """Multiply a domain's weight from here on.

        Raises:
            DomainError: it has no weight, or the weights are fixed.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Return what decides the next batch, as flat metrics."""
        ...

    def state(self) -> JSON: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class StaticMixture:
    """Picks domains in proportion to fixed weights.

    Args:
        weights: by domain, ``>= 0``; zero means never.
        seed: breaks ties, so that runs with different seeds start at different domains.

    Raises:
        DomainError: when no weight is positive.
    """

    def __init__(self, weights: Mapping[str, float], seed: int = 0) -> None:
        self._shares = {name: w for name, w in weights.items() if w > 0}
        if not self._shares:
            raise DomainError("no domain has a positive weight; give at least one")
        total = sum(self._shares.values())
        self._shares = {name: w / total for name, w in self._shares.items()}
        self._order = sorted(self._shares, key=lambda name: derive("mixture", seed, name))
        self._issued = dict.fromkeys(self._order, 0)

    @property
    def shares(self) -> Mapping[str, float]:
        return self._shares

    def next_domain(self) -> str:
        """Return the domain furthest behind its share, and count it."""
        total = sum(self._issued.values()) + 1
        name = max(self._order, key=lambda n: self._shares[n] * total - self._issued[n])
        self._issued[name] += 1
        return name

    def observe(
        self, results: Sequence[GroupResult], seconds: Mapping[str, float] | None = None
    ) -> None:
        """Change nothing: the weights are what they are."""

    def boost(self, domain: str, factor: float) -> None:
        """Raises DomainError: what may change is an ``AdaptiveMixture``."""
        raise DomainError(f"{domain}: these shares are fixed and cannot be raised by {factor:g}")

    def metrics(self) -> dict[str, float]:
        return {f"domain/{name}/share": share for name, share in self._shares.items()}

    def state(self) -> JSON:
        return dict(self._issued)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; domains added or removed since then are tolerated.

        A domain that is new starts level with its share, not with the whole backlog. The state of
        an adaptive mixture (another strategy before the resume) is a fresh start.
        """
        if "format" in state:
            return
        known = {n: int(state[n]) for n in self._order if n in state}
        total = sum(known.values())
        covered = sum(self._shares[n] for n in known)
        for name in self._order:
            if name not in known and covered:
                known[name] = round(total * self._shares[name] / covered)
        self._issued = {n: known.get(n, 0) for n in self._order}


@dataclass(frozen=True, slots=True)
class MixedDomain:
    """What the mixture knows of a domain beforehand.

    Attributes:
        weight: ``>= 0``; zero means never.
        family: whose domains are likely alike.
        chance: score of an answer that ignores the question.
    """

    weight: float
    family: str
    chance: float = 0.0


class AdaptiveMixture:
    """Moves shares after every batch; see ``ShareController`` for how.

    Args:
        domains: by name.
        settings: strategy and bounds.
        seed: breaks ties.
        half_life, pooling: see ``Evidence``.
        protected: names or globs.
        levels: moves weights within families; None leaves them.
        long: names or globs of the domains that ``settings.long_share`` is about.
        ramp: lets domains with long prompts wait; None lets them all at once.
        num_prompts: that the run brings in all; 0 is unknown.

    Raises:
        DomainError: when no weight is positive.
    """

    def __init__(
        self,
        domains: Mapping[str, MixedDomain],
        settings: ControlSettings,
        *,
        seed: int = 0,
        half_life: float = 32.0,
        pooling: float = 4.0,
        protected: Sequence[str] = (),
        levels: LevelControl | None = None,
        long: Collection[str] = (),
        ramp: LengthRamp | None = None,
        num_prompts: int = 0,
    ) -> None:
        self.num_prompts = num_prompts
        self.names = sorted(n for n, d in domains.items() if d.weight > 0)
        if not self.names:
            raise DomainError("no domain has a positive weight; give at least one")
        self._places = {name: i for i, name in enumerate(self.names)}
        self._chance = {n: min(domains[n].chance, 0.99) for n in self.names}
        self._ranges: dict[str, RewardRange] = {}
        self._levels = levels
        self._ramp = ramp
        self._boosts: dict[str, float] = {}
        self._recipe_weights = {n: domains[n].weight for n in self.names}
        families = sorted({domains[n].family for n in self.names})
        place_of_family = {family: i for i, family in enumerate(families)}
        order = sorted(self.names, key=lambda n: derive("mixture", seed, n))
        rank = {name: i for i, name in enumerate(order)}
        self.evidence = Evidence(
            np.array([place_of_family[domains[n].family] for n in self.names]),
            np.array([self._chance[n] for n in self.names]),
            half_life,
            pooling,
        )
        self.controller = ShareController(
            self._weights(),
            self.evidence,
            settings,
            np.array([float(rank[n]) for n in self.names]),
            self._matching(protected),
            self._matching(long),
        )

    def _matching(self, patterns: Collection[str]) -> NDArray[np.bool_]:
        return np.array([any(fnmatch.fnmatchcase(n, p) for p in patterns) for n in self.names])

    def _weights(self) -> NDArray[np.float64]:
        """Return the weights now: the recipe's, moved by levels, boosts and the length ramp."""
        weights = dict(self._recipe_weights)
        if self._levels is not None:
            weights |= {n: w for n, w in self._levels.current_weights().items() if n in weights}
        factors = {} if self._ramp is None else self._ramp.factors()
        return np.array(
            [weights[n] * self._boosts.get(n, 1.0) * factors.get(n, 1.0) for n in self.names]
        )

    @property
    def shares(self) -> Mapping[str, float]:
        return dict(zip(self.names, self.controller.shares.tolist(), strict=True))

    @property
    def reasons(self) -> Mapping[str, int]:
        """The reason for each share, as a number (see ``reason_text``)."""
        return dict(zip(self.names, self.controller.reasons.tolist(), strict=True))

    def next_domain(self) -> str:
        return self.names[int(self.controller.pick())]

    def observe(
        self, results: Sequence[GroupResult], seconds: Mapping[str, float] | None = None
    ) -> None:
        counts = count_results(results, self._places, self._chance, self._ranges, seconds)
        self.evidence.update(counts)
        if self._levels is not None:
            self._levels.move(self.standings())
        if self._ramp is not None:
            self._ramp.num_batches += 1
        self._replan()

    def _replan(self) -> None:
        """Decide shares by the weights now and by what is left of the run, at least a fiftieth."""
        self.controller.weights = self._weights()
        if self.num_prompts:
            left = self.num_prompts - float(self.evidence.visits.sum())
            left = max(left, _LAST_PART * self.num_prompts) / len(self.names)
            self.controller.rounds_left = np.array([left])
        self.controller.replan()

    def boost(self, domain: str, factor: float) -> None:
        if domain not in self._places:
            raise DomainError(f"{domain} has no weight in this run that could be raised")
        self._boosts[domain] = self._boosts.get(domain, 1.0) * factor
        self._replan()

    def standings(self) -> dict[str, Standing]:
        """Return what is known of each domain's success."""
        evidence = self.evidence
        deviation = np.sqrt(evidence.level_variance)
        return {
            name: Standing(float(evidence.level[i]), float(deviation[i]), float(evidence.visits[i]))
            for i, name in enumerate(self.names)
        }

    def metrics(self) -> dict[str, float]:
        controller, evidence = self.controller, self.evidence
        response, _ = evidence.response()
        columns = {
            "share": controller.shares,
            "share_by_weight": controller.base,
            "share_reason": controller.reasons,
            "share_wish": controller.wishes,
            "level_estimate": evidence.level,
            "signal_estimate": evidence.pooled(evidence.spread, 0.5),
            "response_estimate": response,
            "cost_estimate": evidence.mean_cost(),
        }
        values = {
            f"domain/{name}/{key}": float(column[i])
            for key, column in columns.items()
            for i, name in enumerate(self.names)
        }
        shares = controller.shares
        kept = shares[shares > 0]
        # exp of the entropy: how many equally trained domains this comes to.
        values["mixture/effective_domains"] = float(np.exp(-(kept * np.log(kept)).sum()))
        values["mixture/slipped"] = float(controller.slipped().sum())
        values["mixture/new"] = float((controller.reasons % 100 == Reason.NEW).sum())
        if self._ramp is not None:
            values["mixture/length_limit"] = self._ramp.limit
        return values

    # State

    def state(self) -> JSON:
        """Return everything that the next decisions depend on: some 20 numbers a domain."""
        return {
            "format": STATE_FORMAT,
            "names": list(self.names),
            "credit": self.controller.credit.tolist(),
            "waited": self.controller.waited.tolist(),
            "evidence": self.evidence.state(),
            "ranges": {n: [r.low, r.high] for n, r in sorted(self._ranges.items())},
            "levels": None if self._levels is None else self._levels.state(),
            "boosts": dict(sorted(self._boosts.items())),
            "batches": 0 if self._ramp is None else self._ramp.num_batches,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; domains added or removed since then are tolerated.

        A new domain starts without evidence and level with its share; what a removed one was owed
        is spread over the others by share. The counts of a static mixture are a fresh start.
        """
        if state.get("format") != STATE_FORMAT:
            return
        old = {name: i for i, name in enumerate(state["names"])}
        kept = [name for name in self.names if name in old]
        here = np.array([self._places[n] for n in kept], dtype=np.int64)
        there = np.array([old[n] for n in kept], dtype=np.int64)
        for key in STATE:
            values = getattr(self.evidence, key)
            values[here] = np.asarray(state["evidence"][key], dtype=np.float64)[there]
        for key in ("credit", "waited"):
            values = getattr(self.controller, key)
            values[here] = np.asarray(state[key], dtype=np.float64)[there]
        self._ranges = {
            n: RewardRange(low, high) for n, (low, high) in state["ranges"].items() if n in old
        }
        if self._levels is not None and state.get("levels"):
            self._levels.restore(state["levels"])
        if self._ramp is not None:
            self._ramp.num_batches = int(state.get("batches", 0))
        self._boosts = {n: float(f) for n, f in state.get("boosts", {}).items() if n in old}
        self._replan()
        if list(state["names"]) != self.names:
            credit = self.controller.credit
            self.controller.credit = credit - self.controller.shares * credit.sum()
