"""What the RL stage alone adds to an SFT model, over several seeds.

    python benchmarks/rl_gain.py [--seeds 1 2 3] [--tasks 60] [--out runs/rl-gain]

Arms, all from one SFT checkpoint (rl_gain.toml's): RL for each seed, and more SFT for the same
wall time. All are scored on the same held-out tasks in two ways: sampled at temperature 1, two
completions a task (what RL optimises; the primary measure), and greedily. Each arm is a run
folder, so the queue resumes where it was; one JSON line an arm goes to OUT/results.jsonl.

Stated beforehand: with 10 domains and 40 tasks a domain (400 pairs) and a standard deviation of
0.4 of the paired differences, a difference of 5.6 points is seen with 80 % power (two-sided 5 %);
pooling three seeds on the same tasks lowers the noise of sampling, not that of the tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lock import quiet_machine


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--recipe", default=str(Path(__file__).with_suffix(".toml")))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", type=int, default=40, help="held-out tasks a domain")
    parser.add_argument("--out", type=Path, default=Path("runs/rl-gain"))
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    given = parser.parse_args(arguments)
    with quiet_machine(is_timing=False):
        return run(given)


def run(given: argparse.Namespace) -> int:
    started = train_arm(given, "sft", ["stages=['sft']"])
    model = str(Path(given.out) / "sft" / "models" / "sft")
    start = evaluate_arm(given, "sft", model, started)
    seeds = []
    for seed in given.seeds:
        name = f"rl-{seed}"
        arm = train_arm(given, name, ["stages=['rl']", f'model.name="{model}"', f"run.seed={seed}"])
        seeds.append((evaluate_arm(given, name, str(given.out / name / "models" / "rl"), arm), arm))
    minutes = sum(arm["seconds"] for _, arm in seeds) / len(seeds) / 60
    more = train_arm(
        given,
        "more-sft",
        [
            "stages=['sft']",
            f'model.name="{model}"',
            "run.seed=99",
            "sft.steps=100000",
            "sft.num_tasks=4000",
            f"sft.minutes={minutes:.3f}",
        ],
    )
    longer = evaluate_arm(given, "more-sft", str(given.out / "more-sft" / "models" / "sft"), more)
    report(given, start, [result for result, _ in seeds], longer, minutes)
    return 0


def train_arm(given: argparse.Namespace, name: str, extra: list[str]) -> dict[str, Any]:
    """Train one arm unless it is finished; return its seconds and steps."""
    from educe.api import train
    from educe.core.errors import EduceError

    done = given.out / name / "arm.json"
    if done.exists():
        return json.loads(done.read_text())
    overrides = [f'run.out="{given.out}"', f'run.name="{name}"', *given.overrides, *extra]
    exists = (given.out / name / "run.json").exists()
    begin = time.monotonic()
    result = train(given.recipe, overrides, resume=exists, live=True)
    if result.status != "done":
        raise EduceError(f"arm {name} was stopped; run the command again to continue")
    arm = {"arm": name, "seconds": stage_seconds(given.out / name, begin)}
    done.write_text(json.dumps(arm))
    return arm


def stage_seconds(folder: Path, begin: float) -> float:
    """Return the stage's own seconds, over all attempts."""
    from educe.observability.run_store import RunStore

    ends = RunStore.open(folder).events("stage_end")
    return float(ends[-1].payload["seconds"]) if ends else time.monotonic() - begin


MEASURES = {"sampled": (1.0, 2), "greedy": (0.0, 1)}  # temperature, completions a task


def evaluate_arm(
    given: argparse.Namespace, name: str, model: str, arm: dict[str, Any]
) -> dict[str, Any]:
    """Return the arm's evaluation by each measure."""
    from educe.api import as_loaded, open_session
    from educe.evaluation.sessions import EvalPlan, run_eval
    from educe.evaluation.summary import summarise

    found = {}
    loaded = as_loaded(given.recipe, given.overrides)
    with open_session(model, loaded) as session:
        session.label = name
        for measure, (temperature, samples) in MEASURES.items():
            plan = EvalPlan(given.tasks, samples, temperature)
            found[measure] = run_eval(session, plan, out=given.out / measure, name=name)
    scores = {m: _means(summarise(result)) for m, result in found.items()}
    with (given.out / "results.jsonl").open("a") as file:
        file.write(json.dumps({**arm, "scores": scores}) + "\n")
    return found


def _means(summary: Any) -> dict[str, float]:
    own = {d.domain: d.score.value for d in summary.domains if d.score is not None}
    return {"mean": sum(own.values()) / len(own), **own}


def report(
    given: argparse.Namespace,
    start: dict[str, Any],
    seeds: list[dict[str, Any]],
    longer: dict[str, Any],
    minutes: float,
) -> None:
    out: dict[str, Any] = {"minutes": minutes, "tasks": given.tasks}
    print(f"\nRL against its SFT start, {minutes:.1f} minutes an arm, {given.tasks} tasks a domain")
    for measure in MEASURES:
        out[measure] = report_measure(
            measure, start[measure], [s[measure] for s in seeds], longer[measure]
        )
    (given.out / "summary.json").write_text(json.dumps(out, indent=1))


def report_measure(measure: str, start: Any, seeds: list[Any], longer: Any) -> dict[str, Any]:
    from educe.evaluation.compare import compare
    from educe.evaluation.multi_turn import compare_repair, multi_turn_domains
    from educe.evaluation.summary import pool_seeds

    # One copy of the start for each seed, so that every seed has its pair on the same task.
    before, after = pool_seeds([start] * len(seeds), "sft"), pool_seeds(seeds, "rl, pooled")
    pooled = compare(before, after)
    rows = {r.label: compare(start, r).macro_difference for r in seeds}
    rows["RL, seeds pooled"] = pooled.macro_difference
    rows["more SFT"] = compare(start, longer).macro_difference
    print(f"\n{measure}: mean score of the start {_means(pooled.before)['mean']:.1%}")
    for label, difference in rows.items():
        print(
            f"  {label:18s} {100 * difference.value:+5.1f} points "
            f"[{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
        )
    for domain in pooled.domains:
        if domain.difference is not None:
            d = domain.difference.estimate
            print(
                f"    {domain.domain:34s} {100 * domain.before.score.value:5.1f} -> "
                f"{100 * domain.after.score.value:5.1f}   {100 * d.value:+5.1f} "
                f"[{100 * d.low:+.1f}, {100 * d.high:+.1f}]  {domain.finding}"
            )
    for name in multi_turn_domains(before):
        show_repair(compare_repair(before, after, name))
    return {"pooled": pooled.to_json(), "arms": {n: d.to_json() for n, d in rows.items()}}


def show_repair(found: Any) -> None:
    """Print first-attempt and final pass rates and the share of failed attempts that were fixed."""
    print(f"  {found.before.domain}: multi-turn code")
    for name, rates in (("before", found.before), ("after", found.after)):
        fixed = rates.repaired
        share = "–" if fixed is None else f"{fixed.value:.0%} [{fixed.low:.0%}, {fixed.high:.0%}]"
        print(
            f"    {name:7s} first attempt {rates.first_attempt.value:.0%} "
            f"[{rates.first_attempt.low:.0%}, {rates.first_attempt.high:.0%}], final "
            f"{rates.final.value:.0%} [{rates.final.low:.0%}, {rates.final.high:.0%}], "
            f"failed first attempts fixed {share}"
        )


if __name__ == "__main__":
    sys.exit(main())
