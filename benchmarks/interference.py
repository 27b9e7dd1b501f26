"""Two domains that conflict and two that help each other: does the matrix tell them apart, and does
balancing keep what a single domain reaches?

    python benchmarks/interference.py [--workers 2] [--seeds 1 2 3] [--steps 40] [--tasks 100]

From one SFT start (both formats at random, see interference_domains.py), for each seed: each of
the conflicting domains alone, all four in a plain mix, and all four balanced. Alone or in a mix, a
domain has the same number of prompts, in the same order. The mixes measure their gradients every
five rollout batches. All are scored on the same held-out tasks, sampled at temperature 1. The
queue resumes; OUT/results.jsonl has a line an arm, OUT/summary.json the verdict, and the command
writes its section of docs/balance.md.

Stated beforehand: the matrix tells them apart when the cosine of the conflicting two, averaged over
the plain mix's measurements and seeds, is below 0 and that of the helping two above 0, each by two
standard errors over measurements (over seeds where that is larger; the latter, and what stands in
for a run with one measurement, were added when the first three seeds had such a run). Balancing
keeps what it should when both conflicting domains end at most 5 points below their single-domain
score, in the mean over seeds; the interval (95 %, over tasks and seeds) is printed beside, and so
is the plain mix.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arm_queue import Arm, add_queue_options, alone, parsed, run_arms
from page_section import replace_section

HERE = Path(__file__).resolve().parent
CONFLICTING, HELPING = ("terse", "wordy"), ("birds", "boats")
ALL = (*CONFLICTING, *HELPING)
MARGIN = 0.05
PROMPTS_A_DOMAIN = 2
MEASURED = ("balance.measure_every=5",)
BALANCED = (
    'balance.denominators="domain"',
    "balance.measure_every=2",
    "balance.norms=1.0",
    'balance.conflicts="project"',
)
# Arm: its domains and what it is given besides.
ARMS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "terse-alone": (("terse",), ()),
    "wordy-alone": (("wordy",), ()),
    "plain": (ALL, MEASURED),
    "balanced": (ALL, BALANCED),
}


def main(arguments: Sequence[str] | None = None) -> int:
    return alone(parse(arguments), run)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--recipe", default=str(HERE / "interference.toml"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40, help="rollout batches of an arm")
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks a domain")
    parser.add_argument("--docs", type=Path, default=Path("docs/balance.md"))
    parser.add_argument("--keep-models", action="store_true", help="keep each arm's weights")
    parser.add_argument(
        "--set", dest="overrides", nargs="*", default=[], metavar="section.key=value"
    )
    add_queue_options(parser, "runs/interference")
    return parsed(parser, arguments)


def run(given: argparse.Namespace) -> int:
    phases = [
        [Arm("sft")],
        [Arm(f"{n}-{seed}", {"kind": n, "seed": seed}) for seed in given.seeds for n in ARMS],
    ]
    results = run_arms(given, phases, lambda arm: do(given, arm), __file__)
    done = [s for s in given.seeds if all(f"{n}-{s}" in results.rows for n in ARMS)]
    if not done:
        print("no seed has all its arms yet; nothing to report")
        return 1
    told = summarise(results.rows, done)
    told["intervals"] = intervals(given.out, done)
    (given.out / "summary.json").write_text(json.dumps(_without_nan(told), indent=1))
    print(report(told))
    replace_section(given.docs, "interference", page_of(given, told))
    return 0


def do(given: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """Do one arm, in its own process."""
    from arm_runs import Evaluation, evaluate, forget_weights, train_fresh

    if arm.name == "sft":
        chosen = [*given.overrides, *domains_of(ALL), "stages=['sft']"]
        return train_fresh(given.recipe, given.out, "sft", chosen)
    kind, seed = arm.options["kind"], arm.options["seed"]
    names, extra = ARMS[kind]
    common = [
        *given.overrides,
        f'model.name="{given.out / "sft" / "models" / "sft"}"',
        f"run.seed={seed}",
        f"rl.steps={given.steps}",
        f"rl.prompts={PROMPTS_A_DOMAIN * len(names)}",
    ]
    row = {**arm.options, **train_fresh(
        given.recipe, given.out, arm.name, [*common, *domains_of(names), *extra]
    )}  # fmt: skip
    row["interference"] = measurements(given.out / arm.name)
    model = given.out / arm.name / "models" / "rl"
    asked = [*given.overrides, *domains_of(ALL), f"run.seed={seed}"]
    plan = Evaluation(given.tasks, samples=1)
    row |= evaluate(given.recipe, asked, model, plan, given.out / "held-out", arm.name)
    if not given.keep_models:
        forget_weights(given.out / arm.name)
    return row


def domains_of(names: Sequence[str]) -> list[str]:
    """Return the overrides that give a recipe these domains."""
    file = HERE / "interference_domains.py"
    return [
        override
        for n in names
        for override in (
            f'domains."copying/{n}".function="{file}:Copying"',
            f'domains."copying/{n}".options={{kind="{n}"}}',
        )
    ]


def measurements(folder: Path) -> list[dict[str, Any]]:
    """Return what a run's events say of its gradients, in order."""
    from educe.observability.run_reader import RunReader

    kept = ("step", "names", "cosines", "errors", "norms", "weights")
    events = RunReader(folder).events("interference")
    return [{k: e.payload[k] for k in kept} for e in events]


