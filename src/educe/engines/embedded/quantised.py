"""The fused forward with 8-bit products: integers times integers, scales outside.

Shapes: N tokens, I inputs, O outputs of a matrix.

Each row of activations is divided by its largest absolute value over 127 and rounded (dynamic, one
scale a token); each output of a matrix has a scale of its own, fixed when the weights are loaded.
The product of the integers is exact, so the rounding of both is the only error. A norm cancels in
the quotient: only its weights matter, the rest enters the row's scale. Keys, values and attention
stay in the compute type, the residual stream in fp32. The down projection stays in the compute type
too: its inputs have the widest spread, and rounding it alone doubles the error of all the others
together (docs/design/0004).

What is sampled is the rounded model's distribution, and its log-probabilities are kept as such:
the trainer's importance correction sees the true ratio (``mismatch`` in the metrics says how far
the two are apart).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from educe.core.forest import Span
from educe.engines.embedded.fused import FusedForward, Joined, Steps, _Layer, _Shape
from educe.engines.embedded.matrices import Gate
from educe.engines.embedded.tiles import TiledGate, TiledMatrix, suit_tiles
from educe.models.attention import ForestContext
from educe.native.kernels import INT8, NOTHING, Kernels
from educe.native.structures import Gated, Norm, Quantise

_TOP = 127.0
_TINY = 1e-20


def _rounded(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 weights and the scale [O] of each output."""
    scales = weight_OI.abs().amax(1).float().clamp_min(_TINY) / _TOP
    return (weight_OI.float() / scales.unsqueeze(1)).round_().to(torch.int8), scales


class _Int8Matrix:
    """x W^T for integer rows; ``bias`` is for the caller, who knows the rows' scales."""

    def __init__(self, integers: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        self.bias = bias
        self._scale = scales
        self._packed = has_integer_kernel(integers.device)
        if self._packed:
            self._weight = torch.ops.onednn.qlinear_prepack(integers, None)
            self._zeros = torch.zeros(len(integers), dtype=torch.int32)
        else:
            self._weight = integers

    def __call__(self, rows_NI: Tensor) -> Tensor:
        """Return fp32 [N, O] of int8 rows, the weights' scales in it."""
        if self._packed:
            packed: Tensor = torch.ops.onednn.qlinear_pointwise(
                rows_NI, 1.0, 0, self._weight, self._scale, self._zeros, None, 1.0, 0,
                torch.float32, "none", [], "",
            )  # fmt: skip
            return packed
        out: Tensor = (rows_NI.float() @ self._weight.float().T) * self._scale
        return out


def has_integer_kernel(device: torch.device) -> bool:
    """Return whether torch has a packed 8-bit product here; without, the same sums in fp32."""
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.onednn, "qlinear_prepack")
    )


class _Int8Shape(_Shape):
    @property
    def narrow(self) -> torch.dtype:
        return torch.int8

    def gate(self, gate: Tensor, up: Tensor) -> Any:
        return Gate(self.matrix(gate), self.matrix(up))

    def folded(self, weight: Tensor, norm: Tensor) -> Tensor:
        """Norm weights stay with the activations: they make the few huge channels small."""
        return weight

    def unrounded(self, weight: Tensor) -> Any:
        """Return a matrix in the compute type."""
        return super().matrix(weight)

    def matrix(self, weight: Tensor, bias: Tensor | None = None) -> Any:
        """Return the matrix as it is: it is rounded when the channels' sizes are known."""
        return _Wide(weight.to(self.wide), None if bias is None else bias.to(self.wide))


class _Wide:
    """A matrix before rounding; ``peaks`` [I] are the largest inputs seen."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.peaks = torch.zeros(weight.shape[1])

    def __call__(self, x_NI: Tensor) -> Tensor:
        self.peaks = torch.maximum(self.peaks, x_NI.abs().amax(0).float())
        out: Tensor = torch.nn.functional.linear(x_NI, self.weight)
        return out


def _balance(peaks_I: Tensor, *weights: Tensor) -> Tensor:
    """Return what to divide each input channel by, so that inputs and weights round alike.

    The geometric mean of SmoothQuant (arXiv:2211.10438) with its strength 0.5.
    """
    columns = torch.stack([w.abs().amax(0).float() for w in weights]).amax(0)
    return (peaks_I.clamp_min(1e-5) / columns.clamp_min(1e-5)).sqrt_()


def quantise(x_NI: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 rows and their scales [N, 1]: x is about rows * scales."""
    peaks = x_NI.abs().amax(-1, keepdim=True).float().clamp_min_(_TINY)
    return (x_NI * (_TOP / peaks)).round_().to(torch.int8), peaks.div_(_TOP)


