"""Messages survive any cutting of the byte stream; what is no message is refused."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from educe.rollout.framing import FrameDecoder, FrameError, encode_frame, read_frame, to_text

MESSAGES = st.lists(
    st.dictionaries(
        st.text(max_size=5), st.none() | st.integers() | st.text() | st.floats(allow_nan=False)
    ),
    max_size=5,
)


@settings(max_examples=50)
@given(MESSAGES, st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_any_cutting_gives_the_same_messages(
    messages: list[dict[str, object]], cuts: list[int]
) -> None:
    data = b"".join(encode_frame(m) for m in messages)
    decoder, found, turn = FrameDecoder(), [], 0
    while data:
        size = cuts[turn % len(cuts)]
        found += decoder.feed(data[:size])
        data, turn = data[size:], turn + 1
    assert found == messages


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xff\xff\xffxx", "claims 4294967295 bytes"),
        (b"\x00\x00\x00\x02no", "holds no JSON"),
        (b"\x00\x00\x00\x02[]", "holds a list, expected an object"),
    ],
)
def test_noise_is_no_message(data: bytes, text: str) -> None:
    with pytest.raises(FrameError, match=text):
        FrameDecoder().feed(data)


def test_what_is_not_json_is_named() -> None:
    with pytest.raises(FrameError, match="a set is no JSON value"):
        to_text({"a": [{1}]})
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(FrameError, match="Circular"):
        to_text(loop)


def test_blocking_reads_end_with_the_peer() -> None:
    ours, theirs = socket.socketpair()
    big = {"text": "x" * 3_000_000}
    sender = threading.Thread(target=theirs.sendall, args=(encode_frame(big) + b"\x00\x00",))
    sender.start()
    assert read_frame(ours) == big
    sender.join()
    theirs.close()
    assert read_frame(ours) is None, "a torn frame is an end, not a message"
    ours.close()
