"""Checks on credit, KL, values, shaping and exploration: what would contradict or do nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from educe.algorithms.catalogue import BUNDLES, Bundle
from educe.config.algorithm_settings import KLSettings, ShapingSettings
from educe.config.positions import format_key
from educe.config.schema import default_of
from educe.config.settings import DomainSettings, Section
from educe.core.errors import EduceError, RecipeError
from educe.preflight.plan import SETTING_OF, Plan, algorithm_overrides, bundle_of


def check_credit(plan: Plan) -> Iterator[EduceError]:
    """Yield settings of the ``rl`` stage's credit that cannot work together."""
    if "rl" not in plan.recipe.stages:
        return
    bundles = _bundles(plan)
    if bundles is None:
        return  # told already: an algorithm is unknown or contradicts itself
    yield from _overrides(plan)
    yield from _kl(plan, bundles)
    yield from _first_update(plan, bundles[0])
    yield from _values(plan, bundles)
    yield from _groups(plan, bundles)
    yield from _exploration(plan, bundles)
    yield from _shaping(plan, "shaping", plan.recipe.shaping, bundles)
    for name, own in plan.recipe.domains.items():
        if own.shaping is not None:
            key = format_key(("domains", name, "shaping"))
            yield from _shaping(plan, key, own.shaping, [bundle_of(plan.recipe, own)])


def _bundles(plan: Plan) -> list[Bundle] | None:
    """The algorithms of the run, its own first; None when one cannot be resolved."""
    try:
        own = bundle_of(plan.recipe, DomainSettings())
        found = dict.fromkeys(bundle_of(plan.recipe, d) for d in plan.recipe.domains.values())
    except RecipeError:
        return None
    return [own, *(b for b in found if b != own)]


def changed_fields(section: Section) -> set[str]:
    """The settings that are not at their defaults."""
    fields = type(section).model_fields
    return {name for name in fields if getattr(section, name) != default_of(fields[name])}


def _overrides(plan: Plan) -> Iterator[EduceError]:
    """Settings of the run's algorithm where every domain has another, as published."""
    recipe = plan.recipe
    own = recipe.algorithm
    given = list(algorithm_overrides(own)) + (["kl_target"] if own.kl.target else [])
    others = [d.algorithm for d in recipe.domains.values()]
    if given and others and all(name not in ("", own.name) for name in others):
        yield plan.error(
            SETTING_OF.get(given[0], f"algorithm.{given[0]}"),
            f"it goes with {own.name}, and every domain names another algorithm "
            f"({', '.join(dict.fromkeys(others))}), which is taken as published. Set "
            "algorithm.name to theirs, or remove this.",
        )


def _first_update(plan: Plan, bundle: Bundle) -> Iterator[EduceError]:
    """Settings that read the ratio where it is always 1."""
    rl, algorithm = plan.recipe.rl, plan.recipe.algorithm
    if rl.updates * rl.epochs > 1 or bundle.proximal == "behaviour":
        return
    reason = (
        "a rollout batch takes one optimizer step here, and at the first one the proximal policy "
        "is the policy itself: the ratio is 1"
    )
    for key in ("dual_clip", "sequence_drop"):
        if getattr(algorithm, key):
            yield plan.error(
                f"algorithm.{key}",
                f"{reason}, so this does nothing. Raise rl.updates or rl.epochs, set "
                'algorithm.proximal = "behaviour", or remove this.',
            )
    clips = [k for k in ("clip_low", "clip_high") if getattr(algorithm, k) is not None]
    if clips:
        plan.notes.append(
            f"algorithm.{clips[0]}: {reason}, so nothing is clipped (rl.updates, rl.epochs, "
            'algorithm.proximal = "behaviour")'
        )


def _kl(plan: Plan, bundles: Iterable[Bundle]) -> Iterator[EduceError]:
    kl = plan.recipe.algorithm.kl
    has_kl = any(b.needs_reference for b in bundles)
    given = {"refresh_steps": kl.refresh_steps, "stop": kl.stop}
    given |= {"reference": kl.reference == "base"}
    for key, value in given.items():
        if value and not has_kl:
            yield plan.error(
                f"algorithm.kl.{key}",
                "no algorithm of this run has a reference. Set algorithm.kl_coefficient above 0, "
                "or remove this.",
            )
    own = bundle_of(plan.recipe, DomainSettings())
    named, coefficient = plan.recipe.algorithm.kl_estimator, plan.recipe.algorithm.kl_coefficient
    if named is not None and coefficient is None and not own.needs_reference:
        yield plan.error(
            "algorithm.kl_estimator",
            f"{own.name} has a KL coefficient of 0, so no KL is estimated. Set "
            "algorithm.kl_coefficient above 0, or remove this.",
        )
    if kl.horizon != KLSettings().horizon and not kl.target:
        yield plan.error(
            "algorithm.kl.horizon",
            "algorithm.kl.target is 0, so the coefficient is fixed and this does nothing. Set a "
            "target, or remove this.",
        )
    for bundle in bundles:
        if bundle.kl_in_loss and bundle.kl_estimator == "k1":
            plan.notes.append(
                f'{bundle.name}: the gradient of k1 as a loss is 0 on average; k2 or "k1+" has the '
                'right one, or set algorithm.kl.place = "reward"'
            )
    if kl.target and not own.needs_reference:
        yield plan.error(
            "algorithm.kl.target",
            f"{own.name} starts with a KL coefficient of 0, which no target can move. Set "
            "algorithm.kl_coefficient above 0 to start from.",
        )
    if kl.place is not None and not own.needs_reference:
        yield plan.error(
            "algorithm.kl.place",
            f"{own.name} has a KL coefficient of 0, so there is no KL to place. Set "
            "algorithm.kl_coefficient above 0, or remove this.",
        )
    if kl.reference == "base" and kl.refresh_steps:
        yield plan.error(
            "algorithm.kl.refresh_steps",
            'algorithm.kl.reference = "base" keeps the KL to the untrained model, and a refresh '
            "would move it. Remove one of them.",
        )
    rl = plan.recipe.rl
    if kl.stop_update and rl.updates * rl.epochs == 1:
        yield plan.error(
            "algorithm.kl.stop_update",
            "a rollout batch takes one optimizer step here, so there is nothing to end early. "
            "Raise rl.updates or rl.epochs, or remove this.",
        )


