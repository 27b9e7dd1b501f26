"""From a recipe's [mixture] and [curriculum] to the objects that choose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from educe.config.mixture_settings import CurriculumSettings, MixtureSettings
from educe.core.protocols import DomainSpec
from educe.scheduling.controller import ControlSettings
from educe.scheduling.lengths import LengthRamp
from educe.scheduling.levels import LevelControl, ladders_of
from educe.scheduling.mixture import AdaptiveMixture, MixedDomain, Mixture, StaticMixture
from educe.scheduling.tasks import TaskChooser

FIXED = ("static", "size", "temperature")


def build_mixture(
    settings: MixtureSettings,
    curriculum: CurriculumSettings,
    weights: Mapping[str, float],
    specs: Mapping[str, DomainSpec],
    seed: int,
    *,
    ramp: LengthRamp | None = None,
    may_boost: bool = False,
    num_prompts: int = 0,
) -> Mixture:
    """Return the mixture that a recipe asks for.

    Args:
        weights: by domain, as the recipe's [domains] give them.
        specs: by domain; ``num_tasks`` None counts ``settings.size_limit`` tasks.
        ramp: makes domains with long prompts wait.
        may_boost: a domain's weight may be raised during the run (see ``Mixture.boost``).
        num_prompts: that the stage will ask in all; 0 where a budget ends it.
    """
    weights = sized_weights(settings, weights, specs)
    is_fixed = settings.strategy in FIXED and curriculum.levels == "fixed"
    if is_fixed and not (ramp or may_boost or settings.long_share):
        return StaticMixture(weights, seed)
    groups = pooled_families(specs)
    domains = {
        name: MixedDomain(weight, groups[name], specs[name].floor)
        for name, weight in weights.items()
    }
    return AdaptiveMixture(
        domains,
        control_settings(settings),
        seed=seed,
        half_life=settings.half_life,
        pooling=settings.pooling,
        protected=settings.protected,
        levels=_levels(curriculum, weights, specs),
        long=settings.long,
        ramp=ramp,
        num_prompts=num_prompts,
    )


def build_ramp(
    settings: CurriculumSettings, lengths: Mapping[str, int], steps: int
) -> LengthRamp | None:
    """Return what makes long domains wait; None when none does.

    Args:
        lengths: typical prompt tokens by domain.
        steps: rollout batches of the stage.
    """
    if settings.lengths == "all":
        return None
    over = settings.length_steps or steps // 2
    return LengthRamp(lengths, settings.length_first, over, settings.length_early)


def control_settings(settings: MixtureSettings) -> ControlSettings:
    """Return how the controller acts."""
    return ControlSettings(
        strategy="static" if settings.strategy in FIXED else settings.strategy,
        cost_power=0.0 if settings.cost == "prompts" else settings.cost_power,
        sharpness=settings.sharpness,
        settle=settings.settle,
        floor=settings.floor,
        ceiling=settings.ceiling,
        lowest=settings.lowest,
        lowest_floor=settings.lowest_floor,
        visit_within=settings.visit_within,
        slip=settings.slip,
        protect_boost=settings.protect_boost,
        optimism=settings.optimism,
        long_share=settings.long_share,
        long_by_cost=settings.cost != "prompts",
    )


def sized_weights(
    settings: MixtureSettings, weights: Mapping[str, float], specs: Mapping[str, DomainSpec]
) -> dict[str, float]:
    """Return the weights, times the (tempered) number of tasks where the strategy asks for it."""
    if settings.strategy not in ("size", "temperature"):
        return dict(weights)
    power = 1.0 if settings.strategy == "size" else 1.0 / settings.temperature
    limit = settings.size_limit
    return {
        name: weight * min(specs[name].num_tasks or limit, limit) ** power
        for name, weight in weights.items()
    }


def pooled_families(specs: Mapping[str, DomainSpec]) -> dict[str, str]:
    """Return whom each domain is read through: its family where it has company in the run, else
    its kind."""
    sizes = Counter(spec.family for spec in specs.values())
    return {
        name: spec.family if sizes[spec.family] > 1 else f"kind {spec.kind}"
        for name, spec in specs.items()
    }


def build_tasks(
    settings: CurriculumSettings, sizes: Mapping[str, int | None], group_size: int
) -> TaskChooser | None:
    """Return what chooses tasks of finite domains; None takes them in order."""
    if settings.tasks == "in_order":
        return None
    return TaskChooser(sizes, group_size, settings.min_signal, settings.revisit)


def _levels(
    settings: CurriculumSettings, weights: Mapping[str, float], specs: Mapping[str, DomainSpec]
) -> LevelControl | None:
    if settings.levels == "fixed":
        return None
    active = {name: spec.family for name, spec in specs.items() if weights.get(name, 0.0) > 0}
    own = {name: weights[name] for name in active}
    return LevelControl(ladders_of(active), own, settings.band_low, settings.band_high)
