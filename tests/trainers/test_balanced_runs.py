"""Whole runs with balance, lengths and the forgetting guard: they say what they do and resume
bitwise, and domains at the edges do not break them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from educe.api import train
from educe.cli.main import main
from educe.core.errors import CheckpointError, DomainError, RecipeError
from educe.core.stopping import StopSignal
from educe.observability.run_store import RunStore
from tests.trainers.recipes import tiny_recipe

EDGE = "tests.trainers.edge_domains:"
LETTERS = "tests.trainers.letters:"
DOMAINS = {
    "arithmetic/add/tiny": {},
    "letters": {"function": LETTERS + "domain"},
    "fading": {"function": EDGE + "Fading"},
}
EVERYTHING: dict[str, Any] = {
    "stages": ["rl"],
    "domains": DOMAINS,
    "algorithm": {"aggregation": "token-mean"},
    "rl": {"steps": 5, "prompts": 3, "group_size": 4, "updates": 2, "learning_rate": 5e-3},
    "balance": {
        "denominators": "domain",
        "measure_every": 1,
        "norms": 0.5,
        "conflicts": "project",
        "rates": "follow",
        "rate_kl": 1e-6,
        "sketch": 256,
    },
    "optimizer": {
        "micro_batch_tokens": 512,
        "warmup_steps": 1,
        "back_off": {"kl": 1e-7, "factor": 0.9},
    },
    # The KL makes it a suspect; its fresh tasks prove it.
    "forgetting": {
        "every": 1,
        "domains": ["fading"],
        "tasks": 1,
        "start_tasks": 6,
        "trial_tasks": 8,
        "replay": 2,
        "kl_limit": 1e-9,
        "actions": ["raise_share", "add_anchor"],
    },
    "checkpoint": {"every_steps": 3, "every_minutes": 0},
}


def quiet(_: str) -> None:
    pass


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "models" / "rl" / "model.safetensors")


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def payloads(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [dict(e.payload) for e in RunStore.open(folder).events(kind)]


@pytest.fixture(scope="module")
def whole(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted exact run with everything on."""
    out = tmp_path_factory.mktemp("whole")
    return train(tiny_recipe(tiny_folder, out, **EVERYTHING), announce=quiet).folder


def test_alarms_come_after_trials_and_are_acted_on_in_turn(whole: Path) -> None:
    alarms = [a for a in payloads(whole, "alarm") if a["kind"] == "forgetting"]
    assert [a["action"] for a in alarms] == ["raise_share", "add_anchor"]
    assert [a["step"] for a in alarms] == [0, 3], "it is given time in between"
    assert all(a["domain"] == "fading" and a["value"] == 1.0 for a in alarms)
    assert "0 on fresh tasks, 1 at the stage's start" in alarms[0]["cause"]
    looks = payloads(whole, "forgetting_look")
    assert [e["step"] for e in looks] == list(range(1, 6))
    assert [e["suspects"] for e in looks] == ["fading", "", "", "fading", ""]
    trials = payloads(whole, "forgetting_trial")
    assert len(trials) == 2 and all(t["proven"] and t["score"] == 0.0 for t in trials)
    rows = RunStore.open(whole).metrics("rl")
    shares = [r.values["domain/fading/share"] for r in rows if "domain/fading/share" in r.values]
    assert shares[0] == pytest.approx(1 / 3) and shares[1] == pytest.approx(1 / 2)
    kl = [r.values["domain/fading/start_kl"] for r in rows if "domain/fading/start_kl" in r.values]
    assert len(kl) == 5 and min(kl) > 0


def test_what_is_measured_and_decided_is_in_the_run_store(whole: Path) -> None:
    measured = payloads(whole, "interference")
    assert measured and measured[0]["names"] == sorted(DOMAINS)
    assert {e["stage"] for e in measured} == {"rl"}
    last = RunStore.open(whole).metrics("rl")[-1].values
    for name in DOMAINS:
        assert f"domain/{name}/loss_factor" in last and f"domain/{name}/rate_factor" in last
    rates = [
        r.values["rl/learning_rate"]
        for r in RunStore.open(whole).metrics("rl")
        if "rl/learning_rate" in r.values
    ]
    assert rates[3] < 0.9 * max(rates), "the rate gives way to the KL"


