"""A fused forward compiled from a module's weights: the same function, far fewer operations.

Shapes: N tokens, W model width, F feed-forward width, H query heads, K key/value heads, D head
width, V vocabulary.

What is joined or folded, all of it exact algebra (rounding aside):

- query, key and value projections are one matrix product;
- a norm's weight is folded into the columns of the projection that reads it;
- query and key rows are reordered so that the rotary embedding is one complex product (attention
  does not change when queries and keys are permuted alike, and only this class fills the cache);
- on a CPU, matrices are packed once in the layout of the matrix kernel, the SiLU and the gate's
  product are done by that kernel on its way out;
- the residual stream stays in fp32 or wider, as under the trainer's autocast;
- with compiled kernels (``educe.native``) what stands between two products is one pass: adding to
  the residual stream with the next norm, and the attention of decoding with rotary embedding and
  cache;
- on processors with matrix tiles (AMX), bf16 and 8-bit products are ours too (``tiles.py``).

``tests/engines/test_fused.py`` proves it equal to the module for every supported architecture. The
private torch operators that it calls are pinned there too; without them it uses plain products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from educe.engines.embedded.matrices import Gate, Matrix
from educe.engines.embedded.tiles import TiledGate, TiledMatrix, Tiles, suit_tiles
from educe.models.attention import AttentionContext
from educe.models.load import LoadedModel, merged_state
from educe.native.kernels import BFLOAT16, FLOAT32, NOTHING, Kernels, fits, kernels
from educe.native.structures import Norm

FUSED = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def has_fused_forward(model: LoadedModel) -> bool:
    """Return whether this model's layers are of the kind that can be fused."""
    config = model.causal.config
    return config.model_type in FUSED and getattr(config, "hidden_act", "silu") == "silu"


class _Layer:
    """One decoder layer's matrices; see the module's text for what is folded into them."""

    def __init__(self, state: Mapping[str, Tensor], prefix: str, shape: _Shape) -> None:
        attention, mlp = prefix + "self_attn.", prefix + "mlp."

        def read(name: str) -> Tensor:
            return state[name].detach().to(shape.wide)

        before, between = (
            read(prefix + "input_layernorm.weight"),
            read(prefix + "post_attention_layernorm.weight"),
        )
        rows, biases = [], []
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            weight = shape.folded(read(f"{attention}{name}_proj.weight"), before)
            key = f"{attention}{name}_proj.bias"
            bias = read(key) if key in state else None
            if name != "v":
                weight = _pair(weight, heads)
                bias = None if bias is None else _pair(bias, heads)
            rows.append(weight)
            biases.append(bias)
        joined = None if biases[0] is None else torch.cat([b for b in biases if b is not None])
        self.qkv = shape.matrix(torch.cat(rows), joined)
        self.out = shape.matrix(
            read(attention + "o_proj.weight"), _optional(state, attention + "o_proj.bias")
        )
        self.norms = (before, between)
        self.feed = shape.gate(
            shape.folded(read(mlp + "gate_proj.weight"), between),
            shape.folded(read(mlp + "up_proj.weight"), between),
        )
        self.down = shape.matrix(read(mlp + "down_proj.weight"))
        self.head_norms: Tensor | None = None
        if attention + "q_norm.weight" in state:
            norms = [_pair(read(f"{attention}{n}_norm.weight"), 1) for n in ("q", "k")]
            self.head_norms = torch.cat(
                [norms[0].expand(shape.heads, -1), norms[1].expand(shape.kv_heads, -1)]
            )


def _optional(state: Mapping[str, Tensor], name: str) -> Tensor | None:
    return state[name].detach() if name in state else None


def _pair(rows: Tensor, heads: int) -> Tensor:
    """Put the rows i and i + D/2 of each head, which rotate together, side by side."""
    split = rows.view(heads, 2, -1, *rows.shape[1:])
    return split.transpose(1, 2).reshape(rows.shape)


