"""Log-probabilities and entropies of chosen tokens, a chunk of rows at a time.

Shapes: N rows (trained tokens), D width, V vocabulary. The whole [N, V] matrix never exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from educe.native.kernels import Kernels, kernels

CHUNK_ROWS = 512
_CACHED_VALUES = 300_000
# Of the vocabulary, as many at a time as their gradient's product needs no room worth speaking of.
_HEAD_ROWS = 16384


class TokenLogprobs(NamedTuple):
    """``logprobs_N`` of the targets and ``entropy_N`` in nats, at each row's temperature."""

    logprobs_N: Tensor
    entropy_N: Tensor


def _blocks(logits_NV: Tensor) -> Iterator[slice]:
    """Cut a chunk's rows so that, on a CPU, every pass over a block finds it in a core's cache."""
    rows, vocabulary = logits_NV.shape
    size = max(1, _CACHED_VALUES // vocabulary) if logits_NV.device.type == "cpu" else rows
    for first in range(0, rows, size):
        yield slice(first, min(first + size, rows))


class _ChunkedLogprobs(torch.autograd.Function):
    """Forward keeps the hidden rows only; backward recomputes each chunk's logits.

    The head is cast to the rows' type here, not by the caller: its gradient is summed in fp32 or
    wider and leaves in the head's own type, without a narrow copy on the way.

    With z = logits / temperature and p = softmax(z):
    d logp[target] / dz = onehot(target) - p,  d entropy / dz = -p * (log p + entropy).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperature_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        count = len(targets_N)
        logprobs, entropy = (hidden_ND.new_empty(count, dtype=wide) for _ in range(2))
        normaliser = torch.empty_like(logprobs)
        native = _kernels_for(hidden_ND)
        head_VD = weight_VD.to(hidden_ND.dtype)
        for chunk in _chunks(count):
            logits_NV = hidden_ND[chunk] @ head_VD.T
            if native is not None:
                native.logprobs(
                    logits_NV,
                    targets_N[chunk],
                    temperature_N[chunk].float(),
                    (logprobs[chunk], entropy[chunk], normaliser[chunk]),
                )
                continue
            for block in _blocks(logits_NV):
                rows = slice(chunk.start + block.start, chunk.start + block.stop)
                z = logits_NV[block].to(wide, copy=True)
                z /= temperature_N[rows].unsqueeze(1).to(wide)
                top = z.amax(-1, keepdim=True)
                z -= top
                picked = z.gather(1, targets_N[rows].unsqueeze(1)).squeeze(1)
                weights = z.exp()
                total = weights.sum(-1)
                log_total = total.log()
                logprobs[rows] = picked - log_total
                # A weight of zero would make 0 * -inf of a logit that is -inf.
                inner = weights.mul_(z.clamp_(min=torch.finfo(wide).min)).sum(-1)
                entropy[rows] = log_total - inner / total
                normaliser[rows] = top.squeeze(1) + log_total
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, temperature_N, normaliser, entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor | None, None, None]:
        grad_logprobs, grad_entropy = grads
        hidden_ND, weight_VD, targets_N, temperature_N, normaliser, entropy = ctx.saved_tensors
        wide = grad_logprobs.dtype
        if grad_entropy is not None and not bool(grad_entropy.any()):
            grad_entropy = None
        grad_hidden = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight = (
            torch.zeros(weight_VD.shape, dtype=wide, device=weight_VD.device)
            if ctx.needs_input_grad[1]
            else None
        )
        native = _kernels_for(hidden_ND)
        head_VD = weight_VD.to(hidden_ND.dtype)
        for chunk in _chunks(len(targets_N)):
            # The gradient of the logits takes the place of the logits, block by block.
            logits_NV = hidden_ND[chunk] @ head_VD.T
            if native is not None:
                given = None if grad_entropy is None else grad_entropy[chunk].contiguous()
                native.logprobs(
                    logits_NV,
                    targets_N[chunk],
                    temperature_N[chunk].float(),
                    (entropy[chunk], entropy[chunk], normaliser[chunk]),
                    (grad_logprobs[chunk].contiguous(), given),
                )
            for block in _blocks(logits_NV) if native is None else ():
                rows = slice(chunk.start + block.start, chunk.start + block.stop)
                temperature = temperature_N[rows].unsqueeze(1).to(wide)
                logp = logits_NV[block].to(wide, copy=True)
                logp /= temperature
                logp -= normaliser[rows].unsqueeze(1)
                factor = (grad_logprobs[rows].unsqueeze(1) / temperature).to(wide)
                if grad_entropy is None:
                    grad_z = logp.exp_().mul_(-factor)
                else:
                    p = logp.exp()
                    grad_z = p * -factor
                    slope = grad_entropy[rows].unsqueeze(1) / temperature
                    logp = logp.clamp_(min=torch.finfo(wide).min)
                    grad_z -= slope * p * (logp + entropy[rows].unsqueeze(1))
                grad_z.scatter_add_(1, targets_N[rows].unsqueeze(1), factor)
                logits_NV[block] = grad_z
            if grad_hidden is not None:
                grad_hidden[chunk] = logits_NV @ head_VD
            if grad_weight is not None:
                for rows in _runs(len(grad_weight), _HEAD_ROWS):
                    grad_weight[rows] += logits_NV[:, rows].T @ hidden_ND[chunk]
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight_VD.dtype)
        return grad_hidden, grad_weight, None, None


def _kernels_for(hidden_ND: Tensor) -> Kernels | None:
    """Return the compiled kernels where these rows are of a type and place that they read."""
    known = hidden_ND.dtype in (torch.float32, torch.bfloat16) and hidden_ND.device.type == "cpu"
    return kernels() if known else None


def _chunks(count: int) -> Iterator[slice]:
    return _runs(count, CHUNK_ROWS)


def _runs(count: int, size: int) -> Iterator[slice]:
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))


def token_logprobs(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperature_N: Tensor
) -> TokenLogprobs:
    """Return log-probabilities and entropies of ``targets_N`` under softmax(h W^T / temperature).

    Args:
        hidden_ND: last hidden states at the positions that predict the targets.
        weight_VD: output head (no bias).
        targets_N: token ids, int64.
        temperature_N: sampling temperature of each row, > 0.
    """
    targets_N = targets_N.contiguous()
    apply = cast(Any, _ChunkedLogprobs.apply)
    logprobs, entropy = apply(hidden_ND, weight_VD, targets_N, temperature_N)
    return TokenLogprobs(logprobs, entropy)
