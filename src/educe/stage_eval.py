"""The eval stage: held-out tasks after training, against the start or the best-prompted base."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from educe.baseline import LenientSession, best_per_domain, few_shot_prompt
from educe.config.settings import Recipe
from educe.core.protocols import Recorder
from educe.core.types import JSON
from educe.evaluation.records import EvalResult, EvalRow
from educe.evaluation.report import Example, Report, write_report
from educe.evaluation.report.suite_content import SuiteReport
from educe.evaluation.runner import Progress
from educe.evaluation.sessions import EvalPlan, EvalSession, report_eval, run_eval
from educe.evaluation.suite import SuiteResult
from educe.observability.attempts import RUN_FILE
from educe.observability.efficiency import efficiency_text, run_efficiency, saving_text
from educe.observability.run_reader import RunReader
from educe.session import Announce, Session, build_session, open_scoring
from educe.stage_suite import plan_of, report_suites, run_session_suite, suite_cache


@dataclass(slots=True)
class EvalStage:
    """Evaluates a run's model and its baseline on the same tasks, and writes the report.

    Rows lie in RUN/eval/*.jsonl, so a stopped evaluation continues where it was.
    """

    recipe: Recipe
    session: Session
    folder: Path
    recorder: Recorder
    announce: Announce

    def run(self) -> Report:
        settings = self.recipe.eval
        plan = EvalPlan(
            tasks_per_domain=settings.tasks_per_domain,
            samples=settings.samples,
            temperature=settings.temperature,
            level=settings.interval,
        )
        after = self._evaluate(self.session, plan, "after")
        suites: list[SuiteResult] = []
        before = self._baseline(plan, suites)
        report, _ = report_eval(
            after,
            before,
            plan,
            title=f"{self.recipe.run.name}: before and after",
            facts=self._facts(after, before),
        )
        self.recorder.record_event("eval", event_payload(report))
        report = replace(report, facts={**report.facts, **self._gained()})
        self.announce(f"report: {write_report(report, self.folder).html}")
        if settings.suite:
            self._report_suite(suites)
        return report

    def _gained(self) -> dict[str, str]:
        """Return what the gain cost, from the run store that holds it all by now."""
        if not (self.folder / RUN_FILE).is_file():
            return {}
        store = RunReader(self.folder)
        gained, saved = run_efficiency(store), saving_text(store)
        told = {} if gained is None else {"gained for what was spent": efficiency_text(gained)}
        return told | ({"saved": saved} if saved else {})

    def _baseline(self, plan: EvalPlan, suites: list[SuiteResult]) -> EvalResult | None:
        kind = self.recipe.eval.baseline
        if kind == "none":
            return None
        name = self.recipe.model.name
        domains = (self.session.domain_settings, self.session.domains)
        with build_session(
            self.recipe,
            label=f"{Path(name).name} (base)",
            domains=domains,
            check=self.session.runner.check,
            sandbox=self.session.sandbox,
            log_path=self.folder / "scorers-0.log",
            announce=self.announce,
        ) as base:
            if self.recipe.eval.suite:
                suites.append(self._suite(base, "before"))
            if kind == "start":
                return self._evaluate(base, plan, "before")
            return self._best_prompt(base, plan)

    def _best_prompt(self, base: Session, plan: EvalPlan) -> EvalResult:
        count = self.recipe.eval.few_shot
        shots = base.with_prompt(few_shot_prompt(base.domains, count), f"{count}-shot")
        zero = replace(base, label="zero-shot")
        readers = open_scoring(
            self.recipe, base.domain_settings, self.folder / "readers-0.log", base.sandbox
        )
        with closing(readers):
            results = [
                self._evaluate(LenientSession(zero, readers), plan, "before-zero"),
                self._evaluate(LenientSession(shots, readers), plan, "before-few"),
            ]
        return best_per_domain(results, base.label)

    def _suite(self, session: Session, name: str) -> SuiteResult:
        """Ask a model the recipe's suite; rows lie in RUN/suite."""
        return run_session_suite(
            session,
            plan_of(self.recipe.eval, self.session.domain_settings),
            out=self.folder / "suite",
            name=name,
            cache=suite_cache(),
            progress=self._progress(f"{session.label}, suite {self.recipe.eval.suite}"),
            announce=self.announce,
        )

    def _report_suite(self, before: list[SuiteResult]) -> None:
        """Write RUN/suite.html and its kin: five dimensions, before and after."""
        after = self._suite(self.session, "after")
        report, paths = report_suites(
            after,
            before[0] if before else None,
            out=self.folder,
            name="suite",
            title=f"{self.recipe.run.name}: {self.recipe.eval.suite} suite",
        )
        self.recorder.record_event("suite", suite_payload(report))
        if paths is not None:
            self.announce(f"suite report: {paths.html}")

    def _evaluate(self, session: Any, plan: EvalPlan, name: str) -> EvalResult:
        shown: EvalSession = session
        progress = self._progress(shown.label)
        return run_eval(shown, plan, out=self.folder / "eval", name=name, progress=progress)

    def _progress(self, label: str) -> Callable[[Progress], None]:
        last = [0.0]

        def progress(now: Progress) -> None:
            # A line now and then is enough; the live view shows training, not evaluation.
            if now.elapsed_s - last[0] >= 20 or now.done == now.total:
                last[0] = now.elapsed_s
                # Tasks end together late in a batch: an early rate says nothing.
                told = now.left_s is not None and 10 * now.done >= now.total
                left = f", about {now.left_s:.0f} s left" if told else ""
                self.announce(f"evaluating {label}: {now.done}/{now.total} tasks{left}")

        return progress

    def _facts(self, after: EvalResult, before: EvalResult | None) -> dict[str, str]:
        facts = {
            "base model": self.recipe.model.name,
            "stages": " → ".join(self.recipe.stages),
            "held-out tasks": f"{self.recipe.eval.tasks_per_domain} a domain",
            "evaluation": f"{after.wall_time_s:.0f} s after"
            + ("" if before is None else f", {before.wall_time_s:.0f} s before"),
        }
        if self.recipe.eval.baseline == "base-best-prompt":
            facts["baseline"] = (
                f"per domain the better of zero-shot and {self.recipe.eval.few_shot}-shot prompts, "
                "every plausible reading of the answer scored"
            )
        return facts


def event_payload(report: Report) -> dict[str, JSON]:
    """Return the ``eval`` event of a report: per-domain scores and answers side by side."""
    comparison = report.comparison

    def scores(summary: Any) -> dict[str, JSON]:
        return {
            d.domain: {"score": d.score.value, "low": d.score.low, "high": d.score.high}
            for d in summary.domains
            if d.score is not None
        }

    payload: dict[str, JSON] = {"step": 0, "domains": scores(report.summary)}
    if comparison is not None:
        payload["before"] = scores(comparison.before)
        payload["macro_difference"] = (
            None if comparison.macro_difference is None else comparison.macro_difference.to_json()
        )
        payload["findings"] = {d.domain: str(d.finding) for d in comparison.domains}
    payload["answers"] = [_answer(e) for e in report.examples if e.before is not None]
    return payload


def suite_payload(report: SuiteReport) -> dict[str, JSON]:
    """Return the ``suite`` event of a report: every dimension's headline, before and after."""
    found: dict[str, JSON] = {}
    for d in report.after.dimensions:
        top = d.headline
        found[d.name] = {
            "measure": None if top is None else top.name,
            "after": None if top is None or top.estimate is None else top.estimate.to_json(),
            "withheld": d.withheld,
        }
    if report.comparison is not None:
        for c in report.comparison.dimensions:
            best = c.headline
            if best is not None and best.difference is not None:
                found[c.name]["difference"] = best.difference.to_json()
                found[c.name]["finding"] = str(best.finding)
    return {"step": 0, "dimensions": found}


def _answer(example: Example) -> dict[str, JSON]:
    before, after = example.before, example.after
    return {
        "task_id": f"{example.domain}:eval:{example.index}",
        "domain": example.domain,
        "prompt": example.prompt,
        "gold": example.gold,
        "before": "" if before is None else _spoken(before),
        "after": _spoken(after),
        "score_before": None if before is None else before.value,
        "score_after": after.value,
    }


def _spoken(row: EvalRow) -> str:
    return "\n".join(m.content for m in row.completion)
