"""Stability: pass^k, agreement, flips and kinds of error on answers that are known."""

from __future__ import annotations

import math

import pytest
from scripted_engine import ScriptedSubject, gold

from educe.core.errors import EduceError
from educe.evaluation.dimensions import PlanContext, load_dimension
from educe.evaluation.suite import SuitePlan, run_suite


def run(answer, **options):
    chosen = {"domains": "arithmetic/percent/tiny", "tasks": 5, "samples": 4, "templates": 2}
    plan = SuitePlan(
        tier="small", dimensions=("stability",), options={"stability": {**chosen, **options}}
    )
    return run_suite(ScriptedSubject(answer), plan).dimensions[0]


def values(dimension):
    return {m.name: m.estimate.value for m in dimension.measures if m.estimate is not None}


def template(task) -> int:
    return int(task.domain.rpartition("@")[2])


def test_golds_are_stable():
    found = values(run(gold))
    assert found["pass^2"] == found["pass^4"] == found["agreement"] == 1.0
    assert found["agreement over wordings"] == 1.0
    assert found["entropy of answers"] == found["flips over samples"] == 0.0
    assert found["consistently wrong"] == found["unstable"] == found["flips over wordings"] == 0.0


def test_one_wrong_answer_again_and_again_is_consistent_not_unstable():
    found = values(run(lambda *_: "7777"))
    assert found["agreement"] == 1.0 and found["consistently wrong"] == 1.0
    assert found["unstable"] == 0.0 and found["pass^4"] == 0.0 and found["flips over samples"] == 0


def test_scattered_answers_are_unstable():
    found = values(run(lambda d, t, sample, turn: str(7000 + 10 * template(t) + sample)))
    assert found["agreement"] == 0.0 and found["unstable"] == 1.0
    assert found["consistently wrong"] == 0.0
    assert found["entropy of answers"] == pytest.approx(math.log(4))


def test_pass_hat_k_is_unbiased_and_flips_are_counted():
    def three_of_four(domain, task, sample, turn):
        return gold(domain, task, sample, turn) if sample else "7777"

    found = values(run(three_of_four))
    assert found["pass^2"] == pytest.approx(3 / 6)  # C(3,2) / C(4,2)
    assert found["pass^4"] == 0.0
    assert found["flips over samples"] == 1.0 and found["flips over wordings"] == 0.0
    assert found["agreement"] == pytest.approx(3 / 6)  # three pairs of six agree


def test_a_wording_that_breaks_the_model_shows_in_the_band_and_as_a_flip():
    def first_wording_only(domain, task, sample, turn):
        return "7777" if template(task) else gold(domain, task, sample, turn)

    dimension = run(first_wording_only)
    found = values(dimension)
    assert found["flips over wordings"] == 1.0 and found["flips over samples"] == 0.0
    assert found["agreement over wordings"] == 0.0
    band = next(t for t in dimension.tables if t.title.startswith("Band"))
    assert band.rows[0][1:6] == ("2", "0.0", "50.0", "100.0", "100.0")


def test_the_same_answer_in_other_words_is_the_same_answer():
    forms = ("{}", "Answer: {}", "**{}**", "The answer is {}.")

    def rephrased(domain, task, sample, turn):
        return forms[sample].format(gold(domain, task, sample, turn))

    assert values(run(rephrased))["agreement"] == 1.0


def test_templates_keep_the_question_once_and_whole():
    dimension = load_dimension("stability")
    parts = dimension.plan(PlanContext(tier="medium", options={"tasks": 1}))
    from educe.core.types import Split
    from educe.domains.registry import load_domain

    for part in parts:
        if str(part.facts["task_source"]).startswith("rg/"):
            continue  # a second of import, and no other code
        base = load_domain(str(part.facts["task_source"])).task(Split.EVAL, 0)
        asked = load_domain(f"stability/{part.name}", part.settings).task(Split.EVAL, 0)
        question = base.messages[-1].content
        assert asked.messages[-1].content.count(question) == 1
        assert asked.metadata["base_hash"] == base.content_hash


def test_wrong_options_are_told():
    with pytest.raises(EduceError, match="at least 2 samples"):
        run(gold, samples=1)
    with pytest.raises(EduceError, match="templates must lie in"):
        run(gold, templates=9)
