"""The mixture's arms as a section of the page: claims fixed beforehand, and every domain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from arm_runs import load_evaluation
from page_section import replace_section

from educe.evaluation.compare import Comparison, DomainComparison, compare
from educe.evaluation.seeds import SeedStudy, compare_seeds
from educe.evaluation.statistics import (
    Estimate,
    holm,
    macro_difference,
    minimum_detectable_effect,
    paired_power,
)
from educe.evaluation.summary import pool_seeds
from educe.evaluation.transfer import TransferGain, transfer_gain

SECTION = "mixture-arms"
# Adaptive may be worse overall by less than this; a domain may lose less than that of its start.
OVERALL_MARGIN, MARGIN = 0.025, 0.05
LEVEL = 0.05
# Assumed before any arm was run, as in algorithm_arms.py: the deviation of differences between
# tasks beyond the noise of sampling, and the variance p (1 - p) of a sample at a rate of 25 %.
TASK_DEVIATION, SAMPLE_VARIANCE = 0.15, 0.25 * 0.75
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Design:
    """What is compared, and what it can show."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]
    tasks: int
    samples: int
    seeds: tuple[int, ...]

    @property
    def num_lowest(self) -> int:
        """Domains of the worst quartile."""
        return max(1, len(self.trained) // 4)

    def error(self, num_domains: int, num_seeds: int) -> float:
        """Return the expected standard error of a paired difference over so many domains."""
        draws = self.samples * num_seeds
        variance = TASK_DEVIATION**2 + 2 * SAMPLE_VARIANCE / draws
        return math.sqrt(variance / (num_domains * self.tasks))

    def stated_beforehand(self) -> str:
        count, seeds = len(self.trained), len(self.seeds)
        whole, low = self.error(count, seeds), self.error(self.num_lowest, seeds)
        single = self.error(1, seeds)
        # A one-sided test at LEVEL has the power of a two-sided one at twice that.
        power = paired_power(OVERALL_MARGIN, whole, alpha=2 * LEVEL)
        falls = minimum_detectable_effect(single, alpha=2 * LEVEL / count)
        return (
            f"{count} domains trained, {len(self.held_out)} never seen, {self.tasks} held-out "
            f"tasks a domain, {self.samples} samples a task and seed, {seeds} seeds. Stated "
            f"beforehand, with a standard deviation of {TASK_DEVIATION:g} between tasks and "
            f"samples right at a rate of 25 %: (1) adaptive is not inferior to static overall, "
            f"margin {100 * OVERALL_MARGIN:g} points, one-sided 5 % (power {power:.0%} where they "
            f"are equal); (2) it is better on the worst quartile, the {self.num_lowest} trained "
            f"domains of the start's lowest scores, one-sided 5 % (a difference of "
            f"{100 * minimum_detectable_effect(low, alpha=2 * LEVEL):.1f} points is seen with 80 % "
            f"power); (3) no trained domain is shown to have lost over {100 * MARGIN:g} points of "
            f"the start, Holm over domains (a loss of {100 * (MARGIN + falls):.0f} points is seen "
            f"with 80 % power; how many domains are shown to have lost less is told beside). "
            f"Pooled over seeds: the intervals know tasks, not new seeds."
        )


@dataclass(frozen=True, slots=True)
class Fall:
    """A domain against the start: one-sided p-values, adjusted over domains (Holm).

    Attributes:
        p_fallen: of "it lost at most the margin": small is a proven loss.
        p_kept: of "it lost the margin or more": small is proven not inferior.
    """

    domain: str
    difference: Estimate
    p_fallen: float
    p_kept: float


@dataclass(frozen=True, slots=True)
class Study:
    """All that the section says.

    Attributes:
        arms: adaptive against static, over seeds.
        lowest: names of the worst quartile.
        quartile: adaptive less static on those.
        overall: adaptive less static on the trained domains.
        falls: by kind of arm.
        carried: by kind of arm, gain over the start on trained and held-out families.
        ablations: kind: each less the adaptive arm of the same seed, on the trained domains.
    """

    design: Design
    rows: Mapping[str, Row]
    arms: SeedStudy
    against_start: Mapping[str, Comparison]
    lowest: tuple[str, ...]
    overall: Estimate
    quartile: Estimate
    falls: Mapping[str, tuple[Fall, ...]]
    carried: Mapping[str, TransferGain | None]
    ablations: Mapping[str, Estimate]

    @staticmethod
    def load(
        out: Path, rows: Mapping[str, Row], design: Design, ablations: Sequence[str]
    ) -> Study | None:
        """Read the arms' evaluations from OUT/held-out; None before the main arms are done."""
        wanted = [f"{k}-{s}" for k in ("start", "static", "adaptive") for s in design.seeds]
        if not all(name in rows for name in wanted):
            return None

        def found(kind: str) -> list[Any]:
            return [load_evaluation(out / "held-out", f"{kind}-{s}") for s in design.seeds]

        start, static, adaptive = (found(k) for k in ("start", "static", "adaptive"))
        arms = compare_seeds(list(zip(static, adaptive, strict=True)))
        pooled = {
            kind: compare(pool_seeds(start, "start"), pool_seeds(own, kind))
            for kind, own in (("static", static), ("adaptive", adaptive))
        }
        lowest = _lowest(pooled["static"], design)
        first = design.seeds[0]
        single = {
            kind: _over(
                compare(adaptive[0], load_evaluation(out / "held-out", f"{kind}-{first}")),
                design.trained,
            )
            for kind in ablations
            if f"{kind}-{first}" in rows
        }
        return Study(
            design,
            rows,
            arms,
            pooled,
            lowest,
            _over(arms.pooled, design.trained),
            _over(arms.pooled, lowest),
            {k: _falls(c, design.trained) for k, c in pooled.items()},
            {k: _carried(c, design) for k, c in pooled.items()},
            single,
        )


def _lowest(comparison: Comparison, design: Design) -> tuple[str, ...]:
    """Return the trained domains of the start's lowest scores."""
    known = {
        d.domain: d.before.score.value for d in comparison.domains if d.before.score is not None
    }
    ranked = sorted((n for n in design.trained if n in known), key=lambda n: (known[n], n))
    return tuple(ranked[: design.num_lowest])


def _of(comparison: Comparison, names: Sequence[str]) -> list[DomainComparison]:
    return [d for d in comparison.domains if d.domain in names and d.difference is not None]


def _over(comparison: Comparison, names: Sequence[str]) -> Estimate:
    return macro_difference([d.difference for d in _of(comparison, names) if d.difference])


def _falls(comparison: Comparison, names: Sequence[str]) -> tuple[Fall, ...]:
    found = [(d.domain, d.difference.estimate) for d in _of(comparison, names) if d.difference]
    fallen = holm([1.0 - _p_above(e, -MARGIN) for _, e in found]).tolist()
    kept = holm([_p_above(e, -MARGIN) for _, e in found]).tolist()
    return tuple(Fall(name, e, a, b) for (name, e), a, b in zip(found, fallen, kept, strict=True))


def _p_above(estimate: Estimate, bound: float) -> float:
    """One-sided p-value of "the difference is at most ``bound``"."""
    from scipy.stats import t

    if not estimate.standard_error > 0:
        return 0.0 if estimate.value > bound else 1.0
    ratio = (estimate.value - bound) / estimate.standard_error
    return float(t.sf(ratio, estimate.num_clusters + 1))


def _carried(comparison: Comparison, design: Design) -> TransferGain | None:
    """The gain on families never seen; a family here is a domain's name less its level."""
    families = {d.domain: d.domain.rpartition("/")[0] or d.domain for d in comparison.domains}
    trained = {families[n] for n in design.trained if n in families}
    if not set(families.values()) - trained:
        return None
    return transfer_gain(comparison, families, trained)


# The page


def write_into(page: Path, study: Study, command: str) -> str:
    """Write the section between its marks into the page; return it."""
    return replace_section(page, SECTION, render(study, command))


def render(study: Study, command: str) -> str:
    """Return the section in Markdown."""
    parts = [
        "## Measured: an adaptive mixture on a real model",
        f"`{command}` wrote this section. SmolLM2-135M-Instruct after a short SFT, then GRPO with "
        f"equal static shares or with `expected_gain` and its defaults, equal completion tokens, "
        f"one CPU thread an arm.",
        study.design.stated_beforehand(),
        _verdicts(study),
        _arm_table(study),
        _falls_text(study),
        _carried_text(study),
        _domain_table(study),
        _ablation_table(study),
    ]
    return "\n\n".join(p for p in parts if p)


def _verdicts(study: Study) -> str:
    seeds = [c.macro_difference for c in study.arms.by_seed]
    each = ", ".join(f"{100 * d.value:+.1f}" for d in seeds if d is not None)
    is_kept = _p_above(study.overall, -OVERALL_MARGIN) <= LEVEL
    is_better = _p_above(study.quartile, 0.0) <= LEVEL
    lost = [f.domain for f in study.falls["adaptive"] if f.p_fallen <= LEVEL]
    return "\n".join(
        [
            "| claim | adaptive less static, points | held |",
            "|---|---|---|",
            f"| (1) not inferior overall | {_points(study.overall)} (seeds: {each}) | "
            f"{_word(is_kept)} |",
            f"| (2) better on the worst quartile | {_points(study.quartile)} | "
            f"{_word(is_better)} |",
            f"| (3) no domain lost over {100 * MARGIN:g} points of the start | "
            f"{', '.join(lost) or 'none proven'} | {_word(not lost)} |",
        ]
    )


def _arm_table(study: Study) -> str:
    lines = [
        "| arm | right, % (trained) | over the start | tokens | minutes of RL | alarms |",
        "|---|---|---|---|---|---|",
    ]
    for kind, comparison in study.against_start.items():
        rows = [study.rows[f"{kind}-{s}"] for s in study.design.seeds]
        right = [
            d.after.score.value
            for d in _of(comparison, study.design.trained)
            if d.after.score is not None
        ]
        alarms = sorted({a for row in rows for a in row["alarms"]})
        tokens = sorted(int(row["tokens"]) for row in rows)
        lines.append(
            f"| {kind} | {100 * fmean(right):.1f} | "
            f"{_points(_over(comparison, study.design.trained))} | {tokens[0]:,}–{tokens[-1]:,} | "
            f"{fmean(row['train_seconds'] for row in rows) / 60:.1f} | "
            f"{', '.join(alarms) or 'none'} |"
        )
    return "\n".join(lines)


def _falls_text(study: Study) -> str:
    told = []
    for kind, falls in study.falls.items():
        kept = sum(f.p_kept <= LEVEL for f in falls)
        lost = [f"{f.domain} {_points(f.difference)}" for f in falls if f.p_fallen <= LEVEL]
        told.append(
            f"{kind}: {kept} of {len(falls)} domains are shown to have lost less than "
            f"{100 * MARGIN:g} points, shown to have lost more: {', '.join(lost) or 'none'}"
        )
    return (
        "Against the start, Holm over domains. "
        + "; ".join(told)
        + ". The others are open: these tasks are too few to say either."
    )


def _carried_text(study: Study) -> str:
    lines = []
    for kind, gain in study.carried.items():
        if gain is None:
            continue
        new = (
            "" if gain.new_families is None else f", for a new family {_points(gain.new_families)}"
        )
        lines.append(
            f"{kind} {_points(gain.untrained)} on the {gain.num_untrained_families} families that "
            f"were never seen (these tasks){new}"
        )
    if not lines:
        return ""
    return "Zero-shot change against the start: " + "; ".join(lines) + "."


def _domain_table(study: Study) -> str:
    against = {d.domain: d for d in study.against_start["static"].domains}
    arms = {d.domain: d for d in study.arms.pooled.domains}
    shares = [study.rows[f"adaptive-{s}"].get("shares", {}) for s in study.design.seeds]
    lines = [
        "| domain | start | static | adaptive | adaptive less static | its share, × equal |",
        "|---|---|---|---|---|---|",
    ]
    names = sorted(arms, key=lambda n: (n in study.design.held_out, n))
    for name in names:
        own, both = against.get(name), arms[name]
        if own is None:
            continue
        share = fmean(s.get(name, 0.0) for s in shares) * len(study.design.trained)
        mark = " (worst quartile)" if name in study.lowest else ""
        mark = " (never seen)" if name in study.design.held_out else mark
        difference = None if both.difference is None else both.difference.estimate
        lines.append(
            f"| {name}{mark} | {_percent(own.before.score)} | {_percent(both.before.score)} | "
            f"{_percent(both.after.score)} | {_points(difference)} | {share:.2f} |"
        )
    return "\n".join(lines)


def _ablation_table(study: Study) -> str:
    if not study.ablations:
        return ""
    first = study.design.seeds[0]
    error = study.design.error(len(study.design.trained), 1)
    seen = 100 * minimum_detectable_effect(error)
    lines = [
        f"**One seed only** (seed {first}), each arm less the adaptive one of that seed, on the "
        f"trained domains. Two seeds of one arm differ as much as many of these: a hint, no "
        f"finding (tasks alone hide what is under {seen:.1f} points).",
        "",
        "| changed | points | tokens |",
        "|---|---|---|",
    ]
    for kind, difference in study.ablations.items():
        lines.append(
            f"| {kind} | {_points(difference)} | {int(study.rows[f'{kind}-{first}']['tokens']):,} |"
        )
    return "\n".join(lines)


def _points(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def _percent(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{100 * estimate.value:.1f}"


def _word(is_so: bool) -> str:
    return "yes" if is_so else "**no**"
