"""Refusals of the credit's settings: what contradicts, and what would silently do nothing."""

from __future__ import annotations

from typing import Any

import pytest

from educe.config.loader import LoadedRecipe
from educe.config.render import render_recipe
from educe.config.settings import Recipe
from educe.preflight.batch import check_algorithms
from educe.preflight.credit import check_credit
from educe.preflight.plan import Plan, bundle_of


def plan_of(**sections: Any) -> Plan:
    return Plan(LoadedRecipe(Recipe.model_validate({"stages": ["rl"], **sections})))


def told(**sections: Any) -> list[str]:
    return [str(e) for e in check_credit(plan_of(**sections))]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"algorithm": {"name": "ppo", "value": {"clip": 0.5}, "kl_coefficient": 0.1}},
        {"algorithm": {"kl_coefficient": 0.1, "kl": {"target": 0.1, "refresh_steps": 5}}},
        {"algorithm": {"value": {"clip": 0.5}}, "domains": {"d": {"algorithm": "ppo"}}},
        {
            "algorithm": {"kl": {"stop": 0.1}},
            "domains": {"d": {"algorithm": "reinforce_plus_plus"}},
        },
        {"algorithm": {"kl": {"stop_update": 0.1}}, "rl": {"epochs": 2}},
        {"algorithm": {"dual_clip": 3.0, "sequence_drop": 0.5}, "rl": {"updates": 2}},
        {"algorithm": {"sequence_drop": 0.5, "proximal": "behaviour"}},
        {"algorithm": {"clip_low": 0.1}, "domains": {"d": {"algorithm": "dapo"}, "e": {}}},
        {"algorithm": {"name": "maxrl"}, "shaping": {"limit": 2.0}},
        {"algorithm": {"kl_coefficient": 0.1, "kl_estimator": "k2", "kl": {"place": "reward"}}},
        {"algorithm": {"name": "reinforce_plus_plus", "kl_estimator": "k2"}},
        {"shaping": {"overlong": 1.0, "overlong_tokens": 8, "normalise": True, "decay": 0.9}},
        {"rl": {"exploration": {"temperature": 0.7, "steps": 9, "entropy_target": 0.3}}},
        {"stages": ["sft"], "algorithm": {"value": {"clip": 0.5}}},
    ],
)
def test_what_fits_is_not_refused(sections: dict[str, Any]) -> None:
    assert told(**sections) == []


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"algorithm": {"value": {"clip": 0.5}}}, "algorithm.value.clip: no algorithm of this run"),
        ({"algorithm": {"kl": {"refresh_steps": 5}}}, "algorithm.kl.refresh_steps: no algorithm"),
        ({"algorithm": {"kl": {"stop": 0.1}}}, "algorithm.kl.stop: no algorithm of this run has"),
        ({"algorithm": {"kl": {"reference": "base"}}}, "algorithm.kl.reference: no algorithm"),
        ({"algorithm": {"kl": {"target": 0.1}}}, "which no target can move"),
        ({"algorithm": {"kl": {"place": "reward"}}}, "there is no KL to place"),
        (
            {"algorithm": {"kl_coefficient": 0.1, "kl": {"reference": "base", "refresh_steps": 5}}},
            "a refresh would move it",
        ),
        ({"algorithm": {"kl": {"stop_update": 0.1}}}, "there is nothing to end early"),
        (
            {"algorithm": {"name": "pkpo", "credit": {"k": 9}}, "rl": {"group_size": 8}},
            "the best of 9 cannot be taken from groups of 8",
        ),
        ({"algorithm": {"kl_estimator": "k1"}}, "grpo has a KL coefficient of 0, so no KL is est"),
        (
            {"algorithm": {"kl_coefficient": 0.1, "kl": {"horizon": 500}}},
            "algorithm.kl.horizon: algorithm.kl.target is 0",
        ),
        ({"algorithm": {"dual_clip": 3.0}}, "algorithm.dual_clip: a rollout batch takes one"),
        ({"algorithm": {"sequence_drop": 0.5}}, "the ratio is 1, so this does nothing"),
        (
            {"algorithm": {"clip_low": 0.1}, "domains": {"d": {"algorithm": "dapo"}}},
            "algorithm.clip_low: it goes with grpo, and every domain names another algorithm (dapo",
        ),
        (
            {
                "algorithm": {"name": "ppo", "credit": {"lam": 0.9}},
                "domains": {"d": {"algorithm": "dapo"}, "e": {"algorithm": "rloo"}},
            },
            "algorithm.credit.lam: it goes with ppo, and every domain names another",
        ),
        (
            {
                "rl": {"exploration": {"entropy_target": 0.5}},
                "algorithm": {"entropy_coefficient": 0.5},
            },
            "the bonus starts at 0.5 and never exceeds rl.exploration.entropy_most = 0.1",
        ),
        (
            {"algorithm": {"name": "maxrl"}, "shaping": {"normalise": True}},
            "shaping.normalise: maxrl divides by the mean reward",
        ),
        ({"rl": {"exploration": {"steps": 5}}}, "rl.exploration.steps: rl.exploration.temperature"),
        ({"rl": {"exploration": {"entropy_most": 1}}}, "entropy_target is 0"),
        (
            {
                "rl": {"exploration": {"entropy_target": 0.5}},
                "algorithm": {"entropy_coefficient": -0.1},
            },
            "lowers the entropy",
        ),
        ({"shaping": {"overlong_tokens": 8}}, "shaping.overlong is off"),
        ({"shaping": {"decay": 0.5}}, "shaping.normalise is off"),
        ({"shaping": {"score_weight": 0.0}}, "there is nothing to train on"),
        (
            {"domains": {"d": {"shaping": {"repetition_width": 2}}}},
            "domains.d.shaping.repetition is off",
        ),
        (
            {"algorithm": {"name": "gdpo"}, "shaping": {"length": 0.1, "normalise": True}},
            "shaping.normalise: gdpo normalises each reward",
        ),
    ],
)
def test_refusals(sections: dict[str, Any], expected: str) -> None:
    (message,) = told(**sections)
    assert expected in message


