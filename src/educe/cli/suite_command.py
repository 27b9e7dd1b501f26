"""``educe eval MODEL --suite standard``: a suite's dimensions, alone or against another model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from educe.core.errors import EduceError

if TYPE_CHECKING:
    from educe.config.settings import Recipe
    from educe.evaluation.suite import SuitePlan, SuiteResult
    from educe.evaluation.suite_compare import StrategyRow

_TIERS = ("small", "medium", "large")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of suites to ``educe eval``."""
    group = parser.add_argument_group("suites")
    group.add_argument("--suite", metavar="NAME", help="standard: five dimensions")
    group.add_argument("--tier", choices=_TIERS, help="how much is asked (default small)")
    group.add_argument("--dimensions", metavar="A,B", help="only these dimensions")
    group.add_argument("--strategy", metavar="S[,S]",
                       help="direct, cot, tools, reflect, self-consistency, best-of-n; several: "
                       "score against tokens spent")  # fmt: skip
    group.add_argument("--option", action="append", default=[], metavar="DIMENSION.NAME=VALUE",
                       help="e.g. completion.sets=free or stability.samples=16")  # fmt: skip
    group.add_argument("--no-cache", action="store_true",
                       help="ask again what was asked before in another folder")  # fmt: skip


def refuse_without_suite(arguments: argparse.Namespace) -> None:
    """Raise EduceError for options of suites without one, or for a missing recipe."""
    given = [n for n in ("tier", "dimensions", "strategy") if getattr(arguments, n)]
    given += ["option"] if arguments.option else []
    if given:
        raise EduceError(f"--{given[0]} belongs to a suite: add --suite standard")
    if not arguments.recipe:
        raise EduceError("give --recipe RECIPE for its domains, or --suite standard")


def run_command(
    arguments: argparse.Namespace,
    open_session: Callable[..., Any],
    progress_line: Callable[[str, TextIO], Any],
) -> int:
    """Run the suite on one or two models, print the report, write it where ``--out`` says."""
    from educe.evaluation.report.files import to_json_text
    from educe.evaluation.report.suite_pages import suite_to_markdown
    from educe.stage_suite import report_suites

    for name in ("tasks", "samples", "temperature"):
        if getattr(arguments, name) is not None:
            raise EduceError(
                f"--{name} is for a recipe's domains; in a suite each dimension has its own: "
                f"--option completion.{name}={getattr(arguments, name):g}"
            )
    recipe = _recipe(arguments)
    plan, strategies = plan_from(arguments, recipe)
    say = sys.stderr
    before = None
    if arguments.against:
        if len(strategies) > 1:
            raise EduceError("--against compares two models under one --strategy, several given")
        before, _ = _run(arguments, open_session, progress_line, arguments.against, "before",
                         (plan, strategies, recipe))  # fmt: skip
    after, board = _run(arguments, open_session, progress_line, arguments.model, "after",
                        (plan, strategies, recipe))  # fmt: skip
    against = "" if before is None else f" against {before.label}"
    report, paths = report_suites(
        after, before, out=arguments.out, strategies=board,
        title=f"{after.label}{against}: {plan.suite} suite",
        facts={"strategy": ", ".join(strategies)},
    )  # fmt: skip
    print(to_json_text(report.to_json()) if arguments.json else suite_to_markdown(report), end="")
    if paths is not None:
        print(f"report: {paths.html} {paths.markdown} {paths.json}", file=say)
    return 0


def plan_from(arguments: argparse.Namespace, recipe: Recipe) -> tuple[SuitePlan, list[str]]:
    """Return the plan and the strategies; the command line replaces what a recipe's [eval] says.

    Raises:
        EduceError: an option that is none.
    """
    from dataclasses import replace

    from educe.evaluation.strategies import strategy_named
    from educe.evaluation.suite import dimensions_of
    from educe.session import resolved_domains
    from educe.stage_suite import plan_of

    settings, _ = resolved_domains(recipe) if recipe.domains else ({}, {})
    plan = replace(plan_of(recipe.eval, settings), suite=arguments.suite)
    if arguments.tier:
        plan = replace(plan, tier=arguments.tier)
    if arguments.dimensions:
        names = tuple(n.strip() for n in arguments.dimensions.split(",") if n.strip())
        plan = replace(plan, dimensions=names)
    options = {name: dict(values) for name, values in plan.options.items()}
    for text in arguments.option:
        dimension, name, value = parse_option(text)
        options.setdefault(dimension, {})[name] = value
    strategies = (arguments.strategy or plan.strategy).split(",")
    names_ = [strategy_named(s.strip()).name for s in strategies]
    plan = replace(plan, options=options)
    dimensions_of(plan, [parse_option(text)[0] for text in arguments.option])
    return plan, names_


def parse_option(text: str) -> tuple[str, str, Any]:
    """Return (dimension, option, value) of ``stability.samples=16``; values are JSON or plain text.

    A comma makes a list: ``completion.sets=mmlu,boolq``, ``long_context.lengths=512,1024``.
    """
    path, equals, raw = text.partition("=")
    dimension, dot, name = path.strip().partition(".")
    if not (equals and dot and dimension and name and raw):
        raise EduceError(f"--option expects DIMENSION.NAME=VALUE, got {text!r}")
    value = _value(raw)
    if value == raw and "," in raw:
        value = [_value(part.strip()) for part in raw.split(",")]
    return dimension, name, value


def _value(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def _recipe(arguments: argparse.Namespace) -> Recipe:
    from educe.config.loader import load_recipe, recipe_from_values

    if arguments.recipe:
        return load_recipe(arguments.recipe, arguments.overrides).recipe
    return recipe_from_values({}, arguments.overrides, "the command line").recipe


def _run(
    arguments: argparse.Namespace,
    open_session: Callable[..., Any],
    progress_line: Callable[[str, TextIO], Any],
    model: str,
    side: str,
    wanted: tuple[SuitePlan, Sequence[str], Recipe],
) -> tuple[SuiteResult, list[StrategyRow]]:
    from educe.stage_suite import run_session_suite, run_strategies, suite_cache

    plan, strategies, recipe = wanted
    with open_session(model, recipe) as session:

        def run(own: SuitePlan, suffix: str) -> SuiteResult:
            label = session.label if not suffix else f"{session.label}, {own.strategy}"
            line = progress_line(label, sys.stderr)
            result = run_session_suite(
                session, own, out=arguments.out, name=f"{side}{suffix}",
                cache=None if arguments.no_cache else suite_cache(),
                progress=line, announce=lambda text: print(text, file=sys.stderr),
            )  # fmt: skip
            line.close()
            return result

        return run_strategies(strategies, run, plan)
