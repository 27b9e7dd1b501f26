"""Checkpoints stay whole whatever happens while they are written, replaced or loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from educe.config.settings import OptimizerSettings
from educe.core.errors import CheckpointError
from educe.models.load import load
from educe.models.tiny import save_tiny
from educe.trainers.checkpoint import CheckpointStore, load_checkpoint
from educe.trainers.step import TrainerState


def make_state(folder: Path, **sizes: int) -> TrainerState:
    model = load(str(save_tiny(folder, **sizes)), device="cpu", announce=lambda _: None)
    return TrainerState.create(model, OptimizerSettings(), 1e-3)


@pytest.fixture
def state(tmp_path) -> TrainerState:
    return make_state(tmp_path / "model")


def test_a_second_save_at_the_same_step_leaves_the_first_until_it_is_whole(
    state, tmp_path, monkeypatch
):
    store = CheckpointStore(tmp_path / "checkpoints")
    first = store.save(state, {"n": 1}, wait=True)

    def killed(self, target):
        raise OSError("killed before the rename")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(CheckpointError, match="killed before"):
            store.save(state, {"n": 2}, wait=True)
    assert load_checkpoint(first, state).progress == {"n": 1}
    store.save(state, {"n": 3}, wait=True)
    newest = store.load_newest(state)
    assert newest is not None and newest.progress == {"n": 3}


def test_the_newest_of_many_saves_at_one_step_wins_and_old_ones_go(state, tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for n in range(13):
        store.save(state, {"n": n}, wait=True)
        newest = store.load_newest(state)
        assert newest is not None and newest.progress == {"n": n}
    state.step += 1
    store.save(state, {"n": 99}, wait=True)
    newest = store.load_newest(state)
    assert newest is not None and newest.progress == {"n": 99}
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 2


def test_a_half_removed_checkpoint_does_not_pass_for_whole(state, tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    old = store.save(state, {"n": 1}, wait=True)
    state.step += 1
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        store.save(state, {"n": 2}, wait=True)
    assert old.exists() and old not in store.complete()
    state.step += 1
    store.save(state, {"n": 3}, wait=True)
    assert not old.exists()


@pytest.mark.parametrize("sizes", [{"intermediate_size": 48}, {"intermediate_size": 1}])
def test_a_checkpoint_of_another_size_is_refused_and_changes_nothing(state, tmp_path, sizes):
    other = make_state(tmp_path / "other", **sizes)
    folder = CheckpointStore(tmp_path / "checkpoints").save(other, {}, wait=True)
    before = {n: p.detach().clone() for n, p in state.model.trainable()}
    with pytest.raises(CheckpointError, match="does not belong to this model"):
        load_checkpoint(folder, state)
    assert all(torch.equal(p, before[n]) for n, p in state.model.trainable())


_FULL = """
import resource, signal, sys
from pathlib import Path
from educe.trainers.checkpoint import CheckpointStore
from tests.trainers.test_checkpoint import make_state
root = Path(sys.argv[1])
state = make_state(root / "model")
store = CheckpointStore(root / "checkpoints")
store.save(state, {"n": 1}, wait=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
state.step += 1
try:
    store.save(state, {"n": 2}, wait=True)
except Exception as error:
    print(type(error).__name__, error)
    print(store.load_newest(state).progress, [p.name for p in store.folder.iterdir()])
"""


def test_no_room_on_the_disk_keeps_the_last_checkpoint(tmp_path):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr[-2000:])
    assert "{'n': 1} ['step-00000000']" in done.stdout
    assert done.stdout.startswith("CheckpointError a checkpoint could not be written in")
    assert "step-00000000 stays whole" in done.stdout
