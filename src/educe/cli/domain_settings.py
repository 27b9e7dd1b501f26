"""Arguments of ``educe domains …`` for domains that are not registered: rows or a function."""

from __future__ import annotations

import argparse
import json
from typing import Any

from educe.config.settings import DomainSettings
from educe.core.errors import EduceError
from educe.domains import registry


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add ``--path``, ``--function``, ``--reward`` and their kin."""
    group = parser.add_argument_group("a domain that is not registered")
    group.add_argument("--path", default="", help="JSONL file or dataset folder of its rows")
    group.add_argument("--function", default="", help="module:function that returns the domain")
    group.add_argument("--reward", action="append", default=[], help="module:function; repeatable")
    group.add_argument("--prompt-field", default="prompt", help="column of the prompt")
    group.add_argument("--answer-field", default="answer", help="column of the gold answer")
    group.add_argument(
        "--option", action="append", default=[], metavar="KEY=JSON", help="option of the domain"
    )


def check_tasks(tasks: int) -> None:
    """Refuse a number of tasks that would prove nothing.

    Raises:
        EduceError: fewer than one.
    """
    if tasks < 1:
        raise EduceError(f"--tasks must be at least 1, got {tasks}")


def settings_of(arguments: argparse.Namespace) -> DomainSettings:
    """Return the settings that the arguments describe; options are JSON or plain text.

    Raises:
        EduceError: an option that is none.
    """
    options: dict[str, Any] = {}
    for text in arguments.option:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise EduceError(f"--option expects KEY=JSON, got {text!r}")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return DomainSettings(
        path=arguments.path,
        function=arguments.function,
        reward=tuple(arguments.reward),
        prompt_field=arguments.prompt_field,
        answer_field=arguments.answer_field,
        options=options,
    )


def chosen_names(arguments: argparse.Namespace, settings: DomainSettings) -> list[str]:
    """Return the names that are meant, each once: globs of registered ones, or one's own name.

    Raises:
        DomainError: a name or glob that matches nothing.
    """
    if settings.path or settings.function:
        return list(arguments.names) or ["my-domain"]
    expanded = (n for p in arguments.names or ["*"] for n in registry.expand(p))
    return list(dict.fromkeys(expanded))
