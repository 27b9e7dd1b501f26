"""What a per-token loss is handed and what it hands back.

N trained tokens of a pack, S sequences. Losses know nothing of batches, domains or aggregation:
the optimizer step multiplies by the ``weight`` stream and sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut to [-20, 20] before exp: e^20 is finite in every float type but fp16."""

Streams = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Segments:
    """Which sequence each trained token belongs to: ``sequence_N`` in 0 … num_sequences - 1."""

    sequence_N: Tensor
    num_sequences: int

    def sum(self, values_N: Tensor) -> Tensor:
        """Return the sum of a sequence's tokens, for each token."""
        return self._total(values_N)[self.sequence_N]

    def mean(self, values_N: Tensor) -> Tensor:
        """Return the mean of a sequence's tokens, for each token."""
        count = torch.bincount(self.sequence_N, minlength=self.num_sequences).to(values_N)
        return (self._total(values_N) / count.clamp(min=1))[self.sequence_N]

    def _total(self, values_N: Tensor) -> Tensor:
        return values_N.new_zeros(self.num_sequences).index_add(0, self.sequence_N, values_N)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The loss of each token, and per-token diagnostics without gradient."""

    loss_N: Tensor
    diagnostics: dict[str, Tensor] = field(default_factory=dict)


LossFunction = Callable[[Tensor, Tensor, Streams, Segments], TokenLoss]


def proximal_logprobs(policy_logprobs_N: Tensor, streams: Streams) -> Tensor:
    """Return the ratio's denominator; where the stream has none it is the policy itself.

    So on the first update the ratio is exactly 1 by construction, whatever the micro-batch.
    """
    given = streams.get("proximal_logprobs")
    if given is None:
        return policy_logprobs_N.detach()
    return torch.where(given.isnan(), policy_logprobs_N.detach(), given)


def bounded_ratio(log_ratio_N: Tensor) -> Tensor:
    """Return exp of the log-ratio, finite whatever that is."""
    return log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
