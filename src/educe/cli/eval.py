"""``educe eval``: score a model or a run on held-out tasks, alone or against another."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from educe.cli import suite_command
from educe.core.errors import EduceError

if TYPE_CHECKING:
    from educe.config.settings import EvalSettings
    from educe.evaluation.records import EvalResult
    from educe.evaluation.report import Report
    from educe.evaluation.runner import Progress
    from educe.evaluation.sessions import EvalPlan, EvalSession

OpenSession = Callable[[str, Any], "AbstractContextManager[EvalSession]"]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="score a model on held-out tasks, with intervals",
        description="Score a model, or the result of a run, on the held-out tasks of a recipe's "
        "domains. With --against, compare it with another on the same tasks: paired differences, "
        "a verdict per domain, what was learned and forgotten. With --suite, ask five dimensions "
        "instead: completion, stability, long context, code quality, safety. Interrupted "
        "evaluations continue when --out is the same folder.",
    )
    parser.add_argument("model", metavar="MODEL_OR_RUN", help="model name, model folder or run")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value",
                        help="replaced values of the recipe")  # fmt: skip
    parser.add_argument("--recipe", help="recipe whose domains and [eval] to use; a suite needs "
                        "none")  # fmt: skip
    parser.add_argument("--against", metavar="OTHER", help="model or run to compare with")
    parser.add_argument("--tasks", type=int, metavar="N", help="held-out tasks a domain")
    parser.add_argument("--samples", type=int, metavar="K", help="completions a task")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of rows and report")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    suite_command.add_arguments(parser)
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    """Evaluate and print; 0 whatever the numbers say (a gate is another verb)."""
    from educe import api

    def open_session(model: str, recipe: Any) -> Any:
        # stdout belongs to the report, also while weights are fetched.
        return api.open_session(model, recipe, announce=partial(print, file=sys.stderr))

    if arguments.suite:
        return suite_command.run_command(arguments, open_session, ProgressLine)
    suite_command.refuse_without_suite(arguments)
    return run_command(arguments, open_session)


def run_command(arguments: argparse.Namespace, open_session: OpenSession) -> int:
    """Do what was asked with sessions from ``open_session(model, recipe)``."""
    from educe.config.loader import load_recipe
    from educe.evaluation.report.files import to_json_text
    from educe.evaluation.sessions import report_eval

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    plan = plan_from(arguments, loaded.recipe.eval)
    say = sys.stderr
    before = None
    if arguments.against:
        before = _evaluate(arguments, open_session(arguments.against, loaded), "before", plan, say)
    after = _evaluate(arguments, open_session(arguments.model, loaded), "after", plan, say)
    if before is not None and before.label == after.label:
        before, after = _told_apart(before, after, arguments)
    report, paths = report_eval(
        after, before, plan, out=arguments.out, title=_title(after, before, arguments)
    )
    print(to_json_text(report.to_json()) if arguments.json else _shown(report), end="")
    if paths is not None:
        print(f"report: {paths.html} {paths.markdown} {paths.json}", file=say)
    return 0


def plan_from(arguments: argparse.Namespace, settings: EvalSettings) -> EvalPlan:
    """Return the recipe's [eval] with what the options replace.

    Raises EduceError for a number that cannot be.
    """
    from educe.evaluation.sessions import EvalPlan

    plan = EvalPlan(
        tasks_per_domain=_chosen(arguments.tasks, settings.tasks_per_domain),
        samples=_chosen(arguments.samples, settings.samples),
        temperature=_chosen(arguments.temperature, settings.temperature),
        level=settings.interval,
    )
    if plan.tasks_per_domain < 1 or plan.samples < 1 or plan.temperature < 0:
        raise EduceError(
            f"--tasks and --samples must be at least 1 and --temperature at least 0; got "
            f"{plan.tasks_per_domain}, {plan.samples} and {plan.temperature:g}"
        )
    if plan.samples > 1 and plan.temperature == 0:
        raise EduceError(
            f"{plan.samples} samples a task at temperature 0 are {plan.samples} times the same "
            f"text; give --temperature 1 or --samples 1"
        )
    return plan


def _chosen(given: Any, otherwise: Any) -> Any:
    return otherwise if given is None else given


def _evaluate(
    arguments: argparse.Namespace,
    opened: AbstractContextManager[EvalSession],
    side: str,
    plan: EvalPlan,
    say: TextIO,
) -> EvalResult:
    from educe.evaluation.sessions import run_eval

    with opened as session:
        line = ProgressLine(session.label, say)
        result = run_eval(session, plan, out=arguments.out, name=side, progress=line)
        line.close()
    return result


def _told_apart(
    before: EvalResult, after: EvalResult, arguments: argparse.Namespace
) -> tuple[EvalResult, EvalResult]:
    """Give two results of one label the names they were asked for by."""
    names = (arguments.against, arguments.model)
    if names[0] == names[1]:
        names = (f"{names[0]} (before)", f"{names[1]} (after)")
    return replace(before, label=names[0]), replace(after, label=names[1])


def _title(after: EvalResult, before: EvalResult | None, arguments: argparse.Namespace) -> str:
    against = "" if before is None else f" against {before.label}"
    return f"{after.label}{against} on {Path(arguments.recipe).stem}"


def _shown(report: Report) -> str:
    from educe.evaluation.report import to_markdown

    return to_markdown(report, examples_per_domain=0)


class ProgressLine:
    """One line on a terminal that is written over; a line every ten seconds elsewhere."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self.label, self.stream = label, stream
        self.is_live = stream.isatty()
        self._last = 0.0
        self._shown = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        wait = 0.1 if self.is_live else 10.0
        if now - self._last < wait and progress.done < progress.total:
            return
        self._last, self._shown = now, True
        text = progress_text(self.label, progress)
        self.stream.write(f"\r{text:<78.78}" if self.is_live else text + "\n")
        self.stream.flush()

    def close(self) -> None:
        if self.is_live and self._shown:
            self.stream.write("\n")


def progress_text(label: str, progress: Progress) -> str:
    """Return ``base: 120/400 tasks, 2:05 left``."""
    resumed = f" ({progress.num_resumed} from before)" if progress.num_resumed else ""
    left = "" if progress.left_s is None else f", {clock(progress.left_s)} left"
    return f"{label}: {progress.done}/{progress.total} tasks{resumed}{left}"


def clock(seconds: float) -> str:
    """Return ``1:02:03`` or ``2:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
