"""An adaptive mixture against static shares on a real model: who gains, pays, and carries over.

    python benchmarks/mixture_arms.py [--workers 2] [--seeds 1 2 3] [--tasks 40] [--samples 2]

From one SFT start, for each seed: equal static shares, and ``expected_gain`` with its defaults;
both with the same budget of completion tokens (mixture_arms.toml: thirty domains of seven kinds, of
which a tenth has no weight and is never seen). Then, with the first seed only, what each mechanism
does: the adaptive arm without one, with another strategy, or with one of [balance], [forgetting]
and batches by tokens besides. An arm takes up to twelve minutes of one core, its evaluation
included. The queue resumes (see arm_queue.py); ``--ablations none`` leaves the single arms out.

All are scored on the same held-out tasks, sampled at temperature 1. The numbers of tasks and
samples are fixed beforehand from what they can show, which is printed first, with what is claimed.
At the end the command writes its section of docs/mixture.md, whatever it says.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arm_queue import Arm, add_queue_options, alone, parsed, run_arms
from mixture_arms_report import Design, Study, write_into

ADAPTIVE = ("mixture.strategy='expected_gain'",)
MAIN: Mapping[str, Sequence[str]] = {"static": (), "adaptive": ADAPTIVE}
# One seed each: the adaptive arm, changed.
ABLATIONS: Mapping[str, Sequence[str]] = {
    "without-cost": ("mixture.cost_power=0",),
    "without-pooling": ("mixture.pooling=0.01",),
    "without-settling": ("mixture.settle=0",),
    "without-lowest": ("mixture.lowest=0",),
    "success-variance": ("mixture.strategy='success_variance'",),
    "learning-progress": ("mixture.strategy='learning_progress'",),
    "regret": ("mixture.strategy='regret'",),
    "advantages-alike": ("balance.advantages='alike'",),
    "own-denominators": ("algorithm.aggregation='token-mean'", "balance.denominators='domain'"),
    "shared-denominator": ("algorithm.aggregation='token-mean'",),
    "norms-equal": ("balance.measure_every=2", "balance.norms=1.0"),
    "projection": ("balance.measure_every=2", "balance.conflicts='project'"),
    "rates-follow": ("balance.rates='follow'",),
    "back-off": ("optimizer.back_off.kl=0.02",),
    "forgetting-guard": (
        "forgetting.every=4", "forgetting.tasks=4", "forgetting.start_tasks=8",
        "forgetting.trial_tasks=16", "forgetting.replay=1", "forgetting.domains=TRAINED",
    ),
    "batch-tokens": ("rl.batch_tokens=2000", "rl.prompts=48"),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    return alone(parse(arguments), run)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--recipe", default=str(Path(__file__).with_suffix(".toml")))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", type=int, default=40, help="held-out tasks a domain")
    parser.add_argument("--samples", type=int, default=2, help="completions a held-out task")
    parser.add_argument(
        "--ablations", nargs="+", default=list(ABLATIONS), choices=[*ABLATIONS, "none"]
    )
    parser.add_argument("--docs", type=Path, default=Path("docs/mixture.md"))
    parser.add_argument("--keep-models", action="store_true", help="keep each arm's weights")
    parser.add_argument(
        "--set", dest="overrides", nargs="*", default=[], metavar="section.key=value"
    )
    add_queue_options(parser, "runs/mixture-arms")
    return parsed(parser, arguments)


def run(given: argparse.Namespace) -> int:
    trained, held_out = domains_of(given)
    design = Design(trained, held_out, given.tasks, given.samples, tuple(given.seeds))
    if not given.arm:
        print(design.stated_beforehand())
    results = run_arms(given, phases(given), lambda arm: do(given, arm), __file__)
    study = Study.load(given.out, results.rows, design, [a for a in given.ablations if a != "none"])
    if study is None:
        print("the main arms are not all done yet; nothing to report")
        return 1
    print(write_into(given.docs, study, command_of(given)))
    return 0


def phases(given: argparse.Namespace) -> list[list[Arm]]:
    """Return the arms: the start, the main ones seed after seed, then the single ones."""
    starts = [Arm(f"start-{s}", {"seed": s}) for s in given.seeds]
    arms = [Arm(f"{k}-{s}", {"kind": k, "seed": s}) for s in given.seeds for k in MAIN]
    first = given.seeds[0]
    single = [
        Arm(f"{k}-{first}", {"kind": k, "seed": first}) for k in given.ablations if k != "none"
    ]
    return [[Arm("sft")], starts + arms, single]


def do(given: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """Do one arm, in its own process."""
    from arm_runs import Evaluation, evaluate, forget_weights, train_fresh, train_sft

    if arm.name == "sft":
        return train_sft(given.recipe, given.out, given.overrides)
    model, seed = given.out / "sft" / "models" / "sft", arm.options["seed"]
    seeded = [*given.overrides, f"run.seed={seed}"]
    row: dict[str, Any] = dict(arm.options)
    kind = arm.options.get("kind")
    if kind is not None:
        chosen = MAIN[kind] if kind in MAIN else (*ADAPTIVE, *ABLATIONS[kind])
        known = json.dumps(domains_of(given)[0])  # of what has no weight the guard asks nothing
        changed = [word.replace("TRAINED", known) for word in chosen]
        overrides = [*seeded, f'model.name="{model}"', *changed]
        row |= train_fresh(given.recipe, given.out, arm.name, overrides)
        row["shares"] = last_shares(given.out / arm.name)
        model = given.out / arm.name / "models" / "rl"
    plan = Evaluation(given.tasks, given.samples)
    row |= evaluate(given.recipe, seeded, model, plan, given.out / "held-out", arm.name)
    if kind is not None and not given.keep_models:
        forget_weights(given.out / arm.name)
    return row


def last_shares(folder: Path) -> dict[str, float]:
    """Return each domain's part of the prompts that a run trained on."""
    from educe.observability.run_reader import RunReader

    rows = [r.values for r in RunReader(folder).metrics("rl")]
    found: dict[str, float] = {}
    for values in rows:
        for name, value in values.items():
            if name.startswith("domain/") and name.endswith("/share"):
                domain = name.removeprefix("domain/").removesuffix("/share")
                found[domain] = found.get(domain, 0.0) + value / len(rows)
    return {name: round(share, 5) for name, share in sorted(found.items())}


def domains_of(given: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the recipe's domains with a weight, and those held out."""
    from educe.api import as_loaded

    found = as_loaded(given.recipe, given.overrides).recipe.domains
    return (
        tuple(sorted(n for n, own in found.items() if own.weight > 0)),
        tuple(sorted(n for n, own in found.items() if own.weight == 0)),
    )


def command_of(given: argparse.Namespace) -> str:
    parts = ["python benchmarks/mixture_arms.py"]
    parts += ["--set", *given.overrides] if given.overrides else []
    return " ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
