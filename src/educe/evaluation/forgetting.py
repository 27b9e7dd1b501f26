"""What was forgotten, over hundreds of domains: screen cheaply, confirm on fresh tasks.

Testing 300 domains once with enough tasks to survive a correction is costly. Two stages are not: a
small screen on every domain names suspects at a lenient level, and only they are tested again, on
tasks that the screen has not seen, with the false discovery rate held over those tests alone.
Because the second tasks are fresh, the screen's selection biases nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.evaluation.compare import Comparison, DomainComparison, compare
from educe.evaluation.records import EvalResult
from educe.evaluation.statistics import Estimate, benjamini_hochberg
from educe.evaluation.statistics.estimates import Floats

LossKind = Literal["knowledge", "format", "unclear"]
LenientPair = tuple[EvalResult, EvalResult]
FreshPair = Callable[[Sequence[str]], tuple[EvalResult, EvalResult]]


@dataclass(frozen=True, slots=True)
class DomainLoss:
    """One suspect after confirmation.

    Attributes:
        screen_p, confirm_p: one-sided p-values of "after is worse" in each stage.
        q_value: of the confirmation, over the suspects.
        difference: on the confirmation's tasks alone (the screen's is selected, so biased).
        is_lost: confirmed at the board's false discovery rate.
        kind: for confirmed losses with lenient scores: ``format`` where the lenient scorer sees no
            loss of relevance, ``knowledge`` where it sees one.
    """

    domain: str
    screen_p: float
    confirm_p: float
    q_value: float
    difference: Estimate | None
    learned: int
    forgotten: int
    is_lost: bool
    kind: LossKind

    def to_json(self) -> dict[str, JSON]:
        return {
            "domain": self.domain,
            "screen_p": self.screen_p,
            "confirm_p": self.confirm_p,
            "q_value": self.q_value,
            "difference": None if self.difference is None else self.difference.to_json(),
            "learned": self.learned,
            "forgotten": self.forgotten,
            "is_lost": self.is_lost,
            "kind": self.kind,
        }


@dataclass(frozen=True, slots=True)
class ForgettingBoard:
    """Screen, suspects and confirmed losses of one checkpoint against another."""

    num_domains: int
    screen: Comparison
    suspects: tuple[DomainLoss, ...]
    num_tasks: int
    screen_level: float
    false_discovery_rate: float

    @property
    def lost(self) -> list[DomainLoss]:
        return [s for s in self.suspects if s.is_lost]

    def to_json(self) -> dict[str, JSON]:
        return {
            "num_domains": self.num_domains,
            "num_tasks": self.num_tasks,
            "screen_level": self.screen_level,
            "false_discovery_rate": self.false_discovery_rate,
            "suspects": [s.to_json() for s in self.suspects],
            "lost": [s.domain for s in self.lost],
            "screen": self.screen.to_json(),
        }


def screen_and_confirm(
    before: EvalResult,
    after: EvalResult,
    fresh: FreshPair,
    *,
    lenient: LenientPair | Callable[[], LenientPair | None] | None = None,
    screen_level: float = 0.1,
    false_discovery_rate: float = 0.1,
    relevant_difference: float = 0.05,
) -> ForgettingBoard:
    """Find the domains that became worse.

    Args:
        before, after: the screen: a few tasks of every domain (the ``screen`` split).
        fresh: evaluates both checkpoints on other tasks of the suspects it is given.
        lenient: the confirmation's completions scored by a lenient extractor, to tell a lost
            format from lost knowledge; a function is called once the confirmation is there.
        screen_level: one-sided p-value up to which a domain is a suspect.

    Raises:
        EduceError: the confirmation repeats tasks of the screen, or leaves a suspect out.
    """
    screen = compare(before, after)
    p_screen = {d.domain: _p_worse(d) for d in screen.domains}
    names = [name for name, p in p_screen.items() if p <= screen_level]
    suspects: list[DomainLoss] = []
    num_tasks = sum(d.num_pairs + d.num_lost_pairs for d in screen.domains)
    if names:
        confirmed = fresh(names)
        _check_fresh((before, after), confirmed, names)
        found = {d.domain: d for d in compare(*confirmed).domains}
        num_tasks += sum(d.num_pairs + d.num_lost_pairs for d in found.values())
        p_values = [_p_worse(found[name]) for name in names]
        q_values = benjamini_hochberg(p_values).tolist()
        soft = lenient() if callable(lenient) else lenient
        kinds = {} if soft is None else _kinds(soft, relevant_difference)
        for name, p, q in zip(names, p_values, q_values, strict=True):
            d = found[name]
            is_lost = q <= false_discovery_rate
            suspects.append(
                DomainLoss(
                    name, p_screen[name], p, q,
                    None if d.difference is None else d.difference.estimate,
                    d.flow.learned, d.flow.forgotten, is_lost,
                    kinds.get(name, "unclear") if is_lost else "unclear",
                )
            )  # fmt: skip
    suspects.sort(key=lambda s: (s.q_value, s.domain))
    return ForgettingBoard(
        len(screen.domains), screen, tuple(suspects), num_tasks, screen_level, false_discovery_rate
    )


def _p_worse(domain: DomainComparison) -> float:
    return 1.0 if domain.difference is None else domain.difference.p_less


def _check_fresh(
    screen: tuple[EvalResult, EvalResult],
    confirmed: tuple[EvalResult, EvalResult],
    names: Sequence[str],
) -> None:
    seen = {(r.domain, r.content_hash) for side in screen for r in side.rows}
    again = {(r.domain, r.content_hash) for side in confirmed for r in side.rows} & seen
    if again:
        raise EduceError(
            f"the confirmation repeats {len(again)} tasks of the screen, e.g. of "
            f"{sorted(again)[0][0]}; use another split or other indices, or the selection would "
            f"be counted twice"
        )
    missing = sorted(set(names) - (set(confirmed[0].domains) & set(confirmed[1].domains)))
    if missing:
        raise EduceError(f"the confirmation has no tasks of {', '.join(missing)}")


def _kinds(lenient: tuple[EvalResult, EvalResult], relevant: float) -> dict[str, LossKind]:
    """Judge by the lenient scores: a loss that they share is one of knowledge."""
    kinds: dict[str, LossKind] = {}
    for d in compare(*lenient).domains:
        if d.difference is None:
            continue
        estimate = d.difference.estimate
        if d.difference.p_less <= 0.05:
            kinds[d.domain] = "knowledge"
        else:
            # "No loss shown" is not "no loss": only a lower limit near zero clears knowledge.
            kinds[d.domain] = "format" if estimate.low > -relevant else "unclear"
    return kinds


@dataclass(frozen=True, slots=True)
class ContinualMetrics:
    """Summary of a matrix of scores over stages and domains, where stage t trains domain t.

    ``forgetting`` is the published one, whose maximum over stages is biased upward by noise;
    ``forgetting_split_half`` picks the best stage on one half of the tasks and measures on the
    other, None where no halves were given.
    """

    average: float
    backward_transfer: float
    forward_transfer: float
    forgetting: float
    forgetting_split_half: float | None


def continual_metrics(
    scores_TI: ArrayLike,
    baseline_I: ArrayLike,
    *,
    halves_TI: tuple[ArrayLike, ArrayLike] | None = None,
) -> ContinualMetrics:
    """Return average, BWT and FWT (Lopez-Paz and Ranzato 2017) and forgetting (Chaudhry 2018).

    Args:
        scores_TI: T stages x T domains, row t after training on domain t.
        baseline_I: scores before any training.
        halves_TI: the same matrix on two disjoint halves of the tasks.
    """
    r, b = np.asarray(scores_TI, np.float64), np.asarray(baseline_I, np.float64)
    stages = len(r)
    if r.shape != (stages, stages) or b.shape != (stages,) or stages < 2:
        raise ValueError(
            f"expected a square matrix of >= 2 stages and one baseline a domain, got {r.shape} "
            f"and {b.shape}"
        )
    last, diagonal = r[-1], np.diag(r)
    split = None
    if halves_TI is not None:
        one, two = (np.asarray(h, np.float64) for h in halves_TI)
        split = (_forgetting(one, two) + _forgetting(two, one)) / 2
    return ContinualMetrics(
        average=float(last.mean()),
        backward_transfer=float((last[:-1] - diagonal[:-1]).mean()),
        forward_transfer=float((np.diag(r, k=1) - b[1:]).mean()),
        forgetting=_forgetting(r, r),
        forgetting_split_half=split,
    )


def _forgetting(pick: Floats, measure: Floats) -> float:
    """Mean over domains but the last of (score at the stage that ``pick`` says was best) - now."""
    best = pick[:-1, :-1].argmax(0)
    columns = np.arange(pick.shape[1] - 1)
    return float((measure[best, columns] - measure[-1, columns]).mean())
