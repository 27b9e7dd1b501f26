"""Evaluation during training: the loss on held-out examples, the best weights, when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from educe.config.settings import WatchSettings
from educe.core.metrics import Tally
from educe.trainers.step import TrainerState

Measure = Callable[[], Tally]


class BestWatch:
    """Looks at held-out examples every so many steps.

    The best weights lie in ``folder`` (RUN/best/STAGE), named by their step; only the best so far
    is kept. A run that was killed after it replaced the best of its last checkpoint finds none when
    it resumes, and begins to compare anew: it will take the same looks again.

    Args:
        measure: the loss on held-out examples, as a tally with ``eval_loss``; on every rank.
        total: steps of the stage; the last one is always looked at.
    """

    def __init__(
        self,
        settings: WatchSettings,
        state: TrainerState,
        measure: Measure,
        folder: Path,
        total: int,
    ) -> None:
        self.settings, self._state, self._measure = settings, state, measure
        self._folder, self._total = folder, total
        self.best_step: int | None = None
        self.best_loss = math.inf
        self.num_worse = 0

    @property
    def is_on(self) -> bool:
        return self.settings.every > 0

    @property
    def should_stop(self) -> bool:
        """Whether ``patience`` looks in a row were no better."""
        return 0 < self.settings.patience <= self.num_worse

    def is_due(self, done: int) -> bool:
        """Return whether to look after ``done`` steps."""
        return self.is_on and (done % self.settings.every == 0 or done == self._total)

    def look(self, done: int) -> dict[str, float]:
        """Measure; remember the weights when they are the best so far. Returns the metrics."""
        values = self._measure().values()
        loss = values.get("eval_loss", math.nan)
        if loss < self.best_loss - self.settings.min_improvement:
            self.best_loss, self.best_step, self.num_worse = loss, done, 0
            self._keep(done)
        else:
            self.num_worse += 1
        return values | {"eval_best_loss": self.best_loss}

    def finish(self) -> int | None:
        """Put the best weights back; return the step they are from, None when there are none."""
        self._state.collectives.barrier()  # rank 0 may still be writing
        file = self._file(self.best_step)
        if not (self.is_on and self.settings.keep_best) or file is None or not file.exists():
            return None
        saved = load_file(file)
        with torch.no_grad():
            for name, parameter in self._state.trainable():
                parameter.copy_(saved[name])
        return self.best_step

    def progress(self) -> dict[str, Any]:
        loss = self.best_loss if math.isfinite(self.best_loss) else None
        return {"step": self.best_step, "loss": loss, "worse": self.num_worse}

    def restore(self, saved: Mapping[str, Any]) -> None:
        file = self._file(saved["step"])
        if self.settings.keep_best and file is not None and not file.exists():
            return
        self.best_step = saved["step"]
        self.best_loss = math.inf if saved["loss"] is None else saved["loss"]
        self.num_worse = saved["worse"]

    def _file(self, step: int | None) -> Path | None:
        return None if step is None else self._folder / f"step-{step:08d}.safetensors"

    def _keep(self, step: int) -> None:
        file = self._file(step)
        if not self.settings.keep_best or file is None or self._state.collectives.rank != 0:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".part")
        tensors = {n: p.detach().clone().cpu() for n, p in self._state.trainable()}
        save_file(tensors, beside)
        beside.replace(file)
        for old in self._folder.glob("step-*.safetensors"):
            if old != file:
                old.unlink()
