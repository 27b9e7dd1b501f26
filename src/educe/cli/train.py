"""``educe train RECIPE.toml [section.key=value …]``: run a recipe from start to report."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from educe.core.strict_json import strict_json


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "train",
        help="run a recipe: its stages, with checkpoints and a live view",
        description="Run a recipe. Ctrl-C stops at the next safe point and keeps everything; "
        "--resume continues.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="recipe file, or a shipped recipe's name")
    add_run_arguments(parser)
    parser.set_defaults(handler=handler)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="replaced values")
    parser.add_argument("--resume", action="store_true", help="continue the run of this name")
    parser.add_argument("--plain", action="store_true", help="one line a step, no live view")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def handler(arguments: argparse.Namespace) -> int:
    """Train; 0 when the run is done, 130 when it was stopped."""
    from educe.api import train

    # With --json, stdout belongs to the result alone.
    stream = sys.stderr if arguments.json else sys.stdout
    result = train(
        arguments.recipe,
        arguments.overrides,
        resume=arguments.resume,
        announce=lambda line: print(line, file=stream, flush=True),
        live=False if arguments.json else "plain" if arguments.plain else True,
    )
    if arguments.json:
        print(strict_json(_as_json(result)))
    else:
        _show(result)
    return 130 if result.status == "stopped" else 0


def _as_json(result: Any) -> dict[str, Any]:
    return {
        "folder": str(result.folder),
        "status": result.status,
        "stages": list(result.stages),
        "report": None if result.report is None else str(result.report),
        "evaluation": None if result.evaluation is None else result.evaluation.to_json(),
    }


def _show(result: Any) -> None:
    if result.evaluation is not None:
        from educe.evaluation.report import to_markdown

        print(to_markdown(result.evaluation, examples_per_domain=0))
    print(f"run folder: {result.folder}")
    if result.status == "done":
        print(f"read it:   educe runs show {result.folder}")
        print(f"talk to it: educe chat {result.folder}")
