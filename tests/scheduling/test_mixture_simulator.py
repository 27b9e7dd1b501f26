"""The simulator: its worlds are what they claim, and the controller gains where there is a gain."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from mixture_figures import compare
from mixture_simulator import (
    Arm,
    Learner,
    best_static,
    main,
    run_arm,
    run_static,
    standard_arms,
    uniform_budgets,
)
from mixture_worlds import KINDS, Worlds, draw_world, stack

from educe.scheduling.controller import ControlSettings

SMALL = 80


def small_worlds(count: int, kind: str = "", split: str = "tune") -> list[Worlds]:
    found: list[Worlds] = []
    for index in range(5000, 9000):
        world = draw_world(split, index)
        if world.start.shape[1] < SMALL and (not kind or world.kind[0] == kind):
            found.append(world)
        if len(found) == count:
            return found
    raise AssertionError("no such worlds")


def test_worlds_are_functions_of_split_and_index():
    one, same, other = draw_world("test", 3), draw_world("test", 3), draw_world("tune", 3)
    assert np.array_equal(one.start, same.start) and np.array_equal(one.leak, same.leak)
    assert one.start.shape != other.start.shape or not np.array_equal(one.start, other.start)
    assert sum(KINDS.values()) == pytest.approx(1.0)


def test_kinds_are_what_they_claim():
    (alike,) = small_worlds(1, "alike")
    for name in ("start", "speed", "tokens", "cost", "ceiling", "task_spread"):
        assert np.ptp(getattr(alike, name)) == 0, name
    assert not alike.leak.any()
    assert not small_worlds(1, "no_transfer")[0].leak.any()
    assert (small_worlds(1, "lying")[0].truth <= 0).any()
    (dead,) = small_worlds(1, "dead")
    assert np.mean((dead.ceiling == 0) | (dead.speed == 0)) > 0.25
    dear = small_worlds(1, "unequal_cost")[0].cost
    assert dear.max() / dear.min() > 30
    (bad,) = small_worlds(1, "interference")
    crossed = bad.leak[0][~np.eye(bad.leak.shape[1], dtype=bool)]
    assert (crossed < 0).sum() > 2 * (crossed > 0).sum()
    assert (small_worlds(1, "drift")[0].shift < 0).any()


def test_padding_changes_nothing_that_is_real():
    worlds = small_worlds(2)
    both = stack(worlds)
    for row, world in enumerate(worlds):
        width = world.start.shape[1]
        assert np.array_equal(both.speed[row, :width], world.speed[0])
        assert both.is_real[row].sum() == width
    budgets = uniform_budgets(both)
    alone = [uniform_budgets(w)["tokens"][0] for w in worlds]
    assert budgets["tokens"] == pytest.approx(alone)


def test_a_learner_learns_from_mixed_groups_only():
    (world,) = small_worlds(1, "dead")
    learner = Learner(world, seed=0)
    before = learner.skill.copy()
    world.decay[:], world.jitter[:], world.leak[:] = 0.0, 0.0, 0.0
    mute = int(np.flatnonzero(world.ceiling[0] == 0)[0])
    alive = int(np.argmax(world.speed[0] * world.ceiling[0]))
    counts, tokens, _ = learner.step(np.array([[mute, mute, alive, alive]]))
    moved = (learner.skill - before)[0]
    assert moved[mute] == 0.0
    assert np.flatnonzero(moved).tolist() in ([alive], [])
    assert counts.groups[0, [mute, alive]].tolist() == [2.0, 2.0]
    assert (tokens[0] > 0).sum() == 2


def test_the_controller_gains_on_dead_domains_and_loses_little_on_equal_ones():
    dead, alike = stack(small_worlds(3, "dead")), stack(small_worlds(2, "alike"))
    for worlds, low, high in ((dead, 1.05, 4.0), (alike, 0.96, 1.04)):
        uniform = run_arm(worlds, Arm(ControlSettings("static")))["tokens"]
        adaptive = run_arm(worlds, Arm(ControlSettings()))["tokens"]
        told = compare(adaptive, uniform, worlds.kind)
        assert low < told["gain_ratio"][0] < high


def test_noise_alone_has_a_row_of_its_own():
    """Uniform shares with other luck gain what uniform shares do, a little more or less."""
    worlds = stack(small_worlds(3, "plain"))
    arms = standard_arms(["uniform", "uniform_again"], ["tokens"])
    one, two = (arm(worlds)["tokens"] for arm in arms.values())
    assert not np.array_equal(one.gain, two.gain)
    assert two.gain == pytest.approx(one.gain, abs=0.03)


def test_equal_budgets_are_spent():
    """Static shares of equal weight are the uniform run, whatever the unit."""
    worlds = stack(small_worlds(2))
    one = run_arm(worlds, Arm(ControlSettings("static")))
    two = run_arm(worlds, Arm(ControlSettings("static"), worlds.is_real * 3.0, unit="seconds"))
    assert np.array_equal(one["tokens"].gain, two["tokens"].gain)
    assert np.array_equal(one["seconds"].worst, two["seconds"].worst)


def test_a_run_of_one_budget_is_the_beginning_of_a_run_of_both():
    worlds = stack(small_worlds(2))
    for unit in ("tokens", "seconds"):
        arm = Arm(ControlSettings(), unit=unit)
        both, alone = run_arm(worlds, arm), run_arm(worlds, arm, units=(unit,))
        assert list(alone) == [unit]
        assert np.array_equal(alone[unit].gain, both[unit].gain)
        assert np.array_equal(alone[unit].worst, both[unit].worst)


def test_fixed_shares_dealt_at_once_are_the_controllers():
    """The quick way and the controller give each domain its share within a prompt or so."""
    worlds = stack(small_worlds(3, "plain"))
    weights = worlds.is_real * worlds.size
    quick = run_static(worlds, weights)
    slow = run_arm(worlds, Arm(ControlSettings("static"), weights))
    for unit in ("tokens", "seconds"):
        assert quick[unit].gain == pytest.approx(slow[unit].gain, abs=0.01)
        assert quick[unit].worst == pytest.approx(slow[unit].worst, abs=0.02)


def test_a_search_finds_a_table_that_beats_equal_shares():
    worlds = stack(small_worlds(2, "dead"))
    uniform = run_static(worlds, worlds.is_real.astype(float))
    for unit, found in best_static(worlds, rounds=2, width=8).items():
        assert found.gain.sum() > uniform[unit].gain.sum()


def test_parts_put_together_are_the_whole(tmp_path, capsys):
    given = ["--split", "tune", "--worlds", "4", "--first", "5003", "--arms", "uniform", "size"]
    files = []
    for number in (1, 2):
        files.append(str(tmp_path / f"{number}.json"))
        assert main([*given, "--part", f"{number}/2", "--out", files[-1]]) == 0
    assert main([*given, "--out", str(tmp_path / "whole.json")]) == 0
    whole = json.loads((tmp_path / "whole.json").read_text())
    parts = [json.loads(Path(f).read_text()) for f in files]
    assert sorted(n for p in parts for n in p["numbers"]) == sorted(whole["numbers"])
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    told = ["--out", str(tmp_path / "told.json"), "--page", str(page)]
    assert main(["--gather", *files, *told]) == 0
    text = page.read_text()
    assert "Worlds 5003 to 5006 of `tune` (4 worlds)" in text and "| tokens | size |" in text
    assert main(["--gather", *files, *told]) == 0
    assert page.read_text() == text
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["worlds"], told["first"], told["last"]) == (4, 5003, 5006)
    (low, high) = told["tokens/size"]["gain_ratio"][1:]
    assert low <= told["tokens/size"]["gain_ratio"][0] <= high
    assert told["tokens/uniform"]["worst_tenth_change"][0] == 0.0