def test_one_reward_under_gdpo_is_noted() -> None:
    plan = plan_of(algorithm={"name": "gdpo"})
    assert not list(check_credit(plan)) and "names only the score" in plan.notes[0]


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"algorithm": {"kl_coefficient": 0.1, "kl_estimator": "k1"}}, "0 on average"),
        ({"algorithm": {"clip_high": 0.3}}, "algorithm.clip_high: a rollout batch takes one"),
        ({"algorithm": {"name": "maxrl"}, "shaping": {"overlong": 1.0}}, "train nothing"),
    ],
)
def test_what_is_likely_a_mistake_is_noted(sections: dict[str, Any], expected: str) -> None:
    plan = plan_of(**sections)
    assert not list(check_credit(plan))
    (note,) = plan.notes
    assert expected in note


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"credit": {"lam": 0.9}}, "algorithm.lam = 0.9 would do nothing: grpo"),
        (
            {"name": "gdpo", "kl_coefficient": 0.1, "kl": {"place": "reward"}},
            "does not go with gdpo",
        ),
        (
            {"kl_coefficient": 0.1, "kl_estimator": "k3+", "kl": {"place": "reward"}},
            "only changes the KL's gradient",
        ),
    ],
)
def test_an_algorithm_that_contradicts_itself_is_told_once(
    algorithm: dict[str, Any], expected: str
) -> None:
    plan = plan_of(algorithm=algorithm)
    (error,) = [*check_algorithms(plan), *check_credit(plan)]
    assert expected in str(error)


@pytest.mark.parametrize("name", ["dppo_tv", "cispo", "ppo"])
def test_a_recipe_that_was_kept_trains_the_same_loss(name: str) -> None:
    """Defaults that are written out would replace those of the algorithm."""
    import tomllib

    recipe = Recipe.model_validate(
        {
            "algorithm": {"name": name},
            "domains": {"d": {"shaping": {"length": 0.5}}, "e": {"algorithm": "ppo"}},
        }
    )
    again = Recipe.model_validate(tomllib.loads(render_recipe(recipe)))
    assert again == recipe
    dumped = Recipe.model_validate(recipe.model_dump(mode="json"))
    for kept in (again, dumped):
        for domain in ("d", "e"):
            assert bundle_of(kept, kept.domains[domain]) == bundle_of(
                recipe, recipe.domains[domain]
            )
        assert kept.domains["d"].shaping == recipe.domains["d"].shaping
