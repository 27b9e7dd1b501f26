"""Live sinks: the run's metrics, also where a team already looks.

A sink is a Recorder and a guest of the tee: if its service fails, the run goes on without it. What
it gets is a copy; the run store stays the record. TensorBoard's files, offline W&B's and MLflow's
(without ``MLFLOW_TRACKING_URI``) lie in the run folder; W&B obeys its own variables
(``WANDB_MODE``), trackio keeps one database for all runs (``TRACKIO_DIR``).

A resumed run continues under the same id. Steps that it repeats are replaced in TensorBoard; the
other services cannot take points back and show both.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from educe.core.errors import InfrastructureError, MissingExtraError, RecipeError, did_you_mean
from educe.core.protocols import MetricRow, Recorder
from educe.core.types import JSON
from educe.observability.event_metrics import evaluation_row
from educe.observability.recipe_diff import flatten
from educe.observability.run_store import RunStore

_PROJECT = "educe"


def load_extra(module: str, extra: str, purpose: str) -> Any:
    """Import an optional package; raises MissingExtraError naming the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.split(".")[0], extra, purpose) from error


def tag(stage: str, name: str) -> str:
    """Return a name that no other stage uses: ``domain/x/score`` becomes ``rl/domain/x/score``."""
    return name if name.startswith(f"{stage}/") else f"{stage}/{name}"


def tagged_values(row: MetricRow) -> dict[str, float]:
    return {tag(row.stage, name): float(value) for name, value in row.values.items()}


class TensorBoardSink:
    """Writes event files under ``folder``, one subfolder a stage.

    Raises MissingExtraError without the tensorboard package.
    """

    def __init__(self, folder: Path) -> None:
        purpose = "the TensorBoard sink"
        files = load_extra("tensorboard.summary.writer.event_file_writer", "tensorboard", purpose)
        self._new_writer: Callable[[str], Any] = files.EventFileWriter
        self._event = load_extra("tensorboard.compat.proto.event_pb2", "tensorboard", purpose)
        self._summary = load_extra("tensorboard.compat.proto.summary_pb2", "tensorboard", purpose)
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def record_metrics(self, row: MetricRow) -> None:
        self.write(row, time.time())

    def write(self, row: MetricRow, wall_time: float) -> None:
        """Write a row that was recorded at ``wall_time`` (seconds since the epoch)."""
        summary = self._summary.Summary
        points = [
            summary.Value(tag=name, simple_value=value)
            for name, value in tagged_values(row).items()
        ]
        event = self._event.Event(wall_time=wall_time, step=row.step, summary=summary(value=points))
        self._writer(row, wall_time).add_event(event)

    def _writer(self, row: MetricRow, wall_time: float) -> Any:
        writer = self._writers.get(row.stage)
        if writer is None:
            writer = self._writers[row.stage] = self._new_writer(str(self._folder / row.stage))
            # Tells readers to forget what an earlier attempt wrote of this step and later ones.
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            writer.add_event(
                self._event.Event(wall_time=wall_time, step=row.step, session_log=start)
            )
        return writer

    def record_sample(self, stage: str, step: int, sample: Mapping[str, JSON]) -> None:
        """Samples stay in the run store."""

    def record_event(self, kind: str, payload: Mapping[str, JSON]) -> None:
        row = evaluation_row(payload) if kind == "eval" else None
        if row is not None:
            self.record_metrics(row)
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


class WandbSink:
    """Logs to Weights & Biases; every stage has its own step axis (``rl/step``)."""

    def __init__(self, store: RunStore) -> None:
        wandb = load_extra("wandb", "wandb", "the W&B sink")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", _PROJECT),
                name=store.name,
                id=str(store.description["run_id"]),
                resume="allow",
                config=store.recipe,
                dir=str(store.folder),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except Exception as error:  # wandb's errors share no documented base
            raise InfrastructureError(
                f"cannot start the W&B sink: {error}. Log in (wandb login), set "
                f"WANDB_MODE=offline, or take wandb out of run.sinks"
            ) from error
        self._levels = wandb.AlertLevel
        self._stages: set[str] = set()

    def record_metrics(self, row: MetricRow) -> None:
        axis = f"{row.stage}/step"
        if row.stage not in self._stages:
            self._stages.add(row.stage)
            self._run.define_metric(axis)
            self._run.define_metric(f"{row.stage}/*", step_metric=axis)
        self._run.log({**tagged_values(row), axis: row.step})

    def record_sample(self, stage: str, step: int, sample: Mapping[str, JSON]) -> None:
        """Samples stay in the run store."""

    def record_event(self, kind: str, payload: Mapping[str, JSON]) -> None:
        row = evaluation_row(payload) if kind == "eval" else None
        if row is not None:
            self.record_metrics(row)
        if kind == "alarm":
            self._run.alert(
                title=f"educe: {payload.get('kind', 'alarm')}",
                text=str(payload.get("cause", "")),
                level=self._levels.WARN,
            )

    def close(self) -> None:
        self._run.finish()


