"""The controller of shares: evidence in, shares and reasons out, and who is next.

Arrays of shape (..., D); see ``evidence``. Nothing is drawn: given the order of ties and what
was observed, every choice is determined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, unique

import numpy as np
from numpy.typing import NDArray

from educe.scheduling.bounds import bounded_shares
from educe.scheduling.evidence import BatchCounts, Evidence
from educe.scheduling.strategies import STRATEGIES, Wish

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_OVERDUE = 1e9
_TIE = 1e-9
# Rounds that a run of unknown length is taken to have left.
ROUNDS_AHEAD = 40.0
# A domain without success shows it by so many groups: below this level.
_HOPELESS, _HOPELESS_AFTER = 0.02, 8.0


@unique
class Reason(IntEnum):
    """Why a domain's share is what it is; the number is what the run store keeps."""

    WEIGHT = 0
    NEW = 1
    MORE_SIGNAL = 2
    LESS_SIGNAL = 3
    MORE_ROOM = 4
    LESS_ROOM = 5
    RESPONDS = 6
    STALLED = 7
    CHEAP = 8
    COSTLY = 9
    SLIPPED = 10
    PROTECTED = 11
    UNSCORED = 12
    SOLVED = 13
    HOPELESS = 14
    MORE_PROGRESS = 15
    LESS_PROGRESS = 16
    MORE_REGRET = 17
    LESS_REGRET = 18
    LOWEST = 19
    LONG = 20


REASON_TEXTS = {
    Reason.WEIGHT: "near its weight",
    Reason.NEW: "hardly seen yet",
    Reason.MORE_SIGNAL: "groups carry more signal than elsewhere",
    Reason.LESS_SIGNAL: "groups carry less signal than elsewhere",
    Reason.MORE_ROOM: "in the middle of its curve",
    Reason.LESS_ROOM: "at an end of its curve",
    Reason.RESPONDS: "responds to training better than others",
    Reason.STALLED: "trained without moving",
    Reason.CHEAP: "cheap",
    Reason.COSTLY: "costly",
    Reason.SLIPPED: "slipped from its best",
    Reason.PROTECTED: "protected",
    Reason.UNSCORED: "its samples come back unscored",
    Reason.SOLVED: "solved",
    Reason.HOPELESS: "no success yet",
    Reason.MORE_PROGRESS: "its score moves more than others'",
    Reason.LESS_PROGRESS: "its score moves less than others'",
    Reason.MORE_REGRET: "its best is far above its mean",
    Reason.LESS_REGRET: "its best is near its mean",
    Reason.LOWEST: "among the lowest scores",
    Reason.LONG: "long contexts have a share of their own",
}
_MORE_LESS = {
    "signal": (Reason.MORE_SIGNAL, Reason.LESS_SIGNAL),
    "room": (Reason.MORE_ROOM, Reason.LESS_ROOM),
    "response": (Reason.RESPONDS, Reason.STALLED),
    "cheapness": (Reason.CHEAP, Reason.COSTLY),
    "progress": (Reason.MORE_PROGRESS, Reason.LESS_PROGRESS),
    "regret": (Reason.MORE_REGRET, Reason.LESS_REGRET),
}
# What is added to a reason's number when a bound decides.
AT_FLOOR, AT_CEILING = 100, 200


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """How strongly and within which bounds a controller acts; see ``config.MixtureSettings``.

    Attributes:
        strategy: key of ``STRATEGIES``.
        cost_power: 0 ignores costs, 1 divides by them.
        sharpness: power of the wishes; 0 is the weights, large is winner takes all.
        settle: groups a domain, on average, after which that power is half reached: what is
            decided in the first rounds is decided on noise, and noise widens the gap between
            domains that are alike.
        floor, ceiling: bounds of a share, relative to the domain's own by weight.
        lowest: part of the domains, those with the lowest scores, that is not left behind...
        lowest_floor: ...but keeps at least this share, relative to its own; who never succeeds is
            not among them.
        visit_within: rounds (prompts a domain on average) after which a domain's turn is due.
        slip: points of score below its best that count as slipping.
        protect_boost: least share of a protected domain that slipped, relative to its own.
        optimism: how many deviations the doubt about a domain speaks for it.
        long_share: what the domains marked long get together; 0 does not ask for it. It stands
            above floor and ceiling.
        long_by_cost: whether that is a share of the cost, or of the prompts.
    """

    strategy: str = "expected_gain"
    cost_power: float = 1.0
    sharpness: float = 1.5
    settle: float = 4.0
    floor: float = 0.1
    ceiling: float = 8.0
    lowest: float = 0.2
    lowest_floor: float = 0.5
    visit_within: float = 8.0
    slip: float = 0.03
    protect_boost: float = 3.0
    optimism: float = 0.0
    long_share: float = 0.0
    long_by_cost: bool = True

    @property
    def is_adaptive(self) -> bool:
        return self.strategy != "static"


