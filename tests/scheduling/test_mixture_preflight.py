"""What preflight says of [mixture] and [curriculum]."""

from __future__ import annotations

from typing import Any

import pytest

from educe.config.loader import LoadedRecipe
from educe.config.settings import Recipe
from educe.preflight import data
from educe.preflight.mixing import check_mixture
from educe.preflight.plan import Plan
from educe.scheduling.choice import build_mixture, build_tasks, pooled_families
from educe.scheduling.mixture import AdaptiveMixture, StaticMixture

TWO = {"arithmetic/add/tiny": {}, "arithmetic/add/easy": {}}


def planned(domains: dict[str, Any] = TWO, **sections: Any) -> tuple[Plan, list[str]]:
    recipe = Recipe.model_validate({"domains": domains, **sections})
    plan = Plan(LoadedRecipe(recipe))
    assert list(data.resolve_domains(plan)) == []
    return plan, [str(p) for p in check_mixture(plan)]


def test_defaults_are_silent():
    plan, problems = planned()
    assert problems == [] and plan.notes == []


def test_protected_domains_must_exist_and_be_able_to_get_more():
    _, problems = planned(mixture={"strategy": "expected_gain", "protected": ["arithmetic/ad/*"]})
    assert "'arithmetic/ad/*' matches no domain of the run" in problems[0]
    _, problems = planned(mixture={"protected": ["arithmetic/*"]})
    assert "nothing moves the shares of mixture.strategy = 'static'" in problems[0]
    _, problems = planned(mixture={"strategy": "regret", "protected": ["arithmetic/*"]})
    assert problems == []


def test_levels_need_a_ladder_and_a_band():
    _, problems = planned({"arithmetic/add/tiny": {}}, curriculum={"levels": "band"})
    assert "no family of this recipe has two" in problems[0]
    _, problems = planned(curriculum={"levels": "band", "band_low": 0.7, "band_high": 0.6})
    assert "the band is empty" in problems[0]
    assert planned(curriculum={"levels": "band"})[1] == []


def test_notes_say_what_follows():
    plan, _ = planned(mixture={"strategy": "expected_gain"})
    assert "between 0.1 and 8 times" in plan.notes[0]
    plan, _ = planned(mixture={"strategy": "size"}, curriculum={"tasks": "predicted"})
    assert "shares are the weights" in plan.notes[0] and "this run has none" in plan.notes[1]


def test_other_stages_have_no_mixture():
    assert planned(stages=["sft"], mixture={"protected": ["nothing"]})[1] == []


@pytest.mark.parametrize(
    ("mixture", "curriculum", "kind"),
    [
        ({}, {}, StaticMixture),
        ({"strategy": "temperature"}, {}, StaticMixture),
        ({}, {"levels": "band"}, AdaptiveMixture),
        ({"strategy": "expected_gain"}, {}, AdaptiveMixture),
    ],
)
def test_the_recipe_chooses(mixture, curriculum, kind):
    plan, _ = planned(mixture=mixture, curriculum=curriculum)
    recipe = plan.recipe
    specs = {n: d.spec for n, d in plan.domains.items()}
    built = build_mixture(recipe.mixture, recipe.curriculum, dict.fromkeys(specs, 1.0), specs, 0)
    assert isinstance(built, kind)
    assert sum(built.shares.values()) == pytest.approx(1.0)
    if curriculum:
        assert built.shares["arithmetic/add/tiny"] > 3 * built.shares["arithmetic/add/easy"]


def test_sizes_temper_the_weights():
    from dataclasses import replace

    plan, _ = planned()
    specs = {n: d.spec for n, d in plan.domains.items()}
    specs["arithmetic/add/tiny"] = replace(specs["arithmetic/add/tiny"], num_tasks=100)
    weights = dict.fromkeys(specs, 1.0)

    def ratio(**settings: Any) -> float:
        recipe = Recipe.model_validate({"mixture": settings})
        shares = build_mixture(recipe.mixture, recipe.curriculum, weights, specs, 0).shares
        return shares["arithmetic/add/easy"] / shares["arithmetic/add/tiny"]

    assert ratio(strategy="size") == pytest.approx(100.0)
    assert ratio(strategy="temperature") == pytest.approx(10.0)
    assert ratio(strategy="size", size_limit=100) == pytest.approx(1.0)


def test_a_lone_domain_is_read_through_its_kind():
    plan, _ = planned({**TWO, "rg/gcd/tiny": {}})
    found = pooled_families({n: d.spec for n, d in plan.domains.items()})
    assert found["arithmetic/add/tiny"] == found["arithmetic/add/easy"] == "arithmetic/add"
    assert found["rg/gcd/tiny"].startswith("kind ")


def test_tasks_in_order_need_no_chooser():
    recipe = Recipe.model_validate({"curriculum": {"tasks": "predicted", "revisit": 2}})
    assert build_tasks(Recipe().curriculum, {"a": 3}, 8) is None
    chooser = build_tasks(recipe.curriculum, {"a": 3}, 8)
    assert chooser is not None and chooser.revisit == 2
