"""Examples as tokens: the masks of completions and turns, plain text, and what is too long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from educe.core.types import assistant, user
from educe.domains.formats import Written
from educe.models.chat import ChatFormat
from educe.models.tiny import CHAT_TEMPLATE, byte_tokenizer
from educe.trainers.rendering import Rendered, fit, render

ONE = Written((user("Hi"),), (assistant("Hello"),))
TWO = Written((user("Hi"),), (assistant("Hello"), user("And?"), assistant("Bye")))

# Earlier assistant turns lose what they thought.
FORGETFUL = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('|')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(byte_tokenizer())


def trained(chat: ChatFormat, side: Rendered) -> str:
    return chat.tokenizer.decode(side.token_ids[side.mask])


def whole(chat: ChatFormat, side: Rendered) -> str:
    return chat.tokenizer.decode(side.token_ids)


def test_a_completion_is_trained_and_its_prompt_is_not(chat: ChatFormat) -> None:
    (side,) = render(chat, ONE)
    assert trained(chat, side) == "Hello<|im_end|>"
    prompt = chat.prompt_tokens(ONE.prompt)
    assert tuple(side.token_ids[: len(prompt)]) == prompt  # as a rollout would see it


def test_every_assistant_turn_is_trained(chat: ChatFormat) -> None:
    (side,) = render(chat, TWO)
    assert trained(chat, side) == "Hello<|im_end|>Bye<|im_end|>"
    text = "".join(
        f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in (*TWO.prompt, *TWO.completion)
    )
    assert whole(chat, side) == text.removesuffix("\n")


def test_only_the_last_turn_or_everything(chat: ChatFormat) -> None:
    (last,) = render(chat, TWO, "last")
    assert trained(chat, last) == "Bye<|im_end|>"
    (everything,) = render(chat, TWO, "all")
    assert everything.num_trained == len(everything) - 1
    assert not everything.mask[0]


def test_a_template_that_forgets_gives_a_sequence_a_turn() -> None:
    forgetful = ChatFormat(byte_tokenizer(), template=FORGETFUL)
    written = Written((user("Hi"),), (assistant("hm|Hello"), user("And?"), assistant("so|Bye")))
    first, second = render(forgetful, written)
    assert trained(forgetful, first) == "hm|Hello<|im_end|>"
    assert trained(forgetful, second) == "so|Bye<|im_end|>"
    assert "hm|" not in whole(forgetful, second)
    (last,) = render(forgetful, written, "last")
    assert trained(forgetful, last) == "so|Bye<|im_end|>"


def test_plain_text_is_joined_as_it_stands(chat: ChatFormat) -> None:
    (side,) = render(chat, Written("The sky is", " blue."))
    assert whole(chat, side) == "The sky is blue.<|im_end|>"
    assert trained(chat, side) == " blue.<|im_end|>"
    (text,) = render(chat, Written("", "The sky is blue."))
    assert whole(chat, text) == "The sky is blue.<|im_end|>"
    assert text.num_trained == len(text) - 1


def test_what_is_too_long_is_left_out_or_cut(chat: ChatFormat) -> None:
    side = render(chat, ONE)
    length = len(side[0])
    assert fit(side, length, "skip") == side
    assert fit(side, length - 1, "skip") is None
    (cut,) = fit(side, length - 2, "cut") or ()
    assert trained(chat, cut) == "Hell"
    prompt = length - side[0].num_trained
    assert fit(side, prompt, "cut") is None  # nothing left to learn
    empty = (Rendered(np.arange(4), np.zeros(4, bool)),)
    assert fit(empty, 9, "skip") is None


def test_the_template_is_the_one_of_rollouts(chat: ChatFormat, tiny_folder: Path) -> None:
    assert chat.template == CHAT_TEMPLATE
