"""The run store: nothing lost, nothing counted twice, whatever dies while it writes."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from educe.core.errors import InfrastructureError, RecipeError
from educe.core.protocols import MetricRow, Recorder
from educe.core.types import Fault, Message, Score
from educe.observability.run_reader import SampleFilter
from educe.observability.run_store import RunStore
from educe.observability.segments import segment_paths

RECIPE = {"run": {"name": "t", "seed": 1}, "stages": ["rl"]}


def row(step: int, stage: str = "rl", **values: float) -> MetricRow:
    return MetricRow(stage, step, {f"{stage}/{k}": v for k, v in values.items()})


def sample(domain: str = "a/b", score: Score | None = None, reward: float | None = 1.0, i: int = 0):
    return {
        "request_id": 7,
        "sample_index": i,
        "domain": domain,
        "task_id": f"{domain}:train:0",
        "split": "train",
        "messages": [Message("user", "2+2?").to_json(), Message("assistant", "4").to_json()],
        "turns": [],
        "score": (score or Score.right()).to_json(),
        "reward": reward,
        "advantage": 0.5,
    }


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run", RECIPE)


def test_records_come_back_as_they_were_written(store: RunStore) -> None:
    recorder: Recorder = store
    recorder.record_metrics(row(1, reward=0.25, kl_k1=-1e-9))
    recorder.record_sample("rl", 1, sample())
    recorder.record_event("checkpoint", {"step": 1, "path": "c/1"})
    again = RunStore.open(store.folder)
    assert again.metrics() == [row(1, reward=0.25, kl_k1=-1e-9)]
    (stored,) = again.samples()
    assert (stored.stage, stored.step, stored.attempt) == ("rl", 1, 1)
    assert stored.body == sample()
    (event,) = again.events("checkpoint")
    assert event.payload == {"step": 1, "path": "c/1"}
    assert again.recipe == RECIPE
    assert again.series("rl/reward") == [(1, 0.25)]


def test_rows_of_one_step_are_merged_and_steps_rise(store: RunStore) -> None:
    store.record_metrics(row(2, loss=1.0))
    store.record_metrics(row(1, reward=0.5))
    store.record_metrics(row(1, loss=2.0, reward=0.75))
    assert store.metrics("rl") == [row(1, reward=0.75, loss=2.0), row(2, loss=1.0)]
    assert store.metrics("rl", after_step=1) == [row(2, loss=1.0)]


def test_stages_come_in_the_order_in_which_they_began(store: RunStore) -> None:
    for stage in ("sft", "rl", "eval"):
        store.record_metrics(row(1, stage, loss=1.0))
    store.record_metrics(row(2, "sft", loss=0.5))
    assert store.stages() == ["sft", "rl", "eval"]
    assert [(r.stage, r.step) for r in store.metrics()] == [
        ("sft", 1),
        ("sft", 2),
        ("rl", 1),
        ("eval", 1),
    ]


def test_create_refuses_a_folder_with_a_run(store: RunStore) -> None:
    with pytest.raises(RecipeError, match=r"already holds a run.*--resume"):
        RunStore.create(store.folder, RECIPE)


def test_open_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"holds no run: .*run\.json does not exist"):
        RunStore.open(tmp_path / "nothing")


def test_a_newer_format_is_refused_by_its_number(store: RunStore) -> None:
    path = store.folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 99}))
    with pytest.raises(InfrastructureError, match=r"schema version 99.*reads up to 1"):
        RunStore.open(store.folder)


def test_a_step_done_twice_counts_once(store: RunStore) -> None:
    for step in range(1, 11):
        store.record_metrics(row(step, reward=step))
        store.record_sample("rl", step, sample())
    second = RunStore.resume(store.folder)
    assert second.attempt == 2
    for step in (8, 9):
        second.record_metrics(row(step, reward=100 + step))
        second.record_sample("rl", step, sample())
    steps, values = zip(*second.series("rl/reward"), strict=True)
    # Step 10 was done by the abandoned attempt only: it is not part of the run's history.
    assert steps == tuple(range(1, 10))
    assert values == (1, 2, 3, 4, 5, 6, 7, 108, 109)
    assert [s.step for s in second.samples()] == list(range(1, 10))
    assert {s.attempt for s in second.samples() if s.step > 7} == {2}
    assert second.counts()["metrics"] == 12


def test_a_declared_start_counts_before_the_first_record(store: RunStore) -> None:
    for step in range(1, 6):
        store.record_metrics(row(step, reward=step))
    RunStore.resume(store.folder, next_step={"rl": 4})
    assert [s for s, _ in store.series("rl/reward")] == [1, 2, 3]


def test_other_stages_are_left_alone_by_a_resume(store: RunStore) -> None:
    store.record_metrics(row(5, "sft", loss=1.0))
    store.record_metrics(row(1, "rl", reward=1.0))
    second = RunStore.resume(store.folder)
    second.record_metrics(row(1, "rl", reward=2.0))
    assert second.series("sft/loss") == [(5, 1.0)]
    assert second.series("rl/reward") == [(1, 2.0)]


def test_three_attempts_newest_wins(store: RunStore) -> None:
    store.record_metrics(row(1, reward=1.0))
    store.record_metrics(row(2, reward=1.0))
    second = RunStore.resume(store.folder)
    second.record_metrics(row(2, reward=2.0))
    second.record_metrics(row(3, reward=2.0))
    third = RunStore.resume(store.folder)
    third.record_metrics(row(3, reward=3.0))
    assert third.series("rl/reward") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_changed_recipe_of_a_resume_is_the_recipe(store: RunStore) -> None:
    RunStore.resume(store.folder, recipe_json={"rl": {"steps": 9}})
    assert RunStore.open(store.folder).recipe == {"rl": {"steps": 9}}


def test_non_finite_numbers_survive_and_the_lines_stay_json(store: RunStore) -> None:
    store.record_metrics(row(1, a=float("nan"), b=float("inf"), c=-float("inf"), d=1.0))
    store.record_event("non_finite", {"norms": [float("nan"), np.float32(2.0)]})
    (values,) = [r.values for r in store.metrics()]
    assert np.isnan(values["rl/a"]) and values["rl/b"] == np.inf and values["rl/c"] == -np.inf
    text = segment_paths(store.folder)[0].read_text()
    for line in text.splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_odd_values_are_taken_or_refused_by_name(store: RunStore) -> None:
    store.record_metrics(MetricRow("rl", 1, {"rl/x": np.float32(0.5), "rl/y": True}))
    store.record_sample("rl", 1, {**sample(), "extra": np.arange(3), "text": "\ud800\x00é"})
    (stored,) = store.samples()
    assert stored.body["extra"] == [0, 1, 2] and stored.body["text"] == "\ud800\x00é"
    with pytest.raises(TypeError, match="JSON values only, got object"):
        store.record_event("x", {"bad": object()})


KILLED = """
import sys
from educe.core.protocols import MetricRow
from educe.observability.run_store import RunStore
store = RunStore.resume(sys.argv[1])
for step in range(int(sys.argv[2]), 10**9):
    store.record_metrics(MetricRow("rl", step, {"rl/reward": float(step)}))
    store.record_sample("rl", step, {"domain": "d", "text": "x" * 1000})
    print(step, flush=True)
