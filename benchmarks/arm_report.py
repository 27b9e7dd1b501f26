"""The algorithms' arms as a page: differences from the start, from each other, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from arm_runs import load_evaluation
from page_section import replace_section

from educe.evaluation.seeds import SeedStudy, compare_seeds
from educe.evaluation.statistics import Estimate, holm, minimum_detectable_effect

SECTION = "algorithm-arms"
LABELS = {
    "ppo": "PPO",
    "grpo": "GRPO",
    "rloo": "RLOO",
    "reinforce_plus_plus": "REINFORCE++",
    "gspo": "GSPO",
    "cispo": "CISPO",
    "dapo": "DAPO",
}
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two algorithms: after - before, pooled over seeds; ``p`` adjusted over all pairs (Holm)."""

    before: str
    after: str
    difference: Estimate
    p: float


@dataclass(frozen=True, slots=True)
class Study:
    """All that the page says.

    Attributes:
        algorithms: those whose seeds are all done, in the order asked for.
        rows: by arm.
        against_start: by algorithm.
        pairs: of algorithms.
    """

    algorithms: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: Mapping[str, Row]
    against_start: Mapping[str, SeedStudy]
    pairs: tuple[Pair, ...]

    @staticmethod
    def load(
        out: Path, rows: Mapping[str, Row], algorithms: Sequence[str], seeds: Sequence[int]
    ) -> Study:
        """Read the rows' evaluations from OUT/held-out and compare them."""
        whole = [a for a in algorithms if all(f"{a}-{s}" in rows for s in seeds)]
        if not all(f"start-{s}" in rows for s in seeds):
            whole = []
        results = {
            name: [load_evaluation(out / "held-out", f"{name}-{s}") for s in seeds]
            for name in (["start", *whole] if whole else [])
        }
        against = {
            name: compare_seeds(list(zip(results["start"], results[name], strict=True)))
            for name in whole
        }
        return Study(tuple(whole), tuple(seeds), rows, against, _pairs(whole, results))

    def arms(self, algorithm: str) -> list[Row]:
        return [self.rows[f"{algorithm}-{seed}"] for seed in self.seeds]


def _pairs(names: Sequence[str], results: Mapping[str, Any]) -> tuple[Pair, ...]:
    found = []
    for before, after in combinations(names, 2):
        study = compare_seeds(list(zip(results[before], results[after], strict=True)))
        found.append((before, after, _pooled(study)))
    adjusted = holm([_p_value(d) for _, _, d in found]).tolist() if found else []
    return tuple(Pair(*f, p) for f, p in zip(found, adjusted, strict=True))


def _pooled(study: SeedStudy) -> Estimate:
    difference = study.pooled.macro_difference
    assert difference is not None, "every domain has scores"
    return difference


def _p_value(difference: Estimate) -> float:
    """Two-sided, of the pooled difference over its error."""
    from scipy.stats import norm

    return float(2 * norm.sf(abs(difference.value) / difference.standard_error))


# The page


def write_into(page: Path, study: Study, stated: str, command: str) -> str:
    """Write the section between its marks into the page, and the figure beside it; return it."""
    figure = page.parent / "figures" / "algorithm-arms.svg"
    draw(study, figure)
    return replace_section(page, SECTION, render(study, stated, command, f"figures/{figure.name}"))


def render(study: Study, stated: str, command: str, figure: str) -> str:
    """Return the section in Markdown."""
    parts = [
        "## Measured: seven algorithms from one SFT start",
        f"`{command}` wrote this section. SmolLM2-135M-Instruct after a short SFT on four domains "
        "with short answers, then each algorithm with its published defaults, one learning rate "
        "for all (tuned for none), equal completion tokens (a stage ends with the batch that "
        "reaches them; dropped groups count), two updates a batch, one CPU thread "
        "an arm.",
        stated,
        _starts(study),
        _main_table(study),
        _seed_note(study),
        _pair_text(study),
        _value_text(study),
        f"![Learning curves of the algorithms]({figure})",
        "Curves: left the score on screen tasks (never trained on, greedy), right the reward of "
        "the rollout batches, means over seeds. Batches of DAPO hold only groups whose scores "
        "differ, so its rewards on the right are not comparable with the others'.",
    ]
    return "\n\n".join(p for p in parts if p)


def _starts(study: Study) -> str:
    before = study.against_start[study.algorithms[0]].pooled.before.macro
    assert before is not None
    own = ", ".join(
        f"{d.domain} {100 * d.score.value:.1f}"
        for d in study.against_start[study.algorithms[0]].pooled.before.domains
        if d.score is not None
    )
    return f"The start: {100 * before.value:.1f} % of samples right ({own})."


