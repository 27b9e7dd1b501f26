"""Checkpoints: safetensors and JSON, written beside and renamed, never half loaded.

    RUN/checkpoints/step-000120/   model.safetensors  optimizer.safetensors  state.json  COMPLETE
                                   frozen.safetensors where a run holds more (a refreshed reference)
    RUN/checkpoints/best.json      which one has the best value of the watched metric

No pickle anywhere. Tensors are stored whole, so a checkpoint loads at any number of ranks.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from educe.core.errors import CheckpointError
from educe.trainers.checkpoint_files import (
    COMPLETE,
    FORMAT_VERSION,
    complete_checkpoints,
    is_complete,
    read_progress,
    sync_path,
)
from educe.trainers.optimizers import restored
from educe.trainers.step import TrainerState


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint: ``progress`` is what the loop saved (stage, step, ledger …)."""

    folder: Path
    progress: dict[str, Any]


def optimizer_tensors(state: TrainerState) -> dict[str, torch.Tensor]:
    """Return the optimizer's per-parameter tensors as ``NAME|KEY``."""
    out: dict[str, torch.Tensor] = {}
    for name, parameter in state.trainable():
        for key, value in state.optimizer.state.get(parameter, {}).items():
            tensor = value if torch.is_tensor(value) else torch.tensor(float(value))
            out[f"{name}|{key}"] = tensor
    return out


