"""Sinks and exporters, read back with the very packages they write for (skipped without them)."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from educe.core.errors import MissingExtraError, RecipeError
from educe.core.protocols import MetricRow, Recorder
from educe.core.types import Fault, Message, Score, StopReason, Turn
from educe.observability import sinks
from educe.observability.exporters import export_csv, export_tensorboard
from educe.observability.recording import recording
from educe.observability.run_store import RunStore
from educe.observability.sinks import check_sinks, open_sinks
from educe.observability.tee import TeeRecorder

EVALUATION = {"step": 3, "domains": {"rg/gcd": {"score": 0.75}, "none": {"score": None}}}


def needs(package: str) -> pytest.MarkDecorator:
    is_missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(is_missing, reason=f"{package} is not installed")


# What the packages themselves warn about is not ours to fix.
others_warnings = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    recipe = {"run": {"name": "demo"}, "domains": {"rg/gcd": {"weight": 1.0}}}
    store = RunStore.create(tmp_path / "demo", recipe)
    yield store
    store.close()


def record(recorder: Recorder) -> None:
    recorder.record_metrics(MetricRow("sft", 1, {"sft/loss": 2.5}))
    for step in (1, 2, 3):
        values = {"rl/reward": step / 4, "domain/rg/gcd/score": step / 8}
        recorder.record_metrics(MetricRow("rl", step, values))
    recorder.record_metrics(MetricRow("rl", 4, {"rl/reward": math.nan}))
    recorder.record_sample("rl", 1, {"domain": "rg/gcd"})
    recorder.record_event("alarm", {"kind": "kl_blow_up", "cause": "far away"})
    recorder.record_event("eval", EVALUATION)


@pytest.mark.parametrize("name", sorted(sinks.EXTRAS))
def test_a_missing_package_is_named_at_construction(
    store: RunStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name that surely is not installed stands for the package.
    monkeypatch.setitem(sinks.EXTRAS, name, ("no_such_package_of_ours", name))
    expected = rf"the {name} sink .*'no_such_package_of_ours'.*pip install 'educe\[{name}\]'"
    with pytest.raises(MissingExtraError, match=expected):
        open_sinks([name], store)


@pytest.mark.parametrize("name", sorted(sinks.EXTRAS))
def test_sinks_without_their_package_fail_by_themselves(store: RunStore, name: str) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(MissingExtraError, match=rf"educe\[{name}\]"):
        sinks._SINKS[name](store)


def test_an_unknown_sink_gets_the_nearest_name() -> None:
    with pytest.raises(RecipeError, match=r"got 'tensorbord'.*mean 'tensorboard'"):
        check_sinks(["tensorbord"])


def read_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(e.step, e.value) for e in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


@needs("tensorboard")
@others_warnings
def test_tensorboard_reads_what_the_sink_wrote(store: RunStore) -> None:
    tee = TeeRecorder(store, *open_sinks(["tensorboard"], store))
    record(tee)
    tee.close()
    folder = store.folder / "tensorboard"
    read = read_tensorboard(folder / "rl")
    assert read["rl/domain/rg/gcd/score"] == [(1, 0.125), (2, 0.25), (3, 0.375)]
    assert read["rl/reward"][:3] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert read_tensorboard(folder / "sft") == {"sft/loss": [(1, 2.5)]}
    assert read_tensorboard(folder / "eval") == {"eval/domain/rg/gcd/score": [(3, 0.75)]}
    assert not store.events("sink_failed")


@needs("tensorboard")
@others_warnings
def test_tensorboard_forgets_the_steps_that_a_resume_repeats(store: RunStore) -> None:
    for first, last, value in ((1, 5, 0.0), (3, 4, 1.0)):
        (sink,) = open_sinks(["tensorboard"], store)
        for step in range(first, last + 1):
            sink.record_metrics(MetricRow("rl", step, {"rl/x": value}))
        sink.close()
    read = read_tensorboard(store.folder / "tensorboard" / "rl")
    assert read["rl/x"] == [(1, 0.0), (2, 0.0), (3, 1.0), (4, 1.0)]


@needs("tensorboard")
@others_warnings
def test_the_tensorboard_export_counts_repeated_steps_once(store: RunStore, tmp_path: Path) -> None:
    record(store)
    second = RunStore.resume(store.folder)
    second.record_metrics(MetricRow("rl", 3, {"rl/reward": 0.5}))
    folders = export_tensorboard(second, tmp_path / "out")
    assert [f.name for f in folders] == ["sft", "rl", "eval"]
    read = read_tensorboard(tmp_path / "out" / "rl")
    assert read["rl/reward"] == [(1, 0.25), (2, 0.5), (3, 0.5)]


def test_the_tensorboard_export_names_its_extra(store: RunStore, tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorboard") is not None:
        pytest.skip("tensorboard is installed")
    with pytest.raises(MissingExtraError, match=r"educe\[tensorboard\]"):
        export_tensorboard(store, tmp_path / "out")


@needs("wandb")
@others_warnings
def test_wandb_offline_keeps_the_history(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    tee = TeeRecorder(store, *open_sinks(["wandb"], store))
    record(tee)
    tee.close()
    assert not store.events("sink_failed")
    importlib.import_module("wandb").teardown()  # its service process writes the file to the end
    (file,) = store.folder.glob("wandb/offline-run-*/*.wandb")
    history = read_wandb(file)
    rewards = [(float(h["rl/step"]), h["rl/reward"]) for h in history if "rl/reward" in h]
    assert rewards[:3] == [(1, "0.25"), (2, "0.5"), (3, "0.75")]
    assert [h["eval/domain/rg/gcd/score"] for h in history if "eval/step" in h] == ["0.75"]


def read_wandb(file: Path) -> list[dict[str, Any]]:
    """Read the history: a 7-byte head, then log blocks of 32 KiB (checksum, length, kind)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, rows, pending = file.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # too little left of this block for a record's head
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        pending += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record, pending = Record.FromString(pending), b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({"/".join(i.nested_key) or i.key: i.value_json for i in items})
    return rows


