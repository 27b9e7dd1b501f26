"""Seven algorithms from one SFT start at equal tokens, over several seeds: who learns, who differs.

    python benchmarks/algorithm_arms.py [--workers 2] [--seeds 1 2 3] [--tasks 100] [--samples 4]

Arms: the SFT start, then GRPO, RLOO, REINFORCE++, GSPO, CISPO, DAPO and PPO for each seed, each
with its published defaults, the same learning rate and the same budget of completion tokens
(algorithm_arms.toml). Arms of one seed have the same order of training tasks. One thread an arm;
with two workers two arms run side by side, a core each. The queue resumes (see arm_queue.py).

All are scored on the same held-out tasks, sampled at temperature 1; the start and the arms of a
seed draw from the same random numbers. The number of tasks is fixed beforehand from the smallest
difference that should be seen, which is printed first. At the end the command writes the paired
differences, pooled over seeds, and the learning curves into docs/algorithms.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arm_queue import Arm, add_queue_options, alone, parsed, run_arms
from arm_report import Study, write_into

ALGORITHMS = ("grpo", "rloo", "reinforce_plus_plus", "gspo", "cispo", "dapo", "ppo")
NUM_DOMAINS = 4

# Assumed before any arm was run: by what a task's score may differ beyond the noise of sampling
# (standard deviation over tasks), and the variance p (1 - p) of one sample at a rate of 25 %.
TASK_DEVIATION = 0.15
SAMPLE_VARIANCE = 0.25 * 0.75


def main(arguments: Sequence[str] | None = None) -> int:
    return alone(parse(arguments), run)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--recipe", default=str(Path(__file__).with_suffix(".toml")))
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks a domain")
    parser.add_argument("--samples", type=int, default=4, help="completions a held-out task")
    parser.add_argument("--docs", type=Path, default=Path("docs/algorithms.md"))
    parser.add_argument("--keep-models", action="store_true", help="keep each arm's weights")
    parser.add_argument(
        "--set", dest="overrides", nargs="*", default=[], metavar="section.key=value"
    )
    add_queue_options(parser, "runs/algorithm-arms")
    return parsed(parser, arguments)


def run(given: argparse.Namespace) -> int:
    if not given.arm:
        print(stated_beforehand(given.tasks, given.samples, len(given.seeds)))
    results = run_arms(given, phases(given), lambda arm: do(given, arm), __file__)
    study = Study.load(given.out, results.rows, given.algorithms, given.seeds)
    if not study.algorithms:
        print("no algorithm has all its seeds yet; nothing to report")
        return 1
    stated = stated_beforehand(given.tasks, given.samples, len(given.seeds))
    print(write_into(given.docs, study, stated, command_of(given)))
    return 0


def phases(given: argparse.Namespace) -> list[list[Arm]]:
    """Return the arms: the start, then what begins from it, seed after seed."""
    starts = [Arm(f"start-{s}", {"seed": s}) for s in given.seeds]
    arms = [
        Arm(f"{name}-{seed}", {"algorithm": name, "seed": seed})
        for seed in given.seeds
        for name in given.algorithms
    ]
    return [[Arm("sft")], starts + arms]


def do(given: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """Do one arm, in its own process."""
    from arm_runs import Evaluation, evaluate, forget_weights, train_fresh, train_sft

    if arm.name == "sft":
        return train_sft(given.recipe, given.out, given.overrides)
    model, seed = given.out / "sft" / "models" / "sft", arm.options["seed"]
    seeded = [*given.overrides, f"run.seed={seed}"]
    row: dict[str, Any] = dict(arm.options)
    if "algorithm" in arm.options:
        choice = [f'model.name="{model}"', f'algorithm.name="{arm.options["algorithm"]}"']
        row |= train_fresh(given.recipe, given.out, arm.name, [*seeded, *choice])
        model = given.out / arm.name / "models" / "rl"
    plan = Evaluation(given.tasks, given.samples)
    row |= evaluate(given.recipe, seeded, model, plan, given.out / "held-out", arm.name)
    if "algorithm" in arm.options and not given.keep_models:
        forget_weights(given.out / arm.name)
    return row


def stated_beforehand(tasks: int, samples: int, seeds: int) -> str:
    """Return which difference these numbers of tasks, samples and seeds can show, and why."""
    from educe.evaluation.statistics import minimum_detectable_effect, paired_sample_size

    items, draws = NUM_DOMAINS * tasks, samples * seeds
    variance = TASK_DEVIATION**2 + 2 * SAMPLE_VARIANCE / draws
    seen = minimum_detectable_effect((variance / items) ** 0.5)
    needed = paired_sample_size(
        0.05,
        item_variance=TASK_DEVIATION**2,
        before_variance=SAMPLE_VARIANCE,
        after_variance=SAMPLE_VARIANCE,
        before_samples=draws,
        after_samples=draws,
    )
    return (
        f"{items} held-out tasks ({tasks} a domain), {samples} samples a task and seed, {seeds} "
        f"seeds. Stated beforehand: with a standard deviation of {TASK_DEVIATION:g} between tasks "
        f"and samples right at a rate of 25 %, a pooled paired difference of {100 * seen:.1f} "
        f"points is seen with 80 % power at a two-sided 5 % (5 points need {needed} tasks). "
        "Differences between seeds come on top, and are shown by the interval over seeds."
    )


def command_of(given: argparse.Namespace) -> str:
    parts = ["python benchmarks/algorithm_arms.py"]
    parts += ["--set", *given.overrides] if given.overrides else []
    return " ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
