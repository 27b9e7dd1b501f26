"""Attention of decoding, the kernel itself: against the plain formula in fp64.

Its callers lay rows and segments out in few ways; here they lie in all that the structure allows.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from educe.native.kernels import Kernels, kernels, kind
from educe.native.structures import Attend

pytestmark = pytest.mark.skipif(kernels() is None, reason="no compiled kernels here")

SHAPES = [(9, 3, 64), (4, 4, 32), (6, 2, 96), (2, 1, 128), (3, 1, 16), (4, 2, 80), (40, 2, 64)]
LENGTHS = (150, 20, 1, 64)  # of segments a, b, c and d
# Rows that share a chain, part of one, a last segment only, none; the same one apart from others.
CHAINS = ((0, 1), (0,), (0,), (0, 1), (3, 1), (2,), (), (0,), (3,), (3, 2, 1))
OWN = (0, 5, 17, 0, 200, 3, 31, 64, 16, 130)
LAYERS, LAYER = 2, 1


def native() -> Kernels:
    found = kernels()
    assert found is not None
    return found


@dataclass
class Case:
    """Arrays of one call; what lies behind a segment's end or a slot's tokens is no number."""

    shape: tuple[int, int, int]
    dtype: torch.dtype
    fresh: int = 1
    with_scales: bool = False
    with_bias: bool = False
    with_norms: bool = False
    block: int = 3
    guarded: bool = False
    kept: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(7)
        heads, kv, width = self.shape
        tokens = len(CHAINS) * self.fresh

        def draw(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=random)

        self.joined = draw(tokens, (heads + 2 * kv) * width).to(self.dtype)
        self.scales = draw(tokens).abs() + 0.5 if self.with_scales else None
        self.bias = draw((heads + 2 * kv) * width) if self.with_bias else None
        self.norms = draw(heads + kv, width) if self.with_norms else None
        angles = draw(tokens, width // 2)
        self.rotation = torch.stack([angles.cos(), angles.sin()], -1).contiguous()
        # Each segment in an array of its own shape: [layers, 2, kv, room, D].
        self.segments = []
        for length in LENGTHS:
            room = length if self.guarded else length + 9
            found = torch.full((LAYERS, 2, kv, room, width), torch.nan, dtype=self.dtype)
            found[:, :, :, :length] = draw(LAYERS, 2, kv, length, width).to(self.dtype)
            self.segments.append(self._placed(found))
        room = max(OWN) + self.fresh + (0 if self.guarded else 7)
        slots = torch.full((2, len(CHAINS), kv, room, width), torch.nan, dtype=self.dtype)
        for row, length in enumerate(OWN):
            slots[:, row, :, :length] = draw(2, kv, length, width).to(self.dtype)
        self.slots = self._placed(slots)
        self.before = self.slots.clone()

    def _placed(self, tensor: Tensor) -> Tensor:
        """Return it, where guarded ending at a page that nobody may read."""
        if not self.guarded:
            return tensor
        size = tensor.numel() * tensor.itemsize
        room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = mmap.mmap(-1, room + mmap.PAGESIZE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(first + room), mmap.PAGESIZE, 0) == 0
        raw = torch.frombuffer(pages, dtype=torch.uint8, count=size, offset=room - size)
        out = raw.view(tensor.dtype).view(tensor.shape)
        out.copy_(tensor)
        self.kept += [pages, libc]
        return out

    def run(self) -> Tensor:
        """Return the kernel's output [R, T, H, D]."""
        heads, kv, width = self.shape
        size = self.slots.itemsize
        flat = []
        for chain in CHAINS:
            for name in chain:
                layer, part, head = (s * size for s in self.segments[name].stride()[:3])
                flat.append((self.segments[name].data_ptr(), layer, part, head, LENGTHS[name]))
        ends = np.cumsum([0, *map(len, CHAINS)])
        arrays = [
            np.array(sorted(range(len(CHAINS)), key=lambda r: (CHAINS[r], r)), np.int64),
            np.array(OWN, np.int64), ends.astype(np.int64), np.array(flat, np.int64),
        ]  # fmt: skip
        order, lengths, starts, segments = (a.ctypes.data for a in arrays)
        out = torch.full((len(self.joined), heads * width), torch.nan, dtype=self.dtype)
        slot_values, slot_row, slot_head = (s * size for s in self.slots.stride()[:3])
        parts = {"scales": self.scales, "bias": self.bias, "head_norms": self.norms}
        pointers = {n: None if x is None else x.data_ptr() for n, x in parts.items()}
        native().use_threads()
        native().attend(
            Attend(
                joined=self.joined.data_ptr(), rotation=self.rotation.data_ptr(),
                slots=self.slots.data_ptr(), out=out.data_ptr(), order=order, lengths=lengths,
                starts=starts, segments=segments, slot_values=slot_values, slot_row=slot_row,
                slot_head=slot_head, rows=len(CHAINS), new_tokens=self.fresh, heads=heads,
                kv_heads=kv, width=width, layer=LAYER, block=self.block, scale=width**-0.5,
                epsilon=1e-5, joined_narrow=kind(self.dtype), narrow=kind(self.dtype), **pointers,
            )
        )  # fmt: skip
        return out.view(len(CHAINS), self.fresh, heads, width)

    def right(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs [R, T, H, D] and the new keys and values [R, T, K, D], in fp64."""
        heads, kv, width = self.shape
        x = self.joined.double()
        if self.scales is not None:
            x = x * self.scales.double()[:, None]
        if self.bias is not None:
            x = x + self.bias.double()
        parts = x.view(len(CHAINS), self.fresh, heads + 2 * kv, width)
        turned, values = parts[:, :, : heads + kv], parts[:, :, heads + kv :]
        if self.norms is not None:
            root = (turned.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
            turned = turned * root * self.norms.double()
        pairs = torch.view_as_complex(turned.unflatten(-1, (-1, 2)).contiguous())
        rotation = torch.view_as_complex(self.rotation.double())
        rotation = rotation.view(len(CHAINS), self.fresh, 1, width // 2)
        turned = torch.view_as_real(pairs * rotation).flatten(-2)
        # What is cached is read as it was rounded.
        keys = turned[:, :, heads:].to(self.dtype).double()
        values = values.to(self.dtype).double()
        out = torch.empty(len(CHAINS), self.fresh, heads, width, dtype=torch.float64)
        for row, chain in enumerate(CHAINS):
            seen = [self.segments[name][LAYER, :, :, : LENGTHS[name]].double() for name in chain]
            seen.append(self.before[:, row, :, : OWN[row]].double())
            held = torch.cat(seen, dim=2)  # [2, kv, tokens, D]
            for t in range(self.fresh):
                new = torch.stack([keys[row, : t + 1], values[row, : t + 1]]).transpose(1, 2)
                key, value = torch.cat([held, new], dim=2).repeat_interleave(heads // kv, 1)
                scores = (key @ turned[row, t, :heads, :, None]).squeeze(-1) * width**-0.5
                out[row, t] = (scores.softmax(-1)[:, None] @ value).squeeze(1)
        return out, keys, values


def check(case: Case) -> None:
    got, (want, keys, values) = case.run().double(), case.right()
    limit = 1e-2 if case.dtype == torch.bfloat16 else 1e-5
    assert torch.isfinite(got).all()
    for row in range(len(CHAINS)):
        assert (got[row] - want[row]).norm() < limit * want[row].norm(), row
    for row, length in enumerate(OWN):
        new = case.slots[:, row, :, length : length + case.fresh].double().transpose(1, 2)
        for found, wanted in zip(new, (keys[row], values[row]), strict=True):
            # A number at the edge of two of bf16 may be rounded to the other one.
            assert (found - wanted).norm() < limit * wanted.norm()
        for part in (slice(0, length), slice(length + case.fresh, None)):
            untouched = torch.equal(
                case.slots[:, row, :, part].nan_to_num(77.0),
                case.before[:, row, :, part].nan_to_num(77.0),
            )
            assert untouched


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fresh", [1, 3])
def test_as_the_plain_formula(shape, dtype, fresh, kernel_way):
    check(Case(shape, dtype, fresh))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", ["scales", "bias", "norms"])
def test_what_is_done_to_queries_and_keys(dtype, parts, kernel_way):
    check(Case((9, 3, 64), dtype, 2, **{f"with_{parts}": True}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9, 3, 64), (4, 2, 80), (2, 1, 128)], ids=str)
def test_nothing_is_read_past_the_end(shape, dtype, kernel_way):
    """A page behind the last value of each segment and slot ends the process that reads it."""
    check(Case(shape, dtype, guarded=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_and_threads_change_no_bit(dtype, kernel_way):
    before = torch.get_num_threads()
    found = []
    try:
        for block, threads in ((1, 1), (3, 1), (10, 1), (2, 2)):
            torch.set_num_threads(threads)
            found.append(Case((9, 3, 64), dtype, 2, block=block).run())
    finally:
        torch.set_num_threads(before)
    if kernel_way == "vectors":  # on tiles rows that read together are one product
        assert all(torch.equal(a, b) for a, b in pairwise(found))
    for one in found[1:]:
        assert (one - found[0]).norm() < 1e-2 * found[0].norm()


def test_no_case_is_blind():
    """A row that read its neighbour's segment, or not all of its own, would be seen."""
    case = Case((9, 3, 64), torch.float32)
    want, _, _ = case.right()
    for name, length in enumerate(LENGTHS):
        case.segments[name][LAYER, 1, :, length - 1] += 10.0
        changed, _, _ = case.right()
        differ = (changed - want).flatten(1).norm(dim=1) > 1e-3 * want.flatten(1).norm(dim=1)
        assert differ.tolist() == [name in chain for chain in CHAINS]
        case.segments[name][LAYER, 1, :, length - 1] -= 10.0