"""


def test_kill_9_loses_at_most_the_torn_line(store: RunStore) -> None:
    first = 1
    for num_lines in (1, 20, 50):  # each time resumed, and killed while it writes
        command = [sys.executable, "-c", KILLED, str(store.folder), str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            told = [int(child.stdout.readline()) for _ in range(num_lines)]
            if first == 1:
                assert store.info().status == "running"
            child.send_signal(signal.SIGKILL)
            told += [int(line) for line in child.stdout.read().splitlines()]
        again = RunStore.open(store.folder)
        assert again.info().status == "stopped"
        steps = [s for s, _ in again.series("rl/reward")]
        assert steps == list(range(1, steps[-1] + 1)) and steps[-1] - told[-1] in (0, 1)
        assert [s.step for s in again.samples(SampleFilter(step=told[-1]))] == [told[-1]]
        assert again.counts()["damaged"] == 0
        first = told[-1] // 2 + 1  # the checkpoint was older than the death


def test_a_torn_last_line_is_skipped_at_every_cut(store: RunStore) -> None:
    for step in (1, 2, 3):
        store.record_metrics(row(step, reward=step))
    path = segment_paths(store.folder)[0]
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(start, len(whole)):
        (store.folder / "index.sqlite").unlink(missing_ok=True)
        path.write_bytes(whole[:cut])
        assert [s for s, _ in RunStore.open(store.folder).series("rl/reward")] == [1, 2]


def test_a_line_being_written_is_read_once_it_is_whole(store: RunStore) -> None:
    store.record_metrics(row(1, reward=1))
    path = segment_paths(store.folder)[0]
    line = path.read_bytes().replace(b'"step":1', b'"step":2')
    with path.open("ab") as stream:
        stream.write(line[:20])
    assert [r.step for r in store.metrics()] == [1]
    with path.open("ab") as stream:
        stream.write(line[20:])
    assert [r.step for r in store.metrics()] == [1, 2]


def test_damage_in_the_middle_costs_that_line_only(store: RunStore) -> None:
    for step in (1, 2, 3):
        store.record_metrics(row(step, reward=step))
    path = segment_paths(store.folder)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"k":"metrics","t"\x00\n' + lines[2])
    assert [s for s, _ in store.series("rl/reward")] == [1, 3]
    assert store.counts() == {"metrics": 2, "samples": 0, "events": 0, "damaged": 1}


WRITERS = """
import os, sys
from educe.core.protocols import MetricRow
from educe.observability.run_store import RunStore
store = RunStore.open(sys.argv[1])
store.record_event("parent", {})
children = []
for writer in range(64):
    child = os.fork()
    if child == 0:
        for i in range(25):
            store.record_metrics(MetricRow("rl", writer * 25 + i, {"rl/x": float(writer)}))
            store.record_sample("rl", i, {"domain": f"d{writer}", "text": "y" * 200})
        store.record_event("done", {"writer": writer})
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