class MlflowSink:
    """Logs to MLflow: the server of ``MLFLOW_TRACKING_URI``, else files in the run folder."""

    def __init__(self, store: RunStore) -> None:
        mlflow = load_extra("mlflow", "mlflow", "the MLflow sink")
        self._entities = load_extra("mlflow.entities", "mlflow", "the MLflow sink")
        target = os.environ.get("MLFLOW_TRACKING_URI")
        if not target:
            target = (store.folder / "mlruns").resolve().as_uri()
            # Newer releases ask for a database by default; one run's files need none.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            self._client = mlflow.tracking.MlflowClient(tracking_uri=target)
            self._run_id = self._find_or_create(store)
        except Exception as error:  # connection errors of several libraries
            raise InfrastructureError(
                f"cannot start the MLflow sink at {target}: {error}. Start the server, unset "
                f"MLFLOW_TRACKING_URI to write files, or take mlflow out of run.sinks"
            ) from error

    def _find_or_create(self, store: RunStore) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment is not None else None
        if experiment_id is None:
            experiment_id = self._client.create_experiment(name)
        run_id = str(store.description["run_id"])
        found = self._client.search_runs([experiment_id], f"tags.`educe.run_id` = '{run_id}'")
        if found:
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return str(found[0].info.run_id)
        run = self._client.create_run(
            experiment_id, tags={"educe.run_id": run_id}, run_name=store.name
        )
        params = [
            self._entities.Param(_mlflow_name(key), json.dumps(value, ensure_ascii=False)[:500])
            for key, value in flatten(store.recipe).items()
        ]
        for part in _chunks(params, 100):
            self._client.log_batch(run.info.run_id, params=part)
        return str(run.info.run_id)

    def record_metrics(self, row: MetricRow) -> None:
        now = int(time.time() * 1000)
        points = [
            self._entities.Metric(_mlflow_name(name), value, now, row.step)
            for name, value in tagged_values(row).items()
        ]
        for part in _chunks(points, 500):
            self._client.log_batch(self._run_id, metrics=part)

    def record_sample(self, stage: str, step: int, sample: Mapping[str, JSON]) -> None:
        """Samples stay in the run store."""

    def record_event(self, kind: str, payload: Mapping[str, JSON]) -> None:
        row = evaluation_row(payload) if kind == "eval" else None
        if row is not None:
            self.record_metrics(row)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class TrackioSink:
    """Logs to trackio's local database; ``trackio show`` opens it."""

    def __init__(self, store: RunStore) -> None:
        trackio = load_extra("trackio", "trackio", "the trackio sink")
        try:
            self._run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", _PROJECT),
                name=f"{store.name}-{store.description['run_id']}",
                config=flatten(store.recipe),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        except Exception as error:  # trackio wraps several libraries
            raise InfrastructureError(
                f"cannot start the trackio sink: {error}. Take trackio out of run.sinks, or set "
                f"TRACKIO_DIR to a writable folder"
            ) from error

    def record_metrics(self, row: MetricRow) -> None:
        finite = {k: v for k, v in tagged_values(row).items() if math.isfinite(v)}
        self._run.log(finite, step=row.step)

    def record_sample(self, stage: str, step: int, sample: Mapping[str, JSON]) -> None:
        """Samples stay in the run store."""

    def record_event(self, kind: str, payload: Mapping[str, JSON]) -> None:
        row = evaluation_row(payload) if kind == "eval" else None
        if row is not None:
            self.record_metrics(row)

    def close(self) -> None:
        self._run.finish()


_SINKS: dict[str, Callable[[RunStore], Recorder]] = {
    "tensorboard": lambda store: TensorBoardSink(store.folder / "tensorboard"),
    "wandb": WandbSink,
    "mlflow": MlflowSink,
    "trackio": TrackioSink,
}

# sink: (module that it needs, extra that brings it)
EXTRAS = {name: (name, name) for name in _SINKS}


def check_sinks(names: Iterable[str]) -> None:
    """Check the sinks of a recipe before anything starts.

    Raises RecipeError for an unknown name, MissingExtraError for a package that is not installed.
    """
    for name in names:
        if name not in _SINKS:
            raise RecipeError(
                f"run.sinks: expected some of {', '.join(_SINKS)}, got {name!r}."
                f"{did_you_mean(name, _SINKS)}"
            )
        module, extra = EXTRAS[name]
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(module, extra, f"the {name} sink of run.sinks")


def open_sinks(names: Iterable[str], store: RunStore) -> list[Recorder]:
    """Start the named sinks for a run; each is closed by the tee that it is given to.

    Raises what ``check_sinks`` raises, and InfrastructureError when a service does not answer.
    """
    names = tuple(names)
    check_sinks(names)
    return [_SINKS[name](store) for name in names]


def _chunks(items: list[Any], size: int) -> Iterable[list[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def _mlflow_name(name: str) -> str:
    """Replace the characters that MLflow refuses in names."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]
