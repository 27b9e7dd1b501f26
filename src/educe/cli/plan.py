"""``educe plan RECIPE``: memory, tokens a second, step time and cost, before anything is run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from educe.core.strict_json import strict_json


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="predict memory, time and cost of a recipe on some hardware",
        description="Predict what a recipe takes: memory at the peak, seconds a step, tokens a "
        "second, time and cost of each stage, and how to split hours over SFT, RL and evaluation. "
        "This machine is measured once for each model shape (about a minute); known GPUs are "
        "judged by what their makers publish, which is rougher.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a TOML file, or a shipped recipe's name")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument(
        "--hardware", default="here", help="here (measured), or a GPU such as h100 (default: here)"
    )
    parser.add_argument("--price", type=float, default=0.0, help="price of an hour, any currency")
    parser.add_argument("--probe", type=Path, help="what `educe probe RECIPE --json` printed")
    parser.add_argument("--budget", type=float, default=0.0, metavar="HOURS", help="hours to split")
    parser.add_argument("--refresh", action="store_true", help="measure this machine again")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    """Print the prediction; 1 when the run does not fit the memory."""
    from educe.config.loader import load_recipe
    from educe.core.errors import EduceError
    from educe.planning import plan_run, render

    if arguments.price < 0 or arguments.budget < 0:
        raise EduceError(
            f"--price and --budget must be 0 or more, got {arguments.price} and {arguments.budget}"
        )
    told = plan_run(
        load_recipe(arguments.recipe, arguments.overrides),
        hardware=arguments.hardware,
        price_per_hour=arguments.price,
        probe=arguments.probe,
        budget_h=arguments.budget,
        refresh=arguments.refresh,
        announce=lambda line: print(line, file=sys.stderr),
    )
    print(strict_json(told, indent=1) if arguments.json else render(told))
    return 0 if told["fits"] else 1
