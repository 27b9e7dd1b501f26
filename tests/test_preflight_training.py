"""What preflight and explain say of activations, optimizers and prefetching."""

from __future__ import annotations

import re
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from educe.config.loader import load_recipe
from educe.explain import explain, render
from educe.preflight import machine, make_plan
from educe.preflight.estimate import estimate_run

HEAD = 'stages = ["rl"]\n[domains]\n"rg/gcd/tiny" = {}\n[run]\nout = "runs"\n'
ASIDE = ["model.gradient_checkpointing=true", "model.activation_offload=true", "model.device=cpu"]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(HEAD)
    return "r.toml"


def problems(recipe: str, *overrides: str) -> str:
    return "\n".join(str(p) for p in make_plan(load_recipe(recipe, list(overrides)))[1])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.activation_offload=true"], r"set model\.gradient_checkpointing = true too"),
        (["optimizer.momentum=0.9"], r"only muon has it; \"adamw\" takes optimizer\.beta1"),
        (["optimizer.name=sgd", "optimizer.implementation=fused"], '"sgd" has one of its own'),
        (["optimizer.name=adamw_8bit", "model.dtype=float64"], 'Set optimizer.name = "adamw"'),
        (["optimizer.name=lion"], "optimizer.name"),
        (["prefetch.ahead=5"], r"Set prefetch\.workers"),
    ],
)
def test_settings_that_do_not_go_together(recipe: str, overrides: list[str], message: str) -> None:
    try:
        told = problems(recipe, *overrides)
    except Exception as error:  # a name that is none is found by the loader
        told = str(error)
    assert re.search(message, told), told


def test_processes_of_prefetch_are_counted(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)

    def runtime(*overrides: str) -> int:
        estimate = estimate_run(make_plan(load_recipe(recipe, list(overrides)))[0])
        assert estimate is not None
        return estimate.memory["runtime"]

    assert runtime("prefetch.workers=3") - runtime() == 3 * 350 * 2**20
    plan, _ = make_plan(load_recipe(recipe, ["prefetch.workers=2", "run.ranks=2"]))
    assert any("2 x 2 ranks is more than" in note for note in plan.notes)


def test_muon_has_momentum_and_needs_nothing_else(recipe: str) -> None:
    assert not problems(recipe, "optimizer.name=muon", "optimizer.momentum=0.9")


def test_a_missing_package_is_named_with_its_extra(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert "pip install 'educe[8bit]'" in problems(recipe, "optimizer.name=adamw_8bit")


def mount(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    import psutil

    disk = namedtuple("disk", "mountpoint fstype")
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(folder))
    monkeypatch.setattr(
        psutil, "disk_partitions", lambda all: [disk("/", "ext4"), disk(str(folder), kind)]
    )


def test_activations_are_not_put_aside_into_memory(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(monkeypatch, tmp_path, "tmpfs")
    assert re.search(r"is in memory itself \(tmpfs\).*TMPDIR", problems(recipe, *ASIDE))
    mount(monkeypatch, tmp_path, "ext4")
    assert "TMPDIR" not in problems(recipe, *ASIDE)


def test_a_full_temporary_folder_is_refused(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(monkeypatch, tmp_path, "ext4")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(10**12, 10**12, 10**6))
    assert "too little disk for activations put aside" in problems(recipe, *ASIDE)


def test_explain_tells_where_activations_are(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount(monkeypatch, tmp_path, "ext4")
    plain, _ = explain(load_recipe(recipe, []))
    assert plain["model"]["activations"] is None and "disk_temporary" not in plain
    kept, _ = explain(load_recipe(recipe, ASIDE[:1]))
    assert "activations recomputed but for attention\n" in render(kept)
    aside, _ = explain(load_recipe(recipe, ASIDE))
    text = render(aside)
    assert f"what is kept in a file in {tmp_path}" in text
    assert "Temporary files (estimate): " in text

    def memory(overrides: list[str]) -> Any:
        estimate = estimate_run(make_plan(load_recipe(recipe, overrides))[0])
        assert estimate is not None
        return estimate.memory["activations"], estimate.put_aside

    (full, _), (some, none), (least, file) = memory([]), memory(ASIDE[:1]), memory(ASIDE)
    assert full > 3 * some > 3 * least and none == 0 and file == some - least
