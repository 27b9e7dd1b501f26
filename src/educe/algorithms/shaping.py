"""Length: a penalty in the reward, and who is left out of the loss. Torch-free.

Shaping changes what is trained on, never the metric that filters groups or is reported: keep the
raw score beside the shaped one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def soft_overlong_penalty(
    lengths_S: Sequence[int], max_length: int, cache: int, factor: float = 1.0
) -> NDArray[np.float64]:
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


def without_truncated(
    in_loss_G: Sequence[bool], is_truncated_G: Sequence[bool]
) -> tuple[bool, ...]:
    """Return the loss mask without completions cut by the token limit (overlong filtering).

    They stay in the baseline and in the denominators.
    """
    return tuple(
        bool(used) and not cut for used, cut in zip(in_loss_G, is_truncated_G, strict=True)
    )
