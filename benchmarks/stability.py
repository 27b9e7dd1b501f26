"""Runs that go wrong on purpose, on the real model: alarms fire, runs go back, nothing is lost.

    python benchmarks/stability.py [--workers 2] [--start MODEL]

From one SFT start (algorithm_arms.toml's; trained first unless --start names one): a healthy run,
a learning rate x 30, a flipped reward, a reward x 100 with and without smoothing, a NaN among the
weights and gradients that stay NaN. Each ends in a model that is compared with the start on the
same held-out tasks, paired. "No worse" was fixed beforehand: the interval lies above -5 points.
The queue resumes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arm_queue import Arm, Results, add_queue_options, add_study_options, alone, parsed, run_arms
from page_section import replace_section

MARGIN = 0.05
POISONED_STEP = 5


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is done to a run.

    Attributes:
        overrides: of the recipe.
        expected: kinds of alarms of which one must fire; empty where none should.
        poison: called after each step.
    """

    text: str
    overrides: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()
    poison: Callable[[Any], None] | None = None


def poison_weight(info: Any) -> None:
    """Put a NaN into one weight, once."""
    if info.step == POISONED_STEP:
        next(info.session.model.causal.parameters()).data[3, 2] = float("nan")


def poison_gradients(info: Any) -> None:
    """Make every later gradient NaN."""
    if info.step == POISONED_STEP:
        info.session.model.head_weight().register_hook(lambda grad: grad * float("nan"))


# Scores less their group's mean, not divided by its deviation: the scale of rewards matters.
LOUD = ['algorithm.name="dr_grpo"', "shaping.score_weight=100"]
COLLAPSE = ("reward_collapse", "policy_collapse", "skipped_steps", "non_finite_weights")
TROUBLES: dict[str, Trouble] = {
    "healthy": Trouble("nothing"),
    "rate-30": Trouble("learning rate x 30", ["rl.learning_rate=6e-4"], (*COLLAPSE, "screen_drop")),
    "flipped": Trouble("flipped reward", ["shaping.score_weight=-1"], ("screen_drop", *COLLAPSE)),
    "times-100": Trouble("reward x 100", LOUD, ("max_advantage",)),
    "times-100-normalised": Trouble(
        "reward x 100, normalised (shaping.normalise)", [*LOUD, "shaping.normalise=true"]
    ),
    "times-100-bounded": Trouble(
        "reward x 100, bounded (shaping.limit = 2)", [*LOUD, "shaping.limit=2"]
    ),
    "nan-weight": Trouble("a NaN in a weight", [], ("non_finite_weights",), poison_weight),
    "nan-gradient": Trouble("NaN gradients", [], ("skipped_steps",), poison_gradients),
}
GUARDS = [
    'guards.action="rollback"',
    "guards.window=3",
    "guards.anchor_every=6",
    "guards.screen_every=3",
    "guards.screen_tasks=16",
    "checkpoint.keep=1",
]


def main(arguments: Sequence[str] | None = None) -> int:
    return alone(parse(arguments), run)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add_study_options(parser)
    parser.add_argument("--troubles", nargs="+", default=list(TROUBLES), choices=list(TROUBLES))
    parser.add_argument("--steps", type=int, default=15, help="rollout batches an arm")
    add_queue_options(parser, "runs/stability")
    return parsed(parser, arguments)


def run(given: argparse.Namespace) -> int:
    results = run_arms(given, phases(given), lambda arm: do(given, arm), __file__)
    if "start" not in results:
        print("the start is not evaluated yet; nothing to report")
        return 1
    print(replace_section(given.docs, "stability", render(given, results)))
    return 0


def phases(given: argparse.Namespace) -> list[list[Arm]]:
    sft = [] if given.start else [Arm("sft")]
    return [sft, [Arm("start"), *(Arm(n, {"trouble": n}) for n in given.troubles)]]


def do(given: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """Do one arm, in its own process."""
    from arm_runs import Evaluation, evaluate, forget_weights, train_fresh, train_sft

    if arm.name == "sft":
        return train_sft(given.recipe, given.out, given.overrides)
    start = given.start or str(given.out / "sft" / "models" / "sft")
    plan, held_out = Evaluation(given.tasks, 4), given.out / "held-out"
    if arm.name == "start":
        return evaluate(given.recipe, given.overrides, start, plan, held_out, "start")
    trouble = TROUBLES[arm.options["trouble"]]
    own = [
        *given.overrides, f'model.name="{start}"', "rl.tokens=0", f"rl.steps={given.steps}",
        *GUARDS, *trouble.overrides,
    ]  # fmt: skip
    callbacks = [trouble.poison] if trouble.poison else []
    row = {**arm.options, **train_fresh(given.recipe, given.out, arm.name, own, callbacks)}
    model = given.out / arm.name / "models" / "rl"
    row |= evaluate(given.recipe, given.overrides, model, plan, held_out, arm.name)
    forget_weights(given.out / arm.name)
    return row


# Report


def render(given: argparse.Namespace, results: Results) -> str:
    """Return the section in Markdown, of the arms that are done."""
    from arm_runs import load_evaluation

    from educe.evaluation.compare import compare

    start = load_evaluation(given.out / "held-out", "start")
    lines = []
    for name in given.troubles:
        if name in results:
            after = load_evaluation(given.out / "held-out", name)
            difference = compare(start, after).macro_difference
            lines.append(line_of(name, results.rows[name], difference))
    tasks = len({(r.domain, r.index) for r in start.rows})
    return "\n\n".join(
        [
            "## Measured: runs that go wrong on purpose",
            "`python benchmarks/stability.py` wrote this section: GRPO (x 100: Dr. GRPO) from one "
            f"SFT start, at most {given.steps} batches, one seed, the end against the start "
            f"on {tasks} held-out tasks (sampled, paired, 95 %). *No worse*, fixed beforehand: the "
            f"interval lies above {-100 * MARGIN:.0f} points.",
            "\n".join(
                [
                    "| what was done | alarms | went back | ended by the guard | "
                    "largest advantage | end less start, points | no worse |",
                    "|---|---|---|---|---|---|---|",
                    *lines,
                ]
            ),
            "A reward of the wrong scale is caught by its advantages; normalised or bounded it "
            "trains on, which is the ablation of smoothing.",
        ]
    )


def line_of(name: str, row: dict[str, Any], difference: Any) -> str:
    trouble = TROUBLES[name]
    alarms = ", ".join(row["alarms"]) or "none"
    if trouble.expected and not set(trouble.expected) & set(row["alarms"]):
        alarms += f" (expected {' or '.join(trouble.expected)})"
    backs = "; ".join(f"step {r['step']}: {r['kind']}" for r in row["rollbacks"]) or "no"
    has_ended = any(r.get("given_up") for r in row["rollbacks"])
    largest = max((x for x in row["curves"].get("max_advantage", []) if x is not None), default=0)
    points = (
        f"{100 * difference.value:+.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
    )
    verdict = "yes" if difference.low > -MARGIN else "worse" if difference.high < 0 else "untold"
    return (
        f"| {trouble.text} | {alarms} | {backs} | {'yes' if has_ended else 'no'} | {largest:.1f} | "
        f"{points} | {verdict} |"
    )


if __name__ == "__main__":
    sys.exit(main())
