"""A head that predicts the return from a hidden state: the critic of PPO.

Shapes: N trained tokens, D width of the model, H width of the head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from educe.core.seeds import numpy_random

_LARGEST = 256


class ValueHead(nn.Module):
    """V of the state that each trained token was sampled in: [N, D] -> [N].

    One hidden layer of H = min(D, 256) units; the output starts at exactly 0, so that untrained
    values move neither credit nor the model below.

    Args:
        width: D.
        seed: of the hidden layer's weights; equal seeds give equal weights.
        trunk: let gradients through to the model that makes the hidden states.
    """

    def __init__(
        self,
        width: int,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        trunk: bool = False,
    ) -> None:
        super().__init__()
        size = min(width, _LARGEST)
        # bfloat16 weights would not feel the small steps of a regression.
        master = torch.promote_types(dtype, torch.float32)
        self.inner = nn.Linear(width, size, dtype=master, device=device)
        self.outer = nn.Linear(size, 1, dtype=master, device=device)
        self.trunk = trunk
        drawn = numpy_random("value-head", seed).standard_normal((size, width)) / width**0.5
        with torch.no_grad():
            self.inner.weight.copy_(torch.as_tensor(drawn))
            for parameter in (self.inner.bias, self.outer.weight, self.outer.bias):
                parameter.zero_()

    def forward(self, hidden_ND: Tensor) -> Tensor:
        rows = hidden_ND if self.trunk else hidden_ND.detach()
        # Models' final norms are scaled by weights of any size; a few units would own the head.
        scaled = nn.functional.layer_norm(rows.to(self.inner.weight.dtype), rows.shape[-1:])
        inner = nn.functional.silu(self.inner(scaled))
        values: Tensor = self.outer(inner).squeeze(-1)
        return values

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """Return (name, parameter), named apart from the model's own."""
        return [(f"value_head.{n}", p) for n, p in self.named_parameters()]
