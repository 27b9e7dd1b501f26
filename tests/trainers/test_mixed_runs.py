"""Whole runs with an adaptive mixture: shares move, are logged, and resume bitwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from educe.api import train
from educe.core.stopping import StopSignal
from educe.observability.run_store import RunStore
from educe.scheduling.mixture import StaticMixture
from educe.trainers.mixing import TaskOrder, order_of
from tests.trainers.recipes import tiny_recipe

MIXED = {
    "stages": ["rl"],
    "domains": {
        "arithmetic/add/tiny": {},
        "arithmetic/add/easy": {},
        "letters": {"function": "tests.trainers.letters:domain", "weight": 2.0},
    },
    "mixture": {"strategy": "expected_gain", "cost": "seconds", "protected": ["letters"]},
    "curriculum": {"levels": "band", "tasks": "predicted"},
}


def quiet(_: str) -> None:
    pass


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "models" / "rl" / "model.safetensors")


def test_shares_move_are_logged_and_resume_bitwise(tiny_folder, tmp_path):
    whole = train(tiny_recipe(tiny_folder, tmp_path / "whole", **MIXED), announce=quiet).folder
    rows = RunStore.open(whole).metrics("rl")
    first, last = rows[0].values, rows[-1].values
    names = ("arithmetic/add/tiny", "arithmetic/add/easy", "letters")
    for values in (first, last):
        shares = [values[f"domain/{n}/share"] for n in names]
        assert sum(shares) == pytest.approx(1.0)
        assert all(f"domain/{n}/share_reason" in values for n in names)
    assert first["domain/letters/share"] == pytest.approx(0.5)
    assert last["domain/letters/share"] != first["domain/letters/share"]
    assert last["domain/arithmetic/add/tiny/share"] > last["domain/arithmetic/add/easy/share"]

    # Two runs never measure the same seconds, so equal runs are compared at equal tokens.
    stop = StopSignal()

    def halt(info):
        if info.step == 1:
            stop.request("test")

    recipe = tiny_recipe(tiny_folder, tmp_path / "cut", **(MIXED | {"mixture": BY_TOKENS}))
    assert train(recipe, announce=quiet, callbacks=[halt], stop=stop).status == "stopped"
    cut = train(recipe, announce=quiet, resume=True).folder
    uncut = tiny_recipe(tiny_folder, tmp_path / "uncut", **(MIXED | {"mixture": BY_TOKENS}))
    straight = train(uncut, announce=quiet).folder
    ours, theirs = weights(cut), weights(straight)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    shares = [
        [r.values["domain/letters/share"] for r in RunStore.open(f).metrics("rl")]
        for f in (cut, straight)
    ]
    assert shares[0] == shares[1]


BY_TOKENS = {"strategy": "expected_gain", "cost": "tokens"}


def test_the_default_is_static(tiny_folder, tmp_path):
    from educe.session import resolved_domains

    recipe = tiny_recipe(tiny_folder, tmp_path).recipe
    settings, domains = resolved_domains(recipe)
    order = order_of(recipe, domains, {n: s.weight for n, s in settings.items()}, lambda *_: {})
    assert isinstance(order, TaskOrder) and isinstance(order.mixture, StaticMixture)
    assert order.chooser is None and order.costs is None


def test_batches_by_tokens_are_planned_recorded_and_resume_bitwise(tiny_folder, tmp_path):
    """Groups of 4 answers of at most 6 tokens, whatever their prompts: a batch of some 60 tokens
    has fewer prompts than the 12 that it may have."""
    sections = MIXED | {
        "mixture": BY_TOKENS,
        "rl": {"prompts": 12, "batch_tokens": 90, "steps": 5},
        "checkpoint": {"every_steps": 1, "every_minutes": 0},
    }
    stop = StopSignal()

    def halt(info):
        if info.step == 2:
            stop.request("test")

    recipe = tiny_recipe(tiny_folder, tmp_path / "cut", **sections)
    assert train(recipe, announce=quiet, callbacks=[halt], stop=stop).status == "stopped"
    cut = train(recipe, announce=quiet, resume=True).folder
    straight = train(tiny_recipe(tiny_folder, tmp_path / "uncut", **sections), announce=quiet)
    ours, theirs = weights(cut), weights(straight.folder)
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    told = [RunStore.open(f).metrics("rl") for f in (cut, straight.folder)]
    names = ("mixture/planned_prompts", "mixture/planned_tokens", "rl/rollouts", "rl/tokens")
    ours, theirs = ([[r.values[n] for n in names] for r in rows] for rows in told)
    assert ours == theirs
    for prompts, planned, rollouts, _ in ours:
        assert rollouts == 4 * prompts and 2 <= prompts < 12
        assert planned >= 90 or prompts == 12
    assert len({prompts for prompts, *_ in ours}) > 1, "it follows what is seen"


class Crash(Exception):
    pass


def test_seconds_come_from_the_journal_when_a_batch_is_done_again(
    tiny_folder, tmp_path, monkeypatch
):
    """The run dies after batch 3; its checkpoint is of batch 2. The machine is another one then,
    on which letters cost a million times more: only what was not measured before may show it."""
    sections = MIXED | {"rl": {"steps": 7}, "checkpoint": {"every_steps": 2, "every_minutes": 0}}
    recipe = tiny_recipe(tiny_folder, tmp_path, **sections)
    names = [f"domain/letters/{n}" for n in ("share", "cost_estimate")]
    first: dict[int, list[float]] = {}
    second: dict[int, list[float]] = {}

    def crash(info):
        first[info.step] = [info.metrics[n] for n in names]
        if info.step == 3:
            raise Crash

    with pytest.raises(Crash):
        train(recipe, announce=quiet, callbacks=[crash])

    def dear(results, rollout_s, scoring_s):
        return {d: 1e6 if d == "letters" else 1.0 for d in {r.domain for r in results}}

    monkeypatch.setattr("educe.rollout.metering.split_seconds", dear)
    train(
        recipe,
        announce=quiet,
        resume=True,
        callbacks=[lambda i: second.update({i.step: [i.metrics[n] for n in names]})],
    )
    assert min(second) == 2, "batches 2 and 3 were done again"
    assert [second[n] for n in (2, 3)] == [first[n] for n in (2, 3)]
    assert second[6][1] > 1000 * second[3][1], "what is new was measured anew"
