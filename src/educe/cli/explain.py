"""``educe explain RECIPE``: what a recipe comes to, without running any of it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from educe.core.strict_json import strict_json


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "explain",
        help="print a recipe resolved",
        description="Print a recipe resolved: the loss as a formula, the batches in numbers, every "
        "value with the place it came from, memory and disk. Of a recipe that cannot run it prints "
        "the errors alone; --json tells both.",
    )
    parser.add_argument("recipe", help="a TOML file, or the name of a shipped recipe")
    parser.add_argument("overrides", nargs="*", help="section.key=value")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    """Print the explanation; 2 when the recipe could not run."""
    from educe.config.loader import load_recipe
    from educe.explain import explain, render

    told, problems = explain(load_recipe(arguments.recipe, arguments.overrides))
    if arguments.json:
        print(strict_json(told, indent=2, default=str))
    elif problems:  # alone: a page of settings around them would hide them
        for problem in problems:
            print(f"educe: {problem}", file=sys.stderr)
    else:
        print(render(told))
    return 2 if problems else 0