def restore_optimizer(state: TrainerState, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put saved tensors back; every one must belong to a parameter that is trained."""
    parameters = dict(state.trainable())
    state.optimizer.state.clear()
    for flat, tensor in tensors.items():
        name, _, key = flat.rpartition("|")
        if name not in parameters:
            raise CheckpointError(
                f"the checkpoint's optimizer holds {name!r}, which this model does not train; "
                "resume with the recipe that wrote it"
            )
        parameter = parameters[name]
        value = restored(state.optimizer, parameter, key, tensor)
        state.optimizer.state[parameter][key] = value


def _model_tensors(state: TrainerState) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in state.trainable()}


class CheckpointStore:
    """Writes, keeps and finds a run's checkpoints.

    Args:
        folder: ``RUN/checkpoints``.
        keep: newest ones kept; the best one is kept besides.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep
        self._writer: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        state: TrainerState,
        progress: Mapping[str, Any],
        *,
        metric: float | None = None,
        needs: Collection[str] = (),
        wait: bool = False,
    ) -> Path:
        """Snapshot the state now and write it in the background; return its folder.

        Args:
            progress: JSON-able; must say everything that the loop needs to continue.
            metric: the watched value; the highest so far marks the best checkpoint.
            needs: names of older checkpoints that a run resumed from this one may go back to; they
                stay as long as it does.
            wait: return only when it is on disk.

        Raises:
            CheckpointError: this write (with ``wait``) or the one before it failed (a full disk,
                say); the last whole checkpoint stays.
        """
        self.wait()
        tensors = {n: t.clone().cpu() for n, t in _model_tensors(state).items()}
        moments = {n: t.clone().cpu() for n, t in optimizer_tensors(state).items()}
        # Frozen tensors are replaced as a whole, never changed in place: no copy is needed.
        frozen = dict(state.frozen)
        meta = {
            "format_version": FORMAT_VERSION,
            "trainer_step": state.step,
            "progress": dict(progress),
            "metric": metric,
            "needs": sorted(needs),
        }
        target = self._free_name(state.step)
        text = json.dumps(meta)
        self._writer = threading.Thread(
            target=self._write,
            args=(target, {"model": tensors, "optimizer": moments, "frozen": frozen}, text, metric),
            daemon=False,
        )
        self._writer.start()
        if wait:
            self.wait()
        return target

    def next_name(self, state: TrainerState) -> str:
        """Return the name that a save of this state would have now."""
        self.wait()
        return self._free_name(state.step).name

    def _free_name(self, step: int) -> Path:
        """Return a name that sorts after all of the same step (a stage's end, then a stop).

        A whole checkpoint is never replaced in place: a kill in between would leave none.
        """
        name = f"step-{step:08d}"
        # Beyond the last one, not the first gap: names of removed checkpoints sort too early.
        same = sorted(f.name for f in self.folder.glob(f"{name}*"))
        if not same:
            return self.folder / name
        last = same[-1].removeprefix(name).lstrip("-")
        return self.folder / f"{name}-{int(last or 0) + 1:06d}"

    def wait(self) -> None:
        """Wait for the write in progress; raise CheckpointError when it failed."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._error is not None:
            error, self._error = self._error, None
            whole = self.complete()
            kept = f"{whole[-1]} stays whole" if whole else "there is none yet to resume from"
            raise CheckpointError(
                f"a checkpoint could not be written in {self.folder}: {error}; {kept}. "
                "Make room or correct the folder's rights, then continue with --resume"
            ) from error

    def _write(
        self,
        target: Path,
        files: dict[str, dict[str, torch.Tensor]],
        text: str,
        metric: float | None,
    ) -> None:
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            for name, tensors in files.items():
                if tensors or name != "frozen":
                    save_file(tensors, beside / f"{name}.safetensors")
            (beside / "state.json").write_text(text, encoding="utf-8")
            (beside / COMPLETE).write_text("", encoding="utf-8")
            for file in beside.iterdir():
                sync_path(file)
            beside.rename(target)
            sync_path(self.folder)
            self._mark_best(target, metric)
            self._clean()
        except BaseException as error:
            shutil.rmtree(beside, ignore_errors=True)
            self._error = error

    def _mark_best(self, target: Path, metric: float | None) -> None:
        if metric is None or metric != metric:
            return
        best = self.best()
        if best is None or metric > best[1]:
            file = self.folder / "best.json"
            beside = file.with_suffix(".part")
            beside.write_text(json.dumps({"name": target.name, "metric": metric}))
            beside.replace(file)

    def best(self) -> tuple[Path, float] | None:
        """Return the best checkpoint's folder and value, None before there is one."""
        try:
            raw = json.loads((self.folder / "best.json").read_text())
        except (OSError, ValueError):
            return None
        folder = self.folder / raw["name"]
        return (folder, raw["metric"]) if is_complete(folder) else None

    def complete(self) -> list[Path]:
        """Return whole checkpoints, oldest first."""
        return complete_checkpoints(self.folder)

    def _clean(self) -> None:
        kept = self._kept()
        for folder in self.complete():
            if folder.name not in kept:
                # The mark goes first: what is half removed must not pass for whole.
                (folder / COMPLETE).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
        for folder in self.folder.glob("step-*"):
            if not (folder / COMPLETE).exists():
                shutil.rmtree(folder, ignore_errors=True)
        for part in self.folder.glob(".step-*.part"):
            if not part.name.endswith(f".{os.getpid()}.part"):
                shutil.rmtree(part, ignore_errors=True)

    def _kept(self) -> set[str]:
        """Return the names that stay: the newest, what they need, and the best one."""
        newest = self.complete()[-self.keep :]
        best = self.best()
        kept = {f.name for f in newest} | ({best[0].name} if best else set())
        return kept.union(*(read_progress(f).get("needs", ()) for f in newest))

    def mark_missed(self) -> None:
        """Mark the best one again: a kill may have come between a checkpoint and its mark."""
        for folder in self.complete():
            self._mark_best(folder, read_progress(folder).get("metric"))

    def load_newest(self, state: TrainerState) -> Checkpoint | None:
        """Load the newest whole checkpoint into the state; None when there is none."""
        found = self.complete()
        return load_checkpoint(found[-1], state) if found else None


def load_checkpoint(folder: Path, state: TrainerState) -> Checkpoint:
    """Load weights, optimizer and step into ``state``.

    Raises:
        CheckpointError: when the checkpoint is not whole, or of another model.
    """
    meta = read_progress(folder)
    saved = load_file(folder / "model.safetensors")
    moments = load_file(folder / "optimizer.safetensors")
    held = folder / "frozen.safetensors"
    own = dict(state.trainable())
    if saved.keys() != own.keys():
        odd = sorted(saved.keys() ^ own.keys())[:3]
        raise CheckpointError(
            f"{folder} does not belong to this model: its tensors differ, e.g. {', '.join(odd)}"
        )
    for name, parameter in own.items():
        # Without this a tensor of another size would be broadcast, or fail half-way through.
        if saved[name].shape != parameter.shape:
            raise CheckpointError(
                f"{folder} does not belong to this model: {name} is {tuple(saved[name].shape)} "
                f"there and {tuple(parameter.shape)} here; resume with the recipe that wrote it"
            )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(saved[name])
    restore_optimizer(state, moments)
    state.frozen = load_file(held) if held.exists() else {}
    state.step = meta["trainer_step"]
    return Checkpoint(folder, meta["progress"])
