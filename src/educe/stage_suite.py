"""Suites on sessions: a loaded model as a subject, before and after, and one report.

>>> result = run_session_suite(session, plan, out=Path("out"))            # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from educe.config.settings import DomainSettings, EvalSettings
from educe.core.cache import cache_folder
from educe.core.protocols import Domain, Services
from educe.core.types import JSON, Message
from educe.evaluation.report.files import ReportPaths
from educe.evaluation.report.suite_content import SuiteReport, build_suite_report
from educe.evaluation.report.suite_pages import write_suite_report
from educe.evaluation.runner import Progress, Sampler
from educe.evaluation.subject import EngineSubject
from educe.evaluation.suite import SuitePlan, SuiteResult, run_suite
from educe.evaluation.suite_compare import StrategyRow, compare_suites, strategy_board
from educe.session import Session

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SessionSubject:
    """A session's model as the subject of a suite: its engine and chat, other domains and scorers.

    The suite's scorers are its own; the session's stay as they are.
    """

    session: Session

    @property
    def label(self) -> str:
        return self.session.label

    @property
    def identity(self) -> JSON:
        recipe = self.session.recipe
        return [self.session.identity, recipe.run.mode, recipe.engine.model_dump(mode="json")]

    @property
    def context_length(self) -> int:
        return self.session.runner.context_length

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return len(self.session.chat.prompt_tokens(messages))

    @contextmanager
    def open(
        self, settings: Mapping[str, DomainSettings], domains: Mapping[str, Domain]
    ) -> Iterator[Sampler]:
        session = self.session
        subject = EngineSubject(
            session.label,
            self.identity,
            session.engine,
            session.chat,
            session.runner.seed,
            self.context_length,
            max_open=session.runner.max_open,
            score_workers=session.recipe.rl.score_workers,
            score_timeout_s=session.recipe.rl.score_timeout_s,
            sandbox_minimum=session.recipe.sandbox.minimum,
            check=session.runner.check,
        )
        with subject.open(settings, domains) as sampler:
            yield sampler


def plan_of(settings: EvalSettings, domains: Mapping[str, DomainSettings]) -> SuitePlan:
    """Return the suite that a recipe's [eval] asks for."""
    return SuitePlan(
        suite=settings.suite or "standard",
        tier=settings.tier,
        dimensions=settings.dimensions,
        domains=domains,
        options=settings.suite_options,
        strategy=settings.strategy,
        level=settings.interval,
    )


def suite_cache() -> Path:
    """Return the folder of finished rows that all suites of this user share."""
    return cache_folder() / "evaluations"


def run_session_suite(
    session: Session,
    plan: SuitePlan,
    *,
    out: Path | None = None,
    name: str = "after",
    cache: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    announce: Announce = lambda _: None,
) -> SuiteResult:
    """Run a suite on a session's model, with a sandbox for what dimensions run themselves."""
    from educe.rollout.executor import LazySandbox

    with closing(LazySandbox(session.recipe.sandbox.minimum)) as sandbox:
        return run_suite(
            SessionSubject(session),
            plan,
            out=out,
            name=name,
            cache=cache,
            progress=progress,
            announce=announce,
            services=Services(sandbox=sandbox),
        )


def report_suites(
    after: SuiteResult,
    before: SuiteResult | None = None,
    *,
    out: Path | None = None,
    title: str = "Evaluation",
    facts: Mapping[str, str] | None = None,
    strategies: Sequence[StrategyRow] = (),
    name: str = "report",
) -> tuple[SuiteReport, ReportPaths | None]:
    """Build the report on one or two suite results; with ``out``, write its three formats there."""
    comparison = None if before is None else compare_suites(before, after)
    report = build_suite_report(after, comparison, title=title, facts=facts, strategies=strategies)
    return report, None if out is None else write_suite_report(report, out, name=name)


def run_strategies(
    names: Sequence[str], run: Callable[[SuitePlan, str], SuiteResult], plan: SuitePlan
) -> tuple[SuiteResult, list[StrategyRow]]:
    """Run a plan once for every strategy; return the last one's result and the board.

    ``run(plan, suffix)`` runs one of them; one name gives no board.
    """
    results: dict[str, Any] = {}
    for name in names:
        suffix = "" if len(names) == 1 else f"-{name}"
        results[name] = run(replace(plan, strategy=name), suffix)
    last = results[names[-1]]
    return last, strategy_board(results) if len(results) > 1 else []
