"""Bundles: published defaults, formulas that tell losses apart, and refusals."""

from __future__ import annotations

import itertools
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from educe.algorithms.advantages import ADVANTAGES
from educe.algorithms.aggregate import AGGREGATIONS
from educe.algorithms.bundle import READERS
from educe.algorithms.catalogue import (
    BUNDLES,
    CORRECTION_BOUNDS,
    Bundle,
    resolve_bundle,
)
from educe.algorithms.importance import CORRECTIONS
from educe.algorithms.kl import ESTIMATORS
from educe.algorithms.losses import build_loss
from educe.core.errors import RecipeError

# Advantages that read more than a group's scores (see ``trainers.token_credit``).
BEYOND_SCORES = {
    "length_weighted",
    "over_greedy",
    "multi_reward",
    "best_of_k",
    "process",
    "returns",
    "gae",
}


@pytest.mark.parametrize("bundle", BUNDLES.values(), ids=lambda b: b.name)
def test_a_bundle_names_parts_that_exist(bundle):
    assert bundle.advantage in {*ADVANTAGES, *BEYOND_SCORES}
    assert bundle.aggregation in AGGREGATIONS
    assert bundle.correction in CORRECTIONS
    assert bundle.kl_estimator in ESTIMATORS
    assert bundle.proximal in ("recompute", "behaviour")
    assert bundle.paper
    assert callable(build_loss(bundle))
    assert bundle.formula().startswith(f"loss = {bundle.aggregation}[ ")
    assert "{" not in bundle.formula()


