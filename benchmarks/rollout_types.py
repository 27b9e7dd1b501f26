"""Does a model learn as much from narrow rollouts? GRPO sampled in fp32, bf16 and 8-bit.

    python benchmarks/rollout_types.py [--workers 2] [--start MODEL] [--reuse RUNS] [--seeds 1 2 3]

Arms: the SFT start, then GRPO for each type of the engine's weights and each seed, by
algorithm_arms.toml, which fixes the rest: one learning rate, equal completion tokens, trained in
bf16 autocast over fp32 weights. The importance correction is the algorithm's own. All models are
scored on the same held-out tasks by one engine (the recipe's), sampled at temperature 1; the start
and the arms of a seed draw from the same random numbers.

``--reuse RUNS`` takes the start's evaluations and the arms of the recipe's own type from a folder
of algorithm_arms.py, where recipe, seed, tasks and samples are the same. The queue resumes. At the
end the command writes paired differences, pooled over seeds, and how far engine and trainer were
apart into docs/speed.md. "Not worse" was fixed beforehand: the interval lies above -3 points.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from algorithm_arms import stated_beforehand
from arm_queue import Arm, Results, add_queue_options, alone, parsed, run_arms
from page_section import replace_section

TYPES = ("float32", "bfloat16", "int8")
LABELS = {"float32": "fp32", "bfloat16": "bf16", "int8": "8-bit"}
MARGIN = 0.03
GAPS = ("mismatch", "mismatch_k3")
# What a run's recipe says of where it was, not of what it did.
_OF_THE_PLACE = {("run", "name"), ("run", "out"), ("model", "name")}


def main(arguments: Sequence[str] | None = None) -> int:
    return alone(parse(arguments), run)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    recipe = Path(__file__).with_name("algorithm_arms.toml")
    parser.add_argument("--recipe", default=str(recipe))
    parser.add_argument("--start", default="", help="folder of an SFT model; empty trains one")
    parser.add_argument("--reuse", type=Path, help="folder of algorithm_arms.py's runs")
    parser.add_argument("--types", nargs="+", default=list(TYPES), choices=TYPES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks a domain")
    parser.add_argument("--samples", type=int, default=4, help="completions a held-out task")
    parser.add_argument("--docs", type=Path, default=Path("docs/speed.md"))
    parser.add_argument(
        "--set", dest="overrides", nargs="*", default=[], metavar="section.key=value"
    )
    add_queue_options(parser, "runs/rollout-types")
    given = parsed(parser, arguments)
    if given.reuse and not given.start:
        given.start = str(given.reuse / "sft" / "models" / "sft")
    return given


def run(given: argparse.Namespace) -> int:
    if given.reuse and not (given.arm or given.report_only):
        take_over(given)
    results = run_arms(given, phases(given), lambda arm: do(given, arm), __file__)
    types = [
        t
        for t in given.types
        if all(f"{n}-{s}" in results for s in given.seeds for n in ("start", t))
    ]
    if not types:
        print("no type has all its seeds yet; nothing to report")
        return 1
    print(replace_section(given.docs, "rollout-types", render(given, results.rows, types)))
    return 0


def phases(given: argparse.Namespace) -> list[list[Arm]]:
    """Return the arms: the start, then what begins from it, seed after seed."""
    sft = [] if given.start else [Arm("sft")]
    starts = [Arm(f"start-{s}", {"seed": s}) for s in given.seeds]
    arms = [
        Arm(f"{name}-{seed}", {"type": name, "seed": seed})
        for seed in given.seeds
        for name in given.types
    ]
    return [sft, starts + arms]


def do(given: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """Do one arm, in its own process."""
    from arm_runs import Evaluation, evaluate, forget_weights, train_fresh, train_sft

    if arm.name == "sft":
        return train_sft(given.recipe, given.out, given.overrides)
    start = Path(given.start) if given.start else given.out / "sft" / "models" / "sft"
    row: dict[str, Any] = dict(arm.options)
    seeded = [*given.overrides, f"run.seed={arm.options['seed']}"]
    model = start
    if "type" in arm.options:
        own = [*seeded, f'model.name="{start}"', f'engine.dtype="{arm.options["type"]}"']
        row |= train_fresh(given.recipe, given.out, arm.name, [*own, 'algorithm.name="grpo"'])
        row["gaps"] = gaps_of(given.out / arm.name)
        model = given.out / arm.name / "models" / "rl"
    plan = Evaluation(given.tasks, given.samples)
    row |= evaluate(given.recipe, seeded, model, plan, given.out / "held-out", arm.name)
    if "type" in arm.options:
        forget_weights(given.out / arm.name)
    return row


def gaps_of(folder: Path) -> dict[str, float]:
    """Return a run's means of how far engine and trainer were apart before their updates."""
    from educe.observability.run_reader import RunReader

    found: dict[str, list[float]] = {name: [] for name in GAPS}
    for row in RunReader(folder).metrics():
        for name, values in found.items():
            value = row.values.get(f"{row.stage}/{name}")
            if row.stage == "rl" and value is not None:
                values.append(float(value))
    return {name: fmean(values) for name, values in found.items() if values}


# Arms of another study


