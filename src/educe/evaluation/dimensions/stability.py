"""Output stability: several samples and several wordings of the same tasks.

A *cell* is one task in one prompt template, with K samples. Answers are compared by class, as the
verifier sees them (``evaluation.answers``): two texts with the same right answer are the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from educe.config.settings import DomainSettings
from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.domains.registry import expand, load_domain
from educe.evaluation.answers import RIGHT, answer_class
from educe.evaluation.dimensions.options import checked_options
from educe.evaluation.dimensions.protocol import (
    Findings,
    ItemValue,
    Measure,
    MeasureContext,
    Part,
    PlanContext,
    Table,
    part_facts,
)
from educe.evaluation.records import EvalResult, EvalRow
from educe.evaluation.statistics import pass_hat_k, stability
from educe.evaluation.statistics.repeated import Stability
from educe.evaluation.wordings import TEMPLATES, reworded_settings, worker_settings

SMALL = ("arithmetic/percent/tiny", "word-problems/part-of/tiny")
MEDIUM = (
    "arithmetic/mixed/easy",
    "arithmetic/fractions/easy",
    "word-problems/part-of/easy",
    "word-problems/travel/easy",
    "algebra/solve-linear/medium",
    "rg/syllogism/easy",
)
OPTIONS = ("tasks", "samples", "templates", "temperature", "domains")
_RECIPE_DOMAINS = 4


@dataclass(frozen=True, slots=True)
class OutputStability:
    """Does it say the same again: over samples, and over wordings of one question?"""

    name: str = "stability"
    title: str = "Output stability"
    question: str = "Asked again, or in other words, does it give the same answer?"

    def plan(self, context: PlanContext) -> list[Part]:
        options = checked_options(self.name, context.options, OPTIONS)
        templates = int(options.get("templates", context.choose(2, 5, 5)))
        samples = int(options.get("samples", context.choose(4, 8, 8)))
        temperature = float(options.get("temperature", 0.8))
        if not 1 <= templates <= len(TEMPLATES):
            raise EduceError(
                f"stability.templates must lie in 1 … {len(TEMPLATES)}, got {templates}"
            )
        if samples < 2 or temperature <= 0:
            raise EduceError(
                f"stability needs at least 2 samples at a temperature above 0, got {samples} at "
                f"{temperature:g}"
            )
        return [
            Part(
                name=f"{name}@{number}",
                settings=reworded_settings(
                    f"template-{number}", worker_settings(source, settings), name
                ),
                num_tasks=int(options.get("tasks", context.choose(6, 15, 50))),
                samples=samples,
                temperature=temperature,
                max_completion_tokens=settings.max_completion_tokens or None,
                takes_strategy=False,
                facts={"task_source": name, "template": number},
            )
            for name, source, settings in _sources(context, options)
            for number in range(templates)
        ]

    def measure(self, result: EvalResult, context: MeasureContext) -> Findings:
        tasks = _gather(result)
        cells = [cell for task in tasks for cell in task.cells.values()]
        size = min((len(c) for c in cells), default=0)
        if size < 2:
            empty = Measure("pass^k", (), is_headline=True, note="no task has two scored samples")
            return Findings((empty,), withheld="no task has two scored samples")
        measures = [_pass_hat(tasks, k, is_headline=k == size) for k in _ks(size)]
        measures += [
            _over_cells(tasks, "agreement", lambda s: s.agreement,
                        note="chance that two samples give the same answer"),
            _over_cells(tasks, "entropy of answers", lambda s: s.entropy, direction=-1,
                        unit="nats"),
            _over_cells(tasks, "flips over samples", lambda s: float(s.flips), direction=-1,
                        note="both right and wrong answers to one prompt"),
        ]  # fmt: skip
        if any(len(t.cells) > 1 for t in tasks):
            measures += [
                _over_tasks(tasks, "flips over wordings", _flips_over_templates, -1,
                            note="the majority is right in one wording and wrong in another"),
                _over_tasks(tasks, "agreement over wordings", _cross_agreement, 1),
            ]  # fmt: skip
        measures += [
            _over_tasks(tasks, "consistently wrong", lambda t: float(_kind(t) == "wrong"), -1),
            _over_tasks(tasks, "unstable", lambda t: float(_kind(t) == "unstable"), -1),
        ]
        return Findings(tuple(measures), (_kinds_table(tasks), _band_table(tasks)))


@dataclass(frozen=True, slots=True)
class _Task:
    """One task over its wordings: ``cells`` are the answer classes of its scored samples."""

    source: str
    index: int
    cluster: str
    cells: Mapping[int, tuple[Hashable, ...]]

    @property
    def classes(self) -> list[Hashable]:
        return [c for cell in self.cells.values() for c in cell]

    def value(self, number: float) -> ItemValue:
        return ItemValue(
            f"{self.source}#{self.index}", self.source, self.cluster, number, len(self.classes)
        )


def _sources(
    context: PlanContext, options: Mapping[str, JSON]
) -> list[tuple[str, str, DomainSettings]]:
    """Return (name, registered name or "", settings): the recipe's single-turn domains with text
    answers first, else built-in ones."""
    chosen = options.get("domains")
    if chosen is not None:
        patterns = [chosen] if isinstance(chosen, str) else [str(c) for c in chosen]
        names = [n for pattern in patterns for n in expand(pattern)]
        return [(n, n, DomainSettings()) for n in dict.fromkeys(names)]
    found = []
    for name, settings in context.domains.items():
        spec = load_domain(name, settings).spec
        if spec.max_turns == 1 and not spec.executes_code and spec.kind != "instructions":
            is_registered = not (settings.path or settings.function)
            found.append((name, name if is_registered else "", settings))
    if found:
        return found[: context.choose(2, _RECIPE_DOMAINS, 2 * _RECIPE_DOMAINS)]
    return [(n, n, DomainSettings()) for n in context.choose(SMALL, MEDIUM, MEDIUM)]


def _gather(result: EvalResult) -> list[_Task]:
    """Return the tasks with at least one cell of two scored samples or more."""
    rows: dict[tuple[str, int], dict[int, list[EvalRow]]] = {}
    for row in result.rows:
        if row.value is None:
            continue
        facts = part_facts(result, row.domain)
        key = (str(facts.get("task_source", row.domain)), row.index)
        rows.setdefault(key, {}).setdefault(int(facts.get("template", 0)), []).append(row)
    tasks = []
    for (source, index), cells in sorted(rows.items()):
        kept = {
            template: tuple(answer_class(r) for r in cell)
            for template, cell in sorted(cells.items())
            if len(cell) > 1
        }
        if kept:
            cluster = next(iter(cells.values()))[0].content_hash
            tasks.append(_Task(source, index, cluster, kept))
    return tasks


def _ks(size: int) -> list[int]:
    return sorted({2**i for i in range(1, 10) if 2**i <= size} | {size})


def _pass_hat(tasks: Sequence[_Task], k: int, *, is_headline: bool) -> Measure:
    """All of k samples are right: unbiased per cell, mean over a task's wordings."""

    def one(task: _Task) -> float | None:
        cells = [c for c in task.cells.values() if len(c) >= k]
        found = [float(pass_hat_k([c.count(RIGHT)], len(c), k)[0]) for c in cells]
        return statistics.fmean(found) if found else None

    return _over_tasks(tasks, f"pass^{k}", one, 1, is_headline=is_headline)


