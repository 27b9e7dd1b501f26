"""Requests: what is not supported is refused by name, and never ignored."""

from __future__ import annotations

import json

import pytest

from educe.serving.errors import ApiError
from educe.serving.requests import parse_chat, parse_completion


def chat(**fields):
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return parse_chat(json.dumps(body).encode())


def completion(**fields):
    return parse_completion(json.dumps({"prompt": "hi", **fields}).encode())


def refused(make, **fields) -> ApiError:
    with pytest.raises(ApiError) as caught:
        make(**fields)
    assert caught.value.status == 400
    return caught.value


def test_defaults_are_openai_s():
    request = completion()
    assert (request.max_tokens, request.temperature, request.n) == (16, 1.0, 1)
    assert chat().max_tokens is None, "a chat answer is not cut short unless it is asked for"


def test_null_is_the_default_everywhere():
    names = ("temperature", "top_p", "n", "seed", "stop", "stream", "max_tokens", "logprobs",
             "tools", "tool_choice", "frequency_penalty", "logit_bias", "user")  # fmt: skip
    assert chat(**dict.fromkeys(names)) == chat()


def test_bookkeeping_and_neutral_values_pass():
    request = chat(
        user="u", metadata={"a": 1}, store=True, parallel_tool_calls=False, frequency_penalty=0.0,
        logit_bias={}, response_format={"type": "text"}, stop="x", best_of=1,
    )  # fmt: skip
    assert request.stop == ["x"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": [{}]}, "functions"),
        ({"best_of": 3}, "best_of"),
        ({"temprature": 0}, "temprature"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_the_parameter_at_fault_is_named(fields, param):
    error = refused(chat, **fields)
    assert error.param == param
    assert error.body()["error"]["param"] == param


def test_likelihoods_by_chat_are_refused_with_the_way_to_go():
    """Elsewhere such requests give errors, or quietly another task."""
    assert "/v1/completions" in str(refused(chat, echo=True))
    assert "/v1/completions with echo" in str(refused(chat, prompt_logprobs=1))


def test_typing_errors_get_a_hint():
    assert "Did you mean 'temperature'?" in str(refused(chat, temprature=0))


def test_no_text_means_no_question():
    assert refused(completion, max_tokens=0).param == "max_tokens"
    assert completion(max_tokens=0, echo=True).max_tokens == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b'{"temperature": NaN}'])
def test_bodies_that_are_none(body):
    with pytest.raises(ApiError) as caught:
        parse_chat(body)
    assert caught.value.status == 400
