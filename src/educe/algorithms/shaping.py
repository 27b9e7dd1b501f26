"""What is added to a reward for length and repetition, and who is left out of the loss. Torch-free.

Shaping changes what is trained on, never the metric that filters groups or is reported: keep the
raw score beside the shaped one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def soft_overlong_penalty(
    lengths_S: Sequence[int], max_length: int, cache: int, factor: float = 1.0
) -> FloatArray:
    """What to add to each reward for its completion's length (DAPO, arXiv 2503.14476).

    With c = max_length - cache: 0 up to c tokens, then falling in a straight line to -factor at
    max_length and there beyond.

    Raises:
        ValueError: when not 0 < cache <= max_length.
    """
    if not 0 < cache <= max_length:
        raise ValueError(
            f"the penalty starts cache tokens before max_length: expected 0 < cache <= "
            f"{max_length}, got {cache}"
        )
    over = np.asarray(lengths_S, np.float64) - (max_length - cache)
    return -factor * np.clip(over / cache, 0.0, 1.0)


def length_share(lengths_S: Sequence[int], max_length: int) -> FloatArray:
    """length / max_length, at most 1: what a plain length penalty is proportional to.

    Raises:
        ValueError: for a max_length below 1.
    """
    if max_length < 1:
        raise ValueError(f"expected max_length >= 1, got {max_length}")
    return np.minimum(np.asarray(lengths_S, np.float64) / max_length, 1.0)


def repetition_share(token_ids: Sequence[int], width: int = 4) -> float:
    """Return the share of a completion's n-grams that were there before, in [0, 1).

    1 - distinct / all n-grams of ``width`` tokens; 0 for completions too short to have two.

    Raises:
        ValueError: for a width below 1.
    """
    if width < 1:
        raise ValueError(f"n-grams need a width of at least 1, got {width}")
    count = len(token_ids) - width + 1
    if count < 2:
        return 0.0
    grams = Counter(tuple(token_ids[i : i + width]) for i in range(count))
    return 1.0 - len(grams) / count


def without_truncated(
    in_loss_G: Sequence[bool], is_truncated_G: Sequence[bool]
) -> tuple[bool, ...]:
    """Return the loss mask without completions cut by the token limit (overlong filtering).

    They stay in the baseline and in the denominators.
    """
    return tuple(
        bool(used) and not cut for used, cut in zip(in_loss_G, is_truncated_G, strict=True)
    )


def soft_bounded(rewards: FloatArray, limit: float) -> FloatArray:
    """limit * tanh(reward / limit): itself near 0, never beyond ±limit; a limit of 0 is none.

    One wild reward then cannot own a batch's statistics or its gradient.
    """
    if limit <= 0:
        return rewards
    bounded: FloatArray = limit * np.tanh(rewards / limit)
    return bounded


@dataclass(slots=True)
class RunningScale:
    """Running mean and deviation of a domain's rewards, for (reward - mean) / deviation.

    Batches are mixed in with exponentially falling weights, so the first batch is normalised by
    itself. Deterministic: a function of the values in the order given.

    Attributes:
        decay: share of the past that a batch leaves, in [0, 1).
        least: the deviation is never taken for smaller, so that equal rewards stay finite.
        mean, variance, weight: of what was mixed in so far.
    """

    decay: float = 0.99
    least: float = 1e-3
    mean: float = 0.0
    variance: float = 0.0
    weight: float = 0.0

    def update(self, rewards: Sequence[float] | FloatArray) -> None:
        """Take a batch's rewards in; those that are not finite are left out, none changes none."""
        values = np.asarray(rewards, np.float64)
        values = values[np.isfinite(values)]
        if len(values) == 0:
            return
        past = self.decay * self.weight
        total = past + 1.0 - self.decay
        old, new = past / total, (1.0 - self.decay) / total
        gap = float(values.mean()) - self.mean
        # The moments of a mixture, without the difference of large squares.
        self.variance = old * self.variance + new * float(values.var()) + old * new * gap * gap
        self.mean += new * gap
        self.weight = total

    @property
    def deviation(self) -> float:
        if not self.weight:
            return 1.0
        return max(float(np.sqrt(self.variance)), self.least)

    def normalise(self, rewards: FloatArray) -> FloatArray:
        """Return (reward - mean) / deviation."""
        scaled: FloatArray = (rewards - self.mean) / self.deviation
        return scaled

    def state(self) -> dict[str, float]:
        """Return everything that the next normalisation depends on, as JSON."""
        return {
            "decay": self.decay,
            "least": self.least,
            "mean": self.mean,
            "variance": self.variance,
            "weight": self.weight,
        }

    @staticmethod
    def from_state(state: Mapping[str, float]) -> RunningScale:
        return RunningScale(**{k: float(v) for k, v in state.items()})
