"""The eval stage: held-out tasks after training, against the start or the best-prompted base."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from educe.baseline import LenientSession, best_per_domain, few_shot_prompt
from educe.config.settings import Recipe
from educe.core.protocols import Recorder
from educe.core.types import JSON
from educe.evaluation.records import EvalResult, EvalRow
from educe.evaluation.report import Example, Report
from educe.evaluation.runner import Progress
from educe.evaluation.sessions import EvalPlan, EvalSession, report_eval, run_eval
from educe.session import Announce, Session, build_session, open_scoring


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
        before = self._baseline(plan)
        report, paths = report_eval(
            after,
            before,
            plan,
            out=self.folder,
            title=f"{self.recipe.run.name}: before and after",
            facts=self._facts(after, before),
        )
        self.recorder.record_event("eval", event_payload(report))
        if paths is not None:
            self.announce(f"report: {paths.html}")
        return report

    def _baseline(self, plan: EvalPlan) -> EvalResult | None:
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
            if kind == "start":
                return self._evaluate(base, plan, "before")
            return self._best_prompt(base, plan)

    def _best_prompt(self, base: Session, plan: EvalPlan) -> EvalResult:
        count = self.recipe.eval.few_shot
        shots = base.with_prompt(few_shot_prompt(base.domains, count), f"{count}-shot")
        zero = replace(base, label="zero-shot")
        readers = open_scoring(self.recipe, base.domain_settings, self.folder / "readers-0.log")
        with closing(readers):
            results = [
                self._evaluate(LenientSession(zero, readers), plan, "before-zero"),
                self._evaluate(LenientSession(shots, readers), plan, "before-few"),
            ]
        return best_per_domain(results, base.label)

    def _evaluate(self, session: Any, plan: EvalPlan, name: str) -> EvalResult:
        shown: EvalSession = session
        last = [0.0]

        def progress(now: Progress) -> None:
            # A line now and then is enough; the live view shows training, not evaluation.
            if now.elapsed_s - last[0] >= 20 or now.done == now.total:
                last[0] = now.elapsed_s
                left = "" if now.left_s is None else f", about {now.left_s:.0f} s left"
                self.announce(f"evaluating {shown.label}: {now.done}/{now.total} tasks{left}")

        return run_eval(shown, plan, out=self.folder / "eval", name=name, progress=progress)

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
