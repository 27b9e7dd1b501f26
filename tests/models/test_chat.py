"""Rendered, sampled and trained token ids are the same, whatever the template does."""

from __future__ import annotations

import json

import pytest

from educe.core.errors import EduceError
from educe.core.types import Message, assistant, system, user
from educe.models.chat import ChatFormat, parse_tool_calls
from educe.models.tiny import CHAT_TEMPLATE, byte_tokenizer

# Strips what stands before </think> from all turns but the last, as reasoning models' do.
STRIPPING = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(byte_tokenizer())


def test_the_end_of_turn_token_is_found(chat):
    assert chat.end_token_id == chat.tokenizer.eos_token_id
    assert chat.stop_token_ids == {chat.end_token_id}


def test_the_tokenizer_adds_nothing_to_the_template(chat):
    tokens = chat.prompt_tokens([user("hi")])
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat.tokenizer.decode(tokens) == text
    assert list(tokens).count(chat.tokenizer.bos_token_id) == 2  # one a message, none besides


def test_a_system_prompt_goes_first_unless_there_is_one():
    chat = ChatFormat(byte_tokenizer(), system_prompt="be brief")
    assert "system\nbe brief" in chat.prompt_text([user("x")])
    assert "be brief" not in chat.prompt_text([system("mine"), user("x")])


def test_the_next_context_keeps_sampled_ids_that_decode_and_encode_otherwise(chat):
    """A byte that is no text on its own decodes to a replacement mark: never encoded again."""
    context = chat.prompt_tokens([user("q")])
    broken = chat.encode("é")[0]
    completion = (broken, chat.encode("a")[0], chat.end_token_id)
    text = chat.decode(completion)
    assert chat.encode(text) != list(completion[:-1])
    grown = chat.next_context(
        context, completion, [user("q"), assistant(text)], [Message("tool", "seen")]
    )
    assert grown[: len(context) + 3] == (*context, *completion)
    rest = chat.tokenizer.decode(grown[len(context) + 3 :])
    assert rest == "\n<|im_start|>tool\nseen<|im_end|>\n<|im_start|>assistant\n"


def test_an_ordinary_next_context_is_what_rendering_afresh_gives(chat):
    transcript = [user("q"), assistant("a1")]
    context = chat.prompt_tokens(transcript[:1])
    completion = (*chat.encode("a1"), chat.end_token_id)
    grown = chat.next_context(context, completion, transcript, [user("more")])
    assert grown == chat.prompt_tokens([*transcript, user("more")])


def test_a_completion_without_its_end_token_gets_the_templates(chat):
    context = chat.prompt_tokens([user("q")])
    completion = tuple(chat.encode("cut"))
    grown = chat.next_context(context, completion, [user("q"), assistant("cut")], [user("go on")])
    assert grown == chat.prompt_tokens([user("q"), assistant("cut"), user("go on")])


@pytest.mark.parametrize("said", [" yes", "\n\nyes", "yes \n", " \n"])
@pytest.mark.parametrize("content", ["message['content']", "message['content'] | trim"])
def test_white_space_around_a_turn_breaks_no_context(said, content):
    """Under a template that takes it off, and under one that leaves it."""
    template = CHAT_TEMPLATE.replace("message['content']", f"({content})")
    chat = ChatFormat(byte_tokenizer(), template=template)
    context = chat.prompt_tokens([user("q")])
    completion = (*chat.encode(said), chat.end_token_id)
    grown = chat.next_context(context, completion, [user("q"), assistant(said)], [user("more")])
    assert grown[: len(context) + len(completion)] == (*context, *completion)
    shown = chat.demonstration([user("q")], [assistant(said), user("more"), assistant("so")])
    assert shown.token_ids[: len(grown)] == grown
    assert sum(shown.mask) == len(completion) + 3


def test_a_template_that_strips_thinking_is_rendered_afresh():
    chat = ChatFormat(byte_tokenizer(), template=STRIPPING)
    context = chat.prompt_tokens([user("q")])
    said = "<think>hm</think>yes"
    completion = (*chat.encode(said), chat.end_token_id)
    grown = chat.next_context(context, completion, [user("q"), assistant(said)], [user("sure?")])
    assert "<think>" not in chat.tokenizer.decode(grown)
    assert grown == chat.prompt_tokens([user("q"), assistant(said), user("sure?")])
    with pytest.raises(EduceError, match="rewrites earlier turns"):
        chat.demonstration([user("q")], [assistant(said), user("sure?"), assistant("yes")])


def test_a_demonstration_masks_assistant_tokens_and_their_end(chat):
    turns = [assistant("one"), Message("tool", "reply"), assistant("two")]
    shown = chat.demonstration([user("q")], turns)
    trained = [t for t, m in zip(shown.token_ids, shown.mask, strict=True) if m]
    end = chat.end_token_id
    assert trained == [*chat.encode("one"), end, *chat.encode("two"), end]
    whole = chat.prompt_text([user("q"), *turns], generate=False)
    assert chat.tokenizer.decode(shown.token_ids) == whole.rstrip("\n")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": {"b": 1}}}</tool_call>', ["f"]),
        (
            'x <tool_call>\n{"name": "f"}\n</tool_call> <tool_call>{"name": "g"}</tool_call>',
            ["f", "g"],
        ),
        ('<tool_call>{"name": "f", "arguments": {</tool_call>', []),
        ('<tool_call>{"arguments": {}}</tool_call>', []),
        ('{"name": "f"}', []),
        ('<tool_call>{"name": "f", "arguments": {"n": ' + "9" * 5000 + "}}</tool_call>", []),
        ('<tool_call>{"a": ' + "[" * 100_000 + "}</tool_call>", []),
    ],
)  # fmt: skip
def test_tool_calls_are_parsed_and_broken_ones_are_none(text, names):
    calls = parse_tool_calls(text)
    assert [c.name for c in calls] == names
    assert all(isinstance(json.loads(c.arguments), dict) for c in calls)


def test_a_tokenizer_without_template_is_refused():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(EduceError, match="no chat template"):
        ChatFormat(tokenizer)
    assert ChatFormat(tokenizer, template=CHAT_TEMPLATE).end_token_id == 2
