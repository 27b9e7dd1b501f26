"""A rollout worker is killed with -9 at every moment of an order's life; no order is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_remote import Run

MOMENTS = (
    "building",
    "order read",
    "order taken",
    "mid generation",
    "group done",
    "half a frame",
    "group sent",
    "weights asked for",
    "weights loaded",
)


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_order_is_lost_or_trained_twice(moment: str, tmp_path: Path) -> None:
    marker = tmp_path / "died"
    run = Run("mortal", {"moment": moment, "marker": str(marker)}, tmp_path)
    run.issue(8)
    run.until(lambda: len(run.trained) >= 4)
    run.remote.publish(1, {"folder": "weights-1"})
    run.issue(4)
    run.finish()
    assert marker.exists(), "the moment came"
    assert len(run.trained) == 12
    versions = [g.trajectories[0].turns[0].policy_versions[0] for g in run.trained]
    assert versions[-4:] == [1] * 4, "a worker that replaced another has the newest weights"
    had_orders = moment not in ("building", "weights asked for", "weights loaded")
    assert (run.ledger.num_reissued > 0) or not had_orders
