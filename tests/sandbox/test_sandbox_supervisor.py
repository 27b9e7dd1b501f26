# ruff: noqa: E501
"""The processes behind a sandbox: who dies with whom, who may use it, what is kept."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from educe.sandbox import BoxVerdict, Job, Limits, Sandbox, SandboxError, open_sandbox
from educe.sandbox.connection import Address

ADD = Job("print(1 + 1)")


@pytest.fixture
def own() -> Sandbox:
    try:
        return open_sandbox(minimum="confined", num_parallel=2)
    except SandboxError as error:
        pytest.skip(str(error))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until_dead(pids: list[int], seconds: float = 10.0) -> list[int]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pids = [pid for pid in pids if is_alive(pid)]
        if not pids:
            break
        time.sleep(0.02)
    return pids


def test_closing_ends_everything(own: Sandbox) -> None:
    with own:
        assert own.run(ADD).stdout == b"2\n"
        stats = own.stats()
    assert wait_until_dead([stats["pid"], *stats["zygotes"]]) == []
    own.close()
    with pytest.raises(SandboxError, match="closed"):
        own.run(ADD)


def test_everything_dies_with_an_owner_killed_hard() -> None:
    """The owner is killed while jobs run: supervisor, zygote and jobs must go by themselves."""
    program = textwrap.dedent(
        """
        import json, sys, threading, time
        from educe.sandbox import Job, open_sandbox
        sandbox = open_sandbox(minimum="confined", num_parallel=2)
        sleepy = Job("import os, time\\nos.fork()\\ntime.sleep(600)")
        threading.Thread(target=sandbox.run_batch, args=([sleepy] * 2,), daemon=True).start()
        while sandbox.stats()["running"] < 2: time.sleep(0.01)
        print(json.dumps(sandbox.stats()), flush=True)
        time.sleep(600)
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    stats = json.loads(owner.stdout.readline())
    pids = [stats["pid"], *stats["zygotes"], *_below(stats["zygotes"])]
    assert len(pids) >= 4
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert wait_until_dead(pids) == []


def _below(pids: list[int]) -> list[int]:
    found, waiting = [], list(pids)
    while waiting:
        for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            new = [int(child) for child in children.read_text().split()]
            found += new
            waiting += new
    return found


def test_everything_dies_with_a_supervisor_killed_hard(own: Sandbox) -> None:
    with own:
        own.run(ADD)
        stats = own.stats()
        os.kill(stats["pid"], signal.SIGKILL)
        assert wait_until_dead(stats["zygotes"]) == []
        # The owner starts another one; nothing is scored 0 in between.
        assert own.run(ADD).verdict is BoxVerdict.OK
        assert own.stats()["pid"] != stats["pid"]


def test_a_dead_zygote_costs_one_more_try_not_a_zero(own: Sandbox) -> None:
    job = Job("import time; time.sleep(1); print('through')", limits=Limits(wall_s=60))
    with own:
        own.run(ADD)
        done = []
        thread = threading.Thread(target=lambda: done.append(own.run(job)))
        thread.start()
        while own.stats()["running"] < 1:
            time.sleep(0.01)
        os.kill(own.stats()["zygotes"][0], signal.SIGKILL)
        thread.join()
        assert done[0].verdict is BoxVerdict.OK and done[0].stdout == b"through\n"


def test_a_job_that_twice_loses_its_zygote_is_at_fault(own: Sandbox) -> None:
    job = Job("import time; time.sleep(300)", limits=Limits(wall_s=600))
    with own:
        own.run(ADD)
        done = []
        thread = threading.Thread(target=lambda: done.append(own.run(job)))
        thread.start()
        for _ in range(2):
            deadline = time.monotonic() + 60
            while own.stats()["running"] < 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            (killed,) = own.stats()["zygotes"]
            os.kill(killed, signal.SIGKILL)
            while killed in own.stats()["zygotes"] and time.monotonic() < deadline:
                time.sleep(0.01)
        thread.join(60)
        assert done[0].verdict is BoxVerdict.PROTO
        assert own.run(ADD).verdict is BoxVerdict.OK


