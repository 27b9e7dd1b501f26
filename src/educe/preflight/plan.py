"""What a recipe comes to once its names are looked up: the facts every check and explain share."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from educe.algorithms.catalogue import Bundle, resolve_bundle
from educe.config.loader import LoadedRecipe
from educe.config.positions import format_key
from educe.config.settings import AlgorithmSettings, DomainSettings, Recipe
from educe.core.errors import Origin, RecipeError
from educe.core.protocols import DomainSpec
from educe.domains.example_sets import SetSummary
from educe.models.architectures import ModelShape


@dataclass(frozen=True, slots=True)
class DomainPlan:
    """One domain of the run, resolved.

    Attributes:
        key: the entry of ``[domains]`` that brought it (a name or a glob).
        share: of the run's prompts, in [0, 1].
        completion_tokens: limit of one turn.
        prompt_tokens: the longest prompt that was measured, None when none was.
    """

    name: str
    key: str
    settings: DomainSettings
    spec: DomainSpec
    bundle: Bundle
    share: float
    completion_tokens: int
    max_turns: int
    temperature: float
    prompt_tokens: int | None = None

    @property
    def origin_key(self) -> str:
        return format_key(("domains", self.key))

    @property
    def longest(self) -> int:
        """Tokens of the longest trajectory, without the environment's replies."""
        return (self.prompt_tokens or 0) + self.max_turns * self.completion_tokens


@dataclass(slots=True)
class Plan:
    """A recipe with its domains and model looked up; ``notes`` are for the reader, not errors.

    ``example_sets`` are the data sets of the stages, by (stage, name); ``positions`` tells how
    the model's rotary positions are scaled, empty when they are not.
    """

    loaded: LoadedRecipe
    domains: dict[str, DomainPlan] = field(default_factory=dict)
    shape: ModelShape | None = None
    model_folder: Path | None = None
    example_sets: dict[tuple[str, str], SetSummary] = field(default_factory=dict)
    teacher_shape: ModelShape | None = None
    positions: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def recipe(self) -> Recipe:
        return self.loaded.recipe

    @property
    def run_folder(self) -> Path:
        return Path(self.recipe.run.out).expanduser() / self.recipe.run.name

    @property
    def context_length(self) -> int:
        """Tokens that prompt and completion may take together; 0 when the model is unknown."""
        own = self.shape.context_length if self.shape else 0
        return self.recipe.model.context_length or own

    @property
    def bundles(self) -> dict[str, Bundle]:
        """The algorithms in use, by name; the run's own first."""
        found = {d.bundle.name: d.bundle for d in self.domains.values()}
        name = self.recipe.algorithm.name
        return {n: found[n] for n in sorted(found, key=lambda n: (n != name, n))}

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model must be held beside the policy."""
        return "rl" in self.recipe.stages and any(b.needs_reference for b in self.bundles.values())

    @property
    def keeps_reference_copy(self) -> bool:
        """Whether the reference of ``rl`` is a second model: adapters can only be switched off
        while the reference is the base that they were added to.
        """
        kl, stages = self.recipe.algorithm.kl, self.recipe.stages
        if not self.needs_reference:
            return False
        before = set(stages[: stages.index("rl")]) - {"eval"}
        is_base = kl.reference == "base" or not before
        return not (self.recipe.model.lora.rank and is_base and not kl.refresh_steps)

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest trajectory of the run, bounded by the context."""
        longest = max((d.longest for d in self.domains.values()), default=0)
        return min(longest, self.context_length) if self.context_length else longest

    def where(self, key: str) -> Origin | None:
        return self.loaded.where(key)

    def error(self, key: str, message: str) -> RecipeError:
        """Return an error about the setting ``key``, with the place that set it."""
        return RecipeError(f"{key}: {message}", self.where(key))


SETTING_OF = {
    "kl_place": "algorithm.kl.place",
    "whitening": "algorithm.credit.whitening",
    "gamma": "algorithm.credit.gamma",
    "lam": "algorithm.credit.lam",
    "lam_alpha": "algorithm.credit.lam_alpha",
    "k": "algorithm.credit.k",
    "value_coefficient": "algorithm.value.coefficient",
    "value_clip": "algorithm.value.clip",
}
"""Where a bundle's number stands in a recipe, when not as ``algorithm.NUMBER``."""