class _Shape:
    """The sizes and types that every layer needs."""

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_width: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.width: int = config.hidden_size
        self.feed_width: int = config.intermediate_size
        self.epsilon: float = config.rms_norm_eps
        self.dtype = dtype
        self.wide = torch.promote_types(dtype, torch.float32)
        self.scale = self.head_width**-0.5
        self.tiles: Tiles | None = None  # where there are such, and all layers' matrices suit them

    def folded(self, weight: Tensor, norm: Tensor) -> Tensor:
        """Return a projection [O, W] that reads what comes before the norm's own weight [W]."""
        return weight * norm

    def matrix(self, weight: Tensor, bias: Tensor | None = None) -> Any:
        """Return a linear layer in the compute type; a narrower forward makes its own kind."""
        bias = None if bias is None else bias.to(self.dtype)
        weight = weight.to(self.dtype).contiguous()
        if self.tiles is not None and suit_tiles(*weight.shape, weight.dtype):
            return TiledMatrix(self.tiles, weight, bias)
        return Matrix(weight, bias)

    def gate(self, gate: Tensor, up: Tensor) -> Any:
        """Return silu(x G^T) * (x U^T) of a layer."""
        if self.tiles is not None:
            return TiledGate(self.tiles, gate.to(self.dtype), up.to(self.dtype))
        return Gate(self.matrix(gate), self.matrix(up))

    def matrices(self) -> list[tuple[int, int]]:
        """Return the outputs and inputs of a layer's matrices, the gate's and its mate's as one."""
        attended = self.heads * self.head_width
        joined = attended + 2 * self.kv_heads * self.head_width
        wide, fed = self.width, self.feed_width
        return [(joined, wide), (wide, attended), (2 * fed, wide), (wide, fed)]

    def suits_tiles(self) -> bool:
        """Return whether all of a layer's matrices fill whole tiles."""
        return all(suit_tiles(*m, self.narrow) for m in self.matrices())

    @property
    def narrow(self) -> torch.dtype:
        """The narrowest type of a matrix."""
        return self.dtype


