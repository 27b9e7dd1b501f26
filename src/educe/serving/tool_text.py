"""Tools between OpenAI's shape and the text that models read and write.

A model that learned tools in educe's domains has read them at the top of the prompt, as
``name(argument: type) - description``, and written ``<tool_call>`` blocks; served models get the
same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from educe.core.types import JSON, ToolCall, ToolSpec
from educe.domains.builtin.stateful_tools.tools import CALL_FORMAT
from educe.models.chat import parse_tool_calls
from educe.serving.errors import ApiError
from educe.serving.text_stream import overlap

OPENING = "<tool_call>"
_BLOCK = re.compile(r"<tool_call>\s*\{.*?\}\s*</tool_call>", re.DOTALL)


def read_tools(raw: Sequence[Mapping[str, Any]], tool_choice: Any) -> tuple[ToolSpec, ...]:
    """Return the tools that the model is offered; none for ``tool_choice`` ``none``.

    Raises:
        ApiError: a malformed tool, or a choice that would have to force a call.
    """
    tools = tuple(_read_tool(tool, f"tools.{i}") for i, tool in enumerate(raw))
    if tool_choice in (None, "auto"):
        return tools
    if tool_choice == "none":
        return ()
    raise ApiError(
        f"tool_choice={json.dumps(tool_choice)[:80]} is not supported: nothing forces a model to "
        "call; use 'auto' or 'none'",
        param="tool_choice",
        code="unsupported_parameter",
    )


def _read_tool(raw: Mapping[str, Any], param: str) -> ToolSpec:
    function = raw.get("function")
    if raw.get("type") != "function" or not isinstance(function, Mapping):
        raise ApiError('a tool must be {"type": "function", "function": {"name": …}}', param=param)
    name, parameters = function.get("name"), function.get("parameters") or {}
    if not isinstance(name, str) or not name:
        raise ApiError("a tool needs a name", param=f"{param}.function.name")
    if not isinstance(parameters, Mapping) or not isinstance(
        parameters.get("properties", {}), Mapping
    ):
        raise ApiError(
            "the parameters of a tool must be a JSON schema of an object",
            param=f"{param}.function.parameters",
        )
    return ToolSpec(name, str(function.get("description") or ""), parameters)


def tools_text(tools: Sequence[ToolSpec]) -> str:
    """Return the text that offers tools to a model.

    For tools with plain required arguments it is the text of ``tools/…`` domains; an optional
    argument has a question mark, and a type that is not one word is shown as its schema.
    """
    lines = ["Tools:"]
    for tool in tools:
        required = tool.parameters.get("required") or ()
        arguments = ", ".join(
            f"{name}{'' if name in required else '?'}: {_type_text(schema)}"
            for name, schema in (tool.parameters.get("properties") or {}).items()
        )
        lines.append(f"{tool.name}({arguments}) - {tool.description}".removesuffix(" - "))
    return "\n".join([*lines, "Call a tool with", CALL_FORMAT])


def _type_text(schema: JSON) -> str:
    if isinstance(schema, Mapping):
        notes = set(schema) - {"type", "title", "default"}
        if isinstance(schema.get("type"), str) and not notes:
            return str(schema["type"])
        if isinstance(schema.get("type"), str) and notes == {"description"}:
            return f"{schema['type']} ({schema['description']})"
    return json.dumps(schema, ensure_ascii=False)


def call_block(call: Any, param: str) -> str:
    """Return a call of an earlier turn as the model wrote it.

    Raises:
        ApiError: it has no name, or its arguments are not JSON.
    """
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ApiError("a tool call needs a function with a name", param=param)
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ApiError(
                f"the arguments of a tool call must be JSON: {error}",
                param=f"{param}.function.arguments",
            ) from error
    body = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{body}</tool_call>"


@dataclass(frozen=True, slots=True)
class Spoken:
    """A completion taken apart: ``content`` without the calls, and the calls."""

    content: str
    calls: tuple[ToolCall, ...] = ()


def split_calls(text: str) -> Spoken:
    """Take the calls out of a completion; malformed blocks stay in the content as they are."""
    calls: list[ToolCall] = []
    pieces = []
    cursor = 0
    for block in _BLOCK.finditer(text):
        found = parse_tool_calls(block.group())
        if found:
            calls += found
            pieces.append(text[cursor : block.start()])
            cursor = block.end()
    if not calls:
        return Spoken(text)
    return Spoken("".join([*pieces, text[cursor:]]).rstrip(), tuple(calls))


class ContentStream:
    """Streams the content of a completion that may hold calls.

    What may turn out to be a call, and blanks before it, wait; from the first opening mark on
    everything waits for ``finish``.
    """

    def __init__(self) -> None:
        self._text = ""
        self._sent = 0

    def push(self, piece: str) -> str:
        """Add text; return the content that is certain."""
        self._text += piece
        opening = self._text.find(OPENING)
        if opening < 0:
            opening = len(self._text) - overlap(self._text, OPENING)
        end = max(self._sent, len(self._text[:opening].rstrip()))
        out, self._sent = self._text[self._sent : end], end
        return out

    def finish(self) -> Spoken:
        """Return the rest of the content, and the calls."""
        spoken = split_calls(self._text)
        return Spoken(spoken.content[self._sent :], spoken.calls)
