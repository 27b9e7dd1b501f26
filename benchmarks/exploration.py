"""Ways to keep exploring, at equal tokens from one start: pass@1, pass@8, where gains come from.

    python benchmarks/exploration.py [--workers 2] [--start MODEL] [--seeds 1 2]

GRPO as it is, with a falling sampling temperature, with an entropy bonus, with clip-higher, and
with a pass@k objective (PKPO), each from the same SFT model (algorithm_arms.toml's; trained first
unless --start names one). The start is sampled 64 times a held-out task, each arm 16 times. The
report says whether pass@1 rose, whether pass@8 is no worse than the start's, and splits the gain:
*activated* where the start found an answer in its 64 tries, *new* where not. The queue resumes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arm_queue import Arm, Results, add_queue_options, add_study_options, alone, parsed, run_arms
from page_section import replace_section

START_SAMPLES, ARM_SAMPLES, TRIES = 64, 16, 8
MARGIN = 0.05  # pass@8 is "no worse" when its interval lies above minus this, fixed beforehand
SCHEDULES: dict[str, tuple[str, list[str]]] = {
    "plain": ("GRPO, temperature 1", []),
    "temperature": (
        "temperature 1.3 falling to 1.0 over 20 batches",
        ["rl.temperature=1.3", "rl.exploration.temperature=1.0", "rl.exploration.steps=20"],
    ),
    "entropy": ("entropy bonus 0.01", ["algorithm.entropy_coefficient=0.01"]),
    "clip_higher": ("clip 0.2 / 0.28", ["algorithm.clip_high=0.28"]),
    "pass_at_k": ("PKPO, best of 4", ['algorithm.name="pkpo"', "algorithm.credit.k=4"]),
}


def main(arguments: Sequence[str] | None = None) -> int:
    return alone(parse(arguments), run)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add_study_options(parser)
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=list(SCHEDULES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    add_queue_options(parser, "runs/exploration")
    return parsed(parser, arguments)


def run(given: argparse.Namespace) -> int:
    results = run_arms(given, phases(given), lambda arm: do(given, arm), __file__)
    if "start" not in results:
        print("the start is not evaluated yet; nothing to report")
        return 1
    print(replace_section(given.docs, "exploration", render(given, results)))
    return 0


def phases(given: argparse.Namespace) -> list[list[Arm]]:
    sft = [] if given.start else [Arm("sft")]
    arms = [
        Arm(f"{name}-{seed}", {"schedule": name, "seed": seed})
        for seed in given.seeds
        for name in given.schedules
    ]
    return [sft, [Arm("start"), *arms]]


def do(given: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """Do one arm, in its own process."""
    from arm_runs import Evaluation, evaluate, forget_weights, train_fresh, train_sft

    held_out = given.out / "held-out"
    if arm.name == "sft":
        return train_sft(given.recipe, given.out, given.overrides)
    start = given.start or str(given.out / "sft" / "models" / "sft")
    if arm.name == "start":
        plan = Evaluation(given.tasks, START_SAMPLES)
        return evaluate(given.recipe, given.overrides, start, plan, held_out, "start")
    own = [
        *given.overrides,
        f'model.name="{start}"',
        f"run.seed={arm.options['seed']}",
        *SCHEDULES[arm.options["schedule"]][1],
    ]
    row = {**arm.options, **train_fresh(given.recipe, given.out, arm.name, own)}
    # Evaluated without the schedule: at temperature 1, like the start.
    seeded = [*given.overrides, f"run.seed={arm.options['seed']}"]
    model = given.out / arm.name / "models" / "rl"
    plan = Evaluation(given.tasks, ARM_SAMPLES)
    row |= evaluate(given.recipe, seeded, model, plan, held_out, arm.name)
    forget_weights(given.out / arm.name)
    return row


# Report


def render(given: argparse.Namespace, results: Results) -> str:
    """Return the section in Markdown, of the schedules whose seeds are all done."""
    from arm_runs import load_evaluation

    start = load_evaluation(given.out / "held-out", "start")
    lines, splits = [], []
    for name in given.schedules:
        if not all(f"{name}-{s}" in results for s in given.seeds):
            continue
        after = [load_evaluation(given.out / "held-out", f"{name}-{s}") for s in given.seeds]
        arms = [results.rows[f"{name}-{s}"] for s in given.seeds]
        lines.append(reach_line(name, start, after, arms))
        splits.append(split_line(name, start, after))
    tasks = len({(r.domain, r.index) for r in start.rows})
    seeds = "seed" if len(given.seeds) == 1 else "seeds"
    return "\n\n".join(
        [
            "## Measured: ways to keep exploring",
            f"`python benchmarks/exploration.py` wrote this section: GRPO from one SFT start at "
            f"equal completion tokens, {len(given.seeds)} {seeds}, {tasks} held-out tasks at "
            f"temperature 1; {START_SAMPLES} samples a task of the start, {ARM_SAMPLES} of each "
            f"arm. Points, paired by task, 95 % intervals given these seeds. *No worse*: the "
            f"interval of pass@{TRIES} lies above {-100 * MARGIN:.0f} points, as fixed beforehand.",
            "\n".join(
                [
                    f"| | pass@1, % | gain | pass@{TRIES}, % | gain | verdict on pass@{TRIES} | "
                    "entropy, first and last fifth | tokens |",
                    "|---|---|---|---|---|---|---|---|",
                    *lines,
                ]
            ),
            f"The gain in pass@1 by whether the start found the task in {START_SAMPLES} tries "
            "(*activated*) or not (*new*); the two add up:",
            "\n".join(
                [
                    "| | tasks found / not | activated | new | not found before, right now |",
                    "|---|---|---|---|---|",
                    *splits,
                ]
            ),
            "A task that 64 tries did not find may still have been within the start's reach: "
            "*new* is an upper bound of what was really new.",
        ]
    )


def reach_line(name: str, start: Any, after: Sequence[Any], arms: Sequence[dict[str, Any]]) -> str:
    from arm_report import explained

    from educe.evaluation.reach import reach_difference

    once, often = (reach_difference(start, after, k) for k in (1, TRIES))
    entropies = [explained([x for x in a["curves"]["entropy"] if x is not None]) for a in arms]
    first, last = (fmean(e[i] for e in entropies) for i in (0, 1))
    tokens = fmean(a["tokens"] for a in arms)
    return (
        f"| {SCHEDULES[name][0]} | {_rates(once)} | {_points(once.difference)} | {_rates(often)} | "
        f"{_points(often.difference)} | {verdict(often.difference)} | {first:.2f}, {last:.2f} | "
        f"{tokens:,.0f} |"
    )


def split_line(name: str, start: Any, after: Sequence[Any]) -> str:
    from educe.evaluation.reach import split_gain

    split = split_gain(start, after)
    return (
        f"| {SCHEDULES[name][0]} | {split.num_found} / {split.num_unfound} | "
        f"{_points(split.activated)} | {_points(split.new)} | "
        f"{split.newly_right} of {split.num_unfound} |"
    )


def verdict(difference: Any) -> str:
    """Say in a word what an interval allows."""
    if difference.low > 0:
        return "better"
    if difference.high < 0:
        return "worse"
    return "no worse" if difference.low > -MARGIN else "cannot be told"


def _rates(found: Any) -> str:
    return f"{100 * found.before.value:.1f} → {100 * found.after.value:.1f}"


def _points(estimate: Any) -> str:
    return f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


if __name__ == "__main__":
    sys.exit(main())
