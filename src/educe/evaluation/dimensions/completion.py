"""Task completion: accuracy and unbiased pass@k on built-in domains, the recipe's and real sets."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from educe.config.settings import DomainSettings
from educe.core.types import JSON
from educe.domains.registry import expand
from educe.evaluation.dimensions.options import checked_options, sampling
from educe.evaluation.dimensions.protocol import (
    Findings,
    Measure,
    MeasureContext,
    Part,
    PlanContext,
    Table,
    mean_score,
    mean_values,
)
from educe.evaluation.records import EvalResult, EvalRow, Outcome
from educe.evaluation.sets.parts import chosen_sets, set_parts
from educe.evaluation.statistics import pass_at_k
from educe.evaluation.summary import DomainSummary, summarise

# One of each kind at levels that a small model and a large one can both be told by.
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "small": (
        "arithmetic/percent/tiny",
        "word-problems/part-of/tiny",
        "algebra/solve-linear/easy",
        "instructions/1-constraints/tiny",
        "tools/notes/tiny",
        "python/string-edit/tiny",
    ),
    "medium": (
        "arithmetic/mixed/easy",
        "arithmetic/fractions/medium",
        "word-problems/part-of/medium",
        "word-problems/travel/easy",
        "algebra/solve-linear/medium",
        "algebra/factor/medium",
        "instructions/2-constraints/mixed",
        "instructions/4-constraints/mixed",
        "tools/bank/easy",
        "tools/mixed/medium",
        "rg/knights_knaves/easy",
        "rg/calendar_arithmetic/easy",
    ),
}
# What anybody may use; the others are asked by name.
SETS = (
    "gsm8k-100", "boolq", "medmcqa", "medqa", "pubmedqa", "contracts", "mmlu", "openbookqa",
    "commonsenseqa", "piqa", "hellaswag-100", "truthfulqa-100", "bfcl-simple", "bfcl-multiple",
    "bfcl-parallel", "bfcl-live", "bfcl-relevance", "ifbench", "humaneval",
)  # fmt: skip
OPTIONS = ("tasks", "samples", "temperature", "domains", "sets")


@dataclass(frozen=True, slots=True)
class Completion:
    """Are tasks completed: right answers, actions and programs."""

    name: str = "completion"
    title: str = "Task completion"
    question: str = "How many tasks are solved, at the first attempt and within k?"

    def plan(self, context: PlanContext) -> list[Part]:
        options = checked_options(self.name, context.options, OPTIONS)
        samples, temperature = sampling(self.name, options, context.choose(1, 4, 8))
        template = Part(
            "",
            num_tasks=int(options.get("tasks", context.choose(8, 50, 200))),
            samples=samples,
            temperature=temperature,
        )
        sets = chosen_sets(options.get("sets"), () if context.tier == "small" else SETS)
        return _domain_parts(context, options, template) + set_parts(context, sets, template)

    def measure(self, result: EvalResult, context: MeasureContext) -> Findings:
        rows = result.rows
        if not rows:
            return Findings((Measure("accuracy", (), is_headline=True, note="nothing was asked"),))
        measures = [
            Measure("accuracy", mean_values(rows, share_right), is_headline=True),
            Measure(
                "accuracy above chance",
                mean_values(rows, share_right),
                floors=result.floors,
                note="0 is the best answer that ignores the question, 1 is perfect",
            ),
        ]
        if any(r.outcome is Outcome.PARTIAL for r in rows):
            measures.append(Measure("score with partial credit", mean_values(rows, mean_score)))
        measures += pass_measures(rows)
        measures.append(tokens_measure(rows))
        return Findings(tuple(measures), (_table(result, context.level),))


def share_right(rows: Sequence[EvalRow]) -> float:
    """Return the share of right completions of one task's scored rows."""
    return sum(r.outcome is Outcome.RIGHT for r in rows) / len(rows)


def pass_measures(rows: Sequence[EvalRow]) -> list[Measure]:
    """Return pass@k for k = 2, 4, 8 … that the samples allow, unbiased (Chen et al. 2021).

    A task with fewer than k scored samples is left out of that k.
    """
    sizes = mean_values(rows, len)
    largest = int(max((v.value for v in sizes), default=0))
    measures = []
    k = 2
    while k <= largest:
        measures.append(Measure(f"pass@{k}", mean_values(rows, functools.partial(_pass, k=k))))
        k *= 2
    return measures


def _pass(rows: Sequence[EvalRow], *, k: int) -> float | None:
    right = sum(r.outcome is Outcome.RIGHT for r in rows)
    return float(pass_at_k([right], len(rows), k)[0]) if len(rows) >= k else None


def tokens_measure(rows: Sequence[EvalRow]) -> Measure:
    """Return the mean number of sampled tokens a completion, over all its turns."""
    values = mean_values(rows, lambda group: sum(r.num_tokens for r in group) / len(group))
    return Measure("tokens", values, direction=0, unit="tokens")


def _domain_parts(context: PlanContext, options: Mapping[str, JSON], template: Part) -> list[Part]:
    """Return parts of the recipe's domains, then the built-in ones that it does not have."""
    chosen = options.get("domains")
    if chosen is not None:
        names = [n for pattern in _texts(chosen) for n in expand(pattern)]
        recipe: Mapping[str, DomainSettings] = {}
    else:
        recipe = context.domains
        wanted = BUILT_IN["small"] if context.tier == "small" else BUILT_IN["medium"]
        # A recipe's domains say more about its model than a fixed handful, which then only fills.
        names = [n for n in wanted if n not in recipe]
        if context.tier == "small" and len(recipe) >= len(wanted):
            names = []
    parts = []
    for name, own in recipe.items():
        is_registered = not (own.path or own.function)
        parts.append(
            replace(
                template,
                name=name,
                source=name if is_registered else "",
                settings=own,
                max_completion_tokens=own.max_completion_tokens or None,
                max_turns=own.max_turns or None,
                facts={"origin": "recipe"},
            )
        )
    return parts + [
        replace(template, name=n, source=n, facts={"origin": "built-in"})
        for n in dict.fromkeys(names)
    ]


def _texts(value: JSON) -> list[str]:
    return [value] if isinstance(value, str) else [str(v) for v in value]


def _table(result: EvalResult, level: float) -> Table:
    rows = tuple(_cells(d) for d in summarise(result, level=level).domains)
    return Table(
        "By set",
        ("set", "kind", "tasks", "score %", "floor %", "pass@k %", "tokens", "caution"),
        rows,
        left=2,
    )


def _cells(d: DomainSummary) -> tuple[str, ...]:
    score = "–"
    if d.score is not None:
        low, value, high = (100 * x for x in (d.score.low, d.score.value, d.score.high))
        score = f"{value:.1f} [{low:.1f}, {high:.1f}]"
    passes = ", ".join(f"@{k} {100 * v:.0f}" for k, v in d.pass_at_k.items() if k > 1)
    name = d.domain.partition("/")[2]
    return (
        name, d.kind, str(d.num_tasks), score, f"{100 * d.floor:.0f}", passes or "–",
        f"{d.mean_tokens:.0f}", "; ".join(d.cautions),
    )  # fmt: skip


COMPLETION = Completion()