@pytest.mark.parametrize("stop_at", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_everything_resumes_bitwise(
    whole: Path, tiny_folder: Path, tmp_path: Path, stop_at: int
) -> None:
    stop = StopSignal()

    def halt(info: Any) -> None:
        if info.step == stop_at:
            stop.request("test")

    recipe = tiny_recipe(tiny_folder, tmp_path, **EVERYTHING)
    assert train(recipe, announce=quiet, callbacks=[halt], stop=stop).status == "stopped"
    folder = train(recipe, announce=quiet, resume=True).folder
    assert same_bits(weights(folder), weights(whole))
    for kind in ("alarm", "forgetting_trial"):
        told = {(e["step"], e["domain"]) for e in payloads(folder, kind)}
        assert told == {(e["step"], e["domain"]) for e in payloads(whole, kind)}
    assert payloads(folder, "interference")[-1] == payloads(whole, "interference")[-1]
    state = sorted((folder / "checkpoints").glob("*/state.json"))[-1]
    assert state.stat().st_size < 200_000


def test_the_micro_batch_changes_nothing_but_rounding(tiny_folder: Path, tmp_path: Path) -> None:
    sections = {
        **EVERYTHING,
        "run": {"mode": "fast"},
        "model": {"name": str(tiny_folder), "dtype": "float64"},
        "rl": {**EVERYTHING["rl"], "steps": 2},
        "forgetting": {},
    }
    found = []
    for limit in (2048, 40):
        sections["optimizer"] = {**EVERYTHING["optimizer"], "micro_batch_tokens": limit}
        recipe = tiny_recipe(tiny_folder, tmp_path / str(limit), **sections)
        found.append(weights(train(recipe, announce=quiet).folder))
    difference = sum(float((found[0][k] - found[1][k]).norm()) ** 2 for k in found[0]) ** 0.5
    size = sum(float(found[0][k].norm()) ** 2 for k in found[0]) ** 0.5
    assert difference / size < 1e-6, "AdamW divides by what may be nearly 0, so not 1e-9"


def test_the_matrix_is_told_drawn_and_on_the_page(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "mixture", str(whole), "--png", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "gradients of 3 domains or clusters at step" in text
    assert (tmp_path / "interference.png").read_bytes().startswith(b"\x89PNG")
    assert main(["runs", "mixture", str(whole), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["interference"]["names"] == sorted(DOMAINS)
    assert len(told["interference"]["cosines"]) == 3
    assert main(["runs", "plot", str(whole), "--out", str(tmp_path), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"png", "interference", "html"}
    page = (tmp_path / "run.html").read_text()
    assert "gradients with and against each other" in page and "<rect" in page


def test_the_matrix_tells_who_helps_from_who_conflicts(tiny_folder: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl"],
        run={"mode": "fast"},
        domains={
            "letters": {"function": LETTERS + "domain"},
            "other-letters": {"function": EDGE + "OtherLetters"},
            "no-letters": {"function": EDGE + "NoLetters"},
        },
        rl={"steps": 6, "prompts": 15, "updates": 1, "group_size": 6, "learning_rate": 1e-5},
        balance={"measure_every": 1},
    )
    last = payloads(train(recipe, announce=quiet).folder, "interference")[-1]
    names, cosines, errors = last["names"], last["cosines"], last["errors"]

    def between(one: str, other: str) -> tuple[float, float]:
        i, j = names.index(one), names.index(other)
        return cosines[i][j], errors[i][j]

    alike, noise = between("letters", "other-letters")
    assert alike > 2 * noise
    against = [between(one, "no-letters") for one in ("letters", "other-letters")]
    assert all(cosine < 0 for cosine, _ in against)
    assert sum(c for c, _ in against) < -2 * sum(e**2 for _, e in against) ** 0.5


@pytest.mark.slow
def test_going_back_is_the_stability_guards(tiny_folder: Path, tmp_path: Path) -> None:
    sections = {
        **EVERYTHING,
        "forgetting": {**EVERYTHING["forgetting"], "actions": ["tell", "roll_back"]},
    }
    folder = train(tiny_recipe(tiny_folder, tmp_path, **sections), announce=quiet).folder
    alarms = [a for a in payloads(folder, "alarm") if a["kind"] == "forgetting"]
    assert [a.get("action", "roll_back") for a in alarms] == ["tell", "roll_back"]
    (rollback,) = payloads(folder, "rollback")
    assert rollback["kind"] == "forgetting" and "fading has forgotten" in rollback["cause"]


def test_a_lost_file_of_the_start_is_an_error_and_not_a_new_start(
    tiny_folder: Path, tmp_path: Path
) -> None:
    stop = StopSignal()

    def halt(info: Any) -> None:
        stop.request("test")

    recipe = tiny_recipe(tiny_folder, tmp_path, **EVERYTHING)
    folder = train(recipe, announce=quiet, callbacks=[halt], stop=stop).folder
    (folder / "forgetting" / "rl.json").unlink()
    with pytest.raises(CheckpointError, match="is gone: what the stage's start could do"):
        train(recipe, announce=quiet, resume=True)


@pytest.mark.slow
def test_two_ranks_balance_and_watch_alike(tiny_folder: Path, tmp_path: Path) -> None:
    sections = {
        **EVERYTHING,
        "run": {"ranks": 2, "mode": "fast"},
    }
    folder = train(tiny_recipe(tiny_folder, tmp_path, **sections), announce=quiet).folder
    alarms = [a for a in payloads(folder, "alarm") if a["kind"] == "forgetting"]
    assert [a["action"] for a in alarms] == ["raise_share", "add_anchor"]
    steps = [e["step"] for e in payloads(folder, "interference")]
    assert steps == sorted(steps) and len(steps) >= 5
    assert all(t.isfinite().all() for t in weights(folder).values())


EDGES: dict[str, Any] = {
    "stages": ["rl"],
    "run": {"mode": "fast"},
    "domains": {
        "letters": {"function": LETTERS + "domain"},
        "silent": {"function": EDGE + "Silent"},
        "solved": {"function": EDGE + "Solved"},
        "unscored": {"function": EDGE + "Unscored"},
        "one-task": {"function": EDGE + "Sized", "options": {"size": 1}},
        "arithmetic/add/tiny": {"weight": 1e-6},
    },
    "rl": {"steps": 3, "prompts": 6, "updates": 1, "group_size": 2},
    "mixture": {"strategy": "expected_gain"},
    "curriculum": {"tasks": "predicted"},
    "balance": {"measure_every": 1, "norms": 1.0, "conflicts": "project", "sketch": 64},
    "forgetting": {"every": 2, "tasks": 1, "start_tasks": 1, "trial_tasks": 2, "replay": 1},
}


def test_domains_at_the_edges_do_not_break_a_run(tiny_folder: Path, tmp_path: Path) -> None:
    folder = train(tiny_recipe(tiny_folder, tmp_path, **EDGES), announce=quiet).folder
    rows = RunStore.open(folder).metrics("rl")
    steps = [r for r in rows if "rl/reward" in r.values]
    assert len(steps) == 3
    last = steps[-1].values
    shares = {n: last[f"domain/{n}/share"] for n in EDGES["domains"]}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["arithmetic/add/tiny"] < 1e-4
    assert not [a for a in payloads(folder, "alarm") if a["kind"] == "forgetting"]


def test_an_empty_domain_is_refused_by_name(tiny_folder: Path, tmp_path: Path) -> None:
    domains = {
        "letters": {"function": LETTERS + "domain"},
        "nothing": {"function": EDGE + "Sized", "options": {"size": 0}},
    }
    recipe = tiny_recipe(tiny_folder, tmp_path, stages=["rl"], domains=domains)
    with pytest.raises((DomainError, RecipeError), match=r"nothing.*no training tasks"):
        train(recipe, announce=quiet)


NAMES = ("letters", "solved", "arithmetic/add/tiny")
DOMAINS_OF: dict[str, Any] = {
    "letters": {"function": LETTERS + "domain"},
    "solved": {"function": EDGE + "Solved"},
    "arithmetic/add/tiny": {},
}


@pytest.mark.parametrize("mixture", [{}, {"strategy": "expected_gain"}])
def test_a_domain_added_and_one_removed_at_a_resume(
    tiny_folder: Path, tmp_path: Path, mixture: dict[str, Any]
) -> None:
    stop = StopSignal()

    def halt(info: Any) -> None:
        if info.step == 1:
            stop.request("test")

    def recipe(*names: str, mode: str = "fast") -> Any:
        return tiny_recipe(
            tiny_folder,
            tmp_path,
            stages=["rl"],
            run={"mode": mode},
            domains={n: DOMAINS_OF[n] for n in names},
            rl={"steps": 6, "prompts": 4, "updates": 1},
            mixture=mixture,
            balance={"measure_every": 1, "sketch": 64, "rates": "follow"},
            algorithm={"kl_coefficient": 0.01},
            forgetting={"every": 2, "tasks": 1, "start_tasks": 2, "replay": 1},
        )

    first = recipe("letters", "solved")
    assert train(first, announce=quiet, callbacks=[halt], stop=stop).status == "stopped"
    with pytest.raises(RecipeError, match=r"domains\.\"arithmetic/add/tiny\""):
        train(recipe("letters", "arithmetic/add/tiny", mode="exact"), announce=quiet, resume=True)
    lines: list[str] = []
    folder = train(
        recipe("letters", "arithmetic/add/tiny"), announce=lines.append, resume=True
    ).folder
    assert any("arithmetic/add/tiny joined after the stage's start" in line for line in lines)
    rows = [r for r in RunStore.open(folder).metrics("rl") if "rl/reward" in r.values]
    assert len(rows) == 6
    counts = [sum(f"domain/{n}/reward" in r.values for r in rows) for n in NAMES]
    assert counts[0] >= 5 and counts[1] <= 2 and counts[2] >= 3
    assert payloads(folder, "interference")[-1]["names"] == ["arithmetic/add/tiny", "letters"]


def test_long_prompts_wait_and_have_their_share(tiny_folder: Path, tmp_path: Path) -> None:
    domains = {
        "letters": {"function": LETTERS + "domain"},
        "long": {"function": EDGE + "LongPrompt"},
    }
    growing = tiny_recipe(
        tiny_folder,
        tmp_path / "growing",
        stages=["rl"],
        run={"mode": "fast"},
        domains=domains,
        rl={"steps": 6, "prompts": 4, "updates": 1, "group_size": 2},
        curriculum={"lengths": "growing", "length_first": 60, "length_steps": 3, "length_early": 0},
    )
    rows = RunStore.open(train(growing, announce=quiet).folder).metrics("rl")
    limits = [r.values["mixture/length_limit"] for r in rows]
    shares = [r.values["domain/long/share"] for r in rows]
    assert limits == sorted(limits) and limits[0] == 60 and limits[-1] > 180
    assert shares[0] < 1e-6 and shares[-1] == pytest.approx(0.5)
    shared = tiny_recipe(
        tiny_folder,
        tmp_path / "shared",
        stages=["rl"],
        run={"mode": "fast"},
        domains=domains,
        rl={"steps": 3, "prompts": 8, "updates": 1, "group_size": 2},
        mixture={"long": ["long"], "long_share": 0.5},
    )
    last = RunStore.open(train(shared, announce=quiet).folder).metrics("rl")[-1].values
    assert last["domain/long/share"] < 0.35, "half of the tokens are few of the prompts"