class QuantisedForward(FusedForward):
    """See the module's text; ``dtype`` is that of keys, values and attention.

    Raises:
        ValueError: the model's layers cannot be fused.
    """

    _balances: list[tuple[Tensor, Tensor]] | None = None
    _shape: _Int8Shape

    def _make_shape(self, config: Any, dtype: torch.dtype) -> _Shape:
        return _Int8Shape(config, dtype)

    @torch.no_grad()
    def load(self) -> None:
        """Read the module's weights and round them.

        Channels are balanced by what a short text makes of them, once: later weights differ little.
        """
        super().load()
        if self._balances is None:
            self._balances = self._measured()
        for layer, (before, between) in zip(self._layers, self._balances, strict=True):
            layer.norms = (layer.norms[0] / before, layer.norms[1] / between)
            layer.qkv = self._narrow(layer.qkv.weight * before, layer.qkv.bias)
            layer.out = self._narrow(layer.out.weight, layer.out.bias)
            layer.feed = self._narrow_gate(
                layer.feed.gate.weight * between, layer.feed.up.weight * between
            )
            layer.down = self._shape.unrounded(layer.down.weight)
        self._head = self._narrow(self._head.weight, None)

    def _narrow(self, weight: Tensor, bias: Tensor | None) -> Any:
        tiles = self._shape.tiles
        integers, scales = _rounded(weight)
        if tiles is not None and suit_tiles(*weight.shape, torch.int8):
            return TiledMatrix(tiles, integers, bias, scales)
        return _Int8Matrix(integers, scales, bias)

    def _narrow_gate(self, gate: Tensor, up: Tensor) -> Any:
        tiles = self._shape.tiles
        if tiles is None:
            return Gate(self._narrow(gate, None), self._narrow(up, None))
        (gate, gate_scales), (up, up_scales) = _rounded(gate), _rounded(up)
        return TiledGate(tiles, gate, up, (gate_scales, up_scales))

    def _measured(self) -> list[tuple[Tensor, Tensor]]:
        """Run the calibration text through the unrounded layers; return their balances."""
        tokenizer = self._model.tokenizer
        ids = tokenizer(CALIBRATION, add_special_tokens=False).input_ids
        tokens = torch.tensor([ids], device=self._embedding.device)
        positions = torch.arange(len(ids), device=tokens.device)[None]
        plain = _Plain(self)
        plain.kernels = None
        plain.hidden(tokens, positions, ForestContext([Span(0, len(ids), len(ids))]))
        return [
            (
                _balance(layer.qkv.peaks, layer.qkv.weight),
                _balance(layer.feed.gate.peaks, layer.feed.gate.weight, layer.feed.up.weight),
            )
            for layer in self._layers
        ]

    @torch.no_grad()
    def logits(self, hidden_NW: Tensor) -> Tensor:
        """Return fp32 logits [N, V]."""
        rows, scales = self._normed(hidden_NW, self._final_norm)
        if isinstance(self._head, TiledMatrix):
            return self._head(rows, scales)
        out: Tensor = self._head(rows).mul_(scales)
        return out

    def _steps(self, kernels: Kernels, x: Tensor) -> Steps:
        return (_Int8Steps if self._shape.tiles is None else _TiledInt8Steps)(self, kernels, x)

    def _normed(self, x: Tensor, norm_W: Tensor) -> tuple[Tensor, Tensor]:
        if self.kernels is not None:
            steps = _Int8Steps(self, self.kernels, x.contiguous())
            return steps.rounded(norm_W), steps.scales.unsqueeze(1)
        rows, scales = quantise(x * norm_W)
        return rows, scales.mul_(self._norm_scale(x))

    def _joined(self, layer: _Layer, x: Tensor) -> Tensor:
        rows, scales = self._normed(x, layer.norms[0])
        out: Tensor = layer.qkv(rows).mul_(scales)
        return out if layer.qkv.bias is None else out.add_(layer.qkv.bias)

    def _add_attention(self, layer: _Layer, x: Tensor, seen: Tensor) -> None:
        rows, scales = quantise(seen)
        x.addcmul_(layer.out(rows), scales)
        if layer.out.bias is not None:
            x += layer.out.bias

    def _add_feed_forward(self, layer: _Layer, x: Tensor) -> None:
        rows, scales = self._normed(x, layer.norms[1])
        gate = torch.nn.functional.silu(layer.feed.gate(rows).mul_(scales), inplace=True)
        x += layer.down(gate.mul_(layer.feed.up(rows).mul_(scales)).to(self.dtype))


