"""Norms and gates of a decoder that keep less for the backward, and pass over memory less often.

Same functions as transformers' modules, rounding included, as two autograd functions: a norm keeps
its input and one number a row; a gate keeps its two inputs and neither the activation nor anything
between. Under autocast a norm's output is already of the narrow type, since every reader of it is a
matrix product that would cast a copy of its own. Linear modules stay as they are (adapters). With
compiled kernels (``educe.native``) each is one pass over memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from educe.models.attention import ATTENTION_NAME, attention_function
from educe.native.kernels import Kernels, kernels, suits

# Norms over the model's width; those over a head's width (qwen3) go on to the rotary embedding.
_NORMS = ("input_layernorm", "post_attention_layernorm", "norm")


class _RmsNorm(torch.autograd.Function):
    """y = weight * x / sqrt(mean(x^2) + eps), computed in fp32 or wider (arXiv:1910.07467).

    With h = x / rms and g = grad * weight: d x = (g - h * mean(g * h)) / rms, d weight =
    sum over rows of grad * h.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
        native = kernels() if suits(x, weight) else None
        ctx.native = native if x.dtype is weight.dtype is torch.float32 else None
        if ctx.native is not None:
            flat = x.reshape(-1, x.shape[-1])
            out, scales = ctx.native.rms_forward(flat, weight, epsilon, dtype)
            ctx.save_for_backward(x, weight, scales)
            return cast(Tensor, out.view(x.shape))
        wide = torch.promote_types(x.dtype, torch.float32)
        rows = x.to(wide)
        scale = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        scale = scale.square_().mul_(1.0 / x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normed: Tensor = (rows * scale).to(x.dtype)
        if torch.promote_types(normed.dtype, weight.dtype) is normed.dtype:
            normed = normed.mul_(weight)
        else:
            normed = normed * weight
        return normed.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight, scale = ctx.saved_tensors
        if ctx.native is not None:
            flat = x.reshape(-1, x.shape[-1])
            given = grads[0].reshape(flat.shape).contiguous()
            grad_x, grad_weight = ctx.native.rms_backward(
                flat, weight, scale, given, *ctx.needs_input_grad[:2]
            )
            return None if grad_x is None else grad_x.view(x.shape), grad_weight, None, None
        wide = scale.dtype
        grad = grads[0].to(wide)
        normed = x.to(wide) * scale
        product = grad * normed
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = product.reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, None, None
        # mean(g * h) is the product with the weights; the product's memory is then free for g.
        weight = weight.to(wide)
        along = (product @ weight).unsqueeze(-1).mul_(1.0 / x.shape[-1])
        grad_x = torch.mul(grad, weight, out=product)
        grad_x.addcmul_(normed, along, value=-1.0).mul_(scale)
        return grad_x.to(x.dtype), grad_weight, None, None


class _Gated(torch.autograd.Function):
    """silu(gate) * up (arXiv:2002.05202)."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        native = kernels() if suits(gate, up) and gate.dtype is up.dtype else None
        ctx.native = native
        if native is not None:
            return native.gate_forward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad = grads[0]
        if ctx.native is not None:
            return cast(
                tuple[Tensor, Tensor],
                ctx.native.gate_backward(gate, up, grad.to(gate.dtype).contiguous()),
            )
        grad_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return grad_gate, functional.silu(gate).mul_(grad)


class _Rotary(torch.autograd.Function):
    """The rotary embedding of heads (arXiv:2104.09864) in one pass; its gradient turns back."""

    @staticmethod
    def forward(
        ctx: Any, x_BTHD: Tensor, cosine_BTD: Tensor, sine_BTD: Tensor, native: Kernels
    ) -> Tensor:
        ctx.save_for_backward(cosine_BTD, sine_BTD)
        ctx.native = native
        return _turned(native, x_BTHD, cosine_BTD, sine_BTD, False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turned(ctx.native, grads[0].contiguous(), cosine, sine, True), None, None, None


def _turned(native: Kernels, x_BTHD: Tensor, cosine: Tensor, sine: Tensor, back: bool) -> Tensor:
    flat = x_BTHD.reshape(-1, *x_BTHD.shape[2:])
    width = flat.shape[-1]
    out = native.rotate(flat, cosine.view(-1, width), sine.view(-1, width), x_BTHD.dtype, back)
    return out.view(x_BTHD.shape)


def make_lean(causal: Any) -> None:
    """Let a supported module's norms and gates run through this module's functions."""
    for name, module in causal.model.named_modules():
        kind, last = type(module).__name__, name.rpartition(".")[2]
        if kind.endswith("RMSNorm") and last in _NORMS and hasattr(module, "variance_epsilon"):
            module.forward = partial(_norm, module)
        elif kind.endswith("Attention") and last == "self_attn":
            module.forward = partial(_attention, module, module.forward)
        elif kind.endswith("MLP") and causal.config.hidden_act == "silu":
            module.forward = partial(_mlp, module)


def _norm(module: Any, hidden_states: Tensor) -> Tensor:
    device = hidden_states.device.type
    dtype = torch.promote_types(hidden_states.dtype, module.weight.dtype)
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    apply = cast(Any, _RmsNorm.apply)
    out: Tensor = apply(hidden_states, module.weight, module.variance_epsilon, dtype)
    return out


def _mlp(module: Any, x: Tensor) -> Tensor:
    apply = cast(Any, _Gated.apply)
    out: Tensor = module.down_proj(apply(module.gate_proj(x), module.up_proj(x)))
    return out


def _attention(
    module: Any,
    plain: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The module's forward with the rotary embedding of one pass; else the forward it had."""
    native = _rotates(module, position_embeddings, past_key_values)
    if native is None or position_embeddings is None:
        out: tuple[Tensor, None] = plain(
            hidden_states=hidden_states,
            position_embeddings=position_embeddings,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            **others,
        )
        return out
    heads = (*hidden_states.shape[:-1], -1, module.head_dim)
    query, key, value = (
        getattr(module, f"{name}_proj")(hidden_states).view(heads) for name in ("q", "k", "v")
    )
    if hasattr(module, "q_norm"):
        query, key = module.q_norm(query), module.k_norm(key)
    turn = cast(Any, _Rotary.apply)
    query, key = (turn(x, *position_embeddings, native) for x in (query, key))
    seen, _ = attention_function(
        module,
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attention_mask,
        scaling=module.scaling,
        dropout=module.attention_dropout if module.training else 0.0,
        **others,
    )
    return module.o_proj(seen.reshape(*hidden_states.shape[:-1], -1)), None


def _rotates(module: Any, angles: tuple[Tensor, Tensor] | None, cache: Any) -> Kernels | None:
    """Return the kernels where this call is of the kind that they serve."""
    if cache is not None or angles is None or module.head_dim % 32:
        return None
    own = module.config._attn_implementation == ATTENTION_NAME
    if not own or angles[0].dtype is not torch.float32 or not suits(*angles):
        return None
    return kernels() if module.q_proj.weight.dtype is not torch.float64 else None
