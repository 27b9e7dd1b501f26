"""What a box does after its fork: lists of system calls, and copies of memory asked for early."""

from __future__ import annotations

import mmap
import os
import sys
from ctypes import addressof, c_char

import pytest

from educe.sandbox.inside import warmth
from educe.sandbox.inside.steps import Steps

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="system calls of Linux")


def test_calls_are_made_in_order_and_arguments_may_change() -> None:
    reader, writer = os.pipe()
    steps = Steps()
    place = steps.write(-1, b"first ")
    steps.write(writer, b"second")
    steps.change(place, writer)
    steps.run()
    steps.run()  # as often as one likes
    assert os.read(reader, 100) == b"first second" * 2
    os.close(reader), os.close(writer)


def test_the_first_failure_is_named_and_ends_the_list() -> None:
    reader, writer = os.pipe()
    steps = Steps()
    steps.write(writer, b"a")
    steps.add("chdir", "/there is no such folder")
    steps.write(writer, b"b")
    with pytest.raises(FileNotFoundError, match="chdir: No such file"):
        steps.run()
    assert os.read(reader, 100) == b"a"
    steps.try_all()
    assert os.read(reader, 100) == b"ab"
    os.close(reader), os.close(writer)


def test_pages_are_asked_for_and_bad_addresses_do_no_harm() -> None:
    memory = mmap.mmap(-1, 8 * mmap.PAGESIZE)
    start = addressof(c_char.from_buffer(memory))
    steps = warmth._steps([[8, 4096], [start, 4 * mmap.PAGESIZE]])
    assert steps is not None
    steps.try_all()
    assert memory[:] == bytes(8 * mmap.PAGESIZE)
    # More than any job touches was not learned from one.
    assert warmth._steps([[start, 4096 * mmap.PAGESIZE]]) is None
    assert warmth._steps([]) is None
