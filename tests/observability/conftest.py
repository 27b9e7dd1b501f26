"""A small recorded run, the same for every test that looks at one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from educe.core.protocols import MetricRow
from educe.core.types import Fault, Message, Score, StopReason, Turn
from educe.observability.run_store import RunStore

TOKENS = ["<user>", "2+2", "?", "\n", "<assistant>", "4", "<end>"]
NASTY = "<script>alert(1)</script> \x1b[2J {{ title }}"


def make_run(folder: Path, *, num_domains: int = 3, seed: int = 1) -> RunStore:
    """Record sft and rl with alarms, samples and two evaluations."""
    domains = [f"rg/fam{i}" for i in range(num_domains - 1)] + ["x$/<b>"]
    store = RunStore.create(folder, {"run": {"name": "demo", "seed": seed}, "rl": {"steps": 12}})
    answer = {"task_id": "t1", "domain": "rg/fam0", "prompt": "2+2?", "gold": "4"}
    before = {**answer, "completion": f"maybe 5 {NASTY}", "score": 0.0}
    results = {d: {"score": 0.25, "low": 0.1, "high": 0.4} for d in domains}
    store.record_event("eval", {"step": 0, "domains": results, "answers": [before]})
    for step in range(1, 6):
        store.record_metrics(MetricRow("sft", step, {"sft/loss": 3.0 / step}))
    for step in range(1, 13):
        values = {"rl/reward": step / 12, "rl/entropy": 1.0 / step}
        values |= {f"domain/{d}/score": step / (13 + i) for i, d in enumerate(domains)}
        store.record_metrics(MetricRow("rl", step, values))
    scores = [Score.right(), Score.wrong("got 5"), Score.unscored(Fault.GRADER, "hung")]
    for i, score in enumerate(scores):
        messages = [Message("user", "2+2?"), Message("assistant", f"4 {NASTY}")]
        turn = Turn((1, 2, 3, 4, 5), (6, 7), (-0.5, -0.25), (0, 0), StopReason.END, 1.0)
        sample = {
            "request_id": 3,
            "sample_index": i,
            "domain": domains[i % num_domains],
            "task_id": f"{domains[i % num_domains]}:train:0",
            "split": "train",
            "messages": [m.to_json() for m in messages],
            "turns": [turn.to_json()],
            "score": score.to_json(),
            "reward": score.value,
            "advantage": 0.5 - i,
        }
        if i < 2:
            sample |= {"tokens": TOKENS, "mask": [0, 0, 0, 0, 0, 1, 1]}
        store.record_sample("rl", i + 1, sample)
    alarm = {"kind": "entropy_collapse", "stage": "rl", "step": 9, "cause": "entropy fell"}
    store.record_event("alarm", alarm)
    results = {d: {"score": 0.75} for d in domains}
    after = {**answer, "completion": "4", "score": 1.0}
    store.record_event("eval", {"step": 12, "domains": results, "answers": [after]})
    store.close()
    return RunStore.open(folder)


@pytest.fixture
def record_run(tmp_path: Path) -> Callable[..., RunStore]:
    return lambda name, **options: make_run(tmp_path / "runs" / name, **options)


@pytest.fixture
def run(tmp_path: Path) -> RunStore:
    return make_run(tmp_path / "runs" / "demo")
