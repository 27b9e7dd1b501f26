"""Shares in the run store: read, drawn and told; and what a run gained for what it spent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from educe.cli.main import main
from educe.core.protocols import MetricRow
from educe.observability.comparisons import DomainComparison, DomainResult
from educe.observability.efficiency import (
    Spending,
    efficiency_of,
    efficiency_text,
    run_efficiency,
    spending_of,
)
from educe.observability.history import History
from educe.observability.mixture_view import mixture_rows
from educe.observability.run_store import RunStore
from educe.scheduling.controller import ControlSettings
from educe.scheduling.mixture import AdaptiveMixture, MixedDomain
from educe.scheduling.results import GroupResult


@pytest.fixture(params=[3, 30], ids=["few", "many"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run whose first domain is solved; with its evaluation."""
    names = [f"kind/d{i}" for i in range(request.param)]
    mixed = AdaptiveMixture({n: MixedDomain(1.0, "kind") for n in names}, ControlSettings())
    recipe = {"run": {"price_per_hour": 4.0}, "rl": {"prompts": 8, "group_size": 4}}
    with RunStore.create(tmp_path / "r", recipe, name="r") as store:
        order = 0
        for step in range(12):
            values = {**mixed.metrics(), "rl/tokens": 1000.0}
            store.record_metrics(MetricRow("rl", step, values, 30.0))
            batch = []
            for _ in range(8 * request.param // 3):
                name = mixed.next_domain()
                rewards = (1.0,) * 4 if name == names[0] else (1.0, 0.0, 1.0, 0.0)
                batch.append(GroupResult(order, name, order, rewards, 10))
                order += 1
            mixed.observe(batch)
        domains = {n: {"score": 0.5} for n in names}
        store.record_event(
            "eval", {"before": {n: {"score": 0.4} for n in names}, "domains": domains}
        )
    return tmp_path / "r"


def test_the_table_says_who_gets_how_much_and_why(run, capsys):
    assert main(["runs", "mixture", str(run)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == [
        "domain", "share", "weight", "level", "signal", "response", "cost", "reason",
    ]  # fmt: skip
    (line,) = [row for row in text.splitlines() if row.startswith("kind/d0 ")]
    assert "solved" in line


def test_what_predicting_tasks_saved_is_told(tmp_path, capsys):
    recipe = {"rl": {"prompts": 8, "group_size": 4}}
    with RunStore.create(tmp_path / "s", recipe, name="s") as store:
        for step, saved in enumerate((0.0, 3.0, 7.0)):
            values = {"domain/a/share": 1.0, "mixture/groups_saved": saved}
            store.record_metrics(MetricRow("rl", step, values, 1.0))
    assert main(["runs", "mixture", str(tmp_path / "s")]) == 0
    assert "7 groups (28 rollouts) predicted to teach nothing" in capsys.readouterr().out
    assert main(["runs", "mixture", str(tmp_path / "s"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["saved"].startswith("7 groups")


def test_dropped_groups_are_paid_for(tmp_path):
    """Rates count what was sampled: batches that were drawn again, and of whatever size."""
    from educe.observability.run_reader import RunReader

    recipe = {"rl": {"prompts": 8, "group_size": 4}}
    with RunStore.create(tmp_path / "d", recipe, name="d") as store:
        values = {"rl/tokens": 100.0, "rl/rollout_tokens": 900.0, "rl/rollouts": 64.0}
        store.record_metrics(MetricRow("rl", 0, values, 3600.0))
        store.record_metrics(MetricRow("rl", 1, {"domain/a/watch_score": 0.5}, 0.0))
    assert spending_of(RunReader(tmp_path / "d")) == Spending(64, 900, 1.0)


def test_json_and_picture(run, capsys):
    assert main(["runs", "mixture", str(run), "--json", "--png", "--domain", "kind/d[01]"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {d["domain"] for d in told["domains"]} == {"kind/d0", "kind/d1"}
    assert told["domains"][0]["share"] > told["domains"][1]["share"]
    assert len(told["domains"][0]["shares"]) == 12 and told["saved"] is None
    assert Path(told["png"]).read_bytes().startswith(b"\x89PNG")


def test_the_whole_run_is_drawn(run, capsys):
    assert main(["runs", "mixture", str(run), "--png", "--out", str(run / "out")]) == 0
    assert (run / "out" / "mixture.png").stat().st_size > 5000


def test_a_wrong_name_and_a_run_without_shares_are_told(run, tmp_path, capsys):
    assert main(["runs", "mixture", str(run), "--domain", "kind/d00"]) == 2
    assert "Did you mean 'kind/d0'" in capsys.readouterr().err
    RunStore.create(tmp_path / "empty", {}, name="empty").close()
    assert main(["runs", "mixture", str(tmp_path / "empty")]) == 2
    assert "has recorded no shares" in capsys.readouterr().err


def test_static_shares_have_no_estimates():
    history = History([MetricRow("rl", 0, {"domain/a/b/share": 1.0, "domain/a/b/reward": 0.3})])
    (row,) = mixture_rows(history)
    assert (row.domain, row.share, row.reason, row.by_weight) == ("a/b", 1.0, None, None)


def test_what_a_run_gained_for_what_it_spent(run, capsys):
    from educe.observability.run_reader import RunReader

    found = run_efficiency(RunReader(run), price_per_hour=2.0)
    assert found is not None
    assert found.points == pytest.approx(10.0)
    assert found.spending == Spending(12 * 32, 12_000, 12 * 30 / 3600, 2.0)
    assert found.per_1000_rollouts == pytest.approx(10 / 0.384)
    assert found.per_million_tokens == pytest.approx(10 / 0.012)
    assert found.per_hour == pytest.approx(100.0)
    assert found.per_currency == pytest.approx(50.0)
    assert main(["runs", "show", str(run), "--price", "2"]) == 0
    assert "+10.0 points over" in capsys.readouterr().out
    assert main(["runs", "show", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["efficiency"]
    assert told["points_per_currency"] == pytest.approx(25.0), "at the recipe's price"
    assert main(["runs", "plot", str(run), "--html"]) == 0
    assert "+10.0 points over" in (run / "run.html").read_text(encoding="utf-8")


def test_no_pair_is_no_gain():
    alone = DomainComparison("a", None, DomainResult(0.5))
    unscored = DomainComparison("b", DomainResult(None), DomainResult(0.5))
    assert efficiency_of([alone, unscored], Spending(1, 1, 1)) is None
    both = DomainComparison("c", DomainResult(0.6), DomainResult(0.5))
    found = efficiency_of([both], Spending(0, 0, 0))
    assert found is not None and found.per_hour is None
    assert efficiency_text(found) == "-10.0 points over 1 domains: nothing spent"
