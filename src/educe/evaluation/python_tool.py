"""A Python tool for single-turn tasks: the model may compute before it answers."""

from __future__ import annotations

import json

from educe.core.errors import InfrastructureError, UnscoredError
from educe.core.protocols import Services
from educe.core.types import Message

PYTHON_TOOL_TEXT = (
    "You may run Python before you answer. To run a program, reply with nothing but\n"
    '<tool_call>{"name": "python", "arguments": {"code": "print(6 * 7)"}}</tool_call>\n'
    "and you will be told what it printed. When you know the answer, reply without a tool call: "
    'write it on a last line of its own that begins with "Answer:".'
)
_MAX_CALLS = 2
_MAX_OUTPUT = 600


def run_tool_calls(message: Message, services: Services) -> tuple[Message, ...]:
    """Return one tool message a call of an assistant message; none when it called nothing.

    Mistakes of the model (another tool, no code, an exception) are told to it, never raised.

    Raises:
        UnscoredError: no sandbox was handed in.
        InfrastructureError: the sandbox failed.
    """
    return tuple(
        Message("tool", _run(call.name, call.arguments, services), name=call.name)
        for call in message.tool_calls[:_MAX_CALLS]
    )


def _run(name: str, arguments: str, services: Services) -> str:
    if name != "python":
        return f"error: there is no tool {name!r}; the only tool is python"
    try:
        raw = json.loads(arguments)
    except (ValueError, RecursionError):
        raw = None
    code = raw.get("code") if isinstance(raw, dict) else None
    if not isinstance(code, str) or not code.strip():
        return 'error: the arguments must be {"code": "…"} with a Python program'
    if services.sandbox is None:
        raise UnscoredError("the python tool needs a sandbox, and none was given")
    from educe.sandbox.contract import BoxVerdict, Job, Limits

    limits = Limits(cpu_s=2.0, wall_s=8.0, memory_mb=256, stdout_bytes=1 << 16)
    result = services.sandbox.run(Job(code, limits=limits))
    if result.verdict is BoxVerdict.INFRA:
        raise InfrastructureError(f"the python tool's sandbox failed: {result.reason}")
    printed = result.stdout_text.strip()
    if result.verdict is not BoxVerdict.OK:
        error = (result.stderr_text.strip().splitlines() or [result.reason])[-1]
        printed = f"{printed}\nerror: {error or result.verdict}".strip()
    return printed[:_MAX_OUTPUT] or "(nothing was printed)"