def take_over(given: argparse.Namespace) -> None:
    """Take what algorithm_arms.py has done by the same recipe; say what, and what not and why."""
    theirs = Results(given.reuse / "results.jsonl")
    results = Results(given.out / "results.jsonl")
    for seed in given.seeds:
        known = own_type(given, seed)
        for source, target in (
            (f"start-{seed}", f"start-{seed}"),
            (f"grpo-{seed}", f"{known}-{seed}"),
        ):
            if source not in theirs or target in results or (known not in given.types):
                continue
            reason = why_not(given, source, seed)
            if reason:
                print(f"{source} of {given.reuse} is not taken over: {reason}")
                continue
            row = {**theirs.rows[source], "arm": target, "seed": seed, "from": str(given.reuse)}
            if source.startswith("grpo"):
                row |= {"type": known, "gaps": gaps_of(given.reuse / source)}
            for suffix in (".jsonl", ".json"):
                copy = given.out / "held-out" / f"{target}{suffix}"
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(given.reuse / "held-out" / f"{source}{suffix}", copy)
            results.add(row)
            print(f"{source} of {given.reuse} is taken over as {target}")


def own_type(given: argparse.Namespace, seed: int) -> str:
    """Return the engine's type that the recipe itself names."""
    return str(recipe_of(given, seed)["engine"]["dtype"])


def recipe_of(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Return the resolved recipe of an arm of the recipe's own type."""
    from educe.api import as_loaded

    own = [*given.overrides, f"run.seed={seed}", 'algorithm.name="grpo"']
    resolved: dict[str, Any] = as_loaded(given.recipe, own).recipe.model_dump(mode="json")
    return resolved


def why_not(given: argparse.Namespace, source: str, seed: int) -> str:
    """Return what differs between another study's arm and ours, empty when it is the same."""
    said = json.loads((given.reuse / "held-out" / f"{source}.json").read_text(encoding="utf-8"))
    settings = said["settings"]
    want = {"tasks_per_domain": given.tasks, "samples": given.samples, "temperature": 1.0}
    other = {k: settings.get(k) for k in want if settings.get(k) != want[k]}
    if other:
        return f"evaluated with {other}, wanted { ({k: want[k] for k in other}) }"
    if source.startswith("start"):
        return ""
    recipe = json.loads((given.reuse / source / "run.json").read_text(encoding="utf-8"))["recipe"]
    if Path(recipe["model"]["name"]).resolve() != Path(given.start).resolve():
        return f"it started from {recipe['model']['name']}, wanted {given.start}"
    paths = different(recipe, recipe_of(given, seed))
    return f"its recipe differs in {', '.join(paths)}" if paths else ""


def different(one: Any, two: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Return the settings known to both recipes in which they differ; places do not count."""
    if path in _OF_THE_PLACE:
        return []
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        keys = [k for k in one if k in two]
        return [p for k in keys for p in different(one[k], two[k], (*path, k))]
    return [] if one == two else [".".join(path)]


# Report


def render(given: argparse.Namespace, rows: Mapping[str, Any], types: Sequence[str]) -> str:
    """Return the section in Markdown, of the types whose seeds are all done."""
    from arm_runs import load_evaluation

    from educe.evaluation.seeds import compare_seeds

    held_out = given.out / "held-out"
    loaded = {
        name: [load_evaluation(held_out, f"{name}-{s}") for s in given.seeds]
        for name in ("start", *types)
    }
    lines = []
    for name in types:
        gain = compare_seeds(list(zip(loaded["start"], loaded[name], strict=True)))
        own = ", ".join(
            f"{100 * c.macro_difference.value:+.1f}" for c in gain.by_seed if c.macro_difference
        )
        verdict = difference = "-"
        if name != "float32" and "float32" in types:
            against = compare_seeds(list(zip(loaded["float32"], loaded[name], strict=True)))
            apart = against.pooled.macro_difference
            assert apart is not None, "every domain has scores"
            difference = _points(apart)
            verdict = "yes" if apart.low > -MARGIN else "worse" if apart.high < 0 else "untold"
        arms = [rows[f"{name}-{s}"] for s in given.seeds]
        between = gain.between_seeds
        lines.append(
            f"| {LABELS[name]} | {_points(gain.pooled.macro_difference)} | {own} | "
            f"{_points(between) if between else '-'} | {difference} | {verdict} | "
            f"{_gap(arms, 'mismatch')} | {_gap(arms, 'mismatch_k3')} | "
            f"{fmean(a['tokens'] for a in arms):,.0f} | "
            f"{fmean(a['train_seconds'] for a in arms) / 60:.1f} |"
        )
    start = fmean(rows[f"start-{s}"]["score"] for s in given.seeds)
    return "\n\n".join(
        [
            "## Measured: what is learnt from narrow rollouts",
            "`python benchmarks/rollout_types.py` wrote this section: GRPO from one SFT start "
            f"({100 * start:.1f} % of samples right), seeds {', '.join(map(str, given.seeds))}, "
            "the engine's products in fp32, bf16 and 8 bits, training in bf16 autocast over fp32 "
            "weights in all arms, equal completion tokens, one thread an arm.",
            stated_beforehand(given.tasks, given.samples, len(given.seeds)),
            "\n".join(
                [
                    "| rollouts | over the start, pooled | each seed | over the seeds (t) | less "
                    "fp32's | not worse | mean gap of probabilities | KL (k3), nats | tokens | "
                    "minutes |",
                    "|---|---|---|---|---|---|---|---|---|---|",
                    *lines,
                ]
            ),
            "Points, 95 % intervals. *Not worse*, fixed beforehand: the interval of the difference "
            f"lies above {-100 * MARGIN:.0f} points. Gaps are between the engine's and the "
            "trainer's probabilities of the sampled tokens, before each update.",
        ]
    )


def _points(estimate: Any) -> str:
    return f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def _gap(arms: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [a["gaps"][name] for a in arms if name in a.get("gaps", {})]
    return f"{fmean(values):.4f}" if values else "-"


if __name__ == "__main__":
    sys.exit(main())
