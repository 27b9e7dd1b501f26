"""Optimizers and learning-rate schedules, from settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from educe.config.settings import OptimizerSettings


def build_optimizer(
    parameters: Iterable[torch.nn.Parameter],
    settings: OptimizerSettings,
    learning_rate: float,
    *,
    head: Sequence[torch.nn.Parameter] = (),
    head_scale: float = 1.0,
) -> torch.optim.Optimizer:
    """Return torch's optimizer of that name; matrices decay, vectors do not.

    Parameters of a new ``head`` do not decay, and learn at ``head_scale`` times the rate.
    """
    matrices: list[torch.nn.Parameter] = []
    vectors: list[torch.nn.Parameter] = []
    for parameter in parameters:
        (matrices if parameter.ndim >= 2 else vectors).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
        {
            "params": list(head),
            "weight_decay": 0.0,
            "lr": learning_rate * head_scale,
            "scale": head_scale,
        },
    ]
    groups = [g for g in groups if g["params"]]
    if settings.name == "sgd":
        return torch.optim.SGD(groups, lr=learning_rate, momentum=settings.beta1)
    return torch.optim.AdamW(
        groups,
        lr=learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        foreach=True,
    )


def learning_rate_at(
    step: int, peak: float, settings: OptimizerSettings, total_steps: int
) -> float:
    """Return the learning rate of optimizer step ``step`` (from 0).

    Warm-up is linear; ``linear`` and ``cosine`` reach the final fraction of the peak (0 by default)
    at ``total_steps`` (0 = unknown, constant).
    """
    warmup = max(settings.warmup_steps, math.ceil(settings.warmup_fraction * total_steps))
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if settings.schedule == "constant" or total_steps <= warmup:
        return peak
    done = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    left = 1.0 - done if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return peak * (settings.final_fraction + (1.0 - settings.final_fraction) * left)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the rate of every group, times the group's own scale."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("scale", 1.0)