def algorithm_overrides(settings: AlgorithmSettings) -> dict[str, object]:
    """Return what a recipe changes of its bundle, by the bundle's names: every given setting."""
    given = settings.model_dump(exclude={"name", "credit", "kl", "value"}, exclude_none=True)
    given |= settings.credit.model_dump(exclude_none=True)
    if settings.kl.place is not None:
        given["kl_place"] = settings.kl.place
    return given


def bundle_of(recipe: Recipe, domain: DomainSettings) -> Bundle:
    """Return the algorithm of a domain: the run's with its overrides, or another as published.

    The value head and the entropy target are the run's, whatever the domain's algorithm.

    Raises:
        RecipeError: no algorithm has that name, or its overrides contradict each other.
    """
    run = recipe.algorithm
    options: dict[str, float] = {}
    if recipe.rl.exploration.entropy_target:
        options["entropy_target"] = recipe.rl.exploration.entropy_target
    if domain.algorithm not in ("", run.name):
        return _with_values(resolve_bundle(domain.algorithm, options=options), recipe)
    if run.kl.target:
        options["kl_target"] = run.kl.target
    return _with_values(resolve_bundle(run.name, algorithm_overrides(run), options), recipe)


def _with_values(bundle: Bundle, recipe: Recipe) -> Bundle:
    if not bundle.needs_values:
        return bundle
    given = recipe.algorithm.value.model_dump(include={"coefficient", "clip"}, exclude_none=True)
    numbers = dict(bundle.options) | {f"value_{k}": v for k, v in given.items()}
    return replace(bundle, options=tuple(numbers.items()))


def plan_domain(
    recipe: Recipe, name: str, settings: DomainSettings, spec: DomainSpec, total_weight: float
) -> DomainPlan:
    """Return a domain with every 'takes the default of' setting resolved."""
    tokens = settings.max_completion_tokens or recipe.rl.max_completion_tokens
    return DomainPlan(
        name=name,
        key=claiming_key(name, recipe.domains),
        settings=settings,
        spec=spec,
        bundle=bundle_of(recipe, settings),
        share=settings.weight / total_weight if total_weight else 0.0,
        completion_tokens=tokens or spec.max_completion_tokens,
        max_turns=settings.max_turns or spec.max_turns,
        temperature=settings.temperature or recipe.rl.temperature,
    )


def claiming_key(name: str, entries: Mapping[str, DomainSettings]) -> str:
    """Return the entry of ``[domains]`` that a resolved name comes from: itself, or its glob."""
    if name in entries:
        return name
    matching = [k for k in entries if fnmatch.fnmatchcase(name, k)]
    return max(matching, key=lambda k: sum(c not in "*?[" for c in k), default=name)


@dataclass(frozen=True, slots=True)
class BatchAlgebra:
    """How a stage's batch divides; tokens are upper bounds (every completion at its limit)."""

    steps: int
    prompts: int
    completions: int
    updates: int
    prompts_per_update: float
    tokens: int
    epochs: int = 1

    @property
    def optimizer_steps(self) -> int:
        return self.steps * self.updates * self.epochs


def reinforce_algebra(plan: Plan) -> BatchAlgebra:
    """Return the batch algebra of the ``rl`` stage."""
    rl = plan.recipe.rl
    # ReMax adds a greedy completion to each prompt.
    rows = sum(d.share * (rl.group_size + d.bundle.needs_greedy) for d in plan.domains.values())
    completions = round(rl.prompts * rows) if plan.domains else rl.prompts * rl.group_size
    expected = sum(d.share * d.completion_tokens * d.max_turns for d in plan.domains.values())
    return BatchAlgebra(
        steps=rl.steps,
        prompts=rl.prompts,
        completions=completions,
        updates=rl.updates,
        prompts_per_update=rl.prompts / rl.updates,
        tokens=round(completions * expected),
        epochs=rl.epochs,
    )
