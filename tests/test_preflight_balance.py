"""What preflight refuses of balance, forgetting, back-off and lengths, and how they are told."""

from __future__ import annotations

from typing import Any

import pytest

from educe.config.loader import LoadedRecipe
from educe.config.settings import Recipe
from educe.explain import explain, render
from educe.preflight import data
from educe.preflight.balance import balance_lines, check_balance
from educe.preflight.batch import check_batch_tokens
from educe.preflight.mixing import check_lengths, check_mixture
from educe.preflight.plan import Plan

TWO: dict[str, Any] = {"arithmetic/add/tiny": {}, "arithmetic/subtract/tiny": {}}


def planned(domains: dict[str, Any] = TWO, **sections: Any) -> tuple[Plan, list[str]]:
    recipe = Recipe.model_validate({"domains": domains, **sections})
    plan = Plan(LoadedRecipe(recipe))
    assert list(data.resolve_domains(plan)) == []
    found = [*check_mixture(plan), *check_balance(plan)]
    return plan, [str(p) for p in found]


def test_defaults_ask_for_nothing():
    plan, problems = planned()
    assert problems == [] and balance_lines(plan) == [] and plan.notes == []


REFUSED = [
    ({"balance": {"norms": 1.0}}, "balance.norms", "measure_every = 0 measures nothing"),
    ({"balance": {"conflicts": "project"}}, "balance.conflicts", "measures nothing"),
    (
        {"balance": {"advantages": "alike", "norms": 0.5, "measure_every": 5}},
        "balance.advantages",
        "Keep one of the two",
    ),
    (
        {"balance": {"denominators": "domain"}, "algorithm": {"name": "dr_grpo"}},
        "balance.denominators",
        "changes token-mean only",
    ),
    (
        {"balance": {"rates": "follow"}, "algorithm": {"name": "dapo"}},
        "balance.rates",
        "needs a KL",
    ),
    (
        {"optimizer": {"back_off": {"kl": 0.1}}},
        "optimizer.back_off.of",
        "is 0 with one update a rollout batch",
    ),
    (
        {"optimizer": {"back_off": {"kl": 0.1, "of": "reference"}}, "algorithm": {"name": "dapo"}},
        "optimizer.back_off.of",
        "no algorithm of this run has a reference policy",
    ),
    (
        {
            "optimizer": {"back_off": {"kl": 0.1, "of": "reference"}},
            "algorithm": {"kl_coefficient": 0.1, "kl": {"target": 0.1}},
        },
        "optimizer.back_off.kl",
        "two controllers on one number",
    ),
    (
        {"forgetting": {"every": 5, "domains": ["arithmetic/ad"]}},
        "forgetting.domains",
        "matches no domain of the run. Did you mean",
    ),
    ({"forgetting": {"every": 5, "actions": []}}, "forgetting.actions", "the list is empty"),
    (
        {"forgetting": {"every": 5, "replay": 0}},
        "forgetting.replay",
        "add_replay and add_anchor have nothing to train on",
    ),
    (
        {"forgetting": {"every": 5, "replay": 0, "actions": ["tell"], "kl_limit": 0.1}},
        "forgetting.kl_limit",
        "and that is 0",
    ),
    (
        {"forgetting": {"every": 5, "actions": ["roll_back"]}, "guards": {"action": "alarm"}},
        "forgetting.actions",
        "guards.action is 'alarm'",
    ),
    ({"forgetting": {"every": 500}}, "forgetting.every", "after the last of 100"),
    ({"mixture": {"long_share": 0.3}}, "mixture.long_share", "no domain of the run matches"),
    (
        {"mixture": {"long_share": 0.3, "long": ["*"]}},
        "mixture.long_share",
        "every domain of the run matches",
    ),
]


