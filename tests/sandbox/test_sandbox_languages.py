# ruff: noqa: E501
"""Every runtime at every level: input, arguments, files, endings, and compilers that stay inside."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import educe.sandbox.host as host
from educe.core.types import Fault
from educe.sandbox import (
    BoxVerdict,
    Job,
    JobError,
    Limits,
    Sandbox,
    SandboxError,
    StdioCase,
    grade_stdio,
    grade_suite,
    open_sandbox,
)
from educe.sandbox.doctor import Diagnosis
from educe.sandbox.fingerprint import runtime_identity

LIMITS = Limits(cpu_s=20, wall_s=120, memory_mb=512, disk_mb=16)
# Each prints twice its input, its first argument, a variable and a file's content.
ECHO = {
    "python": "import os, sys\nprint(2 * int(input()), sys.argv[1], os.environ['HUE'], open('d/f').read())",
    "python-numpy": "import os, sys\nimport numpy as np\nprint(np.int64(2) * int(input()), sys.argv[1], os.environ['HUE'], open('d/f').read())",
    "bash": 'read x; echo "$((2 * x)) $1 $HUE $(cat d/f)"',
    "c": '#include <stdio.h>\n#include <stdlib.h>\nint main(int n, char **v) { int x; char f[9]; scanf("%d", &x); fscanf(fopen("d/f", "r"), "%8s", f); printf("%d %s %s %s\\n", 2 * x, v[1], getenv("HUE"), f); }',
    "c++": '#include <cstdio>\n#include <cstdlib>\n#include <string>\nint main(int n, char **v) { int x; char f[9]; std::scanf("%d", &x); std::fscanf(std::fopen("d/f", "r"), "%8s", f); std::string s = v[1]; std::printf("%d %s %s %s\\n", 2 * x, s.c_str(), std::getenv("HUE"), f); }',
    "node": "const f = require('fs')\nconsole.log(2 * parseInt(f.readFileSync(0, 'utf8')), process.argv[2], process.env.HUE, f.readFileSync('d/f', 'utf8'))",
    "executable": "",
}  # fmt: skip
SCRIPT = b"#!/bin/sh\nread x\necho $((2 * x)) $1 $HUE $(cat d/f)\n"


def needs(runtime: str) -> None:
    try:
        host.require_runtime(runtime)
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("runtime", ECHO)
def test_programs_of_every_language_at_every_level(each_level: Sandbox, runtime: str) -> None:
    needs(runtime)
    own = ("run.sh",) if runtime == "executable" else ()
    job = Job(
        ECHO[runtime],
        runtime=runtime,
        argv=(*own, "word"),
        env={"HUE": "red"},
        stdin=b"21\n",
        files={"d/f": b"text", **({"run.sh": SCRIPT} if own else {})},
        limits=LIMITS,
    )
    result = each_level.run(job)
    assert result.verdict is BoxVerdict.OK, result
    assert result.stdout == b"42 word red text\n" and result.exit_code == 0


ENDINGS = {
    "bash": ("exit 7", "while :; do :; done"),
    "c": ("int main() { return 7; }", "int main() { for (;;); }"),
    "c++": ("int main() { throw 7; }", "int main() { for (;;); }"),
    "node": ("process.exit(7)", "while (true);"),
}


@pytest.mark.parametrize("runtime", ENDINGS)
def test_endings_of_every_language(sandbox: Sandbox, runtime: str) -> None:
    needs(runtime)
    failing, endless = ENDINGS[runtime]
    result = sandbox.run(Job(failing, runtime=runtime, limits=LIMITS))
    assert result.verdict is BoxVerdict.RE, result
    assert result.exit_code == 7 if runtime != "c++" else result.signal == 6
    # The compiler's own time counts too; it must be through before the program can be late.
    limits = Limits(cpu_s=3 if runtime in ("c", "c++") else 0.5, wall_s=120, memory_mb=512)
    result = sandbox.run(Job(endless, runtime=runtime, limits=limits))
    assert result.verdict is BoxVerdict.TLE_CPU, result


@pytest.mark.parametrize("runtime", ["c", "c++"])
def test_what_does_not_compile_is_the_programs_fault(sandbox: Sandbox, runtime: str) -> None:
    needs(runtime)
    grade = grade_stdio(
        sandbox,
        Job("int main() { return x; }", runtime=runtime, limits=LIMITS),
        [StdioCase("", "1")],
    )
    assert grade.verdict is BoxVerdict.CE and "x" in grade.reason
    assert grade.score().value == 0.0 and grade.fault is Fault.CANDIDATE


def test_the_compiler_is_inside_too(sandbox: Sandbox, tmp_path: Path) -> None:
    needs("c")
    if sandbox.level < 2:
        pytest.skip("nothing hides the host's files at this level")
    secret = tmp_path / "secret.h"
    secret.write_text("SECRET_OF_THE_HOST\n")
    for folder in (secret, *secret.parents):
        if folder.stat().st_uid == secret.stat().st_uid and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o005)
    source = f'#include "{secret}"\nint main() {{ return 0; }}'
    result = sandbox.run(Job(source, runtime="c", limits=LIMITS))
    assert result.verdict is BoxVerdict.CE
    assert "SECRET_OF" not in result.reason + result.stdout_text + result.stderr_text
    # The same text names the secret where the compiler can read it.
    source = f'#include "{secret.name}"\nint main() {{ return 0; }}'
    shown = Job(source, runtime="c", files={secret.name: secret.read_bytes()}, limits=LIMITS)
    assert "SECRET_OF" in sandbox.run(shown).reason


def test_a_compiler_that_is_made_to_work_without_end_is_ended(sandbox: Sandbox) -> None:
    needs("c")
    doubled = "".join(f"#define X{n} X{n - 1} X{n - 1}\n" for n in range(1, 60))
    source = f"#define X0 1+\n{doubled}int main() {{ return X59 0; }}"
    limits = Limits(cpu_s=1.5, wall_s=60, memory_mb=128, disk_mb=16)
    result = sandbox.run(Job(source, runtime="c", limits=limits))
    assert result.verdict in (BoxVerdict.TLE_CPU, BoxVerdict.MLE, BoxVerdict.CE), result
    assert sandbox.run(Job("print('fine')")).verdict is BoxVerdict.OK


# ---- what this host lacks is no program's fault ----


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a host of this one that lacks a program or a library."""

    def lack(name: str) -> None:
        which, find = host.shutil.which, host.import_paths.__globals__["importlib"].util.find_spec
        monkeypatch.setattr(host, "_seen", set())
        monkeypatch.setattr(
            host.shutil,
            "which",
            lambda program, **o: None if program == name else which(program, **o),
        )
        monkeypatch.setattr(
            "importlib.util.find_spec",
            lambda module, *o: None if module == name else find(module, *o),
        )

    return lack


