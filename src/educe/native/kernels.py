"""The compiled kernels' calls: the C sources' structures, filled with addresses.

Shapes: N tokens, W width, H query heads, K key/value heads, D head width, R rows, V vocabulary.

Addresses are of contiguous tensors that the caller keeps alive. What is set once is set when a
structure is made; a call changes two or three fields, so that it costs about a microsecond.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from educe.native.build import open_library
from educe.native.structures import (
    Arrange,
    Attend,
    Forest,
    Gate,
    Gated,
    Heads,
    Logprobs,
    Norm,
    Pack,
    Product,
    Quantise,
    RmsBackward,
    RmsForward,
    Rotate,
    Sample,
    Tiled,
)
from educe.native.tables import BLOCK, LANES, ForestTable, TiledTable

FLOAT32, BFLOAT16, INT8, NOTHING = 0, 1, 2, 3
_KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.int8: INT8}


class Kernels:
    """The opened library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.educe_use_threads.argtypes = [c_void_p, c_int32]
        library.educe_can_attend.argtypes = [c_int64]
        for name, structure in (
            ("norm", Norm), ("quantise", Quantise), ("gated", Gated), ("attend", Attend),
            ("sample", Sample), ("pack", Pack), ("product", Product),
            ("rms_forward", RmsForward), ("rms_backward", RmsBackward),
            ("gate", Gate), ("logprobs", Logprobs), ("rotate", Rotate), ("heads", Heads),
            ("forest_forward", Forest), ("forest_backward", Forest),
            ("arrange", Arrange), ("tiled_forward", Tiled), ("tiled_backward", Tiled),
        ):  # fmt: skip
            function = getattr(library, f"educe_{name}")
            function.argtypes = [POINTER(structure)]
            function.restype = None
        self._parallel = _parallel_address()
        # Asks the system for leave to use them, once a process.
        self.has_tiles = bool(library.educe_has_tiles())
        self.has_blocks = bool(library.educe_has_blocks())

    def use_threads(self) -> None:
        """Take as many threads as torch has now, from torch's own pool."""
        self._library.educe_use_threads(self._parallel, torch.get_num_threads())

    def can_attend(self, head_width: int) -> bool:
        return bool(self._library.educe_can_attend(head_width))

    def norm(self, arguments: Norm) -> None:
        self._library.educe_norm(byref(arguments))

    def quantise(self, arguments: Quantise) -> None:
        self._library.educe_quantise(byref(arguments))

    def gated(self, arguments: Gated) -> None:
        self._library.educe_gated(byref(arguments))

    def attend(self, arguments: Attend) -> None:
        self._library.educe_attend(byref(arguments))

    def product(self, arguments: Product) -> None:
        self._library.educe_product(byref(arguments))

    def pack(self, weight_OI: Tensor, out: Tensor) -> None:
        """Write the weight in the order of the tiles to as many bytes."""
        words = weight_OI.shape[1] * weight_OI.itemsize // 4
        self.use_threads()
        self._library.educe_pack(
            byref(Pack(weight_OI.data_ptr(), out.data_ptr(), len(weight_OI), words))
        )

    def sample(
        self, logits_RV: Tensor, temperatures_R: Sequence[float], draws_R: np.ndarray
    ) -> tuple[list[int], list[float]]:
        """Return a token and its log-probability (fp32) a row; temperature 0 is greedy.

        Args:
            logits_RV: fp32 or bf16, a row's numbers side by side.
            draws_R: uniforms in [0, 1), fp64.
        """
        rows, vocabulary = logits_RV.shape
        temperatures = np.asarray(temperatures_R, np.float32)
        draws = np.ascontiguousarray(draws_R, np.float64)
        tokens = np.empty(rows, np.int64)
        shares = np.empty(rows, np.float64)
        self.use_threads()
        self._library.educe_sample(
            byref(
                Sample(
                    logits_RV.data_ptr(), temperatures.ctypes.data, draws.ctypes.data,
                    tokens.ctypes.data, shares.ctypes.data, rows, vocabulary,
                    logits_RV.stride(0), kind(logits_RV.dtype),
                )
            )
        )  # fmt: skip
        with np.errstate(divide="ignore", invalid="ignore"):
            logprobs = np.log(shares).astype(np.float32)
        return tokens.tolist(), logprobs.tolist()

    # Training: contiguous tensors of fp32 or bf16, as ``suits`` says

    def rms_forward(
        self, x_NW: Tensor, weight_W: Tensor, epsilon: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return weight * x / rms(x) in ``dtype``, and 1 / rms(x) [N]; x and weight are fp32."""
        rows, width = x_NW.shape
        out = torch.empty(rows, width, dtype=dtype)
        scales = torch.empty(rows)
        self.use_threads()
        self._library.educe_rms_forward(
            byref(
                RmsForward(
                    x_NW.data_ptr(), weight_W.data_ptr(), out.data_ptr(), scales.data_ptr(),
                    rows, width, epsilon, kind(dtype),
                )
            )
        )  # fmt: skip
        return out, scales

    def rms_backward(
        self,
        x_NW: Tensor,
        weight_W: Tensor,
        scales_N: Tensor,
        grad_NW: Tensor,
        wants_x: bool,
        wants_weight: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of x and of the weight, fp32."""
        rows, width = x_NW.shape
        grad_x = torch.empty_like(x_NW) if wants_x else None
        parts = torch.empty(-(-rows // _PART), width) if wants_weight else None
        self.use_threads()
        self._library.educe_rms_backward(
            byref(
                RmsBackward(
                    x_NW.data_ptr(), weight_W.data_ptr(), scales_N.data_ptr(), grad_NW.data_ptr(),
                    None if grad_x is None else grad_x.data_ptr(),
                    None if parts is None else parts.data_ptr(),
                    rows, width, _PART, kind(grad_NW.dtype),
                )
            )
        )  # fmt: skip
        return grad_x, None if parts is None else parts.sum(0)

    def gate_forward(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) * up, of any shape and one type."""
        out = torch.empty_like(gate)
        self._gate(gate, up, None, out, None)
        return out

    def gate_backward(self, gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of gate and up."""
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(gate)
        self._gate(gate, up, grad, grad_gate, grad_up)
        return grad_gate, grad_up

    def _gate(
        self, gate: Tensor, up: Tensor, grad: Tensor | None, out: Tensor, grad_up: Tensor | None
    ) -> None:
        self.use_threads()
        self._library.educe_gate(
            byref(
                Gate(
                    gate.data_ptr(), up.data_ptr(), None if grad is None else grad.data_ptr(),
                    out.data_ptr(), None if grad_up is None else grad_up.data_ptr(),
                    gate.numel(), kind(gate.dtype),
                )
            )
        )  # fmt: skip

    def logprobs(
        self,
        logits_NV: Tensor,
        targets_N: Tensor,
        temperatures_N: Tensor,
        found: tuple[Tensor, Tensor, Tensor],
        grads: tuple[Tensor, Tensor | None] | None = None,
    ) -> None:
        """Fill ``found``: log-probabilities, entropies, log-sum-exps [N] of logits / temperature.

        With ``grads`` (of log-probabilities and entropies) these are read, and the logits'
        gradient takes the logits' place. All [N] are fp32, targets int64.
        """
        rows, vocabulary = logits_NV.shape
        addresses: list[int | None] = [None, None]
        if grads is not None:
            addresses = [None if g is None else g.data_ptr() for g in grads]
        self.use_threads()
        self._library.educe_logprobs(
            byref(
                Logprobs(
                    logits_NV.data_ptr(), targets_N.data_ptr(), temperatures_N.data_ptr(),
                    *(t.data_ptr() for t in found), *addresses,
                    rows, vocabulary, kind(logits_NV.dtype),
                )
            )
        )  # fmt: skip

    def rotate(
        self, x_NHD: Tensor, cosine_ND: Tensor, sine_ND: Tensor, dtype: torch.dtype, back: bool
    ) -> Tensor:
        """Return x with its halves turned by the angles, or turned back; angles are fp32."""
        rows, heads, width = x_NHD.shape
        out = torch.empty(x_NHD.shape, dtype=dtype)
        self.use_threads()
        self._library.educe_rotate(
            byref(
                Rotate(
                    x_NHD.data_ptr(), cosine_ND.data_ptr(), sine_ND.data_ptr(), out.data_ptr(),
                    rows, heads, width, -1.0 if back else 1.0, kind(x_NHD.dtype), kind(dtype),
                )
            )
        )  # fmt: skip
        return out

    def forest_forward(
        self,
        table: ForestTable,
        query_THD: Tensor,
        key_TKD: Tensor,
        value_TKD: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the attention [T, H, D] in the inputs' type and its log-sum-exp [H, T] in fp32."""
        tokens, heads, width = query_THD.shape
        stride = _stride(tokens)
        out = torch.empty_like(query_THD)
        lse = torch.empty(heads, stride)
        self.use_threads()
        query, _ = self._heads(query_THD, scale, columns=False)
        (key, _), (value, _) = (self._heads(x, 1.0, columns=False) for x in (key_TKD, value_TKD))
        self._library.educe_forest_forward(
            byref(
                Forest(
                    blocks=table.blocks.ctypes.data, ranges=table.ranges.ctypes.data,
                    query_rows=query.data_ptr(), key_rows=key.data_ptr(),
                    value_rows=value.data_ptr(), lse=lse.data_ptr(), out=out.data_ptr(),
                    num_blocks=len(table.blocks), tokens=tokens, heads=heads,
                    kv_heads=key_TKD.shape[1], width=width, stride=stride, scale=scale,
                    narrow=kind(out.dtype),
                )
            )
        )  # fmt: skip
        return out, lse[:, :tokens]

    def forest_backward(
        self,
        table: ForestTable,
        given: tuple[Tensor, Tensor, Tensor],
        out_THD: Tensor,
        lse_HT: Tensor,
        grad_THD: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and values, in their type."""
        query_THD, key_TKD, value_TKD = given
        tokens, heads, width = query_THD.shape
        stride = _stride(tokens)
        lse = torch.zeros(heads, stride)
        lse[:, :tokens] = lse_HT
        deltas = torch.zeros(heads, stride)
        self.use_threads()
        query, query_columns = self._heads(query_THD, scale)
        (key, key_columns), (value, value_columns) = (
            self._heads(x, 1.0) for x in (key_TKD, value_TKD)
        )
        grad, grad_columns = self._heads(grad_THD, 1.0, other=out_THD, products=deltas)
        found = tuple(torch.empty_like(x) for x in given)
        self._library.educe_forest_backward(
            byref(
                Forest(
                    blocks=table.blocks.ctypes.data, ranges=table.ranges.ctypes.data,
                    query_rows=query.data_ptr(), key_rows=key.data_ptr(),
                    value_rows=value.data_ptr(), grad_rows=grad.data_ptr(),
                    query_columns=query_columns.data_ptr(), key_columns=key_columns.data_ptr(),
                    value_columns=value_columns.data_ptr(), grad_columns=grad_columns.data_ptr(),
                    lse=lse.data_ptr(), deltas=deltas.data_ptr(), out=found[0].data_ptr(),
                    grad_keys=found[1].data_ptr(), grad_values=found[2].data_ptr(),
                    num_blocks=len(table.blocks), tokens=tokens, heads=heads,
                    kv_heads=key_TKD.shape[1], width=width, stride=stride, scale=scale,
                    narrow=kind(query_THD.dtype),
                )
            )
        )  # fmt: skip
        return found[0], found[1], found[2]

    def can_tile(self, head_width: int) -> bool:
        """Return whether attention of training goes in blocks here; tensors must be bf16."""
        return self.has_blocks and head_width % BLOCK == 0 and head_width <= 4 * BLOCK

    def tiled_forward(
        self,
        table: TiledTable,
        query_THD: Tensor,
        key_TKD: Tensor,
        value_TKD: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the attention [T, H, D] in bf16 and its log-sum-exp [H, T] in fp32."""
        self.use_threads()
        out = torch.empty_like(query_THD)
        arguments, kept = self._tiled(table, query_THD.shape[1], key_TKD, scale)
        lse = torch.zeros(query_THD.shape[1], table.padded)
        self._arrange(table, arguments, kept, "query", query_THD, ("rows",))
        self._arrange(table, arguments, kept, "key", key_TKD, ("words",))
        self._arrange(table, arguments, kept, "value", value_TKD, ("pairs",))
        arguments.out, arguments.lse = out.data_ptr(), lse.data_ptr()
        self._library.educe_tiled_forward(byref(arguments))
        return out, lse[:, : table.tokens]

    def tiled_backward(
        self,
        table: TiledTable,
        given: tuple[Tensor, Tensor, Tensor],
        out_THD: Tensor,
        lse_HT: Tensor,
        grad_THD: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of queries, keys and values, in bf16."""
        self.use_threads()
        heads = given[0].shape[1]
        arguments, kept = self._tiled(table, heads, given[1], scale)
        lse, deltas = torch.zeros(heads, table.padded), torch.zeros(heads, table.padded)
        lse[:, : table.tokens] = lse_HT
        all_orders = ("rows", "words", "pairs")
        self._arrange(table, arguments, kept, "query", given[0], all_orders)
        self._arrange(table, arguments, kept, "key", given[1], all_orders)
        self._arrange(table, arguments, kept, "value", given[2], ("rows", "words"))
        self._arrange(table, arguments, kept, "grad", grad_THD, all_orders, (out_THD, deltas))
        found = tuple(torch.empty_like(x) for x in given)
        arguments.lse, arguments.deltas = lse.data_ptr(), deltas.data_ptr()
        arguments.out, arguments.grad_keys, arguments.grad_values = (x.data_ptr() for x in found)
        self._library.educe_tiled_backward(byref(arguments))
        return found[0], found[1], found[2]

    def _tiled(
        self, table: TiledTable, heads: int, key_TKD: Tensor, scale: float
    ) -> tuple[Tiled, list[Tensor]]:
        """Return the structure without its operands, and the list that keeps them alive."""
        arguments = Tiled(
            last=table.last.ctypes.data, smallest=table.smallest.ctypes.data,
            largest=table.largest.ctypes.data, tokens=table.tokens, padded=table.padded,
            heads=heads, kv_heads=key_TKD.shape[1], width=key_TKD.shape[2], scale=scale,
        )  # fmt: skip
        return arguments, []

    def _arrange(
        self,
        table: TiledTable,
        arguments: Tiled,
        kept: list[Tensor],
        name: str,
        x_THD: Tensor,
        orders: Sequence[str],
        product: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Copy an operand to the orders of the tiles; fill ``product``'s second with x . first."""
        tokens, heads, width = x_THD.shape
        made = {o: torch.empty(heads, table.padded, width, dtype=x_THD.dtype) for o in orders}
        for order, tensor in made.items():
            setattr(arguments, f"{name}_{order}", tensor.data_ptr())
        kept.extend(made.values())
        addresses = {order: tensor.data_ptr() for order, tensor in made.items()}
        if product is not None:
            addresses |= {"other": product[0].data_ptr(), "products": product[1].data_ptr()}
        self._library.educe_arrange(
            byref(
                Arrange(
                    x=x_THD.data_ptr(), tokens=tokens, padded=table.padded, heads=heads,
                    width=width, **addresses,
                )
            )
        )  # fmt: skip

    def _heads(
        self,
        x_THD: Tensor,
        scale: float,
        columns: bool = True,
        other: Tensor | None = None,
        products: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return scaled rows [H, T, D] and columns [H, D, stride] in fp32."""
        tokens, heads, width = x_THD.shape
        stride = _stride(tokens)
        rows = torch.empty(heads, tokens, width)
        across = torch.empty((heads, width, stride) if columns else 0)
        self._library.educe_heads(
            byref(
                Heads(
                    x=x_THD.data_ptr(), rows=rows.data_ptr(),
                    columns=across.data_ptr() if columns else None,
                    other=None if other is None else other.data_ptr(),
                    products=None if products is None else products.data_ptr(),
                    tokens=tokens, heads=heads, width=width, stride=stride, scale=scale,
                    narrow=kind(x_THD.dtype),
                    other_narrow=0 if other is None else kind(other.dtype),
                )
            )
        )  # fmt: skip
        return rows, across


def _stride(tokens: int) -> int:
    """Return the length of a column: room to read past the end, and no power of two, whose lines
    would all fall on the same places of a cache."""
    return (-(-tokens // LANES) + 1) * LANES + LANES * (tokens % 512 < 2 * LANES)


_PART = 64  # rows whose gradients of a norm's weight are summed first


def suits(*tensors: Tensor) -> bool:
    """Return whether kernels of training can read these: on the CPU, contiguous, whole vectors."""
    return all(
        t.device.type == "cpu"
        and t.is_contiguous()
        and t.dtype in (torch.float32, torch.bfloat16)
        and t.shape[-1] % LANES == 0
        for t in tensors
    )


def kind(dtype: torch.dtype) -> int:
    """Return the number that the C sources have for a type."""
    return _KINDS[dtype]


def fits(width: int) -> bool:
    """Return whether rows of this width fill whole vectors."""
    return width % LANES == 0


@functools.cache
def kernels() -> Kernels | None:
    """Return the compiled kernels, or None where there is no compiler."""
    library = open_library().library
    return None if library is None else Kernels(library)


def _parallel_address() -> int | None:
    """Return the address of GOMP_parallel in the OpenMP runtime that torch has opened.

    Another runtime's threads would fight torch's for the cores. Without one, one thread does all.
    """
    candidates = sorted(Path(torch.__file__).parent.joinpath("lib").glob("lib*omp*.so*"))
    for path in candidates:
        try:
            function = ctypes.CDLL(str(path), mode=_NO_LOAD).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, c_void_p).value
    return None


_NO_LOAD = 4 | 2  # RTLD_NOLOAD | RTLD_NOW of Linux: only what this process already has
