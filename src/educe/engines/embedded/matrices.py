"""Linear layers in the layout of torch's matrix kernels, with what follows them done on the way.

The private torch operators that are called here are pinned in ``tests/engines/test_fused.py``;
without them plain products are used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class Matrix:
    """A linear layer x W^T + b with the kernel's own weight layout where there is one."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self._weight = weight
        self._packed = _packs(weight)
        if self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self.bias, "none", [], ""
            )
            return out
        return functional.linear(x, self._weight, self.bias)

    def silu(self, x: Tensor) -> Tensor:
        if self._packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self.bias, "swish", [], ""
            )
            return out
        return functional.silu(functional.linear(x, self._weight, self.bias), inplace=True)

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """Return (x W^T + b) * other."""
        if self._packed:
            out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                x, other, self._weight, self.bias, "mul"
            )
            return out
        return functional.linear(x, self._weight, self.bias).mul_(other)


_PACK_ROWS = 64


class Gate:
    """silu(gate) * up, two matrices of one input."""

    def __init__(self, gate: Any, up: Any) -> None:
        self.gate, self.up = gate, up

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self.up.times(x, self.gate.silu(x))
        return out


def _packs(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
