"""What the tests of whole stages share: rows, recipes, and the check of a resumed run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from educe.api import train
from educe.config.loader import LoadedRecipe
from educe.core.stopping import StopSignal
from educe.observability.run_store import RunStore
from tests.trainers.recipes import tiny_recipe

DOMAIN = {"letters": {"function": "tests.trainers.letters:domain"}}


def quiet(_: str) -> None:
    pass


def weights(folder: Path, stage: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "models" / stage / "model.safetensors")


def same_bits(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


WORDS = ("red", "blue", "green", "pink", "gold", "grey", "teal", "rose")


def pairs(count: int = 16) -> list[dict[str, str]]:
    return [
        {"prompt": f"colour {i}", "chosen": WORDS[i % 8], "rejected": WORDS[(i + 3) % 8].upper()}
        for i in range(count)
    ]


def completions(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{i}", "completion": WORDS[i % 8]} for i in range(count)]


def labelled(count: int = 16) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"colour {i}",
            "completion": WORDS[i % 8] if i % 2 else WORDS[i % 8].upper(),
            "label": bool(i % 2),
        }
        for i in range(count)
    ]


def recipe(folder: Path, out: Path, stage: str, /, **sections: Any) -> LoadedRecipe:
    sections.setdefault("domains", {})
    return tiny_recipe(folder, out, stages=[stage], **sections)


def check_resume(make: Any, tmp_path: Path, stage: str, stop_after: int) -> Path:
    """Run whole; run, stop after a step and resume: the weights are bitwise the same."""
    whole = train(make(tmp_path / "whole"), announce=quiet)
    assert whole.status == "done"
    stop = StopSignal()

    def halt(info: Any) -> None:
        if (info.stage, info.step) == (stage, stop_after):
            stop.request("test")

    cut = make(tmp_path / "cut")
    assert train(cut, announce=quiet, callbacks=[halt], stop=stop).status == "stopped"
    again = train(make(tmp_path / "cut"), announce=quiet, resume=True)
    assert again.status == "done"
    assert same_bits(weights(again.folder, stage), weights(whole.folder, stage))
    steps = [row.step for row in RunStore.open(again.folder).metrics(stage)]
    assert steps == [row.step for row in RunStore.open(whole.folder).metrics(stage)]
    return whole.folder


# Preference


def preference_recipe(folder: Path, out: Path, data: str, /, **preference: Any) -> LoadedRecipe:
    own = preference.pop("mine_data", {})
    return recipe(
        folder,
        out,
        "preference",
        model=preference.pop("model", {}),
        preference={
            "steps": 5,
            "batch_size": 4,
            "learning_rate": 1e-2,
            "data": {"pairs": {"path": data, **own}},
            **preference,
        },
    )