def _values(plan: Plan, bundles: Iterable[Bundle]) -> Iterator[EduceError]:
    value = plan.recipe.algorithm.value
    changed = changed_fields(value)
    if changed and not any(b.needs_values for b in bundles):
        able = ", ".join(b.name for b in BUNDLES.values() if b.needs_values)
        yield plan.error(
            f"algorithm.value.{min(changed)}",
            f"no algorithm of this run has a value head (those that do: {able}). Choose one of "
            "them, or remove [algorithm.value].",
        )


def _groups(plan: Plan, bundles: Iterable[Bundle]) -> Iterator[EduceError]:
    size = plan.recipe.rl.group_size
    for bundle in bundles:
        if bundle.advantage == "best_of_k" and bundle.option("k", 4.0) > size:
            yield plan.error(
                "algorithm.credit.k",
                f"the best of {bundle.option('k', 4.0):g} cannot be taken from groups of {size}. "
                f"Expected algorithm.credit.k <= rl.group_size; lower one or raise the other.",
            )


def _exploration(plan: Plan, bundles: Iterable[Bundle]) -> Iterator[EduceError]:
    exploration = plan.recipe.rl.exploration
    fields = changed_fields(exploration)
    if fields & {"steps", "shape"} and not exploration.temperature:
        key = "steps" if "steps" in fields else "shape"
        yield plan.error(
            f"rl.exploration.{key}",
            "rl.exploration.temperature is 0, so the temperature stays as it is and this does "
            "nothing. Say where it shall go, or remove this.",
        )
    for key in ("entropy_step", "entropy_most"):
        if key in fields and not exploration.entropy_target:
            yield plan.error(
                f"rl.exploration.{key}",
                "rl.exploration.entropy_target is 0, so the entropy bonus is fixed. Set a target, "
                "or remove this.",
            )
    own = next(iter(bundles))
    if exploration.entropy_target and own.entropy_coefficient > exploration.entropy_most:
        yield plan.error(
            "algorithm.entropy_coefficient",
            f"the bonus starts at {own.entropy_coefficient:g} and never exceeds "
            f"rl.exploration.entropy_most = {exploration.entropy_most:g}. Lower one or raise the "
            "other.",
        )
    if exploration.entropy_target and own.entropy_coefficient < 0:
        yield plan.error(
            "algorithm.entropy_coefficient",
            f"{own.entropy_coefficient:g} lowers the entropy and rl.exploration.entropy_target "
            "raises it. Remove one of them.",
        )


def _shaping(
    plan: Plan, key: str, shaping: ShapingSettings, bundles: Iterable[Bundle]
) -> Iterator[EduceError]:
    pairs = (
        ("overlong_tokens", "overlong", shaping.overlong),
        ("repetition_width", "repetition", shaping.repetition),
        ("decay", "normalise", shaping.normalise),
    )
    for name, switch, value in pairs:
        if name in changed_fields(shaping) and not value:
            yield plan.error(
                f"{key}.{name}",
                f"{key}.{switch} is off, so this does nothing. Set {key}.{switch}, or remove this.",
            )
    terms = shaping.parts or shaping.overlong or shaping.length or shaping.repetition
    if shaping.score_weight == 0 and not terms:
        yield plan.error(
            f"{key}.score_weight",
            "the score weighs nothing and nothing else is rewarded, so there is nothing to train "
            f"on. Raise it, or name {key}.parts.",
        )
    for bundle in bundles:
        if bundle.advantage == "mean_scaled":
            yield from _mean_scaled(plan, key, shaping, bundle)
        if bundle.advantage != "multi_reward":
            continue
        for name in ("normalise", "limit"):
            if getattr(shaping, name):
                yield plan.error(
                    f"{key}.{name}",
                    f"{bundle.name} normalises each reward by its group, so their sum is never "
                    "formed and this does nothing. Remove it, or choose another algorithm.",
                )
        if not terms:
            plan.notes.append(
                f"{bundle.name} normalises several rewards each on its own, and {key} names only "
                "the score"
            )


def _mean_scaled(
    plan: Plan, key: str, shaping: ShapingSettings, bundle: Bundle
) -> Iterator[EduceError]:
    """A baseline that divides by the group's mean, which must be positive."""
    if shaping.normalise:
        yield plan.error(
            f"{key}.normalise",
            f"{bundle.name} divides by the mean reward of a group, which this makes 0 on average. "
            "Remove it, or choose another algorithm.",
        )
    elif shaping.overlong or shaping.length or shaping.repetition or (shaping.truncated or 0) < 0:
        plan.notes.append(
            f"{bundle.name} is meant for rewards >= 0, and the penalties of {key} may go below: "
            "groups whose mean reward is not positive train nothing"
        )