@pytest.mark.parametrize(("runtime", "program"), [("node", "node"), ("c", "cc"), ("c++", "c++")])
def test_a_missing_program_is_never_a_zero(
    sandbox: Sandbox, without: Callable[[str], None], runtime: str, program: str
) -> None:
    without(program)
    with pytest.raises(SandboxError, match=rf"{runtime}.* needs the program"):
        grade_stdio(sandbox, Job("1", runtime=runtime), [StdioCase("", "1")])
    assert sandbox.run(Job("print(1)")).verdict is BoxVerdict.OK


def test_a_missing_library_harms_nobody_else(
    sandbox: Sandbox, without: Callable[[str], None]
) -> None:
    pid = sandbox.stats()["pid"]
    without("pytest")
    test = {"tests/test_a.py": b"def test_one(): pass\n"}
    with pytest.raises(SandboxError, match="needs pytest, which is not installed"):
        grade_suite(sandbox, {}, test, ["tests/test_a.py::test_one"], runtime="python-pytest")
    assert sandbox.stats()["pid"] == pid


def test_a_program_that_no_box_can_see_is_named(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node").symlink_to(sys.executable)
    hidden = tmp_path / "hidden"
    hidden.write_text("#!/bin/sh\n")
    monkeypatch.setattr(host, "_seen", set())
    monkeypatch.setattr(host.shutil, "which", lambda program, **o: str(hidden))
    with pytest.raises(SandboxError, match="which a box cannot see"):
        sandbox.run(Job("1", runtime="node"))


def test_the_diagnosis_names_runtimes(without: Callable[[str], None]) -> None:
    without("node")
    missing = host.missing_runtimes()
    assert set(missing) >= {"node"} and "python" not in missing
    found = Diagnosis((), None, 0, 0, "user", (), missing)
    assert "python" in found.runtimes and "node" not in found.runtimes
    told = found.to_json()
    assert (
        "node" not in told["runtimes"] and "needs the program" in told["missing_runtimes"]["node"]
    )


def test_sessions_are_pythons(sandbox: Sandbox) -> None:
    if sandbox.level < 2:
        pytest.skip("sessions need a box")
    with pytest.raises(JobError, match="a session is a Python"):
        sandbox.open_session(runtime="node")
    with sandbox.open_session(runtime="python-numpy", limits=LIMITS) as session:
        assert session.python("import numpy as np\nint(np.arange(4).sum())").text == "6"


# ---- what results say ----


def test_what_does_not_fit_is_marked_as_cut(each_level: Sandbox) -> None:
    source = "for name in 'ab':\n    with open(name, 'wb') as f: f.truncate(3 << 20)"
    job = Job(source, outputs=("a", "b", "absent"), limits=Limits(disk_mb=4))
    result = each_level.run(job)
    assert result.verdict is BoxVerdict.OK, result
    whole = each_level.level < 2  # there each file may have so much
    assert result.truncated == (() if whole else ("b",))
    assert [len(result.outputs[name]) >> 20 for name in "ab"] == [3, 3 if whole else 1]
    assert "absent" not in result.outputs


def test_a_key_runs_once_at_every_level(each_level: Sandbox) -> None:
    job = Job("import os; print(os.urandom(8).hex())", idempotency_key="languages")
    first, second = each_level.run_batch([job, job])
    assert first.stdout == second.stdout == each_level.run(job).stdout
    other = Job(job.source, idempotency_key="languages too")
    assert each_level.run(other).stdout != first.stdout


def test_fingerprints_tell_what_a_result_depends_on(each_level: Sandbox) -> None:
    jobs = [
        Job("print(1)"),
        Job("print(2)"),
        Job("print(1)", seed=1),
        Job("print(1)", limits=Limits(cpu_s=6)),
        Job("print(1)", env={"A": "b"}),
        Job("print(1)", runtime="python-numpy", limits=LIMITS),
    ]
    prints = [result.fingerprint for result in each_level.run_batch(jobs)]
    assert prints[0] == prints[1], "the program and its input are not in it"
    assert all(prints) and len(set(prints)) == len(jobs) - 1
    assert any(part.startswith("numpy ") for part in runtime_identity("python-numpy"))


def test_levels_have_fingerprints_of_their_own(each_level: Sandbox) -> None:
    with open_sandbox("plain") as plain:
        same = plain.run(Job("print(1)")).fingerprint == each_level.run(Job("print(1)")).fingerprint
    assert same == (each_level.level is plain.level)