class _Int8Steps(Steps):
    """The parts of a layer around attention with 8-bit products."""

    def __init__(self, forward: QuantisedForward, kernels: Kernels, x: Tensor) -> None:
        shape = forward.shape
        num_tokens = len(x)
        self._forward = forward
        self._kernels = kernels
        self._pending: Tensor | None = None
        self._dtype = shape.dtype
        self._rows = x.new_empty(num_tokens, shape.width, dtype=torch.int8)
        self.scales = x.new_empty(num_tokens)
        self._norm = Norm(
            x=x.data_ptr(), out=self._rows.data_ptr(), scales=self.scales.data_ptr(),
            rows=num_tokens, width=shape.width, epsilon=shape.epsilon, out_kind=INT8,
        )  # fmt: skip
        # The rows that attention gives: another width, scales of their own.
        wide = shape.heads * shape.head_width
        self._seen_rows = x.new_empty(num_tokens, wide, dtype=torch.int8)
        self._seen_scales = x.new_empty(num_tokens)
        self._quantise = Quantise(
            out=self._seen_rows.data_ptr(), scales=self._seen_scales.data_ptr(), rows=num_tokens,
            width=wide, narrow=int(shape.dtype == torch.bfloat16),
        )  # fmt: skip
        self._fed = x.new_empty(num_tokens, shape.feed_width, dtype=shape.dtype)
        self._gated = Gated(
            scales=self.scales.data_ptr(), out=self._fed.data_ptr(), rows=num_tokens,
            width=shape.feed_width, narrow=self._quantise.narrow,
        )  # fmt: skip

    def joined(self, layer: _Layer, rotation: Tensor) -> Joined:
        values = layer.qkv(self.rounded(layer.norms[0]))
        return Joined(self._forward, layer, values, rotation, self.scales, layer.qkv.bias)

    def add_attention(self, layer: _Layer, seen: Tensor) -> None:
        self._quantise.x = seen.data_ptr()
        self._kernels.quantise(self._quantise)
        self._pending = layer.out(self._seen_rows)
        self._norm.delta_scale = self._seen_scales.data_ptr()
        self._norm.delta_bias = None if layer.out.bias is None else layer.out.bias.data_ptr()
        self._norm.delta_narrow = 0

    def add_feed_forward(self, layer: _Layer) -> None:
        rows = self.rounded(layer.norms[1])
        gate, up = layer.feed.gate(rows), layer.feed.up(rows)
        self._gated.gate, self._gated.up = gate.data_ptr(), up.data_ptr()
        self._kernels.gated(self._gated)
        self._pending = layer.down(self._fed)
        self._norm.delta_scale = self._norm.delta_bias = None
        self._norm.delta_narrow = self._quantise.narrow

    def finish(self) -> None:
        self._norm.out_kind = NOTHING
        self._next()

    def rounded(self, norm_W: Tensor) -> Tensor:
        """Add what is pending to the stream; return its rows, normalised and rounded."""
        self._norm.weight = norm_W.data_ptr()
        self._next()
        return self._rows

    def _next(self) -> Tensor:
        pending = self._pending
        self._norm.delta = None if pending is None else pending.data_ptr()
        self._kernels.norm(self._norm)
        return self._rows


class _TiledInt8Steps(_Int8Steps):
    """The same with products on tiles, which know the rows' scales: nothing is pending."""

    def __init__(self, forward: QuantisedForward, kernels: Kernels, x: Tensor) -> None:
        super().__init__(forward, kernels, x)
        self._x = x
        joined, _ = forward.shape.matrices()[0]
        self._joined = x.new_empty(len(x), joined)

    def joined(self, layer: _Layer, rotation: Tensor) -> Joined:
        layer.qkv.into(self._joined, self.rounded(layer.norms[0]), self.scales)
        return Joined(self._forward, layer, self._joined, rotation)

    def add_attention(self, layer: _Layer, seen: Tensor) -> None:
        seen = seen.contiguous()
        self._quantise.x = seen.data_ptr()
        self._kernels.quantise(self._quantise)
        layer.out.add_to(self._x, self._seen_rows, self._seen_scales)

    def add_feed_forward(self, layer: _Layer) -> None:
        layer.feed.into(self._fed, self.rounded(layer.norms[1]), self.scales)
        layer.down.add_to(self._x, self._fed)

    def finish(self) -> None:
        pass


class _Plain(FusedForward):
    """The unrounded layers of a quantised forward, run once to see how large its channels get."""

    def __init__(self, source: QuantisedForward) -> None:
        self.__dict__.update(source.__dict__)

    def _joined(self, layer: _Layer, x: Tensor) -> Tensor:
        out: Tensor = layer.qkv(x * self._norm_scale(x) * layer.norms[0])
        return out if layer.qkv.bias is None else out + layer.qkv.bias

    def _add_attention(self, layer: _Layer, x: Tensor, seen: Tensor) -> None:
        x += layer.out(seen.to(x.dtype))
        if layer.out.bias is not None:
            x += layer.out.bias

    def _add_feed_forward(self, layer: _Layer, x: Tensor) -> None:
        normed = x * self._norm_scale(x) * layer.norms[1]
        x += layer.down(torch.nn.functional.silu(layer.feed.gate(normed)) * layer.feed.up(normed))


CALIBRATION = """Question: A shop sells 12 pens at 3 coins each and 5 books at 20 coins each. How \
much does it earn? Answer: 12 * 3 + 5 * 20 = 136 coins.
def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
The river rose for three days; on the fourth, the old bridge between the two villages was closed. \
{"name": "search", "arguments": {"query": "bridge", "limit": 2}}
<b>Bold</b> \u00e9t\u00e9 \u2013 \u03c0 \u2248 3.14159!
"""
