"""Products of few rows by our own kernels, with what follows them done on the way.

Shapes: N rows, I inputs, O outputs, F feed-forward width.

A decode step reads every weight once, and reading is what it waits for. So packed weights lie one
after the other in large pages in the order in which a step reads them, and a product asks for its
next panel while it multiplies this one (``educe/native/products.c``): on matrix tiles where the
processor has them (AMX), by vectors of bf16 pairs otherwise. The sums of a row do not
depend on the rows beside it or on the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from educe.native.kernels import BFLOAT16, FLOAT32, Kernels
from educe.native.structures import Product

_PANEL = 32
_STEP = 64  # bytes of inputs
_ADDED = 2  # the kind of output that is added to what is there


def suit_tiles(outputs: int, inputs: int, dtype: torch.dtype) -> bool:
    """Return whether a matrix [O, I] of bf16 or int8 fills whole tiles."""
    return outputs % _PANEL == 0 and inputs * dtype.itemsize % _STEP == 0


class Tiles:
    """Packs weights side by side; ``size`` is the bytes of all of them."""

    def __init__(self, kernels: Kernels, size: int) -> None:
        self.kernels = kernels
        self._room = torch.empty(size, dtype=torch.uint8)
        self._used = 0

    def start(self) -> None:
        """Pack anew from the beginning: what was packed before is gone."""
        self._used = 0

    def pack(self, weight_OI: Tensor) -> Tensor:
        """Return the weight in the order of the tiles."""
        size = weight_OI.numel() * weight_OI.itemsize
        first = self._used  # whole lines: every size is a multiple of a panel's step
        if first + size > len(self._room):
            raise ValueError(f"no room for {size} bytes behind {first} of {len(self._room)}")
        self._used = first + size
        packed = self._room[first : first + size]
        self.kernels.pack(weight_OI.contiguous(), packed)
        return packed


class TiledMatrix:
    """x W^T + b of bf16 or, with ``scales`` [O] of the weights, int8 rows."""

    def __init__(
        self,
        tiles: Tiles,
        weight_OI: Tensor,
        bias: Tensor | None = None,
        scales: Tensor | None = None,
    ) -> None:
        self._kernels = tiles.kernels
        self._outputs = len(weight_OI)
        self._dtype = weight_OI.dtype
        self._kept = (
            tiles.pack(weight_OI),
            None if bias is None else bias.float().contiguous(),
            None if scales is None else scales.float().contiguous(),
            None if scales is None else _offsets(weight_OI),
        )
        packed, bias, scales, offsets = self._kept
        self._product = Product(
            weight=packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            scales=None if scales is None else scales.data_ptr(),
            offsets=None if offsets is None else offsets.data_ptr(),
            outputs=self._outputs,
            bytes=weight_OI.shape[1] * weight_OI.itemsize,
            integers=int(scales is not None),
        )

    def __call__(self, x_NI: Tensor, row_scales: Tensor | None = None) -> Tensor:
        """Return [N, O]: bf16, or fp32 of int8 rows."""
        wide = self._product.integers
        out = x_NI.new_empty(
            len(x_NI), self._outputs, dtype=torch.float32 if wide else torch.bfloat16
        )
        self.into(out, x_NI, row_scales)
        return out

    def into(self, out: Tensor, x_NI: Tensor, row_scales: Tensor | None = None) -> None:
        """Write [N, O], fp32 or bf16."""
        self._run(out, x_NI, row_scales, BFLOAT16 if out.dtype == torch.bfloat16 else FLOAT32)

    def add_to(self, out_NO: Tensor, x_NI: Tensor, row_scales: Tensor | None = None) -> None:
        """Add to fp32 rows, rounded to bf16 before if the rows are bf16, as the trainer does."""
        self._run(out_NO, x_NI, row_scales, _ADDED)

    def _run(self, out: Tensor, x_NI: Tensor, row_scales: Tensor | None, kind: int) -> None:
        if x_NI.dtype is not self._dtype or not x_NI.is_contiguous():
            raise TypeError(f"wanted contiguous rows of {self._dtype}, got {x_NI.dtype}")
        product = self._product
        product.x, product.out, product.rows = x_NI.data_ptr(), out.data_ptr(), len(x_NI)
        product.row_scales = None if row_scales is None else row_scales.data_ptr()
        product.out_kind = kind
        self._kernels.product(product)


class TiledGate(TiledMatrix):
    """silu(x G^T) * (x U^T): one product whose panels are of G and of U in turns."""

    def __init__(
        self,
        tiles: Tiles,
        gate_FI: Tensor,
        up_FI: Tensor,
        scales: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        joined = None if scales is None else _by_panels(*scales)
        super().__init__(tiles, _by_panels(gate_FI, up_FI), scales=joined)
        self._product.gated = 1
        self._outputs //= 2


def _offsets(weight_OI: Tensor) -> Tensor:
    """Return what 8-bit sums start with, [O].

    Vectors multiply bytes without a sign by bytes with one, so 128 is added to a row's numbers.
    """
    return weight_OI.sum(1, dtype=torch.int32) * -128


def _by_panels(gate: Tensor, up: Tensor) -> Tensor:
    """Return the panels of both in turns, [2 F, ...]."""
    parts = [x.unflatten(0, (-1, _PANEL)) for x in (gate, up)]
    return torch.stack(parts, dim=1).flatten(0, 2)
