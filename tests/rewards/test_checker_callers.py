"""Who calls a checker changes nothing: thread, event loop, notebook, forked data worker."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import threading
from collections.abc import Callable

import pytest
from math_rows import ROWS

from educe.rewards.outcome import math_values
from educe.rewards.outcome.math import check_math
from educe.rewards.outcome.numeric import numeric_match
from educe.rewards.outcome.schema import schema_match
from educe.rewards.outcome.text import exact_match

# Python 3.12 warns of what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
Values = list[float | None]


def answers() -> Values:
    """Ask every kind of checker, with values that need many digits among them."""
    found = [check_math(completion, gold).value for gold, completion, _ in ROWS]
    found.append(check_math(r"\boxed{e^{\pi\sqrt{163}}}", "262537412640768744").value)
    found.append(numeric_match("Answer: 4", "4").value)
    found.append(exact_match("the Nile.", "Nile").value)
    found.append(schema_match("[1]", {"type": "array"}).value)
    return found


def in_a_thread() -> Values:
    found: list[Values] = []
    threads = [threading.Thread(target=lambda: found.append(answers())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 3
    return found[0]


def in_a_loop() -> Values:
    async def main() -> Values:
        one, two = await asyncio.gather(*(asyncio.to_thread(answers) for _ in range(2)))
        assert one == two
        return one

    return asyncio.run(main())


def in_a_notebook() -> Values:
    async def cell() -> Values:
        return answers()  # a plain call, inside a loop that runs

    return asyncio.run(cell())


def in_a_forked_worker(limit_s: float = 60.0) -> Values:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(answers()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], limit_s)
        assert ready, "the forked worker hangs"
        found: Values = json.loads(os.read(reader, 1 << 16))
        return found
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)


@pytest.mark.parametrize("call", [in_a_thread, in_a_loop, in_a_notebook, in_a_forked_worker])
def test_all_callers_get_the_same_answers(call: Callable[[], Values]) -> None:
    expected: Values = [1.0 if row[2] == "equal" else 0.0 for row in ROWS]
    assert answers() == call() == [*expected, 0.0, 1.0, 1.0, 1.0]


def test_a_worker_forked_while_another_thread_computes_does_not_hang() -> None:
    held, go_on = threading.Event(), threading.Event()

    def compute() -> None:
        with math_values._LOCK:
            held.set()
            go_on.wait(30)

    other = threading.Thread(target=compute)
    other.start()
    held.wait()
    threading.Timer(0.2, go_on.set).start()
    assert in_a_forked_worker() == answers()
    other.join()
