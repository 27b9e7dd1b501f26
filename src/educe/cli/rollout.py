"""``educe rollout RECIPE``: look at a few samples before paying for training."""

from __future__ import annotations

import argparse
from typing import Any

from educe.core.errors import EduceError
from educe.core.strict_json import strict_json


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "rollout",
        help="show a few samples of a recipe before any training",
        description="Sample one group a domain with the recipe's settings and show the tokens "
        "(trained ones in green, the rest dim), the score by part and the advantages.",
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--model", help="model or run instead of the recipe's model")
    parser.add_argument("--domains", type=int, default=3, help="how many domains (default 3)")
    parser.add_argument("--samples", type=int, default=0, help="group size; 0 takes the recipe's")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    from educe.api import as_loaded, open_session
    from educe.preflight import preflight
    from educe.session import resolved_bundles
    from educe.trainers.credit import credit_group

    if arguments.domains < 1 or arguments.samples < 0:
        raise EduceError(
            f"--domains must be at least 1 and --samples at least 0, got {arguments.domains} and "
            f"{arguments.samples}"
        )
    loaded = as_loaded(arguments.recipe, arguments.overrides)
    preflight(loaded)
    recipe = loaded.recipe
    quiet = (lambda line: None) if arguments.json else print
    with open_session(arguments.model or recipe.model.name, loaded, announce=quiet) as session:
        bundles = resolved_bundles(recipe, session.domain_settings)
        requests = _requests(session, recipe, arguments)
        rows = []
        for group in session.run_requests(requests):
            credit = credit_group(group, bundles[group.request.domain])
            if arguments.json:
                rows.append({**group.to_json(), "advantages": list(credit.advantages_G)})
            else:
                show_group(session.chat, credit)
    if arguments.json:
        print(strict_json(rows))
    return 0


def _requests(session: Any, recipe: Any, arguments: argparse.Namespace) -> list[Any]:
    from educe.core.types import Split, TaskRequest

    requests: list[TaskRequest] = []
    for name in list(session.domains)[: arguments.domains]:
        spec, own = session.domains[name].spec, session.domain_settings[name]
        requests.append(
            TaskRequest(
                request_id=len(requests),
                domain=name,
                split=Split.TRAIN,
                index=0,
                num_samples=arguments.samples or recipe.rl.group_size,
                temperature=own.temperature or recipe.rl.temperature,
                max_completion_tokens=own.max_completion_tokens
                or recipe.rl.max_completion_tokens
                or spec.max_completion_tokens,
                max_turns=own.max_turns or spec.max_turns,
            )
        )
    return requests


def show_group(chat: Any, credit: Any) -> None:
    """Print a group: prompt, each sample's tokens by mask, score, parts and advantage."""
    from rich.console import Console
    from rich.text import Text

    from educe.observability.terminal_text import printable
    from educe.rollout.packing import trajectory_sequences

    # A task id holds ":train:", which rich would print as a train.
    console = Console(markup=False, emoji=False, highlight=False)
    group = credit.group
    console.rule(Text(f"{group.task.task_id}   gold: {group.task.gold!r}"))
    for i, trajectory in enumerate(group.trajectories):
        score = trajectory.score
        value = "unscored" if score.value is None else f"{score.value:.2f}"
        parts = " ".join(f"{k}={v}" for k, v in score.parts.items())
        console.print(
            f"sample {i}: {value} ({score.verdict or score.fault or 'scored'}) advantage "
            f"{credit.advantages_G[i]:+.3f} {printable(score.reason)} {parts}",
            style="bold",
        )
        for number, (tokens, mask, _, _) in enumerate(trajectory_sequences(trajectory)):
            text = Text()
            skip = int(mask.argmax()) if i or number else 0
            for token, trained in zip(tokens[skip:], mask[skip:], strict=True):
                shown = chat.token_texts([int(token)])[0]
                text.append(printable(shown), style="green" if trained else "dim")
            console.print(text)
