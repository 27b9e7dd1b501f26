"""Log-probabilities and entropies of chosen tokens, a chunk of rows at a time.

Shapes: N rows (trained tokens), D width, V vocabulary. The whole [N, V] matrix never exists.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

CHUNK_ROWS = 512


class TokenLogprobs(NamedTuple):
    """``logprobs_N`` of the targets and ``entropy_N`` in nats, at each row's temperature."""

    logprobs_N: Tensor
    entropy_N: Tensor


class _ChunkedLogprobs(torch.autograd.Function):
    """Forward keeps the hidden rows only; backward recomputes each chunk's logits.

    With z = logits / temperature and p = softmax(z):
    d logp[target] / dz = onehot(target) - p,  d entropy / dz = -p * (log p + entropy).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperature_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        logprobs, entropies = [], []
        for rows in range(0, len(targets_N), CHUNK_ROWS):
            part = slice(rows, rows + CHUNK_ROWS)
            logits = (hidden_ND[part] @ weight_VD.T).to(wide)
            logits /= temperature_N[part].unsqueeze(1).to(wide)
            logits -= logits.logsumexp(-1, keepdim=True)
            logprobs.append(logits.gather(1, targets_N[part].unsqueeze(1)).squeeze(1))
            entropies.append(-(logits.exp().mul_(logits)).sum(-1))
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, temperature_N)
        ctx.chunk = CHUNK_ROWS
        if not logprobs:
            empty = hidden_ND.new_zeros(0, dtype=wide)
            return empty, empty.clone()
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor | None, None, None]:
        grad_logprobs, grad_entropy = grads
        hidden_ND, weight_VD, targets_N, temperature_N = ctx.saved_tensors
        wide = grad_logprobs.dtype
        grad_hidden = torch.empty_like(hidden_ND) if ctx.needs_input_grad[0] else None
        grad_weight = (
            torch.zeros(weight_VD.shape, dtype=wide, device=weight_VD.device)
            if ctx.needs_input_grad[1]
            else None
        )
        for rows in range(0, len(targets_N), ctx.chunk):
            part = slice(rows, rows + ctx.chunk)
            temperature = temperature_N[part].unsqueeze(1).to(wide)
            logits = (hidden_ND[part] @ weight_VD.T).to(wide) / temperature
            logp = logits - logits.logsumexp(-1, keepdim=True)
            p = logp.exp()
            grad_z = p * (-grad_logprobs[part].unsqueeze(1))
            if grad_entropy is not None and bool(grad_entropy[part].any()):
                entropy = -(p * logp).sum(-1, keepdim=True)
                grad_z -= grad_entropy[part].unsqueeze(1) * p * (logp + entropy)
            grad_z.scatter_add_(
                1, targets_N[part].unsqueeze(1), grad_logprobs[part].unsqueeze(1).to(wide)
            )
            grad_z = (grad_z / temperature).to(hidden_ND.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad_z @ weight_VD
            if grad_weight is not None:
                grad_weight += grad_z.T @ hidden_ND[part]
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight_VD.dtype)
        return grad_hidden, grad_weight, None, None


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
    weight = weight_VD.to(hidden_ND.dtype)
    apply = cast(Any, _ChunkedLogprobs.apply)
    logprobs, entropy = apply(hidden_ND, weight, targets_N, temperature_N)
    return TokenLogprobs(logprobs, entropy)