@dataclass(slots=True)
class ShareController:
    """Decides shares from evidence, and whose turn it is from shares.

    ``rounds_left`` (..., 1), prompts a domain that the run still brings, is to be kept current.

    Args:
        weights: (..., D) the recipe's weights, ``>= 0``; 0 means never. They may be changed later,
            from one positive number to another.
        evidence: of the same shape; empty at the start.
        settings: see ``ControlSettings``.
        ties: (..., D) distinct ranks; the lowest is preferred between equals.
        protected: (..., D) domains that get more as soon as they slip.
        long: (..., D) domains that depend on long contexts; None is none.
    """

    weights: Floats
    evidence: Evidence
    settings: ControlSettings
    ties: Floats
    protected: Bools
    long: Bools | None = None
    rounds_left: Floats = field(init=False)
    shares: Floats = field(init=False)
    reasons: Ints = field(init=False)
    wishes: Floats = field(init=False)
    credit: Floats = field(init=False)
    waited: Floats = field(init=False)
    _rank: Floats = field(init=False)
    _limit: Floats = field(init=False)
    _first: Ints = field(init=False)

    def __post_init__(self) -> None:
        shape = self.weights.shape
        is_active = self.weights > 0
        self.rounds_left = np.full((*shape[:-1], 1), ROUNDS_AHEAD)
        self.credit = np.zeros(shape)
        self.waited = np.where(is_active, 0.0, -np.inf)
        self._rank = np.where(is_active, _TIE * self.ties, np.inf)
        self._limit = self.settings.visit_within * is_active.sum(axis=-1, keepdims=True)
        # Where each run's domains begin in the flat arrays.
        self._first = np.arange(0, self.weights.size, shape[-1]).reshape(shape[:-1])
        self.wishes = np.ones(shape)
        self.shares = self.base
        self.reasons = np.full(shape, int(Reason.WEIGHT))
        self.replan()

    @property
    def base(self) -> Floats:
        """Shares by weight alone."""
        return np.asarray(self.weights / self.weights.sum(axis=-1, keepdims=True))

    def observe(self, counts: BatchCounts) -> None:
        """Take in a batch and decide the shares of the next one."""
        self.evidence.update(counts)
        self.replan()

    def replan(self) -> None:
        """Decide shares and reasons from the evidence."""
        settings, base = self.settings, self.base
        if not settings.is_adaptive:
            self.shares = base
            self.reasons = np.full(base.shape, int(Reason.WEIGHT))
            self._give_long_its_share()
            return
        wish = STRATEGIES[settings.strategy](self.evidence, settings.optimism, self.rounds_left)
        cheapness = self._cheapness()
        value = wish.value * cheapness
        mean = (base * value).sum(axis=-1, keepdims=True)
        self.wishes = value / np.maximum(mean, 1e-300)
        slipped = self.slipped()
        floors = self._floors(slipped, self.lowest())
        least, most = base * floors, base * settings.ceiling
        self.shares = bounded_shares(base * self.wishes ** self._sharpness(), least, most)
        self._explain(wish, cheapness, slipped, least, most)
        self._give_long_its_share()

    def _give_long_its_share(self) -> None:
        """Scale long and other domains as two groups, so that the cost of the long ones is their
        share of all cost; within a group nothing changes."""
        wanted = self.settings.long_share
        if not wanted or self.long is None:
            return
        shares = self.shares
        long, short = (
            np.where(m, shares, 0.0).sum(axis=-1, keepdims=True) for m in (self.long, ~self.long)
        )
        if not (np.minimum(long, short) > 0).all():
            return
        prompts = np.full(long.shape, wanted)
        if self.settings.long_by_cost:
            spent = shares * self.evidence.mean_cost()
            each_long = np.where(self.long, spent, 0.0).sum(axis=-1, keepdims=True) / long
            each_short = np.where(self.long, 0.0, spent).sum(axis=-1, keepdims=True) / short
            prompts = wanted * each_short / (wanted * each_short + (1.0 - wanted) * each_long)
        self.shares = np.where(self.long, shares / long * prompts, shares / short * (1.0 - prompts))
        is_moved = self.long & (np.abs(np.log(np.maximum(prompts, 1e-12) / long)) > np.log(1.15))
        self.reasons = np.where(is_moved, int(Reason.LONG), self.reasons)

    def pick(self) -> Ints:
        """Return the index (...) of the domain whose turn it is, and count it.

        It is the one furthest behind its share (each prompt credits every domain its share and
        costs the picked one 1), unless another's turn is overdue.
        """
        self.credit += self.shares
        self.waited += 1.0
        urgency = self.credit - self._rank
        if self.settings.is_adaptive:
            is_overdue = self.waited > self._limit
            if is_overdue.any():
                urgency = np.where(is_overdue, _OVERDUE + self.waited, urgency)
        chosen = np.asarray(urgency.argmax(axis=-1))
        at = self._first + chosen
        self.credit.reshape(-1)[at] -= 1.0
        self.waited.reshape(-1)[at] = 0.0
        return chosen

    def slipped(self) -> Bools:
        """Return which domains' level is surely below the best that was surely reached."""
        evidence = self.evidence
        surely = evidence.level + np.sqrt(evidence.level_variance)
        return np.asarray(evidence.is_known() & (surely < evidence.peak - self.settings.slip))

    def lowest(self) -> Bools:
        """Return the domains of the lowest scores: below the mean, and with some success."""
        evidence = self.evidence
        level = evidence.pooled_level()
        is_active = self.weights > 0
        mean = (self.base * level).sum(axis=-1, keepdims=True)
        has_success = evidence.is_known() & (level >= _HOPELESS)
        may_succeed = has_success | (evidence.visits < _HOPELESS_AFTER)
        ranked = np.where(is_active & may_succeed & (level < mean - _TIE), level, np.inf)
        rank = np.argsort(np.argsort(ranked, axis=-1, kind="stable"), axis=-1)
        count = np.ceil(self.settings.lowest * is_active.sum(axis=-1, keepdims=True))
        return np.asarray((rank < count) & np.isfinite(ranked))

    def _floors(self, slipped: Bools, lowest: Bools) -> Floats:
        settings = self.settings
        floors = np.full(self.weights.shape, settings.floor)
        floors = np.where(lowest, np.maximum(floors, settings.lowest_floor), floors)
        floors = np.where(slipped | self.protected, np.maximum(floors, 1.0), floors)
        floors = np.where(slipped & self.protected, settings.protect_boost, floors)
        return np.asarray(np.minimum(floors, settings.ceiling))

    def _sharpness(self) -> Floats:
        """Return the power of the wishes (..., 1), rising with what was seen of all domains."""
        seen = (self.base * self.evidence.visits).sum(axis=-1, keepdims=True)
        return np.asarray(self.settings.sharpness * seen / (seen + self.settings.settle + 1e-9))

    def _cheapness(self) -> Floats:
        power = self.settings.cost_power
        if not power:
            return np.ones(self.weights.shape)
        return np.asarray(self.evidence.mean_cost() ** -power)

    def _explain(
        self, wish: Wish, cheapness: Floats, slipped: Bools, least: Floats, most: Floats
    ) -> None:
        """Name, for each domain, what moved its share most; and the bound, where one decided."""
        base, evidence = self.base, self.evidence
        reasons = np.full(self.weights.shape, int(Reason.WEIGHT))
        strongest = np.full(self.weights.shape, np.log(1.15))  # less is not worth a word
        for name, factor in {**wish.factors, "cheapness": cheapness}.items():
            logs = np.log(np.maximum(factor, 1e-12))
            logs = logs - (base * logs).sum(axis=-1, keepdims=True)
            more, less = _MORE_LESS[name]
            is_stronger = np.abs(logs) > strongest
            reasons = np.where(is_stronger, np.where(logs > 0, int(more), int(less)), reasons)
            strongest = np.where(is_stronger, np.abs(logs), strongest)
        is_low = evidence.is_known() & (self.shares < 0.9 * base)
        reasons = np.where(is_low & (evidence.level > 0.9), Reason.SOLVED, reasons)
        reasons = np.where(is_low & (evidence.level < 0.03), Reason.HOPELESS, reasons)
        reasons = np.where(evidence.groups < 2, Reason.NEW, reasons)
        is_unscored = evidence.missing > 0.5 * np.maximum(evidence.groups, 1.0)
        reasons = np.where(is_unscored, Reason.UNSCORED, reasons)
        at_floor = self.shares <= least * (1.0 + 1e-6)
        is_raised = least > base * self.settings.floor * (1.0 + 1e-6)
        reasons = np.where(is_raised & at_floor, Reason.LOWEST, reasons)
        reasons = np.where(self.protected & at_floor, Reason.PROTECTED, reasons)
        reasons = np.where(slipped & at_floor, Reason.SLIPPED, reasons)
        reasons = np.where(at_floor, reasons + AT_FLOOR, reasons)
        at_ceiling = ~at_floor & (self.shares >= most * (1.0 - 1e-6))
        self.reasons = np.where(at_ceiling, reasons + AT_CEILING, reasons)


def reason_text(code: int) -> str:
    """Return a stored reason in words."""
    bound = code // AT_FLOOR * AT_FLOOR
    text = REASON_TEXTS.get(Reason(code % AT_FLOOR), "unknown")
    return text + {AT_FLOOR: "; at its floor", AT_CEILING: "; at its ceiling"}.get(bound, "")