def pair_cosine(rows: Sequence[Mapping[str, Any]], one: str, other: str) -> dict[str, float]:
    """Return the mean over seeds of a pair's last faded mean, and its standard error.

    A run's own error is of its faded mean over measurements; seeds are independent. For a run that
    saw the pair's gradients together only once the others' errors stand in, and where seeds differ
    by more than that, their spread counts.
    """
    means, errors = [], []
    for row in rows:
        if not row["interference"]:
            continue  # nothing was ever trained
        last = row["interference"][-1]
        i, j = (last["names"].index(f"copying/{n}") for n in (one, other))
        if last["cosines"][i][j] is not None:
            means.append(last["cosines"][i][j])
            if last["errors"][i][j]:
                errors.append(last["errors"][i][j])
    if not means:
        return {"cosine": math.nan, "error": math.nan}
    known = []
    if errors:
        known.append(math.sqrt(fmean(e**2 for e in errors) / len(means)))
    if len(means) > 1:
        known.append(stdev(means) / math.sqrt(len(means)))
    return {"cosine": fmean(means), "error": max(known, default=math.nan)}


def summarise(rows: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the figures of the statement made beforehand."""

    def score(kind: str, domain: str) -> float:
        return fmean(rows[f"{kind}-{s}"]["domains"][f"copying/{domain}"] for s in seeds)

    plain = [rows[f"plain-{s}"] for s in seeds]
    pairs = {
        "conflicting": pair_cosine(plain, *CONFLICTING),
        "helping": pair_cosine(plain, *HELPING),
    }
    scores = {
        d: {
            "alone": score(f"{d}-alone", d),
            "plain": score("plain", d),
            "balanced": score("balanced", d),
        }
        for d in CONFLICTING
    }
    lost = {d: own["alone"] - own["balanced"] for d, own in scores.items()}
    conflict, help_ = pairs["conflicting"], pairs["helping"]
    return {
        "seeds": list(seeds),
        "pairs": pairs,
        "scores": scores,
        "helping_scores": {
            d: {kind: score(kind, d) for kind in ("plain", "balanced")} for d in HELPING
        },
        "tells_them_apart": bool(
            conflict["cosine"] + 2 * conflict["error"] < 0 < help_["cosine"] - 2 * help_["error"]
        ),
        "keeps_what_single_reach": bool(max(lost.values()) <= MARGIN),
    }


def pooled(out: Path, kind: str, seeds: Sequence[int]) -> Any:
    """Return an arm's held-out rows, its seeds as further samples of the same tasks."""
    from arm_runs import load_evaluation

    from educe.evaluation.summary import pool_seeds

    return pool_seeds([load_evaluation(out / "held-out", f"{kind}-{s}") for s in seeds], kind)


def intervals(out: Path, seeds: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Return 95 % intervals of (balanced - alone) and (plain - alone), paired by task."""
    from educe.evaluation.compare import compare

    found: dict[str, dict[str, list[float]]] = {}
    for domain in CONFLICTING:
        before = pooled(out, f"{domain}-alone", seeds)
        for kind in ("plain", "balanced"):
            for one in compare(before, pooled(out, kind, seeds)).domains:
                if one.domain == f"copying/{domain}" and one.difference is not None:
                    e = one.difference.estimate
                    found.setdefault(domain, {})[kind] = [e.value, e.low, e.high]
    return found


def report(told: Mapping[str, Any]) -> str:
    lines = [f"{len(told['seeds'])} seed(s)", "", "cosine of gradients in the plain mix"]
    for name, own in told["pairs"].items():
        lines.append(f"  {name:<12} {own['cosine']:+.3f} ± {own['error']:.3f}")
    lines.append(f"  told apart: {_word(told['tells_them_apart'])}")
    lines += ["", f"{'held-out score':<16}{'alone':>8}{'plain':>8}{'balanced':>10}"]
    for domain, own in told["scores"].items():
        lines.append(
            f"  {domain:<14}"
            + "".join(f"{100 * own[k]:8.1f}" for k in ("alone", "plain"))
            + f"{100 * own['balanced']:10.1f}"
        )
        for kind, (value, low, high) in told["intervals"].get(domain, {}).items():
            lines.append(
                f"    {kind} - alone: {100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            )
    for domain, own in told["helping_scores"].items():
        lines.append(f"  {domain:<14}{'':>8}{100 * own['plain']:8.1f}{100 * own['balanced']:10.1f}")
    lines.append(
        f"  balanced within {100 * MARGIN:.0f} points of alone: "
        f"{_word(told['keeps_what_single_reach'])}"
    )
    return "\n".join(lines)


def page_of(given: argparse.Namespace, told: Mapping[str, Any]) -> str:
    """Return the section of the docs, whatever it says."""
    seeds = told["seeds"]
    rows = [
        f"| {name} | {_score(own, 'alone')} | {_score(own, 'plain')} | {_score(own, 'balanced')} | "
        f"{_interval(told, name, 'plain')} | {_interval(told, name, 'balanced')} |"
        for name, own in {**told["scores"], **told["helping_scores"]}.items()
    ]
    cosines = "; ".join(
        f"{name} pair {own['cosine']:+.3f} ± {own['error']:.3f}"
        for name, own in told["pairs"].items()
    )
    return "\n\n".join(
        [
            "## Measured: domains that conflict, domains that help",
            f"`python benchmarks/interference.py` wrote this section: seed{'s' * (len(seeds) > 1)} "
            f"{', '.join(map(str, seeds))}{' (one seed)' if len(seeds) == 1 else ''}, "
            f"{given.steps} rollout batches of {PROMPTS_A_DOMAIN} prompts a domain, {given.tasks} "
            "held-out tasks a domain. Verdicts and margins were stated before it was run.",
            "Cosine of two domains' gradients in the plain mix, mean and standard error: "
            f"{cosines}. Told apart (below and above zero by two standard errors): "
            f"**{_word(told['tells_them_apart'])}**.",
            "\n".join(
                [
                    "| domain | alone, % | plain mix | balanced | plain less alone, points | "
                    "balanced less alone |",
                    "|---|---|---|---|---|---|",
                    *rows,
                ]
            ),
            f"Both conflicting domains within {100 * MARGIN:.0f} points of their single-domain "
            f"score when balanced: **{_word(told['keeps_what_single_reach'])}**. Balanced means "
            f"{', '.join(f'`{word}`' for word in BALANCED)}.",
        ]
    )


def _score(own: Mapping[str, float], kind: str) -> str:
    return f"{100 * own[kind]:.1f}" if kind in own else "-"


def _interval(told: Mapping[str, Any], domain: str, kind: str) -> str:
    found = told["intervals"].get(domain, {}).get(kind)
    if found is None:
        return "-"
    value, low, high = (100 * x for x in found)
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _without_nan(value: Any) -> Any:
    """JSON has no word for what is not known."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    return value


def _word(is_so: bool) -> str:
    return "yes" if is_so else "NO"


if __name__ == "__main__":
    sys.exit(main())
