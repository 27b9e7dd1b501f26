"""Evaluates what a session holds: the few lines between a loaded model and a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from educe.core.protocols import Domain
from educe.core.types import JSON, Group, Split, TaskRequest
from educe.evaluation.records import EvalResult
from educe.evaluation.report import Report, ReportPaths, build_report, write_report
from educe.evaluation.runner import JournalFile, Limits, Progress, evaluate
from educe.evaluation.saved import save_meaning


class EvalSession(Protocol):
    """A loaded model with its domains and scorers.

    Attributes:
        label: name of the model or run in reports.
        identity: what the completions depend on besides tasks and settings (weights, prompt, seed);
            rows of another identity are never taken from a journal.
        domains: what to evaluate on.
        limits: per domain, limits of the recipe that replace the domain's own.
    """

    @property
    def label(self) -> str: ...

    @property
    def identity(self) -> JSON: ...

    @property
    def domains(self) -> Mapping[str, Domain]: ...

    @property
    def limits(self) -> Mapping[str, Limits]: ...

    def run_requests(self, requests: Sequence[TaskRequest]) -> Iterable[Group]: ...


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """What an evaluation asks for, the same for every model that it compares."""

    tasks_per_domain: int = 50
    samples: int = 1
    temperature: float = 0.0
    split: Split = Split.EVAL
    level: float = 0.95
    false_discovery_rate: float = 0.05
    relevant_difference: float = 0.1


def run_eval(
    session: EvalSession,
    plan: EvalPlan,
    *,
    out: Path | None = None,
    name: str = "after",
    progress: Callable[[Progress], None] | None = None,
) -> EvalResult:
    """Evaluate one session.

    With ``out``, finished groups lie in OUT/NAME.jsonl and resume; OUT/NAME.json beside it says
    that the evaluation is complete (see ``saved.load_saved``).
    """
    journal = None if out is None else out / f"{name}.jsonl"
    result = evaluate(
        session,
        session.domains,
        tasks_per_domain=plan.tasks_per_domain,
        samples=plan.samples,
        temperature=plan.temperature,
        split=plan.split,
        limits=session.limits,
        label=session.label,
        journal=None if journal is None else JournalFile(journal, session.identity),
        progress=progress,
    )
    if journal is not None:
        save_meaning(result, journal)
    return result


def report_eval(
    after: EvalResult,
    before: EvalResult | None,
    plan: EvalPlan,
    *,
    out: Path | None = None,
    title: str = "Evaluation",
    facts: Mapping[str, str] | None = None,
) -> tuple[Report, ReportPaths | None]:
    """Build the report on one or two results; with ``out``, write its three formats there."""
    report = build_report(
        after,
        before,
        title=title,
        facts=facts,
        level=plan.level,
        false_discovery_rate=plan.false_discovery_rate,
        relevant_difference=plan.relevant_difference,
    )
    return report, None if out is None else write_report(report, out)
