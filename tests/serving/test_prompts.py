"""Messages, tools and plain prompts become the right tokens, and what is wrong is named."""

from __future__ import annotations

import pytest
from tokenizers.processors import TemplateProcessing

from educe.core.types import Message, Split
from educe.domains.builtin.stateful_tools.tools import describe_tools
from educe.domains.registry import load_domain
from educe.models.chat import parse_tool_calls
from educe.models.tiny import byte_tokenizer
from educe.serving.errors import ApiError
from educe.serving.prompts import read_messages, read_prompts
from educe.serving.tool_text import ContentStream, read_tools, split_calls, tools_text


def as_openai(tools) -> list[dict]:
    return [
        {
            "type": "function",
            "function": {
                "name": t.name,
                "description": t.description,
                "parameters": dict(t.parameters),
            },
        }
        for t in tools
    ]


def test_tools_read_as_in_the_domains_that_train_them():
    domain = load_domain("tools/files/easy")
    task = domain.task(Split.TRAIN, 0)
    request = task.messages[0].content.removeprefix(describe_tools(task.tools) + "\n")
    tools = read_tools(as_openai(task.tools), None)
    assert tools_text(tools) == describe_tools(task.tools)
    (message,) = read_messages([{"role": "user", "content": request}], tools)
    assert message == task.messages[0]


def test_other_schemas_are_shown():
    raw = as_openai(())
    raw.append({"type": "function", "function": {"name": "now"}})
    raw.append(
        {
            "type": "function",
            "function": {
                "name": "find",
                "description": "Look up.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "what": {"type": "string", "description": "a word"},
                        "kind": {"type": "string", "enum": ["a", "b"]},
                        "limit": {"type": "integer", "default": 3},
                    },
                    "required": ["what"],
                },
            },
        }
    )
    lines = tools_text(read_tools(raw, "auto")).splitlines()
    assert lines[1] == "now()"
    assert lines[2] == (
        'find(what: string (a word), kind?: {"type": "string", "enum": ["a", "b"]}, '
        "limit?: integer) - Look up."
    )
    assert read_tools(raw, "none") == ()
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        with pytest.raises(ApiError, match="nothing forces a model") as caught:
            read_tools(raw, choice)
        assert caught.value.param == "tool_choice"


def test_a_tool_conversation_is_what_the_model_wrote():
    call = {"id": "c1", "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1}'}}  # fmt: skip
    messages = read_messages(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "1"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
        (),
    )
    assert messages[0] == Message("system", "Be brief.")
    assert messages[1] == Message("user", "1")
    (parsed,) = parse_tool_calls(messages[2].content)
    assert (parsed.name, parsed.arguments) == ("add", '{"a": 1}')
    assert messages[3] == Message("tool", "2", name="add")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": ""}, "messages.0.role"),
        ({"content": "x"}, "messages.0.role"),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "user", "content": 3}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages.0.content.0"),
        ({"role": "user", "content": "", "tool_calls": [{}]}, "messages.0.tool_calls"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "messages.0.tool_calls.0"),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
            },
            "messages.0.tool_calls.0.function.arguments",
        ),
    ],
)
def test_wrong_messages_are_named(message, param):
    with pytest.raises(ApiError) as caught:
        read_messages([message], ())
    assert caught.value.param == param
    assert caught.value.status == 400


CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        ("plain", "plain", 0),
        (CALL, "", 1),
        (f"Let me see.\n\n{CALL}\n{CALL}", "Let me see.", 2),
        (f"a {CALL} b", "a  b", 1),
        ("a <tool_call>{broken</tool_call>", "a <tool_call>{broken</tool_call>", 0),
        (f"<tool_call>oops {CALL}", "<tool_call>oops", 1),
        ("a < b and <tool", "a < b and <tool", 0),
        ("trailing blanks  \n", "trailing blanks  \n", 0),
    ],
)
def test_calls_are_taken_out_alike_whole_or_streamed(text, content, num_calls):
    whole = split_calls(text)
    assert (whole.content, len(whole.calls)) == (content, num_calls)
    for size in (1, 2, 5, 100):
        stream = ContentStream()
        sent = [stream.push(text[i : i + size]) for i in range(0, len(text), size)]
        rest = stream.finish()
        assert "".join(sent) + rest.content == content
        assert rest.calls == whole.calls


def with_beginning():
    """A byte tokenizer that puts its BOS before every text, as Llama's does."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    return tokenizer


def test_the_beginning_is_there_once():
    """Missing where a model needs it, or twice where the text has it already, scores collapse."""
    tokenizer = with_beginning()
    (bare,) = read_prompts("hi", tokenizer, add_special_tokens=True)
    assert bare.token_ids == (1, *tokenizer.encode("hi", add_special_tokens=False))
    assert bare.num_added == 1
    (full,) = read_prompts("<|im_start|>hi", tokenizer, add_special_tokens=True)
    assert full.token_ids == bare.token_ids
    assert full.num_added == 0
    (off,) = read_prompts("hi", tokenizer, add_special_tokens=False)
    assert off.token_ids == bare.token_ids[1:]
    (empty,) = read_prompts("", tokenizer, add_special_tokens=True)
    assert empty.token_ids == (1,)


def test_token_ids_are_taken_as_they_are():
    tokenizer = with_beginning()
    kinds = read_prompts([[5, 6], "a", [7]], tokenizer, add_special_tokens=True)
    assert [k.token_ids for k in kinds][::2] == [(5, 6), (7,)]
    (one,) = read_prompts([5, 6], tokenizer, add_special_tokens=True)
    assert one.token_ids == (5, 6)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([[]], "prompt"),
        ([[5, 260]], "prompt"),
        ([[5, -1]], "prompt"),
        ([True], "prompt"),
        (["a", {}], "prompt.1"),
        (["a", ["b"]], "prompt.1"),
        ({"a": 1}, "prompt"),
        (["a"] * 1025, "prompt"),
    ],
)
def test_wrong_prompts_are_named(prompt, param):
    with pytest.raises(ApiError) as caught:
        read_prompts(prompt, byte_tokenizer(), add_special_tokens=True)
    assert caught.value.param == param
