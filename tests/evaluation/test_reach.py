"""pass@k before and after, and the split of a gain into activated and new."""

from __future__ import annotations

import pytest

from educe.evaluation.reach import reach_difference, split_gain
from educe.evaluation.records import EvalResult, EvalRow, Outcome


def evaluated(label, **domains):
    """``domains``: rows of 0/1 (None unscored) a task."""
    rows = []
    for domain, tasks in domains.items():
        for index, values in enumerate(tasks):
            for sample, value in enumerate(values):
                outcome = {1: Outcome.RIGHT, 0: Outcome.WRONG, None: Outcome.UNSCORED}[value]
                rows.append(
                    EvalRow(domain, index, sample, f"c{index}", value, outcome, False, 1, 1, "",
                            (), (), None)
                )  # fmt: skip
    return EvalResult(label, tuple(rows), dict.fromkeys(domains, 0.0))


START = evaluated("start", a=[[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]])


def test_pass_at_k_is_paired_by_task_and_unbiased_for_other_numbers_of_samples():
    after = evaluated("after", a=[[0, 1], [1, 1], [1, 1], [0, 0]])
    found = reach_difference(START, [after], 2)
    # 1 - C(wrong, 2) / C(n, 2): 0, 1/2, 5/6, 0 before; 1, 1, 1, 0 after.
    assert found.before.value == pytest.approx((0 + 1 / 2 + 5 / 6 + 0) / 4)
    assert found.after.value == pytest.approx(3 / 4)
    assert found.difference.value == pytest.approx(3 / 4 - (1 / 2 + 5 / 6) / 4)
    assert found.num_tasks == 4
    assert found.difference.low < found.difference.value < found.difference.high


def test_several_seeds_are_averaged_never_mixed():
    """Two runs that each know one answer for sure find no more with two tries than with one."""
    one = evaluated("1", a=[[1, 1], [0, 0], [0, 0], [0, 0]])
    two = evaluated("2", a=[[0, 0], [1, 1], [0, 0], [0, 0]])
    found = reach_difference(START, [one, two], 2)
    assert found.after.value == pytest.approx(1 / 4)


def test_tasks_without_enough_scores_are_left_out():
    after = evaluated("after", a=[[None, 1], [1, 1], [1, None], [0, 0]])
    assert reach_difference(START, [after], 2).num_tasks == 2
    with pytest.raises(ValueError, match="no task has 3 scored samples"):
        reach_difference(START, [after], 3)


def test_the_parts_add_up_and_know_what_the_start_found():
    after = evaluated("after", a=[[1, 1], [1, 1], [1, 0], [0, 0]])
    split = split_gain(START, [after])
    assert split.activated.value == pytest.approx(0.75 / 4)
    assert split.new.value == pytest.approx(1 / 4)
    assert split.total.value == pytest.approx(split.activated.value + split.new.value)
    assert (split.num_found, split.num_unfound, split.newly_right, split.tries) == (2, 2, 1, 4)
    assert split.to_json()["new"]["value"] == split.new.value


def test_what_was_found_can_be_lost():
    after = evaluated("after", a=[[0, 0], [0, 0], [0, 0], [0, 0]])
    split = split_gain(START, [after])
    assert split.activated.value == pytest.approx(-0.75 / 4) and split.new.value == 0


def test_domains_weigh_the_same():
    before = evaluated("b", a=[[0, 0]] * 2, b=[[0, 0]] * 8)
    after = evaluated("a", a=[[1, 1]] * 2, b=[[0, 0]] * 8)
    assert split_gain(before, [after]).new.value == pytest.approx(0.5)
    assert reach_difference(before, [after], 1).difference.value == pytest.approx(0.5)


def test_nothing_in_common_is_refused():
    with pytest.raises(ValueError, match="no task with scores in common"):
        split_gain(START, [evaluated("other", b=[[1]])])
