"""Code quality: programs are run, tested and read in the sandbox; every part on its own.

No weighted sum: a program that is tidy and wrong, and one that is right and insecure, are different
troubles. What can only be said of a program (style, complexity, insecure patterns) is measured on
completions that hold one that compiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from educe.config.settings import DomainSettings
from educe.core.types import JSON, Task
from educe.domains.builtin.python_functions.extract import extract_function
from educe.domains.code_quality import PREFIX, QualityDomain
from educe.domains.registry import expand, load_domain
from educe.evaluation.dimensions.completion import pass_measures, share_right
from educe.evaluation.dimensions.options import checked_options, sampling
from educe.evaluation.dimensions.protocol import (
    Findings,
    Measure,
    MeasureContext,
    Part,
    PlanContext,
    Table,
    mean_values,
)
from educe.evaluation.records import EvalResult, EvalRow
from educe.evaluation.sets.parts import chosen_sets, set_parts
from educe.evaluation.sets.programs import code_of, defines
from educe.evaluation.wordings import worker_settings

SMALL = ("python/string-edit/tiny", "python/list-reduce/tiny")
MEDIUM = (
    "python/string-edit/easy",
    "python/list-reduce/easy",
    "python/two-numbers/medium",
    "python-debug/string-edit/easy",
)
OPTIONS = ("tasks", "samples", "temperature", "domains", "sets")
_LABELS = {
    "lint": ("style", "findings of ruff per hundred lines, as a mark"),
    "tidy": ("tidiness", "line length and docstrings, as a mark"),
    "simple": ("simplicity", "cyclomatic complexity of the worst function, as a mark"),
    "secure": ("security", "halved by every insecure pattern"),
}


@dataclass(frozen=True, slots=True)
class CodeQuality:
    """Does its code run, pass its tests, and would a reviewer take it?"""

    name: str = "code_quality"
    title: str = "Code quality"
    question: str = "Does its code compile, run, pass its tests, and read well and safely?"

    def plan(self, context: PlanContext) -> list[Part]:
        options = checked_options(self.name, context.options, OPTIONS)
        samples, temperature = sampling(self.name, options, context.choose(1, 2, 8))
        template = Part(
            "",
            num_tasks=int(options.get("tasks", context.choose(8, 50, 164))),
            samples=samples,
            temperature=temperature,
            takes_strategy=False,
        )
        parts = [
            replace(template, name=name, source=source, settings=settings,
                    max_completion_tokens=settings.max_completion_tokens or None)
            for name, source, settings in _sources(context, options.get("domains"))
        ]  # fmt: skip
        names = chosen_sets(options.get("sets"), () if context.tier == "small" else ("humaneval",))
        return [_with_quality(p) for p in parts + set_parts(context, names, template)]

    def measure(self, result: EvalResult, context: MeasureContext) -> Findings:
        rows = result.rows
        measures = [
            Measure("all tests passed", mean_values(rows, share_right), is_headline=True),
            _of("compiles", rows, "compiles"),
            _of("runs", rows, "executes", note="ends without an error or time-out"),
            _of("tests passed", rows, "pass_rate", note="share of tests, where they are counted"),
        ]
        measures += [_of(label, rows, part, note) for part, (label, note) in _LABELS.items()]
        measures.append(
            Measure(
                "insecure programs",
                mean_values(rows, _share_insecure),
                direction=-1,
                note="compiles and holds an insecure pattern",
            )
        )
        return Findings(tuple(measures + pass_measures(rows)), (_findings_table(rows),))


def program_of(task: Task, text: str) -> str:
    """Return the program that a completion hands in; empty when there is none.

    Plain text is a program only where it defines what was asked for: "12" compiles, too.
    """
    entry_point = str(task.metadata.get("entry_point", ""))
    if entry_point and "." not in entry_point:
        found = extract_function(text, entry_point)
        if found.source is not None:
            return found.source
    code = code_of(text)
    wanted = entry_point.partition(".")[0]
    return code if "```" in text or defines(code, wanted) else ""


def _with_quality(part: Part) -> Part:
    settings = worker_settings(part.source, part.settings)
    inner = part.domain or load_domain(part.name, settings)
    options = {"inner": settings.model_dump(mode="json"), "name": part.name}
    return replace(
        part,
        source="",
        settings=DomainSettings(
            function="educe.evaluation.dimensions.code_quality:quality_domain", options=options
        ),
        domain=QualityDomain(inner, program_of),
    )


def quality_domain(inner: dict[str, JSON], name: str) -> QualityDomain:
    """Return the coding domain that settings give, with quality parts; what workers load."""
    return QualityDomain(load_domain(name, DomainSettings.model_validate(inner)), program_of)


def _sources(context: PlanContext, chosen: JSON) -> list[tuple[str, str, DomainSettings]]:
    if chosen is not None:
        patterns = [chosen] if isinstance(chosen, str) else [str(c) for c in chosen]
        names = [n for pattern in patterns for n in expand(pattern)]
        return [(n, n, DomainSettings()) for n in dict.fromkeys(names)]
    found = []
    for name, settings in context.domains.items():
        if load_domain(name, settings).spec.executes_code:
            is_registered = not (settings.path or settings.function)
            found.append((name, name if is_registered else "", settings))
    if found:
        return found
    return [(n, n, DomainSettings()) for n in context.choose(SMALL, MEDIUM, MEDIUM)]


def _of(label: str, rows: Sequence[EvalRow], part: str, note: str = "") -> Measure:
    def mean(group: Sequence[EvalRow]) -> float | None:
        values = [v for r in group if (v := r.parts.get(PREFIX + part)) is not None]
        return sum(values) / len(values) if values else None

    values = mean_values(rows, mean)
    if part == "lint" and rows and not values:
        note = "not measured: no program, or ruff is not on the path"
    return Measure(label, values, note=note)


def _share_insecure(rows: Sequence[EvalRow]) -> float | None:
    values = [v for r in rows if (v := r.parts.get(f"{PREFIX}secure")) is not None]
    return sum(v < 1 for v in values) / len(values) if values else None


def _findings_table(rows: Sequence[EvalRow]) -> Table:
    """The most frequent findings, without their line numbers."""
    counts: Counter[str] = Counter()
    for row in rows:
        texts = {str(f).partition(": ")[2] or str(f) for f in row.proof.get("quality_findings", ())}
        counts.update(t.split("`")[0].strip()[:70] for t in texts)
    found = tuple(
        (name, str(count), f"{100 * count / max(1, len(rows)):.1f}")
        for name, count in counts.most_common(10)
    )
    return Table("Most frequent findings", ("finding", "completions", "% of all"), found)


CODE_QUALITY = CodeQuality()