def test_64_processes_count_in_equals_count_out(store: RunStore) -> None:
    command = [sys.executable, "-c", WRITERS, str(store.folder)]
    with subprocess.Popen(command) as child:
        while child.poll() is None:  # a reader works beside the writers all the time
            store.counts()
    assert child.returncode == 0
    assert len(segment_paths(store.folder)) == 65  # one each: no process appends to another's
    counts = store.counts()
    assert counts == {"metrics": 1600, "samples": 1600, "events": 65, "damaged": 0}
    assert [s for s, _ in store.series("rl/x")] == list(range(1600))
    assert {e.payload["writer"] for e in store.events("done")} == set(range(64))


def test_64_threads_share_one_store(store: RunStore) -> None:
    def write(writer: int) -> None:
        for i in range(25):
            store.record_metrics(row(writer * 25 + i, x=i))

    threads = [threading.Thread(target=write, args=(w,)) for w in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(segment_paths(store.folder)) == 1
    assert store.counts()["metrics"] == 1600
    assert [r.step for r in store.metrics()] == list(range(1600))


def test_readers_of_one_index_do_not_count_twice(store: RunStore) -> None:
    for step in range(500):
        store.record_metrics(row(step, x=step))
    readers = [RunStore.open(store.folder) for _ in range(8)]
    threads = [threading.Thread(target=reader.counts) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reader.counts()["metrics"] for reader in readers} == {500}


def test_a_full_disk_is_told_once_and_damages_nothing(store: RunStore) -> None:
    store.record_metrics(row(1, reward=1.0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(InfrastructureError, match=r"disk is full.*records before it are whole"):
            for step in range(2, 1000):
                store.record_metrics(row(step, reward=step))
        for _ in range(5):
            store.record_sample("rl", step, {"text": "z" * 40_000})  # refused in silence
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.num_dropped == 6
    store.record_metrics(row(step + 1, reward=0.0))  # space is back: goes on
    assert [r.step for r in store.metrics()] == [*range(1, step), step + 1]
    assert store.counts()["damaged"] == 0


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match=r"cannot write .*run\.json.*run\.out"):
        RunStore.create(tmp_path / "file" / "run", RECIPE)


def test_the_index_can_be_lost_damaged_or_of_another_version(store: RunStore) -> None:
    for step in (1, 2):
        store.record_metrics(row(step, reward=step))
    index = store.folder / "index.sqlite"
    assert len(RunStore.open(store.folder).metrics()) == 2
    index.unlink()
    assert len(RunStore.open(store.folder).metrics()) == 2
    index.write_bytes(b"this is no database" * 100)
    assert len(RunStore.open(store.folder).metrics()) == 2
    damaged = bytearray(index.read_bytes())
    damaged[4096:] = os.urandom(len(damaged) - 4096)
    index.write_bytes(damaged)
    assert len(RunStore.open(store.folder).metrics()) == 2
    index.unlink()
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA user_version = 77")
        connection.execute("CREATE TABLE metrics(other TEXT)")
    connection.close()
    assert len(RunStore.open(store.folder).metrics()) == 2


def test_an_index_that_cannot_be_written_lives_in_memory(store: RunStore) -> None:
    store.record_metrics(row(1, reward=1.0))
    (store.folder / "index.sqlite").mkdir()
    again = RunStore.open(store.folder)
    assert len(again.metrics()) == 1
    store.record_metrics(row(2, reward=1.0))
    assert len(again.metrics()) == 2


def test_status_follows_the_process(store: RunStore) -> None:
    assert store.info().status == "new"
    with store:
        store.record_metrics(row(3, reward=1.0))
        assert RunStore.open(store.folder).info().status == "running"
    info = RunStore.open(store.folder).info()
    assert info.status == "finished" and info.last_steps == {"rl": 3} and info.num_attempts == 1
    with pytest.raises(KeyError), RunStore.resume(store.folder) as second:
        second.record_metrics(row(4, reward=1.0))
        raise KeyError("boom")
    info = RunStore.open(store.folder).info()
    assert info.status == "failed" and info.num_attempts == 2
    assert "KeyError" in store.events("process_end")[-1].payload["error"]


def test_a_run_that_was_asked_to_stop_is_stopped_until_it_goes_on(store: RunStore) -> None:
    with store:
        store.record_event("stopped", {"stage": "rl", "reason": "SIGINT"})
    assert RunStore.open(store.folder).info().status == "stopped"
    with RunStore.resume(store.folder) as second:
        second.record_metrics(row(4, reward=1.0))
    assert RunStore.open(store.folder).info().status == "finished"


def test_a_pickled_store_writes_a_segment_of_its_own(store: RunStore) -> None:
    store.record_metrics(row(1, reward=1.0))
    copy = pickle.loads(pickle.dumps(store))
    copy.record_metrics(row(2, reward=2.0))
    assert len(segment_paths(store.folder)) == 2 and copy.attempt == 1
    assert [r.step for r in store.metrics()] == [1, 2]


@pytest.fixture
def mixed(store: RunStore) -> RunStore:
    store.record_sample("rl", 1, sample("rg/gcd/easy", Score.right(), 1.0))
    store.record_sample("rl", 1, sample("rg/gcd/easy", Score.wrong(), 0.0, i=1))
    store.record_sample("rl", 2, sample("code/[x]", Score.graded(0.5), 0.5))
    store.record_sample("rl", 3, sample("code/[x]", Score.unscored(Fault.GRADER, "died"), None))
    return store


@pytest.mark.parametrize(
    ("wanted", "steps"),
    [
        (SampleFilter(), [1, 1, 2, 3]),
        (SampleFilter(domain="rg/*"), [1, 1]),
        (SampleFilter(domain="code/[x]"), [2, 3]),
        (SampleFilter(domain="nothing"), []),
        (SampleFilter(verdict="wrong"), [1]),
        (SampleFilter(verdict="unscored"), [3]),
        (SampleFilter(min_reward=0.5), [1, 2]),
        (SampleFilter(max_reward=0.5), [1, 2]),
        (SampleFilter(step=2), [2]),
        (SampleFilter(stage="sft"), []),
        (SampleFilter(split="eval"), []),
        (SampleFilter(limit=2, newest_first=True), [3, 2]),
        (SampleFilter(domain="code/*", limit=1), [2]),
    ],
)
def test_samples_are_filtered(mixed: RunStore, wanted: SampleFilter, steps: list[int]) -> None:
    assert [s.step for s in mixed.samples(wanted)] == steps


def test_the_writer_keeps_nothing_in_memory(store: RunStore) -> None:
    import tracemalloc

    big = sample()
    for step in range(50):
        store.record_sample("rl", step, big)
    tracemalloc.start()
    for step in range(50, 1050):
        store.record_metrics(row(step, reward=1.0))
        store.record_sample("rl", step, big)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 20_000


def test_an_end_that_cannot_be_recorded_says_why(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.record_event("begin", {})

    def refuse(kind: str, payload: object) -> None:
        raise InfrastructureError("the disk is full")

    monkeypatch.setattr(store, "record_event", refuse)
    store.close()
    assert "the end of the run could not be recorded: the disk is full" in caplog.text
