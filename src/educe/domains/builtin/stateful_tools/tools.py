"""Tools that act on a JSON state: their description, the check of arguments, the call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from educe.core.errors import did_you_mean
from educe.core.types import JSON, Message, ToolCall, ToolSpec

Section = dict[str, JSON]
Arguments = Mapping[str, JSON]
CALL_FORMAT = '<tool_call>{"name": "TOOL", "arguments": {"ARGUMENT": VALUE}}</tool_call>'

_MAX_TEXT = 400
_MAX_NUMBER = 10**9
_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool}


class ToolFailure(Exception):
    """What a tool cannot do; the message is the tool's reply and the episode goes on."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of one world.

    Attributes:
        parameters: argument name to ``string``, ``integer`` or ``boolean``; all are required.
        run: changes the world's section in place and returns the reply.
        is_destructive: a successful call is a forbidden side effect unless the task needs it.
    """

    name: str
    description: str
    parameters: Mapping[str, str]
    run: Callable[[Section, Arguments], str]
    is_destructive: bool = False

    @property
    def spec(self) -> ToolSpec:
        """The tool in the OpenAI format."""
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(self.parameters),
            "additionalProperties": False,
        }
        return ToolSpec(self.name, self.description, schema)


def describe_tools(tools: Sequence[ToolSpec]) -> str:
    """Return the text that tells a model, in few tokens, which tools it has and how to call one."""
    lines = ["Tools:"]
    for tool in tools:
        arguments = ", ".join(
            f"{name}: {schema['type']}" for name, schema in tool.parameters["properties"].items()
        )
        lines.append(f"{tool.name}({arguments}) - {tool.description}")
    return "\n".join([*lines, "Call a tool with", CALL_FORMAT])


def call_text(name: str, arguments: Arguments) -> str:
    """Return a call as the model writes it."""
    body = json.dumps({"name": name, "arguments": dict(arguments)})
    return f"<tool_call>{body}</tool_call>"


def call_message(name: str, arguments: Arguments) -> Message:
    """Return the assistant message that makes one call."""
    call = ToolCall(name, json.dumps(dict(arguments)), "call-0")
    return Message("assistant", call_text(name, arguments), (call,))


def check_arguments(tool: Tool, raw: str) -> Arguments:
    """Return the parsed arguments of a call.

    Raises:
        ToolFailure: they are not a JSON object with the declared names and types.
    """
    try:
        arguments = json.loads(raw)
    except (ValueError, RecursionError):  # also numbers of too many digits
        raise ToolFailure("the arguments are not valid JSON") from None
    if not isinstance(arguments, dict):
        raise ToolFailure("the arguments must be a JSON object")
    for name in arguments:
        if name not in tool.parameters:
            raise ToolFailure(f"{tool.name} has no argument '{name[:40]}'")
    for name, kind in tool.parameters.items():
        if name not in arguments:
            raise ToolFailure(f"the argument '{name}' is missing")
        value = arguments[name]
        if type(value) is not _TYPES[kind]:  # a bool is an int by class, and must not pass as one
            raise ToolFailure(f"the argument '{name}' must be {_article(kind)}")
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            raise ToolFailure(f"the argument '{name}' is longer than {_MAX_TEXT} characters")
        if isinstance(value, int) and abs(value) > _MAX_NUMBER:
            raise ToolFailure(f"the argument '{name}' is out of range")
    return arguments


def unknown_tool(name: str, known: Sequence[str]) -> ToolFailure:
    return ToolFailure(f"there is no tool '{name[:40]}'.{did_you_mean(name[:40], known, 1)}")


def need(table: Mapping[str, JSON], key: JSON, what: str) -> JSON:
    """Return an entry of a table, or fail with a reply that names what is missing."""
    if key not in table:
        raise ToolFailure(f"there is no {what} '{key}'")
    return table[key]


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