@needs("mlflow")
@others_warnings
def test_mlflow_reads_what_the_sink_wrote_and_a_resume_continues(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tee = TeeRecorder(store, *open_sinks(["mlflow"], store))
    record(tee)
    tee.close()
    assert not store.events("sink_failed")
    (again,) = open_sinks(["mlflow"], store)
    again.record_metrics(MetricRow("rl", 5, {"rl/reward": 1.0}))
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(store.folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("educe")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "rl/reward")
    found = sorted((m.step, m.value) for m in history if m.value == m.value)
    assert found == [(1, 0.25), (2, 0.5), (3, 0.75), (5, 1.0)]
    assert run.data.params["domains._rg/gcd_.weight"] == "1.0"


@needs("trackio")
@others_warnings
def test_trackio_reads_what_the_sink_wrote(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trackio.utils
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr(trackio.utils, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    tee = TeeRecorder(store, *open_sinks(["trackio"], store))
    record(tee)
    tee.close()
    assert not store.events("sink_failed")
    (name,) = SQLiteStorage.get_runs("educe")
    logs = SQLiteStorage.get_logs("educe", name)
    rewards = [(row["step"], row["rl/reward"]) for row in logs if "rl/reward" in row]
    assert rewards == [(1, 0.25), (2, 0.5), (3, 0.75)]


class Broken:
    """A guest whose service is down; the real thing cannot be broken at will."""

    def __init__(self) -> None:
        self.num_calls = 0

    def record_metrics(self, row: MetricRow) -> None:
        self.num_calls += 1
        raise ConnectionError("service down")

    record_sample = record_event = record_metrics  # type: ignore[assignment]


def test_a_failing_guest_is_dropped_and_the_run_goes_on(store: RunStore) -> None:
    broken = Broken()
    tee = TeeRecorder(store, broken)
    for step in (1, 2, 3):
        tee.record_metrics(MetricRow("rl", step, {"rl/x": 1.0}))
    tee.close()
    assert broken.num_calls == 1
    assert [r.step for r in store.metrics()] == [1, 2, 3]
    (event,) = store.events("sink_failed")
    assert event.payload == {"sink": "Broken", "error": "ConnectionError: service down"}


def test_a_look_at_the_goal_becomes_metrics_of_its_step(store: RunStore) -> None:
    tee = TeeRecorder(store)
    tee.record_metrics(MetricRow("rl", 9, {"rl/reward": 0.5}))
    tee.record_event("goal", {"stage": "rl", "step": 10, "scores": {"a/b": 0.25, "c": 0.75}})
    tee.record_event("goal", {"stage": "rl", "step": 20, "scores": {}})
    (row,) = store.metrics()
    assert row.step == 9 and row.values == {
        "rl/reward": 0.5,
        "rl/screen_score": 0.5,
        "domain/a/b/screen_score": 0.25,
        "domain/c/screen_score": 0.75,
    }


def test_recording_puts_everything_together_and_tells_the_outcome(tmp_path: Path) -> None:
    out = io.StringIO()
    store = RunStore.create(tmp_path / "run", {})
    with pytest.raises(KeyError), recording(store, stream=out) as recorder:
        recorder.record_metrics(MetricRow("rl", 0, {"rl/reward": 0.5, "rl/mismatch": 0.5}))
        raise KeyError("boom")
    again = RunStore.open(store.folder)
    assert again.info().status == "failed"
    assert [e.payload["kind"] for e in again.events("alarm")] == ["engine_mismatch"]
    lines = out.getvalue().splitlines()
    assert lines[0] == "rl step 0  reward 0.500  mismatch 0.500"
    assert lines[1].startswith("ALARM engine_mismatch at step 0: engine and trainer differ by 0.5")


def test_recording_starts_nothing_with_a_wrong_sink(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", {})
    with pytest.raises(RecipeError, match="wandbb"), recording(store, sinks=["wandbb"]):
        pytest.fail("must not start")


def test_the_stores_own_errors_reach_the_loop(store: RunStore) -> None:
    store.record_event("x", {})
    store._writer.close()  # type: ignore[union-attr]
    with pytest.raises(Exception, match="is closed"):
        TeeRecorder(store).record_event("y", {})


def test_csv_has_a_row_a_step_and_a_row_a_sample(store: RunStore, tmp_path: Path) -> None:
    record(store)
    turn = Turn((1, 2), (3, 4, 5), (-0.1,) * 3, (0,) * 3, StopReason.LENGTH, 1.0)
    store.record_sample(
        "rl",
        2,
        {
            "domain": "rg/gcd",
            "messages": [Message("user", "2, 4?").to_json(), Message("assistant", "=2").to_json()],
            "turns": [turn.to_json()],
            "score": Score.unscored(Fault.GRADER, "timed out").to_json(),
        },
    )
    paths = export_csv(store, tmp_path / "out")
    assert [p.name for p in paths] == ["metrics.csv", "samples.csv", "events.csv"]
    metrics, samples, events = (list(csv.DictReader(io.StringIO(p.read_text()))) for p in paths)
    assert [(r["stage"], r["step"]) for r in metrics] == [
        ("sft", "1"),
        *(("rl", str(s)) for s in (1, 2, 3, 4)),
    ]
    assert metrics[0]["rl/reward"] == "" and metrics[2]["rl/reward"] == "0.5"
    assert samples[1]["verdict"] == "unscored" and samples[1]["fault"] == "grader"
    assert samples[1]["completion_tokens"] == "3" and samples[1]["stop_reason"] == "length"
    assert samples[1]["prompt"] == "2, 4?"
    assert samples[1]["completion"] == "'=2"  # no formula for the spreadsheet
    assert [e["kind"] for e in events] == ["alarm", "eval"]
