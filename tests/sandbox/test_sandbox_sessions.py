"""Sessions: state that lasts, turns that end badly, files, snapshots, tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from educe.core.types import ToolCall
from educe.sandbox import JobError, Limits, Sandbox, SandboxError, Session, open_sandbox

LIMITS = Limits(cpu_s=20, wall_s=30, memory_mb=128, disk_mb=8, stdout_bytes=10_000)


@pytest.fixture(params=["confined", "namespaces", "cgroups"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    try:
        sandbox = open_sandbox(request.param, num_parallel=1)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox, sandbox.open_session(limits=LIMITS, files={"data/a.txt": b"hello"}) as opened:
        yield opened


@pytest.fixture
def best(sandbox: Sandbox) -> Iterator[Session]:
    if sandbox.level < 2:
        pytest.skip("sessions need a box")
    with sandbox.open_session(limits=LIMITS) as opened:
        yield opened


def test_state_lasts_from_turn_to_turn(session: Session) -> None:
    assert session.python("x = 20\nx + 1").stdout == b"21\n"
    assert session.python("x * 2").stdout == b"40\n"
    assert session.python("open('data/a.txt').read()").stdout == b"'hello'\n"
    turn = session.python("print('before'); 1 / 0")
    assert turn.status == "raised" and turn.stdout == b"before\n"
    assert b"ZeroDivisionError" in turn.stderr and b"sessions.py" not in turn.stderr
    assert session.python("x").stdout == b"20\n"
    assert session.shell("export A=5; mkdir -p d; cd d; pwd | tail -c 3").stdout == b"/d\n"
    turn = session.shell("echo $A; pwd | tail -c 3; exit 3")
    assert turn.stdout == b"5\n/d\n" and turn.status == "exit 3"


def test_exit_is_survived_and_resets_are_said(session: Session) -> None:
    session.python("x = 1")
    turn = session.python("import sys; print('out'); sys.exit(4)")
    assert turn.status == "exited" and not turn.was_reset and turn.stdout == b"out\n"
    assert session.python("x").stdout == b"1\n"
    session.write("kept.txt", b"kept")
    turn = session.python("import os; print('partial', flush=True); os._exit(0)")
    assert turn.was_reset and turn.stdout == b"partial\n" and "session reset" in turn.text
    assert b"NameError" in session.python("x").stderr
    assert session.read("kept.txt") == b"kept"


def test_a_late_turn_keeps_its_output_and_the_session(session: Session) -> None:
    turn = session.python("print('partial', flush=True)\nwhile True: pass", wall_s=1.5)
    assert turn.status == "timeout" and turn.was_reset and turn.stdout == b"partial\n"
    turn = session.shell("echo partial; sleep 60", wall_s=1.5)
    assert turn.status == "timeout" and turn.stdout == b"partial\n" and not turn.was_reset
    assert session.python("1 + 1").stdout == b"2\n"


def test_output_is_capped(session: Session) -> None:
    turn = session.python("print('y' * 1_000_000)")
    assert turn.is_truncated and len(turn.stdout) == 10_000 and turn.status == "ok"


def test_files(session: Session) -> None:
    session.write("a/b/c.bin", bytes(range(256)))
    assert session.read("a/b/c.bin") == bytes(range(256))
    assert session.list("a") == [("b", True, session.list("a")[0][2])]
    assert ("c.bin", False, 256) in session.list("a/b")
    session.remove("a")
    assert "a" not in [name for name, _, _ in session.list()]
    for path in ("../x", "/etc/passwd", "a\0b", ""):
        with pytest.raises(JobError):
            session.read(path)
    with pytest.raises(JobError, match=r"cannot read 'absent'"):
        session.read("absent")
    session.python("import os; os.mkfifo('fifo'); os.symlink('/etc/shadow', 'link')")
    for name in ("fifo", "link"):
        with pytest.raises(JobError):
            session.read(name)


def test_bad_input_is_refused_and_costs_the_session_nothing(best: Session) -> None:
    best.python("x = 1")
    with pytest.raises(JobError, match="must be bytes, got str"):
        best.write("n.txt", "text")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="the session takes 8388608"):
        best.write("big", bytes(9 << 20))
    with pytest.raises(JobError, match="must be relative"):
        best.upload({"fine.txt": b"1", "../x": b"2"})
    for options in ({"wall_s": -1}, {"cpu_s": -0.5}, {"wall_s": float("nan")}, {"wall_s": "5"}):
        with pytest.raises(JobError, match="must be a number of 0 or more"):
            best.python("1", **options)
    assert best.python("x").text == "1" and best.list() == []


def test_many_files_go_in_and_come_out(session: Session) -> None:
    files = {"a.txt": b"1", "p/b.bin": bytes(range(256)), "p/q/c": b""}
    session.upload(files)
    assert session.download("p") == {"p/b.bin": files["p/b.bin"], "p/q/c": b""}
    session.python("import os; os.mkfifo('p/fifo'); os.symlink('/nowhere', 'p/dangling')")
    assert session.download() == {**files, "data/a.txt": b"hello"}
    session.python("os.symlink('.', 'p/x'); os.symlink('.', 'p/y')")
    with pytest.raises(JobError, match=r"more than 2048 files|too deep|Too many levels"):
        session.download("p")


def test_turns_do_not_block_a_loop(sandbox: Sandbox) -> None:
    if sandbox.level < 2:
        pytest.skip("sessions need a box")

    async def main() -> tuple[list[str], int]:
        ticks = 0
        session = await sandbox.open_session_async(limits=LIMITS)

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        with session:
            ticking = asyncio.create_task(tick())
            told = [
                (await session.python_async("import time; time.sleep(0.3); 6 * 7")).text,
                (await session.shell_async("echo $((6 * 7))")).text,
                await session.call_tool_async(ToolCall("python", '{"code": "6 * 7"}')),
            ]
            ticking.cancel()
        return told, ticks

    told, ticks = asyncio.run(main())
    assert told == ["42"] * 3 and ticks > 3


def test_snapshots_branch(session: Session) -> None:
    best = session
    best.python("x = [1]")
    best.write("f", b"one")
    first = best.snapshot()
    best.python("x.append(2)")
    best.write("f", b"two")
    best.write("g", b"new")
    for _ in range(2):
        best.restore(first)
        assert best.python("x").stdout == b"[1]\n"
        assert best.read("f") == b"one" and "g" not in [n for n, _, _ in best.list()]
        best.python("x.append(3)")
    with pytest.raises(JobError, match="no snapshot 9"):
        best.restore(9)


def test_a_dead_box_is_said_and_replaced(best: Session) -> None:
    best.python("x = 1")
    best.write("f", b"1")
    turn = best.python(
        "import os\nfor p in range(2, 40):\n    try: os.kill(p, 9)\n    except OSError: pass"
    )
    assert turn.was_reset
    again = best.python("1 + 1")
    assert again.stdout == b"2\n"
    turn = best.python("kept = [bytearray(b'x' * 10**7) for _ in range(60)]")
    assert turn.was_reset or b"MemoryError" in turn.stderr
    assert best.python("1 + 1").text == "2"


def test_jobs_and_sessions_live_side_by_side(sandbox: Sandbox, best: Session) -> None:
    from educe.sandbox import Job

    best.python("x = 5")
    assert sandbox.run(Job("print(1)")).stdout == b"1\n"
    with sandbox.open_session(limits=LIMITS) as other:
        assert b"NameError" in other.python("x").stderr
    assert best.python("x").stdout == b"5\n"


def test_tools_for_models(best: Session) -> None:
    def call(name: str, **arguments: object) -> str:
        return best.call_tool(ToolCall(name, json.dumps(arguments)))

    assert {tool.name for tool in best.tools()} >= {"python", "shell", "read_file", "write_file"}
    openai = [tool.to_openai() for tool in best.tools()]
    assert all(tool["type"] == "function" for tool in openai)
    function = next(t["function"] for t in openai if t["function"]["name"] == "write_file")
    assert function["parameters"]["required"] == ["path", "content"] and function["description"]
    assert function["parameters"]["properties"]["path"]["type"] == "string"
    json.dumps(openai)
    assert call("python", code="6 * 7") == "42"
    assert call("write_file", path="n.txt", content="text") == "[wrote n.txt]"
    assert call("read_file", path="n.txt") == "text"
    assert call("shell", command="cat n.txt; exit 2") == "text\n[exit 2]"
    assert "n.txt" in call("list_files")
    assert call("python").startswith("[tool error: python needs 'code'")
    assert call("rm").startswith("[tool error: there is no tool 'rm'")
    assert call("read_file", path="../../etc/passwd").startswith("[tool error: ")
    assert best.call_tool(ToolCall("python", "{broken")).startswith("[tool error: ")
    assert best.call_tool(ToolCall("python", "[1]")).startswith("[tool error: ")


def test_a_closed_session_is_closed(sandbox: Sandbox) -> None:
    if sandbox.level < 2:
        pytest.skip("sessions need a box")
    session = sandbox.open_session()
    session.close()
    with pytest.raises(SandboxError, match="closed"):
        session.python("1")
    with open_sandbox("plain") as plain, pytest.raises(SandboxError, match="confined"):
        plain.open_session()
