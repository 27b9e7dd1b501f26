"""Where cached segments lie: what is read together comes together, what is not read is left out."""

from __future__ import annotations

from educe.engines.embedded.arrangement import Placed, best_plan


def lengths_of(shelves: list[Placed], plan) -> list[list[int]]:
    return [[shelves[s].lengths[p] for s, p in members] for members in plan.shelves]


def test_many_small_shelves_become_one():
    shelves = [Placed([length], {0: 1}) for length in (30, 33, 28, 31)]
    plan = best_plan(shelves)
    assert plan.saving > plan.copying > 0
    moved = sorted(length for shelf in lengths_of(shelves, plan) for length in shelf)
    assert moved in ([28, 30, 31, 33], [28, 30, 31])


def test_what_nobody_reads_is_left_behind():
    shelf = Placed([500] * 10, {4: 2})
    plan = best_plan([shelf])
    assert plan.shelves == [[(0, 4)]]
    assert plan.saving == 9 * 500 * 1.2


def test_a_shelf_that_is_read_whole_stays():
    assert best_plan([Placed([100, 98, 101], {0: 1, 1: 1, 2: 1})]).saving <= 0


def test_a_short_segment_is_not_padded_to_a_far_longer_one():
    shelves = [Placed([4000], {0: 1}), Placed([10] * 8, dict.fromkeys(range(8), 1))]
    assert best_plan(shelves).saving <= 0


def test_segments_of_many_readers_lie_apart_from_those_of_one():
    shelves = [Placed([200] * 20, {**dict.fromkeys(range(19), 1), 19: 64})]
    plan = best_plan(shelves)
    assert plan.saving > 0
    assert sorted(map(len, plan.shelves)) == [1, 19]


def test_in_a_stream_of_new_rows_the_large_shelf_is_not_copied():
    old = Placed([100] * 60, dict.fromkeys(range(60), 1))
    fresh = [Placed([100], {0: 1}) for _ in range(2)]
    plan = best_plan([old, *fresh])
    assert sorted(map(len, plan.shelves)) == [2]
    assert plan.saving > plan.copying