@pytest.mark.parametrize(("sections", "key", "told"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_excludes_each_other_is_refused_with_the_reason(sections, key, told):
    _, problems = planned(**sections)
    assert any(p.startswith(f"{key}: ") and told in p for p in problems), problems


def test_a_single_measurement_is_noted():
    plan, problems = planned(balance={"measure_every": 200})
    assert problems == [] and "has no error bar" in plan.notes[0]


def test_raising_the_share_of_a_domain_without_weight_is_refused():
    watched = {**TWO, "arithmetic/multiply/tiny": {"weight": 0.0}}
    _, problems = planned(watched, forgetting={"every": 5})
    assert "arithmetic/multiply/tiny has weight 0" in problems[0]
    _, problems = planned(watched, forgetting={"every": 5, "actions": ["add_anchor"]})
    assert problems == []


def test_one_domain_has_nothing_to_be_balanced_with():
    _, problems = planned({"arithmetic/add/tiny": {}}, balance={"advantages": "alike"})
    assert "one domain has nothing to be balanced with" in problems[0]


def test_a_recipe_without_rl_has_none_of_it():
    _, problems = planned(stages=["sft"], forgetting={"every": 5}, balance={"measure_every": 5})
    assert len(problems) == 2 and all("the stage 'rl'" in p for p in problems)
    assert planned(stages=["sft"])[1] == []


def test_a_limit_that_holds_nothing_back_is_refused_once_prompts_are_known():
    from dataclasses import replace

    plan, problems = planned(curriculum={"lengths": "growing"})
    assert problems == [] and list(check_lengths(plan)) == [], "no prompt was measured"
    for name, domain in plan.domains.items():
        plan.domains[name] = replace(domain, prompt_tokens=80)
    (problem,) = check_lengths(plan)
    assert "about 80 tokens" in str(problem) and "256 holds nothing back" in str(problem)


def test_tokens_that_no_batch_reaches_are_refused_once_prompts_are_known():
    from dataclasses import replace

    plan, _ = planned(rl={"batch_tokens": 2000, "prompts": 4, "group_size": 4, "updates": 2})
    assert list(check_batch_tokens(plan)) == [], "no prompt was measured"
    for name, domain in plan.domains.items():
        plan.domains[name] = replace(domain, prompt_tokens=30, completion_tokens=10, max_turns=1)
    (problem,) = check_batch_tokens(plan)
    assert "no batch of at most rl.prompts = 4 prompts reaches 2000 tokens" in str(problem)
    assert "at most about 280" in str(problem)
    plan, _ = planned(rl={"batch_tokens": 200, "prompts": 4, "group_size": 4, "updates": 2})
    assert list(check_batch_tokens(plan)) == []
    assert "predicted to reach 200 tokens (at least 2, at most 4 prompts)" in plan.notes[-1]
    plan, _ = planned()
    assert list(check_batch_tokens(plan)) == [] and plan.notes == []


def test_explain_says_how_batches_end():
    recipe = Recipe.model_validate({"domains": TWO, "stages": ["rl"], "rl": {"batch_tokens": 900}})
    told, _ = explain(LoadedRecipe(recipe))
    assert told["batch"]["rl"]["tokens_a_batch"] == 900
    assert "ends with the prompt that is predicted to reach 900 tokens" in render(told)


def test_explain_says_what_will_be_done():
    recipe = Recipe.model_validate(
        {
            "stages": ["rl"],
            "domains": {**TWO, "long-document/fact/tiny": {}},
            "algorithm": {"aggregation": "token-mean", "kl_coefficient": 0.01},
            "rl": {"updates": 2},
            "balance": {
                "denominators": "domain",
                "measure_every": 5,
                "norms": 1.0,
                "conflicts": "project",
                "rates": "follow",
            },
            "optimizer": {"back_off": {"kl": 0.05}},
            "mixture": {"long_share": 0.25},
            "curriculum": {"lengths": "growing"},
            "forgetting": {"every": 10, "actions": ["raise_share", "add_replay"]},
        }
    )
    told, _ = explain(LoadedRecipe(recipe))
    text = render(told)
    for line in (
        "denominators: each domain's own tokens",
        "gradients: measured every 5 rollout batches, 3 x 3 cosines",
        "sizes made equal (power 1), weights within x 4",
        "conflicts projected away",
        "down over a KL of 0.05 or a sinking score",
        "x 0.7 while the KL of the update is over 0.05 nats a token",
        "long contexts: 25% of all tokens for long-document/*",
        "prompts of 256 tokens first, all after 50 rollout batches",
        "3 domains watched every 10 rollout batches; then raise_share, add_replay",
        "costs 108 completions at the start, 24 a look, 64 a trial",
    ):
        assert line in text, line
