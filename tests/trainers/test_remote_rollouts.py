"""Rollouts in a second process: the run survives its worker's death without loss."""

from __future__ import annotations

import os
import signal

from educe.api import train
from educe.observability.run_store import RunStore
from educe.sources import RemoteSource
from tests.trainers.recipes import tiny_recipe


def test_a_killed_rollout_worker_loses_and_repeats_nothing(tiny_folder, tmp_path, monkeypatch):
    killed = []
    inner = RemoteSource.run_requests

    def killing(self, requests, ledger):
        groups = inner(self, requests, ledger)
        for number, group in enumerate(groups):
            if number == 0 and len(killed) < 1:
                (pid,) = self.worker_pids()
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            yield group

    monkeypatch.setattr(RemoteSource, "run_requests", killing)
    recipe = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["rl"],
        run={"mode": "fast"},
        engine={"workers": 1},
        rl={"prompts": 4},
    )
    result = train(recipe, announce=lambda _: None)
    assert result.status == "done"
    assert killed
    rows = list(RunStore.open(result.folder).samples())
    keys = [(row.body["request_id"], row.body["sample_index"]) for row in rows]
    assert len(keys) == len(set(keys)) == 4 * 4 * 4
    for step in range(4):
        turns = [t for row in rows if row.step == step for t in row.body["turns"]]
        assert {v for t in turns for v in t["policy_versions"]} == {step}, (
            "always the newest weights"
        )