# advantage, loss, aggregation, clip offsets, truncated completions in the loss
PUBLISHED = {
    "grpo": ("group_normalised", "clipped_surrogate", "seq-mean-token-mean", 0.2, 0.2, True),
    "dr_grpo": ("group_centred", "clipped_surrogate", "seq-mean-token-sum-norm", 0.2, 0.2, True),
    "dapo": ("group_normalised", "clipped_surrogate", "token-mean", 0.2, 0.28, False),
    "rloo": ("leave_one_out", "clipped_surrogate", "seq-mean-token-sum-norm", 0.2, 0.2, True),
    "gspo": ("group_normalised", "sequence_surrogate", "seq-mean-token-mean", 3e-4, 4e-4, True),
    "cispo": ("group_normalised", "truncated_reinforce", "token-mean", 1.0, 4.0, True),
    "maxrl": ("mean_scaled", "clipped_surrogate", "token-mean", 0.2, 0.2, True),
    "sapo": ("group_normalised", "soft_adaptive", "seq-mean-token-mean", 0.2, 0.2, True),
    "gmpo": ("group_normalised", "geometric_mean", "seq-mean-token-mean", 0.4, 0.4, True),
    "dppo_tv": ("group_normalised", "divergence_tv", "token-mean", 0.2, 0.2, True),
    "dppo_kl": ("group_normalised", "divergence_kl", "token-mean", 0.05, 0.05, True),
    "opo": ("length_weighted", "clipped_surrogate", "seq-mean-token-sum-norm", 0.2, 0.2, True),
    "remax": ("over_greedy", "reinforce", "seq-mean-token-sum-norm", 0.2, 0.2, True),
    "gdpo": ("multi_reward", "clipped_surrogate", "seq-mean-token-mean", 0.2, 0.2, True),
    "process_grpo": ("process", "clipped_surrogate", "seq-mean-token-mean", 0.2, 0.2, True),
    "pkpo": ("best_of_k", "clipped_surrogate", "seq-mean-token-mean", 0.2, 0.2, True),
    "ppo": ("gae", "clipped_surrogate", "token-mean", 0.2, 0.2, True),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_defaults(name):
    b = BUNDLES[name]
    got = (b.advantage, b.loss, b.aggregation, b.clip_low, b.clip_high, not b.mask_truncated)
    assert got == PUBLISHED[name]
    assert b.kl_coefficient == 0 and b.advantage_eps == 1e-6
    assert b.drop_trivial is (name == "dapo")


def test_published_defaults_of_credit_by_token():
    ppo = BUNDLES["ppo"]
    numbers = {"gamma": 1.0, "lam": 0.95, "value_coefficient": 0.1, "value_clip": 0.2}
    assert dict(ppo.options) == numbers
    assert (ppo.whitening, ppo.kl_place, ppo.kl_estimator) == ("tokens", "reward", "k1")
    plus = BUNDLES["reinforce_plus_plus"]
    assert (plus.whitening, plus.kl_place, plus.kl_estimator) == ("tokens", "reward", "k1")
    assert plus.kl_coefficient == 0.01 and plus.option("gamma", 0.0) == 1.0
    centred = BUNDLES["reinforce_plus_plus_baseline"]
    assert (centred.advantage, centred.whitening) == ("group_centred", "tokens")
    assert (centred.kl_place, centred.kl_estimator) == ("loss", "k2")
    assert BUNDLES["gdpo"].whitening == "samples"
    assert BUNDLES["rloo"].kl_place == BUNDLES["remax"].kl_place == "reward"


def test_cispo_shows_its_bounds():
    """Offsets read as bounds gave a cap of 0.2 (TRL) or 5 as an offset (SkyRL)."""
    assert "clip(r, 0, 5)" in BUNDLES["cispo"].formula()


CHANGES = {
    "clip_low": 0.19,
    "clip_high": 0.2000001,
    "kl_coefficient": 0.01,
    "importance_cap": 3.0,
    "importance_floor": 0.5,
    "correction": "icepop",
    "entropy_coefficient": 0.001,
    "options": (("dual_clip", 3.0),),
    "aggregation": "token-mean",
    "advantage": "group_centred",
    "advantage_eps": 1.0000001e-6,
    "whitening": "tokens",
}


def test_different_losses_have_different_formulas():
    """The optimizer step finds losses by this text: two that differ must not share it."""
    base = BUNDLES["grpo"]
    variants = [base, *(replace(base, **{k: v}) for k, v in CHANGES.items())]
    variants += [
        replace(base, kl_coefficient=0.01, kl_estimator=e) for e in ESTIMATORS if e != "k3"
    ]
    variants += [replace(base, correction=c, importance_floor=0.5) for c in CORRECTIONS]
    variants = list(dict.fromkeys(variants))
    for a, b in itertools.combinations([*variants, *list(BUNDLES.values())[1:]], 2):
        assert a.formula() != b.formula(), (a, b)


def test_what_does_not_change_the_loss_keeps_the_formula():
    base = BUNDLES["grpo"]
    same = replace(base, mask_truncated=True, drop_trivial=True, proximal="behaviour")
    assert same.formula() == base.formula()


def test_bundles_are_keys():
    assert len({*BUNDLES.values(), *BUNDLES.values()}) == len(BUNDLES)
    assert len(fields(Bundle)) <= 20


def test_overrides_replace_and_none_keeps():
    got = resolve_bundle("gspo", {"clip_low": 0.1, "clip_high": None, "aggregation": None})
    assert got == replace(BUNDLES["gspo"], clip_low=0.1)
    assert resolve_bundle("grpo") == BUNDLES["grpo"]


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_correction_comes_with_its_own_bounds(name):
    got = resolve_bundle("grpo", {"correction": name})
    low, high = CORRECTION_BOUNDS[name]
    assert (got.correction, got.importance_floor, got.importance_cap) == (name, low, high)
    other = resolve_bundle("grpo", {"correction": name, "importance_cap": 9.0})
    assert (other.importance_floor, other.importance_cap) == (low, 9.0)


@pytest.mark.parametrize(
    "overrides, told",
    [
        ({"importance_floor": 3.0}, "importance_floor = 3 must be below importance_cap = 2"),
        ({"correction": "icepop", "importance_cap": 0.0}, "importance_cap is 0"),
        ({"importance_floor": 0.5, "importance_cap": 0.0}, "importance_cap is 0"),
        ({"correction": "tis"}, "correction must be one of"),
        ({"kl_estimator": "k4"}, "kl_estimator must be one of"),
        ({"aggregation": "mean"}, "aggregation must be one of"),
        ({"whitening": "groups"}, "whitening must be one of tokens, samples, empty"),
        ({"lam": 0.9}, r"algorithm.lam = 0.9 would do nothing: grpo .* ppo"),
        ({"k": 4}, "those that do: pkpo"),
        ({"dual_clip": 0.5}, "dual_clip = 0.5 must be above 1"),
        (
            {"kl_coefficient": 0.1, "kl_place": "reward", "kl_estimator": "k3+"},
            "only changes the KL's gradient",
        ),
    ],
)
def test_overrides_that_contradict_each_other_are_refused(overrides, told):
    with pytest.raises(RecipeError, match=told):
        resolve_bundle("grpo", overrides)


@pytest.mark.parametrize(
    "name, overrides, told",
    [
        ("grpo", {"proximal": "behaviour", "correction": "icepop"}, "correction would do nothing"),
        ("grpo", {"proximal": "behaviour", "importance_cap": 3.0}, "importance_cap would do nothi"),
        ("dppo_tv", {"correction": "icepop"}, r"dppo_tv takes what sampled as the proximal"),
        ("grpo", {"correction": "icepop", "importance_cap": 0.9}, "leave out the weight 1"),
        ("grpo", {"importance_cap": 0.5}, "would reject or rescale everything"),
        ("grpo", {"correction": "sequence_mask", "importance_floor": 1.5}, "a floor <= 1"),
        ("reinforce", {"clip_low": 0.1}, r"clip_low = 0.1 would do nothing: reinforce .* grpo, dr"),
        ("remax", {"clip_high": 0.1}, "remax does not read it"),
        ("sapo", {"clip_high": 0.1}, "sapo does not read it"),
        ("dr_grpo", {"advantage_eps": 1e-4}, "dr_grpo does not read it"),
        ("ppo", {"advantage_eps": 1e-4}, "ppo does not read it"),
        ("reinforce", {"dual_clip": 3.0}, "reinforce does not read it"),
        ("ppo", {"lam": 0.9, "lam_alpha": 0.05}, "lam = 0.9 would do nothing: with lam_alpha"),
    ],
)
def test_what_an_algorithm_does_not_read_is_refused(name, overrides, told):
    with pytest.raises(RecipeError, match=told):
        resolve_bundle(name, overrides)


@pytest.mark.parametrize(
    "name, overrides",
    [
        ("grpo", {"proximal": "behaviour", "importance_cap": 0.0}),  # switched off twice
        ("dppo_tv", {"proximal": "recompute", "correction": "icepop"}),
        ("cispo", {"clip_low": 0.5}),
        ("gmpo", {"clip_high": 0.2}),
        ("dppo_kl", {"clip_high": 0.02}),
        ("gdpo", {"advantage_eps": 1e-4}),
        ("grpo", {"mask_truncated": True}),
        ("dapo", {"mask_truncated": False}),
    ],
)
def test_what_an_algorithm_reads_is_taken(name, overrides):
    got = resolve_bundle(name, overrides)
    assert all(getattr(got, key) == value for key, value in overrides.items())


@pytest.mark.parametrize("bundle", BUNDLES.values(), ids=lambda b: b.name)
def test_every_reader_of_a_setting_changes_with_it(bundle):
    """The list of who reads what is true: the formula is another one, or the setting is refused."""
    changes = {"clip_low": 0.123, "clip_high": 0.123, "advantage_eps": 0.123}
    for key, value in changes.items():
        reads = bundle.loss in READERS[key] or bundle.advantage in READERS[key]
        assert (replace(bundle, **{key: value}).formula() != bundle.formula()) is reads, key


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(RecipeError, match="Did you mean 'dapo'"):
        resolve_bundle("dap")


def test_who_needs_a_group():
    alone = {name for name, b in BUNDLES.items() if not b.needs_group}
    assert alone == {"reinforce", "ppo", "reinforce_plus_plus", "remax"}


def test_what_else_an_algorithm_needs():
    assert [n for n, b in BUNDLES.items() if b.needs_values] == ["ppo"]
    assert [n for n, b in BUNDLES.items() if b.needs_greedy] == ["remax"]
    assert [n for n, b in BUNDLES.items() if b.needs_reference] == ["reinforce_plus_plus"]


def test_who_trains_without_an_advantage():
    base = BUNDLES["grpo"]
    assert not base.trains_without_advantage
    assert replace(base, kl_coefficient=0.1).trains_without_advantage
    assert replace(base, entropy_coefficient=-0.1).trains_without_advantage
    # A KL in the reward is in the advantage already; values have a loss of their own.
    assert not replace(base, kl_coefficient=0.1, kl_place="reward").trains_without_advantage
    assert BUNDLES["ppo"].trains_without_advantage


def test_the_page_lists_the_bundles_that_run():
    page = Path(__file__).parents[2] / "docs" / "algorithms.md"
    running, _, _ = page.read_text(encoding="utf-8").partition("## Settings")
    listed = re.findall(r"^\| `(\w+)` \|(.*)$", running, re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted(BUNDLES)
    for name, row in listed:
        number = re.search(r"\d{4}\.\d{5}", BUNDLES[name].paper)
        assert number is None or number.group() in row, name


def test_numbers_that_an_algorithm_reads_replace_its_own():
    got = resolve_bundle("ppo", {"lam": 0.9, "dual_clip": 3.0}, {"kl_target": 0.1})
    assert got.option("lam", 0.0) == 0.9 and got.option("gamma", 0.0) == 1.0
    assert got.option("dual_clip", 0.0) == 3.0 and got.option("kl_target", 0.0) == 0.1
    assert got.setting("lam") == 0.9 and got.setting("clip_low") == 0.2
    assert got.setting("sequence_drop") is None
    steered = resolve_bundle("grpo", {"kl_coefficient": 0.1}, {"kl_target": 0.1})
    assert "(beta from 0.1) * k3(policy || reference)" in steered.formula()


@pytest.mark.parametrize("name", ["gdpo", "process_grpo"])
def test_rewards_normalised_one_by_one_take_no_kl(name):
    with pytest.raises(RecipeError, match="does not go with"):
        resolve_bundle(name, {"kl_coefficient": 0.1, "kl_place": "reward", "kl_estimator": "k1"})


def test_options():
    assert BUNDLES["sapo"].option("tau_negative", 9.0) == 1.05
    assert BUNDLES["grpo"].option("dual_clip", 0.0) == 0.0
