"""The board as a procedure: over many domains, rotating screens, a trend, resumable rows."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from scripted_domain import Scripted, Sums

from educe.cli import forgetting as verb
from educe.core.errors import EduceError
from educe.core.seeds import derive
from educe.core.types import Score, Split
from educe.evaluation.forgetting_study import BoardPlan, run_board
from educe.evaluation.records import Outcome


@dataclass
class Fake:
    """A session whose rate of right answers in each domain is known."""

    label: str
    domains: dict
    losses: dict
    identity: str = ""
    limits: dict = field(default_factory=dict)
    asked: Counter = field(default_factory=Counter)
    seen: list = field(default_factory=list)

    def run_requests(self, requests):
        self.asked[str(requests[0].split)] += len(requests)
        self.seen += [(r.domain, str(r.split), r.index) for r in requests]

        def answer(task, sample):
            draw = derive("skill", task.domain, str(task.split), task.index) % 1000 / 1000
            # Tasks move both ways; what a domain loses comes on top.
            churn = derive(self.label, task.domain, str(task.split), task.index) % 1000 / 1000
            is_right = draw < 0.7
            # As many become right as become wrong.
            if self.label != "base" and churn < (0.1 if is_right else 0.1 * 0.7 / 0.3):
                is_right = not is_right
            kind, share = self.losses.get(task.domain, ("", 0.0))
            if self.label != "base" and churn > 1 - share:
                return f"It is {task.gold}" if kind == "format" and is_right else "0"
            return task.gold if is_right else "0"

        return Scripted(self.domains, answer).run_requests(requests)


def opener(domains, losses, made):
    @contextmanager
    def open_model(name):
        made.append(Fake(name, domains, losses if name != "base" else {}, identity=name))
        yield made[-1]

    return open_model


def lenient(task, trajectory):
    words = trajectory.messages[-1].content.split()
    return Score.right() if words and words[-1] == task.gold else Score.wrong()


# A lenient difference within 12 points is none of relevance here: 150 tasks cannot say less.
PLAN = BoardPlan(screen_tasks=40, confirm_tasks=150, relevant_difference=0.12)


def test_losses_kinds_trend_and_rotation(tmp_path: Path) -> None:
    domains = {f"d{i:02d}": Sums(f"d{i:02d}") for i in range(14)}
    losses = {"d03": ("knowledge", 0.5), "d11": ("format", 0.5)}
    made: list[Fake] = []
    run = run_board(opener(domains, losses, made), "base", "step-1", PLAN, tmp_path, read=lenient)
    assert {x.domain: x.kind for x in run.board.lost} == {"d03": "knowledge", "d11": "format"}
    assert run.board.num_domains == 14 and len(run.history) == 2
    html = run.html.read_text()
    assert "All 14 domains" in html and html.count('title="d') == 14
    assert html.count(">■<") == 2
    raw = json.loads(run.json.read_text())
    assert raw["before"] == "base" and sorted(raw["lost"]) == ["d03", "d11"]
    # The same again asks nothing anew.
    before = len(made)
    again = run_board(opener(domains, losses, made), "base", "step-1", PLAN, tmp_path, read=lenient)
    assert again.board.to_json() == run.board.to_json()
    assert sum(sum(f.asked.values()) for f in made[before:]) == 0
    # The next checkpoint has screen tasks of its own, on which the base is asked too.
    second = run_board(opener(domains, {}, made), "base", "step-2", PLAN, tmp_path, read=lenient)
    assert second.board.lost == []
    assert [r.label for r in second.history] == ["base", "step-1", "step-2"]
    later = [f for f in made if f.label == "step-2"]
    assert {i for f in later for _, s, i in f.seen if s == "screen"} == set(range(40, 80))
    text = second.markdown.read_text()
    assert "| domain | base | step-1 | step-2 |" in text and "macro average" in text


def test_finite_domains_and_settings(tmp_path: Path) -> None:
    domains = {"small": Sums("small", size=12), "large": Sums("large")}
    made: list[Fake] = []
    run_board(opener(domains, {}, made), "base", "a", PLAN, tmp_path)
    counted = Counter(d for d, s, _ in made[0].seen)
    assert counted == {"small": 12, "large": 40}
    run_board(opener(domains, {}, made), "base", "b", PLAN, tmp_path)
    later = [f for f in made if f.label == "b"]
    assert {i for f in later for d, s, i in f.seen if (d, s) == ("small", "screen")} == set(
        range(12)
    )
    other = BoardPlan(screen_tasks=40, confirm_tasks=150, temperature=1.0)
    with pytest.raises(EduceError, match="another evaluation"):
        run_board(opener(domains, {}, made), "base", "a", other, tmp_path)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    domains = {f"d{i}": Sums(f"d{i}") for i in range(5)}
    arguments = argparse.Namespace(
        before="base", after="new", out=tmp_path, screen=40, confirm=150, fdr=0.1,
        same_tasks=False, json=False, recipe="unused",
    )  # fmt: skip
    losses = {"d2": ("knowledge", 0.6)}
    opened = opener(domains, losses, [])
    assert verb.run_command(arguments, opened, lambda _: nullcontext(lenient)) == 1
    assert "1 of 5 domains lost" in capsys.readouterr().out
    arguments.after, arguments.json = "calm", True
    assert verb.run_command(arguments, opener(domains, {}, []), lambda _: nullcontext(None)) == 0
    arguments.fdr = 2.0
    with pytest.raises(EduceError, match="--fdr"):
        verb.run_command(arguments, opened, lambda _: nullcontext(None))


@pytest.mark.slow
def test_three_hundred_domains_through_the_procedure(tmp_path: Path) -> None:
    """At least 65 % of the losses of 15 points, at most 10 % false discoveries, over replicates."""
    found, false, budget = [], [], []
    names = [f"d{i:03d}" for i in range(300)]
    domains = {n: Sums(n) for n in names}
    plan = BoardPlan(screen_tasks=50, confirm_tasks=200)
    for replicate in range(6):
        rng = np.random.default_rng(replicate)
        losers = set(rng.choice(names, 10, replace=False).tolist())
        losses = dict.fromkeys(losers, ("knowledge", 0.15 / 0.66))
        name = f"step-{replicate}"
        run = run_board(opener(domains, losses, []), "base", name, plan, tmp_path / name)
        claimed = {x.domain for x in run.board.lost}
        found.append(len(claimed & losers) / 10)
        false.append(len(claimed - losers) / max(1, len(claimed)))
        budget.append(run.board.num_tasks / 300)
    assert np.mean(found) >= 0.6 and np.mean(false) <= 0.1
    assert np.mean(budget) < 85


def test_outcomes_follow_the_lenient_value() -> None:
    from educe.evaluation.forgetting_study import _leniently
    from educe.evaluation.runner import evaluate

    domains = {"d": Sums("d")}
    sampler = Scripted(domains, lambda t, k: "It is " + (t.gold or ""))
    result = evaluate(sampler, domains, tasks_per_domain=4, split=Split.SCREEN)
    from dataclasses import replace

    marked = replace(result, rows=tuple(replace(r, parts={"lenient": 1.0}) for r in result.rows))
    assert {r.outcome for r in result.rows} == {Outcome.UNPARSEABLE}
    assert {r.outcome for r in _leniently(marked).rows} == {Outcome.RIGHT}
