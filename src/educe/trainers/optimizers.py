"""Optimizers and learning-rate schedules, from settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from educe.config.settings import OptimizerSettings
from educe.core.errors import MissingExtraError

Named = tuple[str, torch.nn.Parameter]
Group = dict[str, Any]

# The tables of words: matrices by shape, lists of vectors by meaning.
_TABLES = ("embed_tokens", "lm_head")


def build_optimizer(
    parameters: Iterable[Named],
    settings: OptimizerSettings,
    learning_rate: float,
    *,
    head: Sequence[torch.nn.Parameter] = (),
    head_scale: float = 1.0,
) -> torch.optim.Optimizer:
    """Return the optimizer of that name; matrices decay, vectors do not.

    Parameters of a new ``head`` do not decay, and learn at ``head_scale`` times the rate.

    Raises:
        MissingExtraError: an 8-bit optimizer without its package.
    """
    named = list(parameters)
    matrices = [p for _, p in named if p.ndim >= 2]
    vectors = [p for _, p in named if p.ndim < 2]
    groups: list[Group] = [
        {"params": vectors, "weight_decay": 0.0},
        {
            "params": list(head),
            "weight_decay": 0.0,
            "lr": learning_rate * head_scale,
            "scale": head_scale,
        },
    ]
    decaying: Group = {"params": matrices, "weight_decay": settings.weight_decay}
    if settings.name == "sgd":
        return torch.optim.SGD(
            _filled([decaying, *groups]), lr=learning_rate, momentum=settings.beta1
        )
    if settings.name == "adamw_8bit":
        return _eight_bits(_filled([decaying, *groups]), settings, learning_rate)
    if settings.name == "muon":
        hidden = [p for n, p in named if p.ndim == 2 and not any(t in n for t in _TABLES)]
        other = {id(p) for p in hidden}
        decaying["params"] = [p for p in matrices if id(p) not in other]
        rest = _filled([decaying, *groups])
        adamw = _adamw(rest, settings, learning_rate) if rest else None
        return MuonAndAdamW(hidden, adamw, settings, learning_rate)
    return _adamw(_filled([decaying, *groups]), settings, learning_rate)


def _filled(groups: Iterable[Group]) -> list[Group]:
    return [g for g in groups if g["params"]]


def _adamw(
    groups: list[Group], settings: OptimizerSettings, learning_rate: float
) -> torch.optim.Optimizer:
    is_fused = settings.implementation != "foreach"
    return torch.optim.AdamW(
        groups,
        lr=learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        fused=is_fused,
        foreach=not is_fused,
    )


def _eight_bits(
    groups: list[Group], settings: OptimizerSettings, learning_rate: float
) -> torch.optim.Optimizer:
    """AdamW whose moments are 8-bit numbers, in blocks of 256 (Dettmers et al. 2021).

    Tensors of fewer than 4,096 weights keep moments of 32 bits.
    """
    try:
        import bitsandbytes
    except ImportError as error:
        raise MissingExtraError("bitsandbytes", "8bit", 'optimizer.name = "adamw_8bit"') from error
    optimizer: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
        groups, lr=learning_rate, betas=(settings.beta1, settings.beta2), eps=settings.eps
    )
    return optimizer


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) on the layers' matrices, AdamW on everything else.

    Muon's update is scaled to the root mean square of AdamW's (Liu et al. 2025, arXiv:2502.16982),
    so that one learning rate fits both. Groups and state are shared with the two optimizers of
    torch that do the work: from outside this is one optimizer.

    Args:
        hidden: matrices [out, in].
        adamw: the optimizer of everything else, None when there is nothing else.
    """

    def __init__(
        self,
        hidden: Sequence[torch.nn.Parameter],
        adamw: torch.optim.Optimizer | None,
        settings: OptimizerSettings,
        learning_rate: float,
    ) -> None:
        parts: list[torch.optim.Optimizer] = []
        if hidden:
            parts.append(
                torch.optim.Muon(
                    hidden,
                    lr=learning_rate,
                    weight_decay=settings.weight_decay,
                    momentum=settings.momentum,
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if adamw is not None:
            parts.append(adamw)
        super().__init__([g for part in parts for g in part.param_groups], {})
        self.param_groups = [g for part in parts for g in part.param_groups]
        for part in parts:
            part.state = self.state
        self._parts = parts

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


def restored(
    optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, key: str, saved: Tensor
) -> Any:
    """Return a saved value of an optimizer's state as that optimizer keeps it.

    Tensors live with their parameter; the count of steps stays on the CPU, but for a fused kernel
    on an accelerator, and is a plain number in bitsandbytes.
    """
    if key != "step":
        return saved.to(parameter.device).clone()
    if type(optimizer).__module__.startswith("bitsandbytes"):
        return int(saved)
    is_fused = any(g.get("fused") or g.get("capturable") for g in optimizer.param_groups)
    return saved.to(parameter.device).clone() if is_fused else saved.clone()


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