def test_thread_loop_fork_and_spawn_get_the_same_answer(own: Sandbox) -> None:
    with own:
        expected = own.run(ADD).stdout
        got = []
        threads = [
            threading.Thread(target=lambda: got.append(own.run(ADD).stdout)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        async def many() -> list[bytes]:
            results = await asyncio.gather(*(own.run_async(ADD) for _ in range(8)))
            return [result.stdout for result in results]

        got += asyncio.run(many())

        async def cell() -> bytes:
            """A notebook's: a plain call, inside a loop that runs."""
            return own.run(ADD).stdout

        got.append(asyncio.run(cell()))
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, own.run(ADD).stdout)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        got.append(os.read(reader, 100))
        os.close(reader), os.close(writer)
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            got.append(pool.apply(_run_elsewhere, (own.address,)))
        assert got == [expected] * len(got)
        assert own.run(ADD).stdout == expected


def _run_elsewhere(address: Address) -> bytes:
    with open_sandbox(minimum="confined", address=address) as shared:
        return shared.run(ADD).stdout


def test_a_client_that_leaves_takes_its_jobs_along(own: Sandbox) -> None:
    sleepy = Job("import time; time.sleep(300)", limits=Limits(wall_s=400))
    with own:
        child = os.fork()
        if child == 0:
            try:
                own.run_batch([sleepy] * 6)
            finally:
                os._exit(0)
        while own.stats()["running"] < 2:
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert own.run(ADD).verdict is BoxVerdict.OK
        assert own.stats()["queued"] == 0


def test_a_stranger_without_the_token_is_turned_away(own: Sandbox) -> None:
    with own:
        address = own.address
        assert address is not None
        forged = Address(address.name, "0" * 32, address.level, address.fingerprint)
        with open_sandbox(minimum="confined", address=forged) as shared:
            assert shared.run(ADD).verdict is BoxVerdict.INFRA
        assert own.run(ADD).verdict is BoxVerdict.OK


def test_the_same_key_runs_once(own: Sandbox) -> None:
    job = Job("import os; print(os.urandom(8).hex())", idempotency_key="a")
    with own:
        first, *rest = own.run_batch([job] * 4)
        assert {result.stdout for result in rest} == {first.stdout}
        assert own.run(job).stdout == first.stdout
        other = Job(job.source, idempotency_key="b")
        assert own.run(other).stdout != first.stdout


def test_big_jobs_and_results_pass_both_ways(own: Sandbox) -> None:
    content = os.urandom(6 << 20)
    job = Job(
        "open('out', 'wb').write(open('in', 'rb').read())\nimport sys\nsys.stdout.write('x' * 900000)",
        files={"in": content},
        outputs=("out", "absent"),
    )
    with own:
        for result in own.run_batch([job] * 3):
            assert result.verdict is BoxVerdict.OK, result.reason
            assert result.outputs == {"out": content}
            assert len(result.stdout) == 900_000


def test_outputs_are_never_fetched_through_links_or_odd_files(own: Sandbox) -> None:
    source = """
import os, socket
os.symlink("/etc/passwd", "link"); os.symlink("../../x", "up"); os.mkfifo("fifo"); os.mkdir("d")
os.symlink("/etc", "d/etc"); open("real", "w").write("ok"); os.link("real", "hard")
s = socket.socket(socket.AF_UNIX) if hasattr(socket, "AF_UNIX") else None
try: s.bind("sock")
except OSError: pass
"""
    names = ("link", "up", "fifo", "sock", "d", "d/etc/passwd", "real", "hard")
    with own:
        result = own.run(Job(source.replace("s = socket", "s = None and socket"), outputs=names))
    assert result.outputs == {"real": b"ok", "hard": b"ok"}


def test_results_repeat_byte_for_byte(own: Sandbox) -> None:
    source = """
import random, os, tempfile
print(hash("a"), {"x", "y", "z"}, random.random(), random.getrandbits(64), os.getcwd().startswith("/"))
print(sorted(os.environ), os.environ["TZ"], object(), id(print) % 16)
"""
    with own:
        job = Job(source, seed=7)
        results = own.run_batch([job] * 20)
        assert len({result.stdout.split(b"<object")[0] for result in results}) == 1
        assert len({result.fingerprint for result in results}) == 1
        other = own.run(Job(source, seed=8))
        assert other.fingerprint != results[0].fingerprint
        assert other.stdout != results[0].stdout


def test_opening_below_what_is_promised_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without namespaces: nothing is run by default, and the error says what to do."""
    from educe.sandbox import embedded

    monkeypatch.setattr(embedded, "_modes", lambda level, minimum: ("nonsense",))
    with pytest.raises(SandboxError, match=r"educe sandbox doctor.*minimum='plain'"):
        open_sandbox()
    with open_sandbox(minimum="plain") as sandbox:
        assert sandbox.level.name == "PLAIN"
        assert sandbox.run(ADD).verdict is BoxVerdict.OK


def test_folders_of_confined_boxes_do_not_stay() -> None:
    def confined() -> Sandbox:
        try:
            return open_sandbox("confined", num_parallel=1)
        except SandboxError as error:
            pytest.skip(str(error))

    def folders(pid: int) -> list[Path]:
        return list(Path(tempfile.gettempdir()).glob(f"educe-job-{pid}-*"))

    with confined() as first:
        assert first.run(ADD).stdout == b"2\n"
        closed = first.stats()["pid"]
    assert wait_until_dead([closed]) == [] and folders(closed) == []
    with confined() as second:
        killed = second.stats()["pid"]
        os.kill(killed, signal.SIGKILL)
        assert wait_until_dead([killed]) == []
    with confined():
        assert folders(killed) == []  # the next one tidies up
