"""``educe forgetting``: which domains a checkpoint lost, over hundreds of them, on one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.core.errors import EduceError

if TYPE_CHECKING:
    from educe.config.settings import Recipe
    from educe.evaluation.forgetting_study import ReadLeniently

OpenModel = Callable[[str], AbstractContextManager[Any]]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "forgetting",
        help="which of hundreds of domains a checkpoint lost: screen, confirm, trend",
        description="Ask two checkpoints a few tasks of every domain of a recipe, confirm what "
        "looks worse on fresh tasks with the false discovery rate held, and tell a lost format "
        "from lost knowledge. Run it again with the next checkpoint and the same --out: the page "
        "gains a column. Exit status 1 when a domain was lost.",
    )
    parser.add_argument("before", metavar="BASE", help="model or run to compare with")
    parser.add_argument("after", metavar="CHECKPOINT", help="model or run to look at")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--recipe", required=True, help="recipe whose domains to look at")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of the board"
    )
    parser.add_argument("--screen", type=int, default=50, metavar="N", help="tasks a domain")
    parser.add_argument(
        "--confirm", type=int, default=200, metavar="N", help="fresh tasks of each suspect"
    )
    parser.add_argument("--fdr", type=float, default=0.1, metavar="Q", help="false discovery rate")
    parser.add_argument(
        "--same-tasks", action="store_true", help="do not rotate the screen over checkpoints"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    """Make the board; 1 when a domain was lost."""
    from functools import partial

    from educe.api import open_session
    from educe.config.loader import load_recipe

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    say = partial(print, file=sys.stderr)  # stdout belongs to the board
    return run_command(
        arguments,
        lambda model: open_session(model, loaded, announce=say),
        lambda _: _readers(loaded.recipe),
    )


def run_command(
    arguments: argparse.Namespace,
    open_model: OpenModel,
    readers: Callable[[argparse.Namespace], AbstractContextManager[ReadLeniently | None]],
) -> int:
    """Do what was asked with sessions from ``open_model`` and lenient readings from ``readers``."""
    from educe.cli.eval import ProgressLine
    from educe.evaluation.forgetting_study import BoardPlan, run_board
    from educe.evaluation.report.board import board_to_markdown
    from educe.evaluation.report.files import to_json_text

    if arguments.screen < 1 or arguments.confirm < 1 or not 0 < arguments.fdr < 1:
        raise EduceError(
            f"--screen and --confirm must be at least 1 and --fdr in (0, 1); got "
            f"{arguments.screen}, {arguments.confirm} and {arguments.fdr:g}"
        )
    lines: dict[str, Any] = {}

    def progress(label: str, now: Any) -> None:
        lines.setdefault(label, ProgressLine(label, sys.stderr))(now)

    plan = BoardPlan(
        screen_tasks=arguments.screen,
        confirm_tasks=arguments.confirm,
        false_discovery_rate=arguments.fdr,
        is_rotating=not arguments.same_tasks,
    )
    with readers(arguments) as read:
        run = run_board(
            open_model, arguments.before, arguments.after, plan, arguments.out,
            read=read, progress=progress,
        )  # fmt: skip
    for line in lines.values():
        line.close()
    if arguments.json:
        print(to_json_text(run.board.to_json()), end="")
    else:
        print(board_to_markdown(run.board, run.history), end="")
    print(f"board: {run.html}", file=sys.stderr)
    return 1 if run.board.lost else 0


def _readers(recipe: Recipe) -> AbstractContextManager[ReadLeniently | None]:
    """Return a context with a reader that tries every plausible reading of a wrong answer."""
    from contextlib import contextmanager

    from educe.baseline import best_reading
    from educe.rollout.scoring import ScoringPool
    from educe.session import resolved_domains

    @contextmanager
    def opened() -> Any:
        settings, domains = resolved_domains(recipe)
        with ScoringPool(settings) as pool:

            def read(task: Any, trajectory: Any) -> Any:
                # Programs and dialogues have no other reading than the one that was scored.
                if domains[task.domain].spec.executes_code or len(trajectory.turns) != 1:
                    return trajectory.score
                return best_reading(pool, task, trajectory)

            yield read

    return opened()
