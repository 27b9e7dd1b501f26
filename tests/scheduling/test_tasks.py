"""Tasks of finite domains: predicted to teach nothing, passed over, and tried again."""

from __future__ import annotations

import json

import pytest

from educe.scheduling.tasks import MAX_TRACKED, TaskChooser, mixed_probability


def test_mixed_probability_is_that_of_the_beta_binomial():
    # Uniform prior: k of G is uniform on 0..G, so 2 of G + 1 outcomes are the same for all.
    assert mixed_probability(1.0, 1.0, 8) == pytest.approx(7 / 9)
    assert mixed_probability(1.0, 1.0, 1) == pytest.approx(0.0, abs=1e-12)
    # Sharp posteriors: 1 - p^G - (1 - p)^G.
    assert mixed_probability(5e5, 5e5, 4) == pytest.approx(1 - 2 / 16, abs=1e-4)
    assert mixed_probability(1e6, 1e3, 8) == pytest.approx(1 - (1000 / 1001) ** 8, abs=1e-4)
    assert mixed_probability(40.0, 0.5, 8) < 0.12 < mixed_probability(4.0, 2.0, 8)


def play(chooser: TaskChooser, rewards: dict[int, tuple[float, ...]], count: int) -> list[int]:
    played = []
    for issued in range(count):
        index = chooser.next_index("d", issued)
        played.append(index)
        chooser.observe("d", index, rewards[index], issued + 1)
    return played


REWARDS = {0: (1.0,) * 8, 1: (1.0, 0.0) * 4, 2: (0.0,) * 8, 3: (1.0, 0.0, 0.0, 0.0) * 2}


def test_solved_and_hopeless_tasks_are_passed_over_and_revisited():
    chooser = TaskChooser({"d": 4}, 8, threshold=0.25, revisit=4)
    played = play(chooser, REWARDS, 60)
    assert played[:4] == [0, 1, 2, 3], "every task is tried once"
    # The first look leaves a chance of a mixed group; once it has come true, only revisits follow.
    counts = [played[20:].count(i) for i in range(4)]
    assert min(counts[1], counts[3]) > 2 * max(counts[0], counts[2]) > 0
    assert chooser.num_saved > 10


def test_all_solved_and_all_hopeless_domains_still_get_tasks():
    for reward in ((1.0,) * 8, (0.0,) * 8):
        chooser = TaskChooser({"d": 3}, 8, threshold=0.5, revisit=1000)
        played = play(chooser, dict.fromkeys(range(3), reward), 30)
        assert set(played) == {0, 1, 2} and len(played) == 30
        assert chooser.num_saved == 0, "each of the 30 groups was paid for, and none had signal"


def test_unbounded_and_unscored_domains_are_left_alone():
    chooser = TaskChooser({"d": None, "u": 2}, 8, threshold=0.9)
    assert [chooser.next_index("d", i) for i in (0, 7, 10**9)] == [0, 7, 10**9]
    for issued in range(6):
        index = chooser.next_index("u", issued)
        assert index == issued % 2
        chooser.observe("u", index, (), issued + 1)
    assert chooser.num_saved == 0


def test_what_is_saved_is_what_tasks_in_turn_would_have_paid():
    """One task of ten teaches: in turn, nine groups without signal come before each of its own."""
    chooser = TaskChooser({"d": 10}, 8, threshold=0.25, revisit=10**6)
    rewards = dict.fromkeys(range(10), (1.0,) * 8) | {3: (1.0, 0.0) * 4}
    played = play(chooser, rewards, 40)
    wanted = played.count(3)
    assert wanted > 20
    assert chooser.num_saved == pytest.approx(9 * (wanted - 1) - (40 - wanted), abs=12)


def test_a_full_memory_stays_under_ten_megabytes():
    """Long names, scores that are no round numbers."""
    names = [f"word-problems/some-quite-long-family-{i:03}/medium" for i in range(300)]
    chooser = TaskChooser(dict.fromkeys(names, 10**6), 8)
    for i in range(MAX_TRACKED + 100):
        chooser.observe(names[i % 300], i, [0.1234567, 0.7654321, 1 / 3, 0.9], i)
        if i < 50:
            chooser.observe(names[i % 300], i, [1 / 3, 0.1], i)
    text = json.dumps(chooser.state())
    assert len(chooser.state()["seen"]) == MAX_TRACKED and len(text) < 8_000_000


def test_a_domain_of_one_task():
    chooser = TaskChooser({"d": 1}, 4, threshold=0.9, revisit=2)
    assert play(chooser, {0: (1.0,) * 4}, 10) == [0] * 10


def test_state_is_bounded_and_resumes_exactly():
    chooser = TaskChooser({"d": 50, "gone": 5}, 8, threshold=0.25, max_tracked=20)
    rewards = {i: REWARDS[i % 4] for i in range(50)}
    play(chooser, rewards, 120)
    state = json.loads(json.dumps(chooser.state()))
    assert len(state["seen"]) == 20
    again = TaskChooser({"d": 50}, 8, threshold=0.25, max_tracked=20)
    again.restore(state)
    one = [chooser.next_index("d", i) for i in range(120, 160)]
    assert [again.next_index("d", i) for i in range(120, 160)] == one
