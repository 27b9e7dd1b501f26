"""``educe profile RECIPE``: where a step's time and memory go, against the floors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from educe.core.strict_json import strict_json


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "profile",
        help="where a step's time goes: phases, floors, slowest rewards",
        description="Run a few RL steps of a recipe and say where their time goes: a table, the "
        "slowest rewards, and a picture of the timeline. The run itself is thrown away. The floor "
        "of a phase is the time of its matrix products alone, measured here and now.",
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--steps", type=int, default=2, help="measured steps (default 2)")
    parser.add_argument("--out", type=Path, default=Path("profile.png"), help="picture to write")
    parser.add_argument("--no-floors", action="store_true", help="skip timing matrix products")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    from educe.api import as_loaded
    from educe.core.errors import EduceError
    from educe.preflight import preflight

    if arguments.steps < 1:
        raise EduceError(f"--steps must be at least 1, got {arguments.steps}")
    loaded = as_loaded(arguments.recipe, [*arguments.overrides, 'stages=["rl"]'])
    preflight(loaded)
    from educe.profile import draw_timeline, profile

    def announce(line: str) -> None:
        print(line, file=sys.stderr)

    found = profile(
        loaded, num_steps=arguments.steps, floors=not arguments.no_floors, announce=announce
    )
    draw_timeline(found, arguments.out)
    if arguments.json:
        print(strict_json({**found.to_json(), "picture": str(arguments.out)}))
    else:
        show(found)
        print(f"timeline: {arguments.out}")
    return 0


def show(found: Any) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{found.name}: {found.step_s:.2f} s a step, {found.num_steps} steps")
    for column in ("phase", "s a step", "share", "calls", "rows or tokens", "floor, s", "of floor"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for phase in found.phases:
        floor = phase.floor_s
        table.add_row(
            phase.name,
            f"{phase.seconds:.2f}",
            f"{phase.share:.0%}",
            f"{phase.calls:.0f}" if phase.calls else "",
            f"{phase.mean_size:.0f}" if phase.mean_size else "",
            "" if floor is None else f"{floor:.2f}",
            "" if floor is None or not phase.seconds else f"{floor / phase.seconds:.0%}",
        )
    out = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    out.print(table)
    tokens = found.completion_tokens / found.step_s
    out.print(
        f"{found.completion_tokens:.0f} completion tokens and {found.trained_tokens:.0f} trained "
        f"tokens a step ({tokens:.0f} completion tokens/s over all); peak memory "
        f"{found.peak_gb:.1f} GB"
    )
    if found.domains:
        slowest = Table(title="rewards and replies: seconds a step, slowest first")
        slowest.add_column("domain")
        slowest.add_column("s", justify="right")
        for name, seconds in list(found.domains.items())[:10]:
            slowest.add_row(name, f"{seconds:.2f}")
        out.print(slowest)
