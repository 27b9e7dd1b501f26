"""Pieces of text: nothing is taken back, nothing is lost, and a stop string cuts exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from educe.models.tiny import byte_tokenizer
from educe.serving.text_stream import StopScanner, TextStream, overlap
from educe.serving.token_text import TokenTexts

TOKENIZER = byte_tokenizer()


def decode(ids) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=True))


def pieces_of(ids) -> list[str]:
    stream = TextStream(decode)
    return [*(stream.push(i) for i in ids), stream.finish()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 259), max_size=60))
def test_pieces_of_any_bytes_make_the_text(ids):
    assert "".join(pieces_of(ids)) == decode(ids)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=30))
def test_a_character_leaves_whole(text):
    pieces = pieces_of(TOKENIZER.encode(text))
    assert "".join(pieces) == text
    assert all(text.count(p) for p in pieces)
    broken = "\N{REPLACEMENT CHARACTER}"
    assert sum(p.count(broken) for p in pieces) == text.count(broken)


def test_text_comes_at_once_and_its_length_is_known():
    stream = TextStream(decode)
    assert [stream.push(i) for i in TOKENIZER.encode("añb")] == ["a", "", "ñ", "b"]
    assert stream.length == 3


def test_hundreds_of_broken_bytes_need_no_long_window():
    ids = TOKENIZER.encode("é")[:1] * 700
    seen: list[int] = []

    def counting(window) -> str:
        seen.append(len(window))
        return decode(window)

    stream = TextStream(counting)
    text = "".join([*(stream.push(i) for i in ids), stream.finish()])
    assert text == decode(ids)
    assert max(seen) < 20


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text("ab<", max_size=4), max_size=12),
    st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_stop_cuts_where_it_first_ends(pieces, stops):
    """However the text is cut into pieces, what leaves is what stands before the first stop."""
    scanner = StopScanner(stops)
    out = ""
    for piece in pieces:
        out += scanner.push(piece)
    has_stopped = scanner.has_stopped
    out += scanner.finish()
    text = "".join(pieces)
    assert has_stopped == any(s in text for s in stops)
    if not has_stopped:
        assert out == text
    else:
        # A character at a time is the meaning: the first moment at which some stop is complete.
        end = next(n for n in range(len(text) + 1) if any(s in text[:n] for s in stops))
        firsts = [text[:end].find(s) for s in stops if s in text[:end]]
        assert text.startswith(out)
        assert len(out) <= min(firsts)
        assert not any(s in out for s in stops)


def test_what_may_become_a_stop_waits():
    scanner = StopScanner(["\n\n"])
    assert scanner.push("one\n") == "one"
    assert scanner.push("two") == "\ntwo"
    assert scanner.push("\n\nthree") == ""
    assert scanner.has_stopped
    assert scanner.push("more") == scanner.finish() == ""


@pytest.mark.parametrize(
    ("text", "mark", "length"), [("ab", "abc", 2), ("abc", "abc", 0), ("xa", "ab", 1), ("", "a", 0)]
)
def test_overlap(text, mark, length):
    assert overlap(text, mark) == length


def test_bytes_and_names_of_tokens():
    texts = TokenTexts(TOKENIZER)
    parts = TOKENIZER.encode("é")
    assert [texts.bytes_of(i) for i in parts] == [[0xC3], [0xA9]]
    assert [texts.name(i) for i in parts] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert texts.bytes_of(TOKENIZER.encode(" ")[0]) == [32]
    assert texts.name(2) == "<|im_end|>"
    assert texts.bytes_of(2) == list(b"<|im_end|>")
    names = [texts.name(i) for i in range(texts.num_tokens)]
    assert len(set(names)) == len(names)
