"""How token losses become one number: a weight for every trained token, from global counts.

The optimizer step only sums ``weight * loss``, so the weights carry the whole aggregation and no
cut into micro-batches or ranks can change it. Counts are of tokens *before* any rejection.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "prompt-mean")


def sequence_weights(
    aggregation: str,
    lengths_S: Sequence[int],
    prompts_S: Sequence[int],
    max_length: int | Sequence[int] = 0,
) -> NDArray[np.float64]:
    """Return, for each of S sequences, what each of its trained tokens weighs.

    Args:
        aggregation: ``token-mean``: 1 / all tokens; ``seq-mean-token-mean``: 1 / (S |o_i|);
            ``seq-mean-token-sum-norm``: 1 / (S Lmax); ``prompt-mean``: 1 / (P tokens of prompt).
        lengths_S: trained tokens of each sequence; a length of 0 weighs 0.
        prompts_S: which prompt a sequence belongs to.
        max_length: Lmax, for ``seq-mean-token-sum-norm``: one, or one for each sequence (what its
            domain allows). It must not depend on what was sampled, nor on who else is in the batch.

    Raises:
        ValueError: for an unknown aggregation or a missing Lmax.
    """
    lengths = np.asarray(lengths_S, np.float64)
    weights = np.zeros(len(lengths))
    used = lengths > 0
    if not used.any():
        return weights
    num_sequences = int(used.sum())
    if aggregation == "token-mean":
        weights[used] = 1.0 / lengths.sum()
    elif aggregation == "seq-mean-token-mean":
        weights[used] = 1.0 / (num_sequences * lengths[used])
    elif aggregation == "seq-mean-token-sum-norm":
        limits = np.broadcast_to(np.asarray(max_length, np.float64), lengths.shape)[used]
        if (limits <= 0).any():
            raise ValueError("seq-mean-token-sum-norm needs a constant max_length > 0")
        weights[used] = 1.0 / (num_sequences * limits)
    elif aggregation == "prompt-mean":
        prompts = np.asarray(prompts_S)
        names = np.unique(prompts[used])
        for prompt in names:
            own = used & (prompts == prompt)
            weights[own] = 1.0 / (len(names) * lengths[own].sum())
    else:
        raise ValueError(f"aggregation must be one of {AGGREGATIONS}, got {aggregation!r}")
    return weights
