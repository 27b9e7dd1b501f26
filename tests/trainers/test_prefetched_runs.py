"""[prefetch] changes when things are made, never what is trained on; a million rows stay flat."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from educe.api import train
from educe.config.loader import load_recipe
from educe.config.settings import DataSettings
from educe.core.errors import InfrastructureError
from educe.core.types import Split
from educe.domains.example_sets import ExampleSet
from educe.observability.run_store import RunStore
from educe.pipeline import StepInfo
from educe.preflight import make_plan
from educe.preparation import preparer
from educe.session import build_session
from educe.trainers.feeds import IndexedFeed, SetSource, StreamFeed
from educe.trainers.prepared import PreparedBatches
from tests.trainers.recipes import tiny_recipe


def rows_file(folder: Path, count: int) -> Path:
    file = folder / "rows.jsonl"
    with file.open("w") as stream:
        for number in range(count):
            stream.write(json.dumps({"prompt": f"say {number}", "completion": str(number)}) + "\n")
    return file


def final_weights(out: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(out / "run" / "models" / "rl" / "model.safetensors")


def recipe(tiny_folder: Path, out: Path, workers: int, rows: Path, streaming: bool = False) -> Any:
    out.mkdir(exist_ok=True)
    buffer = {"streaming": True, "shuffle_buffer": 7} if streaming else {}
    data = {"mine": {"path": str(rows), "weight": 1.0, **buffer}}
    return tiny_recipe(
        tiny_folder,
        out,
        sft={"steps": 3, "batch_size": 4, "num_tasks": 12, "data": data},
        rl={"steps": 2, "max_completion_tokens": 4},
        prefetch={"workers": workers, "ahead": 6 if workers else 64},
    )


@pytest.mark.parametrize("streaming", [False, True])
def test_weights_are_bitwise_the_same_at_every_number(
    tiny_folder: Path, tmp_path: Path, streaming: bool
) -> None:
    rows = rows_file(tmp_path, 40)
    found = {}
    for workers in (0, 2):
        out = tmp_path / str(workers)
        train(recipe(tiny_folder, out, workers, rows, streaming), announce=lambda _: None)
        found[workers] = final_weights(out)
    for name, tensor in found[0].items():
        assert torch.equal(found[2][name], tensor), name


def test_a_killed_process_ends_the_run_and_a_resume_goes_on(
    tiny_folder: Path, tmp_path: Path
) -> None:
    rows = rows_file(tmp_path, 40)
    train(recipe(tiny_folder, tmp_path / "whole", 0, rows, True), announce=lambda _: None)
    killed: list[int] = []

    def kill(info: StepInfo) -> None:
        if info.stage == "sft" and info.step == 1:
            assert info.session.prefetch is not None
            killed.extend(info.session.prefetch.pids())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    broken = recipe(tiny_folder, tmp_path / "broken", 2, rows, True)
    with pytest.raises(InfrastructureError, match=r"\[prefetch\] \(pid \d+\) ended: killed"):
        train(broken, callbacks=[kill], announce=lambda _: None)
    assert len(killed) == 2
    result = train(broken, resume=True, announce=lambda _: None)
    assert result.status == "done"
    want = final_weights(tmp_path / "whole")
    assert all(torch.equal(t, want[n]) for n, t in final_weights(tmp_path / "broken").items())


def test_tasks_and_their_tokens_are_those_of_the_trainers_process(
    tiny_folder: Path, tmp_path: Path
) -> None:
    loaded = recipe(tiny_folder, tmp_path / "a", 0, rows_file(tmp_path, 9))
    make = preparer(
        {
            "recipe": loaded.recipe.model_dump(mode="json"),
            "model_folder": str(tiny_folder),
            "context_length": 1024,
        }
    )
    with build_session(loaded.recipe, announce=lambda _: None) as session:
        for name in session.domains:
            made = make({"task": [name, "train", 5]})
            task = session.domains[name].task(Split.TRAIN, 5)
            assert made["task"] == json.loads(json.dumps(task.to_json()))
            assert tuple(made["tokens"]) == session.chat.prompt_tokens(task.messages)


def test_preflight_tells_what_prefetching_needs(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    loaded = recipe(tiny_folder, tmp_path / "a", 3, rows_file(tmp_path, 9))
    plan, problems = make_plan(loaded)
    assert not problems
    assert any("prefetch.workers = 3 is more than this machine's" in n for n in plan.notes)
    file = tmp_path / "r.toml"
    file.write_text('stages = ["rl"]\n[domains]\n"rg/gcd/tiny" = {}\n[prefetch]\nahead = 5\n')
    _, problems = make_plan(load_recipe(str(file)))
    assert any("without workers nothing is made ahead" in str(p) for p in problems)


class _Here:
    """Makes orders at once, in this process: what [prefetch] would, without the processes."""

    def __init__(self, source: ExampleSet, ahead: int) -> None:
        self.source, self.ahead = source, ahead

    def expect(self, orders: Iterator[Any]) -> None:
        """Nothing is made before it is taken."""

    def take(self, order: Any) -> Any:
        row = self.source.at(order["row"][1])
        return [[[len(str(row.prompt)), len(str(row.completion))], [1]]]


def feeds(file: Path, streaming: bool) -> tuple[ExampleSet, Any]:
    settings = DataSettings(path=str(file), streaming=streaming, eval_fraction=0.01)
    rows = ExampleSet("mine", settings, "sft")
    if streaming:
        return rows, StreamFeed(
            {"mine": SetSource(rows)}, {"mine": rows.stream()}, {"mine": 1}, 50, 0
        )
    return rows, IndexedFeed({"mine": SetSource(rows)}, {"mine": 1}, rows.num_train, 50, 0)


def use_all(file: Path, streaming: bool, count: int) -> tuple[int, int]:
    """Read ``count`` rows through batches made ahead; return (peak bytes, trained tokens)."""
    rows, feed = feeds(file, streaming)
    prepared = PreparedBatches(feed, _Here(rows, ahead=500))  # type: ignore[arg-type]
    prepared.sides(0)
    tracemalloc.start()
    try:
        total = 0
        for step in range(1, count // 50):
            total += sum(s.num_trained for _, side in prepared.sides(step) for s in side or ())
        return tracemalloc.get_traced_memory()[1], total
    finally:
        tracemalloc.stop()


def test_rows_stream_in_flat_memory(tmp_path: Path) -> None:
    """Ten times the rows, the same peak."""
    file = rows_file(tmp_path, 12_000)
    few, _ = use_all(file, True, 1_000)
    many, total = use_all(file, True, 11_000)
    assert total == 11_000 - 50
    assert many < 1.3 * few + 200_000


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
def test_a_million_rows_stream_in_flat_memory(tmp_path: Path, streaming: bool) -> None:
    """By index 8 bytes a row and the shuffled order of an epoch; as a stream nothing a row."""
    import psutil

    file = rows_file(tmp_path, 1_000_000)
    process = psutil.Process()
    rows, feed = feeds(file, streaming)
    prepared = PreparedBatches(feed, _Here(rows, ahead=500))  # type: ignore[arg-type]
    prepared.sides(0)
    before, peak = process.memory_info().rss, 0
    for step in range(1, 980_000 // 50):
        assert len(prepared.sides(step)) == 50
        if step % 500 == 0:
            peak = max(peak, process.memory_info().rss - before)
    assert peak < 20 * 2**20


def test_a_run_tells_what_it_waited_for(tiny_folder: Path, tmp_path: Path) -> None:
    """A run with processes leaves no process and a log of its own."""
    out = tmp_path / "a"
    train(recipe(tiny_folder, out, 1, rows_file(tmp_path, 20)), announce=lambda _: None)
    assert (out / "run" / "scorers-0.log").exists()
    assert RunStore.open(out / "run").recipe["prefetch"]["workers"] == 1