def _over_tasks(
    tasks: Sequence[_Task],
    name: str,
    one: Callable[[_Task], float | None],
    direction: int,
    *,
    note: str = "",
    unit: str = "share",
    is_headline: bool = False,
) -> Measure:
    numbers = [(task, one(task)) for task in tasks]
    values = tuple(task.value(number) for task, number in numbers if number is not None)
    side = 1 if direction > 0 else -1
    return Measure(name, values, side, unit, is_headline, note)  # type: ignore[arg-type]


def _over_cells(
    tasks: Sequence[_Task],
    name: str,
    read: Callable[[Stability], float],
    *,
    direction: int = 1,
    note: str = "",
    unit: str = "share",
) -> Measure:
    def one(task: _Task) -> float:
        return statistics.fmean(read(stability(c, {RIGHT})) for c in task.cells.values())

    return _over_tasks(tasks, name, one, direction, note=note, unit=unit)


def _flips_over_templates(task: _Task) -> float | None:
    if len(task.cells) < 2:
        return None
    sides = {2 * cell.count(RIGHT) > len(cell) for cell in task.cells.values()}
    return float(len(sides) > 1)


def _cross_agreement(task: _Task) -> float | None:
    """Chance that samples of two different wordings give the same answer class."""
    cells = list(task.cells.values())
    if len(cells) < 2:
        return None
    pairs = [
        sum(a.count(c) * b.count(c) for c in set(a)) / (len(a) * len(b))
        for i, a in enumerate(cells)
        for b in cells[i + 1 :]
    ]
    return statistics.fmean(pairs)


def _kind(task: _Task) -> str:
    """Return ``right``, ``wrong`` (one wrong answer, over half of all samples) or ``unstable``."""
    found = stability(task.classes, {RIGHT})
    if found.modal_rate <= 0.5:
        return "unstable"
    return "right" if found.is_modal_right else "wrong"


def _kinds_table(tasks: Sequence[_Task]) -> Table:
    rows = []
    for source in dict.fromkeys(t.source for t in tasks):
        kinds = [_kind(t) for t in tasks if t.source == source]
        counts = [str(kinds.count(k)) for k in ("right", "wrong", "unstable")]
        rows.append((source, str(len(kinds)), *counts))
    return Table(
        "Consistently wrong is not unstable",
        ("tasks of", "tasks", "consistently right", "consistently wrong", "unstable"),
        tuple(rows),
        note="Consistent: more than half of all samples, over all wordings, give one answer.",
    )


def _band_table(tasks: Sequence[_Task]) -> Table:
    """How far the mean score moves with the wording alone."""
    rows = []
    for source in dict.fromkeys(t.source for t in tasks):
        means: dict[int, list[float]] = {}
        for task in tasks:
            if task.source == source:
                for template, cell in task.cells.items():
                    means.setdefault(template, []).append(cell.count(RIGHT) / len(cell))
        scores = [100 * statistics.fmean(values) for values in means.values()]
        worst = min(means, key=lambda t: statistics.fmean(means[t]))
        rows.append(
            (source, str(len(scores)), f"{min(scores):.1f}", f"{statistics.median(scores):.1f}",
             f"{max(scores):.1f}", f"{max(scores) - min(scores):.1f}", f"template {worst}")
        )  # fmt: skip
    return Table(
        "Band over prompt templates, % right",
        ("tasks of", "templates", "lowest", "median", "highest", "width", "lowest in"),
        tuple(rows),
    )


STABILITY = OutputStability()
