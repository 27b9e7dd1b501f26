"""From a request's messages or prompts to the token prompts that the engine reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from educe.core.types import JSON, Message, ToolSpec
from educe.serving.errors import ApiError
from educe.serving.requests import MAX_PROMPTS
from educe.serving.tool_text import call_block, tools_text

if TYPE_CHECKING:
    from educe.models.chat import ChatFormat

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant",
          "tool": "tool"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to read; the first ``num_added`` are the tokenizer's own and no text of the client."""

    token_ids: tuple[int, ...]
    num_added: int = 0


# Chat


def read_messages(
    raw: Sequence[Mapping[str, Any]], tools: Sequence[ToolSpec]
) -> tuple[Message, ...]:
    """Return the conversation, with the tools put before its first user message.

    Raises:
        ApiError: naming the message, e.g. ``messages.2.content``.
    """
    names: dict[str, str] = {}
    messages = []
    for i, message in enumerate(raw):
        messages.append(_read_message(message, f"messages.{i}", names))
    if not tools:
        return tuple(messages)
    place = next((i for i, m in enumerate(messages) if m.role == "user"), None)
    offer = tools_text(tools)
    if place is None:
        return (*messages, Message("user", offer))
    first = messages[place]
    messages[place] = Message("user", f"{offer}\n{first.content}", name=first.name)
    return tuple(messages)


def _read_message(raw: Mapping[str, Any], param: str, names: dict[str, str]) -> Message:
    role = _ROLES.get(str(raw.get("role")))
    if role is None:
        raise ApiError(
            f"the role must be one of {', '.join(_ROLES)}, got {raw.get('role')!r}",
            param=f"{param}.role",
        )
    calls = raw.get("tool_calls") or []
    if calls and role != "assistant":
        raise ApiError("only the assistant makes tool calls", param=f"{param}.tool_calls")
    if not isinstance(calls, list):
        raise ApiError("tool_calls must be a list", param=f"{param}.tool_calls")
    content = _read_content(raw.get("content"), f"{param}.content", is_optional=bool(calls))
    blocks = []
    for j, call in enumerate(calls):
        blocks.append(call_block(call, f"{param}.tool_calls.{j}"))
        if isinstance(call.get("id"), str):
            names[call["id"]] = call["function"]["name"]
    text = "\n".join(part for part in (content, *blocks) if part)
    name = str(raw.get("name") or "")
    if role == "tool":
        name = name or names.get(str(raw.get("tool_call_id")), "")
    return Message(role, text, name=name)


def _read_content(raw: JSON, param: str, *, is_optional: bool) -> str:
    if raw is None and is_optional:
        return ""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise ApiError(
            f"the content must be text or a list of text parts, got {type(raw).__name__}",
            param=param,
        )
    texts = []
    for i, part in enumerate(raw):
        is_text = isinstance(part, Mapping) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ApiError(
                f"only text parts are supported, got a part of type {kind!r}", param=f"{param}.{i}"
            )
        texts.append(part["text"])
    return "".join(texts)


def chat_prompt(chat: ChatFormat, messages: Sequence[Message]) -> Prompt:
    """Render a conversation.

    Raises:
        ApiError: the model's template refuses it (for example two user turns in a row).
    """
    from jinja2 import TemplateError

    try:
        return Prompt(chat.prompt_tokens(messages))
    except TemplateError as error:
        raise ApiError(
            f"the model's chat template refuses these messages: {error}", param="messages"
        ) from error


# Plain prompts


def read_prompts(raw: JSON, tokenizer: Any, *, add_special_tokens: bool) -> list[Prompt]:
    """Return the prompts of a completion request: a text, a list of texts, of ids, or of both.

    Token ids are used as they are. To a text the tokenizer adds what it adds to any text; a
    beginning that the text already has is not added again.

    Raises:
        ApiError: naming ``prompt``.
    """
    items = raw if isinstance(raw, list) else [raw]
    if raw == []:
        raise ApiError("the prompt is empty", param="prompt")
    if isinstance(raw, list) and all(isinstance(i, int) for i in raw):
        items = [raw]
    if len(items) > MAX_PROMPTS:
        raise ApiError(
            f"at most {MAX_PROMPTS} prompts in one request, got {len(items)}", param="prompt"
        )
    prompts = []
    for i, item in enumerate(items):
        param = "prompt" if len(items) == 1 else f"prompt.{i}"
        if isinstance(item, str):
            prompts.append(_from_text(item, tokenizer, add_special_tokens))
        elif isinstance(item, list):
            prompts.append(_from_ids(item, len(tokenizer), param))
        else:
            raise ApiError(
                f"a prompt is a text or a list of token ids, got {type(item).__name__}",
                param=param,
            )
        if not prompts[-1].token_ids:
            raise ApiError("the prompt has no token", param=param)
    return prompts


def _from_text(text: str, tokenizer: Any, add_special_tokens: bool) -> Prompt:
    bare = list(tokenizer.encode(text, add_special_tokens=False))
    if not add_special_tokens:
        return Prompt(tuple(bare))
    added = _leading(list(tokenizer.encode("", add_special_tokens=True)), tokenizer)
    if not added or bare[: len(added)] == added:
        return Prompt(tuple(bare))
    return Prompt((*added, *bare), len(added))


def _leading(ids: list[int], tokenizer: Any) -> list[int]:
    """Return what the tokenizer puts before a text; an end token behind it is never wanted."""
    return [i for i in ids[:1] if i == tokenizer.bos_token_id]


def _from_ids(raw: Sequence[Any], num_tokens: int, param: str) -> Prompt:
    for i, token in enumerate(raw):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < num_tokens:
            raise ApiError(
                f"element {i} must be a token id from 0 to {num_tokens - 1}, got {token!r:.40}",
                param=param,
            )
    return Prompt(tuple(raw))
