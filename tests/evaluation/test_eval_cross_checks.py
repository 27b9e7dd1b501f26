"""Repeats that should agree, and zeros that are not the model's."""

from __future__ import annotations

import pytest
from scripted_domain import Scripted, Sums

from educe.core.errors import EduceError
from educe.core.types import Score
from educe.evaluation.cross_checks import repeat_agreement, suspicious_zeros
from educe.evaluation.runner import evaluate


def run(answer, tasks=20):
    domains = {"sums": Sums()}
    return evaluate(Scripted(domains, answer), domains, tasks_per_domain=tasks)


def test_repeats_that_agree_in_outcome_but_not_in_text():
    steady = run(lambda t, k: t.gold)
    spaced = run(lambda t, k: f" {t.gold}" if t.index < 5 else t.gold)
    flipped = run(lambda t, k: "0" if t.index == 3 else t.gold)
    found = repeat_agreement([steady, spaced, flipped])
    assert found.text.value == 0.75
    assert found.outcome.value == 0.95
    assert found.flips == (("sums", 3, 0),)
    assert found.num_repeats == 3
    same = repeat_agreement([steady, steady])
    assert same.text.value == same.outcome.value == 1.0
    assert same.text.low < 0.9  # twenty agreements do not prove that all agree
    with pytest.raises(EduceError, match="at least two"):
        repeat_agreement([steady])
    with pytest.raises(EduceError, match="same tasks"):
        repeat_agreement([steady, run(lambda t, k: t.gold, tasks=5)])


def test_a_zero_with_lenient_hits_is_called_out():
    def lenient(domain, task, trajectory):
        said = trajectory.messages[-1].content
        return Score.right() if said.endswith(task.gold) else Score.wrong()

    domains = {"sums": Sums(), "real": Sums("real")}
    sampler = Scripted(
        domains, lambda t, k: f"The answer is {t.gold}" if t.domain == "sums" else "no idea"
    )
    strict = evaluate(sampler, domains, tasks_per_domain=8)
    soft = evaluate(sampler, domains, tasks_per_domain=8, scorer=lenient)
    lines = suspicious_zeros(strict, soft)
    assert len(lines) == 1
    assert lines[0].startswith("sums: 0 by the domain's own scorer, 100.0 % by a lenient reading")
    assert suspicious_zeros(soft, soft) == []
