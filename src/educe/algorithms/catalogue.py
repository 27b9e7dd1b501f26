"""Algorithms as named bundles: advantage + loss + aggregation + KL, with the paper's defaults.

Torch-free, so that preflight and ``educe explain`` can print them. A name means what its paper
says; what deviates has a name of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from educe.algorithms.bundle import OPTIONS, READERS, Bundle
from educe.algorithms.bundles import BUNDLES
from educe.core.errors import RecipeError, did_you_mean

__all__ = ["BUNDLES", "CORRECTION_BOUNDS", "OPTIONS", "Bundle", "resolve_bundle"]

CORRECTION_BOUNDS = {
    "token_truncated": (0.0, 2.0),
    "sequence_truncated": (0.0, 5.0),
    "icepop": (0.5, 5.0),
    "sequence_mask": (0.0, 3.0),
    "geometric_mask": (0.99, 1.01),
}
"""What a correction takes for (floor, cap) where a recipe names it without them."""

_CHOICES = {
    "correction": tuple(CORRECTION_BOUNDS),
    "kl_estimator": ("k1", "k2", "k3", "k1+", "k3+", "rk3"),
    "kl_place": ("loss", "reward"),
    "whitening": ("tokens", "samples", ""),
    "aggregation": (
        "token-mean",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
        "prompt-mean",
    ),
}


def resolve_bundle(
    name: str, overrides: dict[str, Any] | None = None, options: dict[str, float] | None = None
) -> Bundle:
    """Return the named bundle with given (non-None) fields and options replaced.

    A correction that is named without bounds takes its own, see ``CORRECTION_BOUNDS``.

    Args:
        overrides: fields of :class:`Bundle`, and the numbers of ``OPTIONS`` that this algorithm
            reads.
        options: further numbers, taken as they are (targets of controllers, value coefficients).

    Raises:
        RecipeError: for an unknown name (lists the nearest ones), an unknown choice, a number that
            this algorithm does not read, or overrides that contradict each other.
    """
    if name not in BUNDLES:
        raise RecipeError(
            f"algorithm.name must be one of {', '.join(sorted(BUNDLES))}; got {name!r}."
            + did_you_mean(name, BUNDLES)
        )
    given = {k: v for k, v in (overrides or {}).items() if v is not None}
    for key, choices in _CHOICES.items():
        if key in given and given[key] not in choices:
            raise RecipeError(
                f"algorithm.{key} must be one of {', '.join(c or 'empty' for c in choices)}; "
                f"got {given[key]!r}."
            )
    bounds = CORRECTION_BOUNDS.get(given.get("correction", ""), ())
    defaults = dict(zip(("importance_floor", "importance_cap"), bounds, strict=False))
    own = {k: float(given.pop(k)) for k in OPTIONS if k in given}
    bundle = replace(BUNDLES[name], **(defaults | given))
    _check_read(bundle, {k: v for k, v in (given | own).items() if k in READERS})
    _check_options(own)
    numbers = dict(bundle.options) | own | (options or {})
    bundle = replace(bundle, options=tuple(numbers.items()))
    _check_correction(bundle, given)
    _check_kl(bundle)
    return bundle


def _check_read(bundle: Bundle, given: dict[str, float]) -> None:
    for key, value in given.items():
        users = READERS[key]
        if bundle.advantage not in users and bundle.loss not in users:
            able = [b.name for b in BUNDLES.values() if b.advantage in users or b.loss in users]
            raise RecipeError(
                f"algorithm.{key} = {value:g} would do nothing: {bundle.name} does not read it "
                f"(those that do: {', '.join(able)}). Remove it, or choose one of them."
            )


def _check_options(given: dict[str, float]) -> None:
    if "lam" in given and "lam_alpha" in given:
        raise RecipeError(
            f"algorithm.lam = {given['lam']:g} would do nothing: with lam_alpha advantages take "
            "a lambda by length and the values' returns take 1. Remove one of them."
        )
    if "k" in given and given["k"] != int(given["k"]):
        raise RecipeError(f"algorithm.k must be a whole number, got {given['k']:g}.")
    if 0 < given.get("dual_clip", 0.0) <= 1:
        raise RecipeError(
            f"algorithm.dual_clip = {given['dual_clip']:g} must be above 1: it bounds the loss at "
            "that many times |A|, and at 1 every negative advantage would lose its gradient."
        )


def _check_kl(bundle: Bundle) -> None:
    if bundle.kl_in_reward and bundle.advantage in ("multi_reward", "process"):
        raise RecipeError(
            f'algorithm.kl.place = "reward" does not go with {bundle.name}: it normalises several '
            'rewards, each on its own, and the KL is none of them. Set algorithm.kl.place = "loss".'
        )
    if bundle.kl_in_reward and bundle.kl_estimator not in ("k1", "k2", "k3"):
        raise RecipeError(
            f"algorithm.kl_estimator = {bundle.kl_estimator!r} only changes the KL's gradient, and "
            f"{bundle.name} takes the KL off the reward, which has none. Choose k1, k2 or k3, or "
            'set algorithm.kl.place = "loss".'
        )


def _check_correction(bundle: Bundle, given: dict[str, Any]) -> None:
    low, high = bundle.importance_floor, bundle.importance_cap
    named = [k for k in ("correction", "importance_cap", "importance_floor") if given.get(k)]
    if bundle.proximal == "behaviour" and named:
        raise RecipeError(
            f"algorithm.{named[0]} would do nothing: {bundle.name} takes what sampled as the "
            'proximal policy (proximal = "behaviour"), so proximal / behaviour is 1 and the ratio '
            'corrects. Remove it, or set algorithm.proximal = "recompute".'
        )
    if high == 0 and (given.get("correction") or given.get("importance_floor")):
        raise RecipeError(
            f"algorithm.importance_cap is 0, so {bundle.name} corrects nothing and "
            "algorithm.correction and importance_floor would do nothing. Give a cap, or remove "
            "them."
        )
    if high and low >= high:
        raise RecipeError(
            f"algorithm.importance_floor = {low:g} must be below importance_cap = {high:g}. "
            "Lower the floor or raise the cap."
        )
    if high and not low <= 1 <= high:
        raise RecipeError(
            f"algorithm.importance_floor = {low:g} and importance_cap = {high:g} leave out the "
            f"weight 1, which a token has where engine and trainer agree: {bundle.correction} "
            "would reject or rescale everything. Take a floor <= 1 and a cap >= 1."
        )
