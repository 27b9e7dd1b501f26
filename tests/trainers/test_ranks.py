"""Two trainer ranks over gloo give one rank's gradients (decision 2) and finish a recipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from educe.api import train
from educe.cluster.launch import free_port
from educe.core.errors import InfrastructureError
from educe.models.tiny import save_tiny
from tests.trainers.recipes import tiny_recipe
from tests.trainers.test_gradients import ALL

ROOT = Path(__file__).resolve().parents[2]

_RANK = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
torch.set_num_threads(1)
from educe.config.settings import OptimizerSettings
from educe.models.load import load
from educe.parallel.collectives import ProcessGroup, SingleProcess
from educe.trainers.credit import losses_of
from educe.trainers.step import TrainerState, accumulate_gradients
from tests.trainers.test_gradients import ALL, head_for, make_samples
folder, out, rank, size, port = sys.argv[1:6]
group = SingleProcess() if size == "1" else ProcessGroup(
    int(rank), int(size), "127.0.0.1", int(port))
model = load(folder, dtype="float64")
grads = {}
for entry in sys.argv[6:]:
    # "NAME:1" is the batch's first sample alone: the second rank has none.
    name, _, count = entry.partition(":")
    state = TrainerState.create(model, OptimizerSettings(micro_batch_tokens=70), 1e-3,
                                collectives=group,
                                value_head=head_for(model) if ALL[name].needs_values else None)
    state.optimizer.zero_grad(set_to_none=True)
    samples = make_samples([name])[:int(count) if count else None]
    tally = accumulate_gradients(state, samples, losses_of({name: ALL[name]}))
    grads[entry] = torch.cat([p.grad.reshape(-1) for _, p in state.trainable()]).clone()
    grads[entry + "/loss"] = torch.tensor([tally.values()["loss"]], dtype=torch.float64)
save_file(grads, out)
"""


def run_ranks(folder: Path, out: Path, size: int, names: list[str]) -> list[dict]:
    port = str(free_port())
    files = [out / f"{size}-{rank}.safetensors" for rank in range(size)]
    command = [sys.executable, "-c", _RANK]
    children = [
        subprocess.Popen(
            [*command, str(folder), str(file), str(rank), str(size), port, *names],
            cwd=ROOT,
        )
        for rank, file in enumerate(files)
    ]
    assert [child.wait(timeout=600) for child in children] == [0] * size
    return [load_file(file) for file in files]


def test_two_ranks_give_one_ranks_gradients(tmp_path):
    folder = save_tiny(tmp_path / "m", dtype="float64", seed=3)
    names = [*sorted(ALL), "grpo:1", "ppo:1"]
    (one,) = run_ranks(folder, tmp_path, 1, names)
    two = run_ranks(folder, tmp_path, 2, names)
    for name in names:
        for rank in two:
            assert (rank[name] - one[name]).norm() / one[name].norm() <= 1e-9
            assert torch.allclose(rank[name + "/loss"], one[name + "/loss"], rtol=1e-12)


def test_a_recipe_runs_with_two_ranks(tiny_folder, tmp_path):
    single = train(tiny_recipe(tiny_folder, tmp_path / "one"), announce=lambda _: None)
    recipe = tiny_recipe(
        tiny_folder, tmp_path / "two", run={"ranks": 2, "out": str(tmp_path / "two")}
    )
    double = train(recipe, announce=lambda _: None)
    assert double.status == "done"
    a = load_file(single.folder / "models" / "sft" / "model.safetensors")
    b = load_file(double.folder / "models" / "sft" / "model.safetensors")
    # AdamW amplifies rounding where a gradient is nearly 0, so weights are close, not equal.
    difference = sum((a[k] - b[k]).norm() ** 2 for k in a) ** 0.5
    size = sum(a[k].norm() ** 2 for k in a) ** 0.5
    assert difference / size < 1e-2


def test_a_rank_that_dies_ends_the_run_with_a_clear_error(tiny_folder, tmp_path, monkeypatch):
    from educe.cluster import launch

    def die(module, arguments, log_path):
        return subprocess.Popen([sys.executable, "-c", "import os; os._exit(7)"])

    monkeypatch.setattr(launch, "start", die)
    recipe = tiny_recipe(tiny_folder, tmp_path, run={"ranks": 2, "out": str(tmp_path)})
    with pytest.raises(InfrastructureError, match=r"rank 1 died with status 7.*--resume"):
        train(recipe, announce=lambda _: None)


_PATIENT = """
import sys, time
from educe.parallel.collectives import ProcessGroup
rank, port = int(sys.argv[1]), int(sys.argv[2])
group = ProcessGroup(rank, 2, "127.0.0.1", port, timeout_s=2.0)
for number in range(3):
    if rank == 0:
        time.sleep(4.0 if number == 1 else 0.0)
    assert group.broadcast(number if rank == 0 else None) == number
group.close()
"""


def test_ranks_wait_for_rank_0_beyond_the_collectives_time_out():
    port = str(free_port())
    command = [sys.executable, "-c", _PATIENT]
    children = [subprocess.Popen([*command, str(rank), port], cwd=ROOT) for rank in (0, 1)]
    assert [child.wait(timeout=240) for child in children] == [0, 0]


def test_two_ranks_evaluate_once_and_stop_together(tiny_folder, tmp_path):
    """An evaluation between stages is rank 0's alone; a stop of rank 0 ends the others."""
    from educe.core.stopping import StopSignal
    from educe.observability.run_store import RunStore

    options = {
        "stages": ["sft", "eval", "rl"],
        "run": {"ranks": 2, "mode": "fast"},
        "rl": {"steps": 3, "updates": 1},
        "eval": {"tasks_per_domain": 2, "baseline": "none"},
        "guards": {"anchor_every": 1, "window": 2},
    }
    stop = StopSignal()

    def halt(info):
        if (info.stage, info.step) == ("rl", 1):
            stop.request("test")

    recipe = tiny_recipe(tiny_folder, tmp_path, **options)
    stopped = train(recipe, announce=lambda _: None, callbacks=[halt], stop=stop)
    assert stopped.status == "stopped"
    done = train(recipe, announce=lambda _: None, resume=True)
    assert done.status == "done"
    store = RunStore.open(done.folder)
    assert len(store.metrics("rl")) == 3
    assert len(store.events("eval")) == 1


def test_two_ranks_go_back_together(tiny_folder, tmp_path):
    """NaN weights on every rank: both are given the anchor's weights, and stay equal."""
    from educe.observability.run_store import RunStore

    def poison(info):
        if (info.stage, info.step) == ("rl", 1):
            next(info.session.model.causal.parameters()).data[3, 2] = float("nan")

    recipe = tiny_recipe(
        tiny_folder, tmp_path, stages=["rl"], run={"ranks": 2}, rl={"steps": 4, "updates": 1}
    )
    result = train(recipe, announce=lambda _: None, callbacks=[poison])
    assert result.status == "done"
    (rollback,) = RunStore.open(result.folder).events("rollback")
    assert rollback.payload["kind"] == "non_finite_weights"
    saved = load_file(result.folder / "models" / "rl" / "model.safetensors")
    assert all(t.isfinite().all() for t in saved.values())
