"""Several seeds on the same tasks, and gains on families that were never trained."""

from __future__ import annotations

import numpy as np
import pytest
from scripted_domain import Scripted, Sums

from educe.core.errors import EduceError
from educe.evaluation.compare import compare
from educe.evaluation.runner import evaluate
from educe.evaluation.seeds import compare_seeds
from educe.evaluation.summary import pool_seeds, summarise
from educe.evaluation.transfer import joint_against_single, transfer_gain


def gold(task, sample):
    return task.gold


def run(rates, seed, *, tasks=60, common=0.6):
    """Right at the given rates; tasks share a difficulty, the rest is the seed's own luck."""
    domains = {name: Sums(name) for name in rates}
    shared = np.random.default_rng(99).random((len(rates), tasks))
    own = np.random.default_rng(seed).random((len(rates), tasks))
    rolls = np.where(np.random.default_rng(98).random((len(rates), tasks)) < common, shared, own)
    rows = {name: rolls[i] for i, name in enumerate(rates)}

    def answer(task, sample):
        return task.gold if rows[task.domain][task.index] < rates[task.domain] else "0"

    return evaluate(Scripted(domains, answer), domains, tasks_per_domain=tasks, label=f"s{seed}")


def test_three_seeds_alone_and_together():
    low, high = {"a": 0.3, "b": 0.4}, {"a": 0.45, "b": 0.5}
    study = compare_seeds([(run(low, s), run(high, s)) for s in (1, 2, 3)])
    assert study.is_every_seed_above_zero
    assert study.is_pooled_above_zero
    pooled = study.pooled.macro_difference
    alone = [c.macro_difference for c in study.by_seed]
    assert pooled.value == pytest.approx(np.mean([m.value for m in alone]))
    assert pooled.half_width < np.mean([m.half_width for m in alone])
    assert pooled.num_items == 120
    assert study.between_seeds.num_items == 3
    assert study.to_json()["pooled_above_zero"] is True
    nothing = compare_seeds([(run(low, 1), run(low, 2)), (run(low, 3), run(low, 1))])
    assert not nothing.is_pooled_above_zero


def test_one_seed_has_no_spread_between_seeds():
    study = compare_seeds([(run({"a": 0.3}, 1), run({"a": 0.6}, 1))])
    assert study.between_seeds is None
    with pytest.raises(ValueError, match="at least one"):
        compare_seeds([])


def test_gain_on_untrained_families_claims_new_domains_only_over_domains():
    names = [f"f{i}/x" for i in range(8)]
    before = run(dict.fromkeys(names, 0.3), 1, common=1.0)
    after = run({n: 0.3 + 0.3 * (n < "f4") + 0.1 * (n >= "f4") for n in names}, 1, common=1.0)
    gain = transfer_gain(
        compare(before, after), {n: n[:2] for n in names}, {"f0", "f1", "f2", "f3"}
    )
    assert gain.trained.value == pytest.approx(0.3, abs=0.06)
    assert gain.untrained.value == pytest.approx(0.1, abs=0.05)
    assert gain.num_untrained_families == 4
    assert gain.new_families.value == pytest.approx(gain.untrained.value)
    assert gain.new_families.num_clusters == 4
    with pytest.raises(ValueError, match="every family was trained"):
        transfer_gain(compare(before, after), dict.fromkeys(names, "one"), {"one"})


def test_a_joint_run_is_compared_with_each_domains_own():
    """At equal tokens, paired by task; unequal tokens tell nothing and are refused."""
    joint = run({"a": 0.6, "b": 0.3, "c": 0.5}, 1, common=1.0)
    singles = {
        "a": run({"a": 0.3, "b": 0.9, "c": 0.9}, 1, common=1.0),
        "b": run({"a": 0.9, "b": 0.3, "c": 0.9}, 1, common=1.0),
    }
    tokens = {"a": (1000, 1050), "b": (980, 1000)}
    found = joint_against_single(joint, singles, tokens)
    by_name = {d.domain: d for d in found.domains}
    assert set(by_name) == {"a", "b"} and found.before.label == "each domain alone"
    assert by_name["a"].difference.estimate.value == pytest.approx(0.3, abs=0.07)
    assert by_name["a"].finding == "better" and by_name["b"].finding != "better"
    assert by_name["b"].difference.estimate.value == 0.0
    with pytest.raises(EduceError, match="only runs of equal tokens"):
        joint_against_single(joint, singles, {**tokens, "b": (500, 1000)})
    with pytest.raises(EduceError, match="expected rows"):
        joint_against_single(joint, singles, {"a": (1, 1)})
    with pytest.raises(EduceError, match="at least one"):
        joint_against_single(joint, {}, {})


def test_seeds_pool_as_further_samples_of_the_same_tasks():
    domains = {"sums": Sums()}
    runs = [
        evaluate(Scripted(domains, lambda t, k, s=s: t.gold if t.index % 3 == s else "0"), domains,
                 tasks_per_domain=9)
        for s in range(3)
    ]  # fmt: skip
    pooled = pool_seeds(runs, "three seeds")
    assert len({r.key for r in pooled.rows}) == 27
    assert summarise(pooled).macro.value == pytest.approx(1 / 3)
    other = evaluate(Scripted(domains, gold), domains, tasks_per_domain=8)
    with pytest.raises(ValueError, match="same tasks"):
        pool_seeds([runs[0], other], "x")
