"""Runs a suite of dimensions on a model: one stream of tasks, then each dimension's numbers.

Everything the dimensions ask for goes through one sampler with bounded concurrency; finished tasks
lie in a journal and are not asked again after an interruption. A request's id, and with it every
draw, is a function of the part and the index alone, so neither the order of the dimensions, nor the
tier, nor the batch size changes what is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from educe.config.settings import DomainSettings
from educe.core.errors import EduceError, did_you_mean
from educe.core.protocols import Services
from educe.core.types import JSON, Group
from educe.evaluation.asking import Asked, ask, cost_of, scoring_of
from educe.evaluation.cache import ContentCache
from educe.evaluation.dimensions import dimension_names, load_suite_dimensions
from educe.evaluation.dimensions.protocol import (
    Dimension,
    Findings,
    MeasureContext,
    PlanContext,
    Table,
    TierName,
)
from educe.evaluation.measures import MeasureEstimate, estimate_measure
from educe.evaluation.records import Counts, EvalResult, EvalRow, Outcome, rows_of
from educe.evaluation.refusals import is_refusal
from educe.evaluation.runner import Progress, evaluate_requests
from educe.evaluation.saved import save_meaning
from educe.evaluation.strategies import Strategy, strategy_named
from educe.evaluation.subject import Subject
from educe.evaluation.summary import HeadlineRule


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """What is asked of every model that is to be compared.

    Attributes:
        dimensions: names; empty takes the suite's own.
        domains: of a recipe, for dimensions that look at what was trained.
        options: by dimension.
        strategy: how tasks are answered (see ``strategies``), where a part takes one.
        seed: root of a plan's own choices (not of the sampling).
    """

    suite: str = "standard"
    tier: TierName = "medium"
    dimensions: tuple[str, ...] = ()
    domains: Mapping[str, DomainSettings] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    strategy: str = "direct"
    seed: int = 0
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class DimensionResult:
    """One dimension of one model: its rows, what was read from them, and whether it may head."""

    name: str
    title: str
    question: str
    findings: Findings
    measures: tuple[MeasureEstimate, ...]
    counts: Counts
    mean_tokens: float
    withheld: str

    @property
    def headline(self) -> MeasureEstimate | None:
        """The measure that stands for the dimension, None where it is withheld."""
        if self.withheld:
            return None
        return next((m for m in self.measures if m.is_headline), None)

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.findings.tables

    def to_json(self) -> dict[str, JSON]:
        return {
            "name": self.name,
            "title": self.title,
            "question": self.question,
            "measures": [m.to_json() for m in self.measures],
            "counts": self.counts.to_json(),
            "mean_tokens": self.mean_tokens,
            "headline_withheld": self.withheld,
            "tables": [t.to_json() for t in self.findings.tables],
            "notes": list(self.findings.notes),
        }


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """A suite on one model: all rows (``DIMENSION/PART`` as domain) and the dimensions."""

    rows: EvalResult
    dimensions: tuple[DimensionResult, ...]

    @property
    def label(self) -> str:
        return self.rows.label

    def to_json(self) -> dict[str, JSON]:
        return {"label": self.label, "dimensions": [d.to_json() for d in self.dimensions]}


def run_suite(
    subject: Subject,
    plan: SuitePlan,
    *,
    out: Path | None = None,
    name: str = "after",
    cache: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    announce: Callable[[str], None] = lambda _: None,
    services: Services | None = None,
) -> SuiteResult:
    """Ask a model everything that the plan's dimensions want to know.

    With ``out``, finished tasks lie in OUT/NAME.jsonl and resume; OUT/NAME.json beside it says that
    the suite is complete. ``cache`` is a folder of finished rows by content (see ``cache``).

    Raises:
        EduceError: unknown suite or dimension, a part without tasks, a package that cannot be had,
            or a journal of another plan or model.
    """
    dimensions = dimensions_of(plan)
    strategy = strategy_named(plan.strategy)
    asked: list[Asked] = []
    notes: list[str] = []
    for dimension in dimensions:
        parts = dimension.plan(_context(subject, plan, dimension, announce))
        asked += [ask(dimension.name, part, strategy, notes) for part in parts]
    names = [a.name for a in asked]
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise EduceError(f"two parts of a suite have the same name: {', '.join(twice)}")
    settings = suite_settings(plan, asked, subject.identity)
    domains = {a.name: a.domain for a in asked}
    strategies = {a.name: a.strategy for a in asked}
    journal = None if out is None else out / f"{name}.jsonl"
    with subject.open({a.name: a.settings for a in asked}, domains) as sampler:
        rows = evaluate_requests(
            sampler,
            domains,
            [request for a in asked for request in a.requests],
            settings=settings,
            to_rows=lambda group: suite_rows(group, strategies[group.task.domain]),
            label=subject.label,
            journal=journal,
            cache=None
            if cache is None
            else ContentCache(cache, subject.identity, domains, scoring_of(asked)),
            progress=progress,
            cost=cost_of,
        )
    rows = replace(rows, notes=tuple(notes))
    if journal is not None:
        save_meaning(rows, journal)
    return read_suite(rows, dimensions, level=plan.level, services=services)


def dimensions_of(plan: SuitePlan, options: Iterable[str] = ()) -> list[Dimension]:
    """Return the dimensions that a plan asks; cheap, so that a wrong name is said before a load.

    Args:
        options: dimensions that options were given for just now: each of them must be asked. Those
            of a plan may belong to dimensions that it leaves out, but must exist.

    Raises:
        EduceError: unknown suite or dimension, or options that nobody would read.
    """
    found = load_suite_dimensions(plan.suite, plan.dimensions)
    asked = [dimension.name for dimension in found]
    known = [*asked, *dimension_names()]
    for name in (*options, *plan.options):
        if name not in (asked if name in options else known):
            raise EduceError(
                f"options are given for {name!r}, which the suite does not ask; it asks "
                f"{', '.join(asked)}.{did_you_mean(name, known)}"
            )
    return found


def read_suite(
    rows: EvalResult,
    dimensions: Sequence[Dimension] = (),
    *,
    level: float = 0.95,
    rule: HeadlineRule | None = None,
    services: Services | None = None,
) -> SuiteResult:
    """Return the dimensions' numbers of finished rows (see ``saved.load_saved``).

    ``dimensions`` defaults to those that the rows were asked for.
    """
    known = list(dimensions) or load_suite_dimensions(
        rows.settings.get("suite", "standard"), rows.settings.get("dimensions", ())
    )
    context = MeasureContext(level, services or Services())
    rule = rule or HeadlineRule()
    return SuiteResult(rows, tuple(_read(d, rows, context, rule) for d in known))


def _read(
    dimension: Dimension, rows: EvalResult, context: MeasureContext, rule: HeadlineRule
) -> DimensionResult:
    own = replace(rows, rows=tuple(rows_of_dimension(rows.rows, dimension.name)))
    findings = dimension.measure(own, context)
    counts = own.counts()
    withheld = findings.withheld or rule.withholds(counts)
    if counts.total == 0:
        withheld = withheld or "nothing was asked"
    return DimensionResult(
        dimension.name,
        dimension.title,
        dimension.question,
        findings,
        tuple(estimate_measure(m, level=context.level) for m in findings.measures),
        counts,
        sum(r.num_tokens for r in own.rows) / max(1, len(own.rows)),
        withheld,
    )


def rows_of_dimension(rows: Iterable[EvalRow], name: str) -> list[EvalRow]:
    """Return the rows of one dimension."""
    return [r for r in rows if r.domain.partition("/")[0] == name]


def suite_rows(group: Group, strategy: Strategy | None = None) -> list[EvalRow]:
    """Return a finished group's rows, with refusals told apart and the strategy's choice made.

    Rows of a reworded task carry the original's content hash, so that the same task under two
    wordings stays one item.
    """
    base = group.task.metadata.get("base_hash")
    rows = [refused_row(r) for r in rows_of(group)]
    if base:
        rows = [replace(r, content_hash=str(base)) for r in rows]
    return rows if strategy is None else strategy.reduce(group, rows)


def refused_row(row: EvalRow) -> EvalRow:
    """Return a row with ``refused`` as its outcome where a wrong completion declines to answer."""
    if row.outcome not in (Outcome.WRONG, Outcome.UNPARSEABLE) or row.value:
        return row
    last = next((m.content for m in reversed(row.completion) if m.role == "assistant"), "")
    return replace(row, outcome=Outcome.REFUSED) if is_refusal(last) else row


def _context(
    subject: Subject, plan: SuitePlan, dimension: Dimension, announce: Callable[[str], None]
) -> PlanContext:
    return PlanContext(
        tier=plan.tier,
        seed=plan.seed,
        context_length=subject.context_length,
        count_tokens=subject.count_tokens,
        domains=plan.domains,
        options=plan.options.get(dimension.name, {}),
        announce=announce,
    )


def suite_settings(plan: SuitePlan, asked: Sequence[Asked], identity: JSON) -> dict[str, JSON]:
    """Return what the rows of a suite depend on, and what reading them needs."""
    return {
        "suite": plan.suite,
        "tier": plan.tier,
        # As they were asked for: a reader must be able to load them again.
        "dimensions": list(plan.dimensions)
        or list(dict.fromkeys(a.name.partition("/")[0] for a in asked)),
        "identity": identity,
        "split": {a.name: str(a.part.split) for a in asked},
        "samples": {a.name: a.part.samples for a in asked},
        "temperature": {a.name: a.requests[0].temperature for a in asked},
        "strategy": {a.name: a.strategy.name for a in asked},
        "limits": {
            a.name: [a.requests[0].max_completion_tokens, a.requests[0].max_turns] for a in asked
        },
        "domains": {a.name: a.settings.model_dump(mode="json") for a in asked},
        "parts": {a.name: dict(a.part.facts) for a in asked},
        "tasks_per_domain": max(a.part.num_tasks for a in asked),
    }
