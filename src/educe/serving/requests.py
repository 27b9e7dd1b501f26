"""What clients may ask, checked: the fields of OpenAI's two completion endpoints.

A field that would change the answer and is not supported is refused by name, never ignored. Fields
that only concern accounting or storage are accepted. ``null`` means the default everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from educe.core.errors import did_you_mean
from educe.core.types import JSON
from educe.serving.errors import ApiError

MAX_CHOICES = 128
MAX_PROMPTS = 1024
MAX_TOP = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 256


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]],
    BeforeValidator(_listed),
    Field(max_length=MAX_STOPS),
]


class StreamOptions(BaseModel):
    """``include_usage`` adds a last chunk with the token counts."""

    model_config = ConfigDict(extra="ignore")
    include_usage: bool = False


class _Request(BaseModel):
    """What both endpoints share. ``top_k``, ``ignore_eos`` and ``return_token_ids`` are vLLM's."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str = ""
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    seed: int | None = None
    stop: Stops = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False

    @property
    def note(self) -> str:
        """What the client should know although the request is valid; empty for nothing."""
        quoted = [s for s in self.stop if "\\n" in s]
        if not quoted:
            return ""
        return "a stop holds a backslash and the letter n; was a newline meant?"


class ChatRequest(_Request):
    """``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    tools: list[dict[str, Any]] = []
    tool_choice: Any = None


class CompletionRequest(_Request):
    """``POST /v1/completions``."""

    prompt: Any
    max_tokens: int = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    echo: bool = False
    add_special_tokens: bool = True


# Accepted and without effect on the answer.
_INERT = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "parallel_tool_calls",
    }
)  # fmt: skip
# Not supported; accepted with the values that change nothing.
_NEUTRAL: Mapping[str, tuple[JSON, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "prompt_logprobs": (),
}
_INSTEAD = {
    "prompt_logprobs": "use /v1/completions with echo=true and logprobs",
    "functions": "use tools",
    "function_call": "use tools and tool_choice",
    "response_format": "ask for the format in the prompt",
    "echo": "likelihoods of given texts come from /v1/completions: its prompt is not put into a "
    "chat template",
}

_R = TypeVar("_R", bound=_Request)


def parse_chat(body: bytes) -> ChatRequest:
    """Return a checked request.

    Raises:
        ApiError: naming the parameter.
    """
    request = _parse(ChatRequest, body)
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError("top_logprobs needs logprobs=true", param="top_logprobs")
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise ApiError(
            f"max_tokens is {request.max_tokens} and max_completion_tokens is "
            f"{request.max_completion_tokens}; they mean the same, give one",
            param="max_tokens",
        )
    return request


def parse_completion(body: bytes) -> CompletionRequest:
    """Return a checked request.

    Raises:
        ApiError: naming the parameter.
    """
    request = _parse(CompletionRequest, body)
    if request.max_tokens == 0 and not request.echo:
        raise ApiError(
            "max_tokens must be at least 1; 0 is for scoring a prompt with echo=true",
            param="max_tokens",
        )
    return request


def _parse(kind: type[_R], body: bytes) -> _R:
    raw = _object(body)
    fields = {k: v for k, v in raw.items() if v is not None and k not in _INERT}
    best_of = fields.pop("best_of", None)
    if best_of is not None and best_of != fields.get("n", 1):
        raise ApiError(f"best_of {best_of!r} is supported only when it equals n", param="best_of")
    for name in [name for name in fields if name not in kind.model_fields]:
        _refuse_unless_neutral(kind, name, fields.pop(name))
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(str(part) for part in first["loc"])
        given = "" if first["type"] == "missing" else f", got {_shown(first['input'])}"
        raise ApiError(f"{param}: {first['msg']}{given}", param=param) from error


def _object(body: bytes) -> dict[str, JSON]:
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(raw, dict):
        raise ApiError(f"the body must be a JSON object, got {_shown(raw)}", code="invalid_json")
    return raw


def _refuse_unless_neutral(kind: type[_Request], name: str, value: JSON) -> None:
    if name in _NEUTRAL and value in _NEUTRAL[name]:
        return
    if name in _NEUTRAL or name in _INSTEAD:
        hint = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise ApiError(
            f"{name}={_shown(value)} is not supported here{hint}",
            param=name,
            code="unsupported_parameter",
        )
    known = [*kind.model_fields, *_NEUTRAL]
    raise ApiError(
        f"there is no parameter {name!r}.{did_you_mean(name, known, 1)}",
        param=name,
        code="unknown_parameter",
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."
