# ruff: noqa: E501
"""What somebody who did not write the graders prints, calls and styles, to be paid for it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from educe.core.protocols import Services
from educe.core.types import Message, ToolCall
from educe.evaluation.python_tool import run_tool_calls
from educe.sandbox import (
    Job,
    Limits,
    Sandbox,
    StdioCase,
    grade_stdio,
)
from educe.sandbox.quality import assess_quality

# ---- programs graded by what they print ----

STDIO_CHEATS = {
    "to the wrong stream": "import sys\nprint(6, file=sys.stderr)",
    "overwritten": "print('7\\r6')",
    "erased": "print('7\\x1b[2K\\x1b[1G6')",
    "behind a NUL": "print('\\x006')",
    "behind a mark": "print('\\ufeff6')",
    "at the end of much": "print('7' * 500_000)\nprint(6)",
    "before much": "print(6)\nprint('7' * 500_000)",
    "all answers": "print(*range(100))",
    "all answers in lines": "print(*range(100), sep='\\n')",
    "in other digits": "print('\\uff16')",
    "in a wider sense": "print('6.0')",
    "as a sum": "print('5+1')",
    "by a child that stays": "import os, time\nif os.fork() == 0:\n    time.sleep(0.5)\n    print(6, flush=True)\n    os._exit(0)\nos._exit(0)",
    "by an exit that fails": "import atexit, os\natexit.register(os._exit, 3)\nprint(6, flush=True)",
    "and then a signal": "import os\nprint(6, flush=True)\nos.kill(os.getpid(), 15)",
    "and then without end": "print(6, flush=True)\nwhile True: pass",
    "not a number": "print('nan')",
    "with white space that is none": "print('6\\u200b')",
}


@pytest.mark.parametrize("policy", ["exact", "lines", "tokens"])
def test_no_stranger_is_paid_for_what_it_prints(sandbox: Sandbox, policy: Any) -> None:
    limits = Limits(cpu_s=0.4, wall_s=20, memory_mb=64, disk_mb=8)
    for name, source in STDIO_CHEATS.items():
        grade = grade_stdio(
            sandbox, Job(source, limits=limits), [StdioCase("", "6\n")], policy=policy
        )
        assert grade.score().value == 0.0, (name, grade)
    assert grade_stdio(sandbox, "print(6)", [StdioCase("", "6\n")], policy=policy).all_right


# ---- sessions ----


def test_tool_calls_answer_whatever_the_model_wrote(sandbox: Sandbox) -> None:
    if sandbox.level < 2:
        pytest.skip("sessions need a box")
    with sandbox.open_session(limits=Limits(cpu_s=4, wall_s=10)) as session:
        for arguments in (
            "[" * 200_000,
            '{"path": ' + "9" * 10_000,
            '{"path": "\\ud800"}',
            '{"path": "../x"}',
            "null",
            '{"path": {}}',
            "\ud800",
        ):
            for tool in ("read_file", "list_files", "write_file", "python", "nothing\ud800"):
                answer = session.call_tool(ToolCall(tool, arguments))
                assert answer.encode() is not None
        session.python("import os\nopen(b'\\xff\\xfe', 'w').close(); open('a\\nb', 'w').close()")
        assert "udcff" in session.call_tool(ToolCall("list_files", "{}"))
        # The worker says how its turn ended; it may say what it likes.
        session.python(
            "import os, time\nfor fd in range(3, 12):\n    try: os.write(fd, b'\\xff' * 40)\n    except OSError: pass\ntime.sleep(0.2)"
        )
        assert "2" in session.python("print(1 + 1)").text or session.python("print(1 + 1)").text


def test_the_tool_of_evaluations_reads_any_arguments(sandbox: Sandbox) -> None:
    calls = tuple(
        ToolCall("python", arguments)
        for arguments in ("[" * 200_000, '{"code": ' + "9" * 10_000 + "}", '{"code": 5}', "null")
    )
    for call in calls:
        (reply,) = run_tool_calls(Message("assistant", "", (call,)), Services(sandbox=sandbox))
        assert reply.content.startswith("error: the arguments must be")
    ok = Message("assistant", "", (ToolCall("python", '{"code": "print(6 * 7)"}'),))
    assert run_tool_calls(ok, Services(sandbox=sandbox))[0].content == "42"


def test_a_session_ended_from_inside_is_said_not_excused(sandbox: Sandbox) -> None:
    if sandbox.level < 3:
        pytest.skip("a process could not be timed like this")
    with sandbox.open_session(limits=Limits(cpu_s=4, wall_s=10)) as session:
        session.python(
            "import os, threading\npid = os.getppid()\nthreading.Timer(0.1, lambda: os.kill(pid, 9)).start()"
        )
        deadline = time.monotonic() + 20
        while "reset" not in (answer := session.call_tool(ToolCall("list_files", "{}"))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "files are gone" in answer
        assert session.call_tool(ToolCall("python", '{"code": "print(6 * 7)"}')) == "42"


# ---- style ----


def test_a_program_cannot_talk_its_faults_away(sandbox: Sandbox) -> None:
    bad = (
        "import os, sys\nimport json\nx = lambda: eval('1')\n"
        + "def g(a):\n    if a == None: return not a in [1]\n"
    )
    plain = assess_quality(sandbox, bad)
    branchy = "def h(x):\n" + "".join(f"    if x == {n}: return {n}\n" for n in range(40))
    for told in (
        "# ruff: noqa\n# flake8: noqa\n" + bad,
        "\n".join(f"{line}  # noqa" for line in bad.splitlines()) + "\n",
        bad + "\n# nothing\n" * 500,
        "\n" * 400 + bad,
    ):
        quality = assess_quality(sandbox, told)
        assert quality.parts["secure"] == plain.parts["secure"]
        if plain.parts["lint"] is not None:
            assert plain.parts["lint"] < 1.0
            assert quality.parts["lint"] <= plain.parts["lint"]
    assert assess_quality(sandbox, branchy).parts["simple"] == 0.0
    hidden = "".join(f"def f{n}(): pass\n" for n in range(600)) + branchy
    assert assess_quality(sandbox, hidden).parts["simple"] == 0.0
    loose = "x = 1\n" + "".join(f"if x == {n}: x = {n}\n" for n in range(40))
    assert assess_quality(sandbox, loose).parts["simple"] == 0.0
    assert assess_quality(sandbox, "def f(x):\n    return x\n").parts["simple"] == 1.0
