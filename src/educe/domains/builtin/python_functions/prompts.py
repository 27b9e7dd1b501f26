"""The wording of tasks and of feedback."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from educe.core.types import JSON
from educe.domains.builtin.python_functions.bugs import shorten
from educe.domains.builtin.python_functions.problem import Instance

RequestMaker = Callable[[random.Random], str]

_REQUESTS = (
    "Write a Python function `{signature}` that returns {returns}.",
    "Define `{signature}` in Python. It should return {returns}.",
    "Python: implement `{signature}`. Return {returns}.",
    "I need a Python function `{signature}` which returns {returns}.",
)
_ENDINGS = ("Reply with the code only.", "Only write the code.")


def write_request(instance: Instance, rng: random.Random) -> str:
    """Return the text that asks for the function, with its shown tests as examples."""
    shown = list(instance.shown)
    rng.shuffle(shown)
    lines = [_statement(instance, rng.choice(_REQUESTS))]
    lines += [
        f"{call_text(instance.entry_point, c.args)} == {shorten(c.expected, 300)}" for c in shown
    ]
    lines.append(rng.choice(_ENDINGS))
    return "\n".join(lines)


def debug_request(
    instance: Instance, buggy: str, outcomes: Sequence[str], rng: random.Random
) -> str:
    """Return the text that asks to correct a function, with its failing tests."""
    opening = rng.choice(
        (
            "This function should return {returns}, but it has a bug:",
            "Find the bug. The function should return {returns}:",
            "`{signature}` should return {returns}. This version is wrong:",
        )
    )
    failures = [
        f"{call_text(instance.entry_point, case.args)} {outcome}"
        for case, outcome in zip(instance.shown, outcomes, strict=True)
        if outcome
    ]
    rng.shuffle(failures)
    ending = rng.choice(("Write the corrected function.", "Reply with the corrected code only."))
    code = f"```python\n{buggy}\n```"
    return "\n".join([_statement(instance, opening), code, *failures[:2], ending])


def _statement(instance: Instance, form: str) -> str:
    text = form.format(signature=instance.signature, returns=instance.returns)
    return f"{text} {instance.notes}".rstrip()


def call_text(entry_point: str, args: Sequence[JSON]) -> str:
    """Return a call as Python text."""
    return f"{entry_point}({', '.join(map(repr, args))})"


def code_reply(source: str) -> str:
    return f"```python\n{source}\n```"


def feedback(failures: Sequence[str], num_shown: int) -> str:
    """Return what the candidate is told after a failed attempt: real outcomes, at most two."""
    count = len(failures)
    return "\n".join(
        [
            f"{count} of {num_shown} tests failed:",
            *failures[:2],
            "Write the corrected function.",
        ]
    )


def no_code_feedback(entry_point: str, reason: str) -> str:
    return f"{reason[:200]}\nReply with a Python code block that defines `{entry_point}`."