class Joined:
    """A layer's queries, keys and values as the product left them, to be turned by who attends.

    ``values`` [N, (H + 2 K) D] are yet to be multiplied by ``scales`` [N], then ``bias`` added.
    """

    __slots__ = ("_forward", "bias", "layer", "rotation", "scales", "values")

    def __init__(
        self,
        forward: FusedForward,
        layer: _Layer,
        values: Tensor,
        rotation: Tensor,
        scales: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        self._forward = forward
        self.layer = layer
        self.values = values
        self.rotation = rotation
        self.scales = scales
        self.bias = bias

    @property
    def shape(self) -> _Shape:
        return self._forward.shape

    def heads(self, first: int, num_rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return turned queries, keys and values [B, heads, T, D] of the tokens from ``first``."""
        values = self.values[first:]
        if self.scales is not None:
            values = values * self.scales[first:].unsqueeze(1)
        if self.bias is not None:
            values = values + self.bias
        return self._forward.turned(self.layer, values, self.rotation[first:], num_rows, length)


@runtime_checkable
class JoinedContext(Protocol):
    """A context that turns, caches and attends in one go."""

    def attend_joined(self, number: int, joined: Joined, out: Tensor) -> None:
        """Write the attention [N, H * D] of layer ``number`` to ``out``."""
        ...


class Steps:
    """The parts of a layer around attention, on one residual stream x [N, W] in fp32.

    What a product gives is added to the stream by the pass that also makes the next product's
    input; until then it is pending.
    """

    def __init__(self, forward: FusedForward, kernels: Kernels, x: Tensor) -> None:
        shape = forward.shape
        self._forward = forward
        self._kernels = kernels
        self._normed = torch.empty_like(x, dtype=shape.dtype)
        self._narrow = int(shape.dtype == torch.bfloat16)
        self._pending: Tensor | None = None
        self._norm = Norm(
            x=x.data_ptr(), out=self._normed.data_ptr(), rows=len(x), width=shape.width,
            epsilon=shape.epsilon, delta_narrow=self._narrow,
            out_kind=BFLOAT16 if self._narrow else FLOAT32,
        )  # fmt: skip

    def joined(self, layer: _Layer, rotation: Tensor) -> Joined:
        return Joined(self._forward, layer, layer.qkv(self._next()), rotation)

    def add_attention(self, layer: _Layer, seen: Tensor) -> None:
        self._pending = layer.out(seen)

    def add_feed_forward(self, layer: _Layer) -> None:
        normed = self._next()
        self._pending = layer.down(layer.feed(normed))

    def finish(self) -> None:
        self._norm.out_kind = NOTHING
        self._next()

    def _next(self) -> Tensor:
        """Add what is pending to the stream; return the stream normalised."""
        pending = self._pending
        self._norm.delta = None if pending is None else pending.data_ptr()
        self._kernels.norm(self._norm)
        return self._normed


class TiledSteps(Steps):
    """The same with products on tiles, which add to the stream themselves: nothing is pending."""

    def __init__(self, forward: FusedForward, kernels: Kernels, x: Tensor) -> None:
        super().__init__(forward, kernels, x)
        shape = forward.shape
        self._x = x
        joined, _ = shape.matrices()[0]
        self._joined = x.new_empty(len(x), joined, dtype=shape.dtype)
        self._fed = x.new_empty(len(x), shape.feed_width, dtype=shape.dtype)

    def joined(self, layer: _Layer, rotation: Tensor) -> Joined:
        layer.qkv.into(self._joined, self._next())
        return Joined(self._forward, layer, self._joined, rotation)

    def add_attention(self, layer: _Layer, seen: Tensor) -> None:
        layer.out.add_to(self._x, seen.contiguous())

    def add_feed_forward(self, layer: _Layer) -> None:
        layer.feed.into(self._fed, self._next())
        layer.down.add_to(self._x, self._fed)

    def finish(self) -> None:
        pass


class FusedForward:
    """Hidden states and logits from packed copies of the weights.

    ``load`` must be called again after the module's weights changed.

    Args:
        native: use the compiled kernels where they can be had and the sizes suit them.
    """

    def __init__(self, model: LoadedModel, dtype: torch.dtype, native: bool = True) -> None:
        if not has_fused_forward(model):
            raise ValueError(f"no fused forward for {model.causal.config.model_type}")
        self._model = model
        self._native = native
        self._shape = self._make_shape(model.causal.config, dtype)
        rotary = model.decoder.rotary_emb
        self._frequencies: Tensor = rotary.inv_freq.float()
        self._rotary_scale = float(getattr(rotary, "attention_scaling", 1.0))
        self.kernels: Kernels | None = self._usable_kernels() if native else None
        self.load()

    def _make_shape(self, config: Any, dtype: torch.dtype) -> _Shape:
        return _Shape(config, dtype)

    def _usable_kernels(self) -> Kernels | None:
        shape = self._shape
        if self._model.device.type != "cpu" or shape.dtype not in (torch.float32, torch.bfloat16):
            return None
        widths = (shape.width, shape.feed_width, shape.heads * shape.head_width)
        found = kernels() if all(map(fits, widths)) else None
        return found if found is not None and found.can_attend(shape.head_width) else None

    @property
    def shape(self) -> _Shape:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return self._shape.dtype

    @torch.no_grad()
    def load(self) -> None:
        """Read the module's weights, adapters merged in, and pack them."""
        state = merged_state(self._model)
        shape = self._shape
        names = dict(state)
        embedding = names["model.embed_tokens.weight"]
        head = names.get("lm_head.weight", embedding)
        norm = names["model.norm.weight"].to(shape.wide)
        self._embedding = embedding.detach().to(shape.dtype, copy=True)
        self._final_norm = norm.detach().clone()
        self._epsilon = norm.new_full((1,), shape.epsilon)
        count = self._model.causal.config.num_hidden_layers
        if self._uses_tiles():
            self._make_room(count, len(head))
        self._layers = [_Layer(names, f"model.layers.{i}.", shape) for i in range(count)]
        self._head = shape.matrix(shape.folded(head.detach().to(shape.wide), norm))

    def _uses_tiles(self) -> bool:
        return (
            self.kernels is not None
            and self.kernels.has_blocks
            and self._shape.dtype == torch.bfloat16
            and self._shape.suits_tiles()
        )

    def _make_room(self, num_layers: int, vocabulary: int) -> None:
        """Make room for the packed weights, or take what there is: a publish packs them anew."""
        shape = self._shape
        if shape.tiles is not None:
            shape.tiles.start()
            return
        assert self.kernels is not None
        numbers = num_layers * sum(o * i for o, i in shape.matrices()) + vocabulary * shape.width
        # Enough for bf16 everywhere; what 8-bit matrices leave is never touched.
        shape.tiles = Tiles(self.kernels, numbers * shape.dtype.itemsize)

    def release(self) -> None:
        """Let go of the packed weights; ``load`` makes them again."""
        self._layers = []
        self._head = self._embedding = None
        self._shape.tiles = None

    @torch.no_grad()
    def hidden(
        self, tokens_BT: Tensor, positions_BT: Tensor, context: AttentionContext | JoinedContext
    ) -> Tensor:
        """Return the states [B, T, W] that ``logits`` reads (before the last norm)."""
        shape = self._shape
        num_rows, length = tokens_BT.shape
        rotation = self._rotation(positions_BT.reshape(-1))
        x = self._embedding.index_select(0, tokens_BT.reshape(-1)).to(shape.wide)
        if self.kernels is not None:
            self.kernels.use_threads()
            self._run(self.kernels, x, rotation, (num_rows, length), context)
            return x.view(num_rows, length, shape.width)
        if isinstance(context, JoinedContext):
            raise TypeError("this context needs the compiled kernels")
        for number, layer in enumerate(self._layers):
            query, key, value = self._project(layer, x, rotation, num_rows, length)
            seen = context.attend(number, query, key, value, shape.scale)
            self._add_attention(layer, x, seen.transpose(1, 2).reshape(num_rows * length, -1))
            self._add_feed_forward(layer, x)
        return x.view(num_rows, length, shape.width)

    def _run(
        self,
        kernels: Kernels,
        x: Tensor,
        rotation: Tensor,
        shape_BT: tuple[int, int],
        context: AttentionContext | JoinedContext,
    ) -> None:
        """Take the states x [N, W] through all layers, in place, with the compiled kernels."""
        steps = self._steps(kernels, x)
        seen = x.new_zeros(len(x), self._shape.heads * self._shape.head_width, dtype=self.dtype)
        for number, layer in enumerate(self._layers):
            joined = steps.joined(layer, rotation)
            if isinstance(context, JoinedContext):
                context.attend_joined(number, joined, seen)
            else:
                read = context.attend(number, *joined.heads(0, *shape_BT), self._shape.scale)
                seen = read.transpose(1, 2).reshape(len(x), -1)
            steps.add_attention(layer, seen)
            steps.add_feed_forward(layer)
        steps.finish()

    def _steps(self, kernels: Kernels, x: Tensor) -> Steps:
        return (Steps if self._shape.tiles is None else TiledSteps)(self, kernels, x)

    @torch.no_grad()
    def logits(self, hidden_NW: Tensor) -> Tensor:
        """Return logits [N, V] in the compute type."""
        out: Tensor = self._head(self._norm(hidden_NW))
        return out

    def _rotation(self, positions_N: Tensor) -> Tensor:
        # In fp32 whatever the weights, as the modules of transformers do it.
        angles = positions_N.float().unsqueeze(1) * self._frequencies
        rotation = torch.polar(torch.full_like(angles, self._rotary_scale), angles)
        wide = torch.complex128 if self._shape.wide == torch.float64 else torch.complex64
        return rotation.to(wide).unsqueeze(1)  # [N, 1, D / 2]

    def _joined(self, layer: _Layer, x: Tensor) -> Tensor:
        """Return queries, keys and values side by side [N, (H + 2 K) D]."""
        out: Tensor = layer.qkv(self._norm(x))
        return out

    def _add_attention(self, layer: _Layer, x: Tensor, seen: Tensor) -> None:
        x += layer.out(seen)

    def _add_feed_forward(self, layer: _Layer, x: Tensor) -> None:
        x += layer.down(layer.feed(self._norm(x)))

    def _norm_scale(self, x: Tensor) -> Tensor:
        """Return what the norm multiplies each row by, [N, 1]."""
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self._epsilon, norm, norm, value=1.0 / self._shape.width).rsqrt_()

    def _norm(self, x: Tensor) -> Tensor:
        if self.kernels is not None:
            return Steps(self, self.kernels, x.contiguous())._next()
        normed = torch.empty_like(x, dtype=self._shape.dtype)
        return torch.mul(x, self._norm_scale(x), out=normed)

    def _project(
        self, layer: _Layer, x: Tensor, rotation: Tensor, num_rows: int, length: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries [B, H, T, D], rotated keys and values [B, K, T, D]."""
        return self.turned(layer, self._joined(layer, x), rotation, num_rows, length)

    def turned(
        self, layer: _Layer, joined: Tensor, rotation: Tensor, num_rows: int, length: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same from the layer's joined projections [N, (H + 2 K) D]."""
        shape = self._shape
        count = shape.heads + shape.kv_heads
        joined = joined.view(len(joined), -1, shape.head_width)
        rotating = joined[:, :count].to(shape.wide)
        if layer.head_norms is not None:
            mean = rotating.square().mean(-1, keepdim=True)
            rotating = rotating * (mean + shape.epsilon).rsqrt() * layer.head_norms
        # In place: the joined projections belong to nobody else.
        torch.view_as_complex(rotating.unflatten(-1, (-1, 2))).mul_(rotation)
        turned = _heads(rotating.to(shape.dtype), num_rows, length)
        query, key = turned.split([shape.heads, shape.kv_heads], dim=1)
        return query, key, _heads(joined[:, count:].to(shape.dtype), num_rows, length)


def _heads(parts: Tensor, num_rows: int, length: int) -> Tensor:
    """Return [B * T, heads, D] as [B, heads, T, D]."""
    return parts.view(num_rows, length, -1, parts.shape[-1]).transpose(1, 2)
