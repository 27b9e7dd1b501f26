"""Gates, saved evaluations and the verbs that read them."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted_domain import Scripted, Sums

from educe.cli import compare as compare_verb
from educe.cli import gate as gate_verb
from educe.core.errors import EduceError
from educe.core.types import Fault, Score
from educe.evaluation.gate import Decision, GateLedger, Policy, decide, read_policy
from educe.evaluation.records import Outcome
from educe.evaluation.runner import JournalFile, evaluate
from educe.evaluation.saved import load_saved, save_meaning


def run(rates, *, tasks=100, label="m", journal=None, lost=0):
    domains = {name: Sums(name) for name in rates}

    def answer(task, sample):
        if task.index < lost:
            return Score.unscored(Fault.GRADER, "x")
        return task.gold if (task.index * 37) % 100 < 100 * rates[task.domain] else "0"

    result = evaluate(
        Scripted(domains, answer), domains, tasks_per_domain=tasks, label=label,
        journal=None if journal is None else JournalFile(journal, label),
    )  # fmt: skip
    if journal is not None:
        save_meaning(result, journal)
    return result


OLD = {"goal": 0.4, "safety": 0.9, "code": 0.5}
POLICY = Policy(("goal",), {"safety": 0.1, "code": 0.15})


def test_promote_hold_and_roll_back():
    old = run(OLD, label="old")
    better = decide(old, run({**OLD, "goal": 0.6}, label="new"), POLICY)
    assert better.decision is Decision.PROMOTE
    assert [c.passes for c in better.checks] == [True, True, True]
    same = decide(old, run(OLD, label="new"), POLICY)
    assert same.decision is Decision.HOLD
    assert same.reasons[0].startswith("target goal is not shown to be better: +0.0 points")
    worse = decide(old, run({**OLD, "goal": 0.8, "safety": 0.7}, label="new"), POLICY)
    assert worse.decision is Decision.ROLL_BACK
    assert "guardrail safety is worse: -20.0 points" in worse.reasons[0]
    # Few tasks: the target is better, the guardrails are unknown; that is no promotion.
    few = decide(run(OLD, tasks=20), run({**OLD, "goal": 0.9}, tasks=20), POLICY)
    assert few.decision is Decision.HOLD
    assert "not shown to be within" in few.reasons[0]


def test_the_macro_average_can_be_target_and_guardrail():
    old, new = run(OLD), run({n: r + 0.1 for n, r in OLD.items()})
    assert decide(old, new, Policy(("macro",))).decision is Decision.PROMOTE
    assert decide(new, old, Policy(("macro",))).decision is Decision.ROLL_BACK
    every = Policy(("goal",), {"*": 0.1, "macro": 0.05})
    assert decide(old, new, every).decision is Decision.PROMOTE


def test_lost_completions_hold_whatever_the_rest_says():
    old = run(OLD)
    held = decide(old, run({**OLD, "goal": 0.9}, lost=8), POLICY)
    assert held.decision is Decision.HOLD
    assert "8.0% of completions have no score" in held.reasons[0]


def test_decisions_latch_and_looks_are_paid_for(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    old, new = run(OLD, tasks=20, label="old"), run({**OLD, "goal": 0.6}, tasks=20, label="new")
    first = decide(old, new, POLICY, GateLedger(path))
    assert (first.decision, first.look, first.level) == (Decision.HOLD, 1, 0.025)
    again = decide(old, new, POLICY, GateLedger(path))
    assert again.is_latched and again.look == 1  # the same data is not another look
    more = [run(r, label=n) for r, n in ((OLD, "old"), ({**OLD, "goal": 0.6}, "new"))]
    second = decide(*more, POLICY, GateLedger(path))
    assert second.look == 2 and second.level == pytest.approx(0.05 / 6)
    assert second.decision is Decision.PROMOTE
    # Later data turned bad; the promotion of this pair stays what was decided.
    bad = run({**OLD, "goal": 0.1}, tasks=90, label="new")
    third = decide(run(OLD, tasks=90, label="old"), bad, POLICY, GateLedger(path))
    assert third.is_latched and third.decision is Decision.PROMOTE
    assert len(path.read_text().splitlines()) == 2
    # Another policy or another model is another question.
    assert decide(more[0], bad_pair(), POLICY, GateLedger(path)).decision is Decision.ROLL_BACK
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(EduceError, match="not a recorded decision"):
        GateLedger(path)


def bad_pair():
    return run({**OLD, "goal": 0.1}, label="other")


def test_false_promotions_stay_below_alpha_with_three_looks():
    """Nothing differs, data grows, the gate is asked at each stage: at most 5 % promotions."""
    rng = np.random.default_rng(1)
    policy = Policy(("a",), {}, alpha=0.05)
    template = run({"a": 0.5}, tasks=60)
    outcomes = (Outcome.WRONG, Outcome.RIGHT)

    def side(right, tasks):
        rows = [
            replace(r, value=float(right[r.index]), outcome=outcomes[int(right[r.index])])
            for r in template.rows[:tasks]
        ]
        return replace(template, rows=tuple(rows))

    promoted = 0
    for _ in range(60):
        right = rng.random((2, 60)) < 0.5
        ledger = GateLedger()
        for tasks in (20, 40, 60):
            decision = decide(side(right[0], tasks), side(right[1], tasks), policy, ledger)
        promoted += decision.decision is Decision.PROMOTE
    assert promoted <= 8  # 3 at most expected


def test_policies_are_read_and_refused(tmp_path: Path):
    path = tmp_path / "policy.toml"
    path.write_text('targets = ["goal"]\nalpha = 0.1\n[guardrails]\n"saf*" = 0.02\n')
    assert read_policy(path) == Policy(("goal",), {"saf*": 0.02}, alpha=0.1)
    for text, message in (
        ("targets = []", "at least one target"),
        ('targets = ["a"]\nbeta = 1', "unknown key 'beta'"),
        ('targets = "a"', "list of names"),
        ('targets = ["a"]\n[guardrails]\nb = 0', "margins must lie"),
        ('targets = ["a"]\nalpha = 2', "alpha must lie"),
        ('targets = ["a"]\nalpha = "x"', "alpha must be a number, got 'x'"),
        ('targets = ["a"]\nguardrails = 3', "must be a table"),
        ('targets = ["a"]\n[guardrails]\nb = "x"', "guardrails.b must be a number"),
        ("targets = [", "cannot read the policy"),
    ):
        path.write_text(text)
        with pytest.raises(EduceError, match=message):
            read_policy(path)
    with pytest.raises(EduceError, match="'nothing', which matches no evaluated domain"):
        decide(run(OLD), run(OLD), Policy(("nothing",)))


def command(verb, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    return parser.parse_args(list(words))


def test_saved_evaluations_are_loaded_compared_and_gated(tmp_path: Path, capsys):
    old = run(OLD, label="old", journal=tmp_path / "a" / "after.jsonl")
    run({**OLD, "goal": 0.6}, label="new", journal=tmp_path / "b" / "after.jsonl")
    assert load_saved(tmp_path / "a").rows == old.rows
    assert load_saved(tmp_path / "a" / "after.jsonl").floors == old.floors
    paths = (str(tmp_path / "a"), str(tmp_path / "b"))
    words = ("compare", *paths, "--json", "--out", str(tmp_path / "r"))
    assert compare_verb.handler(command(compare_verb, *words)) == 0
    told = capsys.readouterr()
    raw = json.loads(told.out)  # with --json, stdout belongs to it alone
    assert told.err.startswith("report: ")
    assert raw["comparison"]["findings"]["better"] == 1
    assert (tmp_path / "r" / "report.html").exists()
    policy = tmp_path / "p.toml"
    policy.write_text('targets = ["goal"]\n[guardrails]\nsafety = 0.1\n')
    ledger = ("--policy", str(policy), "--ledger", str(tmp_path / "ledger.jsonl"))
    assert gate_verb.handler(command(gate_verb, "gate", *paths, *ledger)) == 0
    assert capsys.readouterr().out.startswith("promote (look 1 at level 0.025)")
    gate_verb.handler(command(gate_verb, "gate", *paths, *ledger))
    assert "recorded before" in capsys.readouterr().out
    backwards = command(gate_verb, "gate", *paths[::-1], "--policy", str(policy), "--json")
    assert gate_verb.handler(backwards) == 3
    assert json.loads(capsys.readouterr().out)["decision"] == "roll back"


def test_unfinished_or_foreign_folders_are_refused(tmp_path: Path):
    with pytest.raises(EduceError, match="no finished evaluation here; expected a folder"):
        load_saved(tmp_path)
    run(OLD, label="old", journal=tmp_path / "after.jsonl")
    # Fewer tasks asked for later: the journal keeps more rows than the result has.
    assert len(run(OLD, label="old", tasks=5, journal=tmp_path / "after.jsonl").rows) == 15
    assert len(load_saved(tmp_path).rows) == 15
    meaning = tmp_path / "after.json"
    meaning.write_text(meaning.read_text().replace('"format_version": 1', '"format_version": 9'))
    with pytest.raises(EduceError, match="format 9"):
        load_saved(tmp_path)
    meaning.unlink()
    with pytest.raises(EduceError, match="it was interrupted"):
        load_saved(tmp_path)