def _main_table(study: Study) -> str:
    seeds = len(study.seeds)
    lines = [
        f"| algorithm | right, % | over the start, pooled | each seed | over {seeds} seeds (t) | "
        "tokens | updates | minutes | clipped, % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in study.algorithms:
        found, arms = study.against_start[name], study.arms(name)
        own = ", ".join(
            f"{100 * c.macro_difference.value:+.1f}" for c in found.by_seed if c.macro_difference
        )
        after = found.pooled.after.macro
        lines.append(
            f"| {LABELS.get(name, name)} | {100 * after.value if after else float('nan'):.1f} | "
            f"{_points(_pooled(found))} | {own} | "
            f"{_points(found.between_seeds) if found.between_seeds else '–'} | "
            f"{_span(a['tokens'] for a in arms)} | {_span(a['updates'] for a in arms)} | "
            f"{fmean(a['train_seconds'] for a in arms) / 60:.1f} | {_clipped(arms)} |"
        )
    return "\n".join(lines)


def _seed_note(study: Study) -> str:
    above = [n for n in study.algorithms if study.against_start[n].is_pooled_above_zero]
    every = [n for n in study.algorithms if study.against_start[n].is_every_seed_above_zero]
    short = [
        f"{LABELS.get(n, n)} seed {a['seed']} ({', '.join(a['alarms'])})"
        for n in study.algorithms
        for a in study.arms(n)
        if a["alarms"]
    ]
    text = (
        "Points, 95 % intervals. *Pooled* speaks of new tasks given these seeds, *over seeds* of "
        "new seeds given these tasks; with three seeds the latter is wide. Pooled interval above "
        f"zero: {_names(above)}. Every seed above zero: {_names(every)}."
    )
    return text + (f" Alarms: {'; '.join(short)}." if short else " No alarm fired.")


def _pair_text(study: Study) -> str:
    if not study.pairs:
        return ""
    apart = [p for p in study.pairs if p.p <= 0.05]
    widest = max(minimum_detectable_effect(p.difference.standard_error) for p in study.pairs)
    lines = [
        f"Between algorithms, {len(study.pairs)} pairs on the same tasks, p adjusted for all pairs "
        f"(Holm): {len(apart)} can be told apart. What is not told apart may still differ: with "
        f"these errors a pair would show {100 * widest:.1f} points at the latest (80 % power, "
        "unadjusted). The p-values know tasks, not seeds: a claim about the algorithms "
        "themselves would need more of these.",
        "\n| | " + " | ".join(LABELS.get(n, n) for n in study.algorithms[1:]) + " |",
        "|---|" + "---|" * (len(study.algorithms) - 1),
    ]
    found = {(p.before, p.after): p for p in study.pairs}
    for i, before in enumerate(study.algorithms[:-1]):
        cells = [
            _cell(found[before, after]) if j > i else ""
            for j, after in enumerate(study.algorithms)
            if j > 0
        ]
        lines.append(f"| {LABELS.get(before, before)} | " + " | ".join(cells) + " |")
    lines.append("\nColumn less row, points with 95 % interval; bold where told apart.")
    return "\n".join(lines)


def _cell(pair: Pair) -> str:
    text = _points(pair.difference)
    return f"**{text}**" if pair.p <= 0.05 else text


def _value_text(study: Study) -> str:
    lines = []
    for name in study.algorithms:
        for arm in study.arms(name):
            series = [x for x in arm["curves"].get("explained_variance", []) if x is not None]
            if series:
                start, end = explained(series)
                lines.append(
                    f"| {LABELS.get(name, name)} | {arm['seed']} | {start:+.2f} | {end:+.2f} |"
                )
    if not lines:
        return ""
    head = "| values of | seed | explained variance, first fifth | last fifth |\n|---|---|---|---|"
    return (
        "Values, measured on each batch before its update (0 is no better than a constant):\n\n"
        + "\n".join([head, *lines])
    )


def explained(series: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the first and of the last fifth of a curve."""
    size = max(1, len(series) // 5)
    return fmean(series[:size]), fmean(series[-size:])


def _clipped(arms: Sequence[Row]) -> str:
    shares = []
    for arm in arms:
        for low, high in zip(
            *(arm["curves"].get(n, []) for n in ("clip_low", "clip_high")), strict=True
        ):
            if low is not None and high is not None:
                shares.append(low + high)
    return f"{100 * fmean(shares):.1f}" if shares else "–"


def _span(values: Any) -> str:
    low, *_, high = sorted([*values] * 2)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _points(estimate: Estimate) -> str:
    return f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def _names(names: Sequence[str]) -> str:
    return ", ".join(LABELS.get(n, n) for n in names) or "none"


# Curves


def draw(study: Study, path: Path) -> None:
    """Draw the curves over completion tokens as SVG, the same bytes for the same numbers."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "educe", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        FigureCanvasSVG(figure)
        left, right = figure.subplots(1, 2)
        for name in study.algorithms:
            arms, label = study.arms(name), LABELS.get(name, name)
            for axis, curve in ((left, screen_curve(arms)), (right, reward_curve(arms))):
                if curve:
                    axis.plot(*zip(*curve, strict=True), label=label, linewidth=1.5)
        left.set_title("score on screen tasks, greedy", loc="left", fontsize=9)
        right.set_title("reward of rollout batches (mean of 5)", loc="left", fontsize=9)
        for axis in (left, right):
            axis.set_xlabel("completion tokens", fontsize=8)
            axis.tick_params(labelsize=7)
            axis.grid(alpha=0.25)
        left.legend(fontsize=7)
        figure.savefig(path, format="svg", metadata={"Date": None})


def screen_curve(arms: Sequence[Row]) -> list[tuple[float, float]]:
    """Return (tokens, score) means over seeds of the looks that all seeds took."""
    count = min(len(a["screens"]) for a in arms)
    points = []
    for i in range(count):
        seen = [(_tokens(a)[a["screens"][i][0]], a["screens"][i][1]) for a in arms]
        if all(score is not None for _, score in seen):
            points.append((fmean(t for t, _ in seen), fmean(s for _, s in seen)))
    return points


def reward_curve(arms: Sequence[Row], width: int = 5) -> list[tuple[float, float]]:
    """Return (tokens, reward) means over seeds and ``width`` batches."""
    count = min(len(a["curves"]["reward"]) for a in arms)
    points = []
    for end in range(width, count + 1):
        rewards = [
            r for a in arms for r in a["curves"]["reward"][end - width : end] if r is not None
        ]
        if rewards:
            points.append((fmean(_tokens(a)[end] for a in arms), fmean(rewards)))
    return points


def _tokens(arm: Row) -> list[float]:
    """Return the tokens that were sampled before each step, and after the last."""
    return [0.0, *(x or 0.0 for x in arm["curves"]["sampled_tokens"])]
