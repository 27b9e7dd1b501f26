"""Rotary positions scaled beyond what a model was made for, as its config.json says it.

Everything that rotates (the trainer's module, the engine's, the fused forward, a saved folder that
plain transformers loads) reads one config, so scaling is a change of that config alone. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from educe.core.errors import UnsupportedModelError

# llama3's published borders between fast positions, which stay, and slow ones, which are scaled.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_DEFAULT_THETA = 10_000.0


def scaled_config(
    config: Mapping[str, Any], *, kind: str, factor: float, source: str
) -> dict[str, Any]:
    """Return what of ``config`` changes: ``rope_parameters`` and ``max_position_embeddings``.

    Empty when nothing does: kind ``own``, or a folder that was saved with this very scaling.

    Args:
        config: config.json of the model.
        kind: ``own``, ``linear`` (Chen et al. 2023, arXiv:2306.15595), ``yarn`` (Peng et al. 2023,
            arXiv:2309.00071) or ``llama3`` (arXiv:2407.21783, as published with Llama 3.1).
        factor: new context / the model's own.
        source: names the config in errors.

    Raises:
        UnsupportedModelError: the model is scaled already, in another way.
    """
    if kind == "own":
        return {}
    own = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    own_kind = str(own.get("rope_type") or own.get("type") or "default")
    if own_kind != "default":
        own_factor = float(own.get("factor") or 1.0)
        if own_kind == kind and math.isclose(own_factor, factor):
            return {}
        raise UnsupportedModelError(
            f"{source}: its positions are already scaled ({own_kind}, factor {own_factor:g}), "
            f"model.rope asks for {kind}, factor {factor:g}. Take the model before it was scaled, "
            'or leave model.rope at "own".'
        )
    length = int(config["max_position_embeddings"])
    theta = own.get("rope_theta") or config.get("rope_theta") or _DEFAULT_THETA
    scaled: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": float(theta),
        "factor": float(factor),
    }
    if kind != "linear":
        scaled["original_max_position_embeddings"] = length
    if kind == "llama3":
        scaled |= _LLAMA3
    return {"rope_parameters": scaled, "max_position_embeddings": round(length * factor)}


def describe_positions(config: Mapping[str, Any]) -> str:
    """Return e.g. ``yarn x4``; empty for positions as the model was made with."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    return "" if kind == "default" else f"{kind} x{float(rope.get('factor') or 1):g}"
