"""Limits of one optimizer step: too large a gradient is skipped, too large an update cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Weights of each tensor that are looked at to estimate how far a step moved all of them.
_SAMPLE = 1024


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What one step may do; 0 is no limit.

    Attributes:
        grad_norm: over all trained weights, before clipping; a step beyond it is skipped.
        update_norm: L2 distance that the weights may move; a longer step keeps its direction and is
            cut to this. Costs a copy of the weights.
    """

    grad_norm: float = 0.0
    update_norm: float = 0.0

    def reason_to_skip(self, norm: float) -> str:
        """Return why a step of this gradient norm must not be taken, empty when it may."""
        if not math.isfinite(norm):
            return f"gradient norm is {norm}"
        if self.grad_norm and norm > self.grad_norm:
            return f"gradient norm {norm:.4g} is over guards.grad_norm = {self.grad_norm:g}"
        return ""

    @torch.no_grad()
    def apply(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]
    ) -> float:
        """Take the optimizer's step within the limits; return the distance it wanted to move.

        Without a limit the distance is estimated from a sample of each tensor. A step that is not
        finite is taken back when there is a limit (and so a copy to go back to).
        """
        if not self.update_norm:
            before = _samples(parameters)
            optimizer.step()
            return _estimated_distance(parameters, before)
        copies = [p.detach().clone() for p in parameters]
        optimizer.step()
        moved = [p.detach() - c for p, c in zip(parameters, copies, strict=True)]
        distance = math.sqrt(sum(float(m.double().pow(2).sum()) for m in moved))
        if distance <= self.update_norm:
            return distance
        share = self.update_norm / distance if math.isfinite(distance) else 0.0
        for parameter, copy, move in zip(parameters, copies, moved, strict=True):
            parameter.copy_(copy + share * move if share else copy)
        return distance


def _sampled(parameter: torch.Tensor) -> torch.Tensor:
    flat = parameter.detach().reshape(-1)
    # Odd, or a matrix of even width would show the same few columns only.
    return flat[:: -(-flat.numel() // _SAMPLE) | 1]


def _samples(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [_sampled(p).clone() for p in parameters]


def _estimated_distance(
    parameters: Sequence[torch.Tensor], before: Sequence[torch.Tensor]
) -> float:
    squares = [
        (_sampled(p) - old).double().pow(2).sum() * (p.numel() / old.numel())
        for p, old in zip(parameters, before, strict=True)
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


@torch.no_grad()
def are_finite(parameters: Sequence[torch.Tensor]) -> bool:
    """Return whether no weight is NaN or infinite (one pass: a norm keeps both)."""
    norms = [torch.linalg.vector_norm(p.detach()) for p in parameters]
    return not norms or bool(torch.isfinite(torch.stack(norms)).all())
