"""Several samples of one task: pass@k and its kin, agreement, entropy, flips.

K samples, c of them right. Every estimator is unbiased for drawing k of infinitely many samples
unless its text says otherwise; all refuse k > K.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from educe.evaluation.statistics.estimates import Floats


def pass_at_k(num_right: ArrayLike, num_samples: int, k: int) -> Floats:
    """Return 1 - C(K-c, k) / C(K, k) per item: some of k samples is right (Chen et al. 2021)."""
    right = _check_counts(num_right, num_samples, k)
    wrong = num_samples - right
    j = np.arange(num_samples - k + 1, num_samples + 1)
    # C(w, k) / C(K, k) as a product of k factors in [0, 1]: no large number ever appears.
    factors = np.clip((wrong[..., None] - num_samples + j) / j, 0.0, None)
    return np.asarray(1.0 - factors.prod(axis=-1), dtype=np.float64)


def pass_hat_k(num_right: ArrayLike, num_samples: int, k: int) -> Floats:
    """Return C(c, k) / C(K, k) per item: all of k samples are right (tau-bench, 2406.12045)."""
    right = _check_counts(num_right, num_samples, k)
    j = np.arange(num_samples - k + 1, num_samples + 1)
    factors = np.clip((right[..., None] - num_samples + j) / j, 0.0, None)
    return np.asarray(factors.prod(axis=-1), dtype=np.float64)


def graded_pass_at_k(num_right: ArrayLike, num_samples: int, k: int, share: float) -> Floats:
    """Return G-Pass@k_tau per item: ceil(share * k) or more of k samples right (2412.13147)."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie in [0, 1], got {share}")
    right = _check_counts(num_right, num_samples, k)
    needed = math.ceil(share * k - 1e-9)
    total = np.zeros(right.shape)
    for j in range(needed, k + 1):
        total += special.binom(right, j) * special.binom(num_samples - right, k - j)
    return np.asarray(total / special.binom(num_samples, k), dtype=np.float64)


def mean_graded_pass_at_k(num_right: ArrayLike, num_samples: int, k: int) -> Floats:
    """Return mG-Pass@k: (2/k) times the sum of G-Pass at i/k for i above k/2 (2412.13147)."""
    right = np.asarray(num_right)
    terms = [
        graded_pass_at_k(right, num_samples, k, i / k) for i in range(math.ceil(k / 2) + 1, k + 1)
    ]
    total = np.sum(terms, axis=0) if terms else np.zeros(right.shape)
    return np.asarray(2 / k * total, dtype=np.float64)


def majority_at_k(
    classes: Sequence[Hashable],
    right_classes: frozenset[Hashable] | set[Hashable],
    k: int,
    *,
    draws: int = 2000,
    seed: int = 0,
) -> float:
    """Return the chance that the majority answer of k samples is right; ties share equally.

    Args:
        classes: the equivalence class of each sample's answer, as the verifier sees equality (not
            the string). None stands for "no answer" and never wins a vote against an answer.
        right_classes: classes that are right.
        k: votes, drawn without replacement; k = K is computed exactly, else by ``draws`` draws.
    """
    if not 1 <= k <= len(classes):
        raise ValueError(f"majority_at_k needs 1 <= k <= {len(classes)} samples, got k = {k}")
    if k == len(classes):
        return _vote(classes, right_classes)
    from educe.core.seeds import numpy_random

    rng = numpy_random("majority", seed, k, len(classes))
    picks = [rng.choice(len(classes), size=k, replace=False) for _ in range(draws)]
    return float(np.mean([_vote([classes[i] for i in pick], right_classes) for pick in picks]))


def _vote(votes: Sequence[Hashable], right: frozenset[Hashable] | set[Hashable]) -> float:
    counts = Counter(v for v in votes if v is not None)
    if not counts:
        return 0.0
    top = max(counts.values())
    winners = [c for c, n in counts.items() if n == top]
    return sum(c in right for c in winners) / len(winners)


@dataclass(frozen=True, slots=True)
class Stability:
    """How alike the answers to one task are.

    Attributes:
        agreement: unbiased probability that two samples give the same answer class.
        entropy: of the answer classes, in nats (plug-in: biased low for few samples).
        modal_rate: share of the most frequent class.
        is_modal_right: whether that class is right.
        flips: whether both right and wrong answers occurred.
    """

    agreement: float
    entropy: float
    modal_rate: float
    is_modal_right: bool
    flips: bool

    @property
    def is_consistently_wrong(self) -> bool:
        """Wrong, and steadily so (modal rate over one half): other than unstable."""
        return not self.is_modal_right and self.modal_rate > 0.5


def stability(
    classes: Sequence[Hashable], right_classes: frozenset[Hashable] | set[Hashable]
) -> Stability:
    """Return the stability of K >= 2 samples of one task, by answer class."""
    total = len(classes)
    if total < 2:
        raise ValueError(f"stability needs at least 2 samples of a task, got {total}")
    counts = Counter(classes)
    shares = np.array(list(counts.values())) / total
    pairs = sum(n * (n - 1) for n in counts.values())
    mode, size = counts.most_common(1)[0]
    num_right = sum(n for c, n in counts.items() if c in right_classes)
    return Stability(
        agreement=pairs / (total * (total - 1)),
        entropy=float(max(0.0, -(shares * np.log(shares)).sum())),
        modal_rate=size / total,
        is_modal_right=mode in right_classes,
        flips=0 < num_right < total,
    )


def _check_counts(num_right: ArrayLike, num_samples: int, k: int) -> Floats:
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k = {k} cannot be estimated from {num_samples} samples a task: draw at least k"
        )
    right = np.asarray(num_right, dtype=np.float64)
    if (right < 0).any() or (right > num_samples).any():
        raise ValueError(f"numbers of right samples must lie in [0, {num_samples}]")
    return right
