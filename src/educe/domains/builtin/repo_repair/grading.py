"""Required tests, run after the model's last action, where their values are not known.

Only the package's own Python files go into the box, never test files, ``conftest.py`` or whatever
else lies in the checkout. Each required test is a program that calls the package and returns what
it observed; its values cross the private channel and are compared outside. So nothing the package
does to its process can make a wrong value right: ``integrity = outside``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from educe.core.errors import InfrastructureError, UnscoredError
from educe.core.protocols import Services
from educe.core.types import JSON, Fault, Score, Task, Verdict

# A right package needs a fraction of a second; wall limits are wide because machines get busy.
_CPU_S, _WALL_S, _CASE_WALL_S, _MEMORY_MB = 6.0, 14.0, 5.0, 256
_MAX_NAMED = 8

# The modules are imported once, before the process is forked for each test. One that fails is left
# out here and fails again in the tests that need it.
_DRIVER = """
import importlib

for _name in {modules!r}:
    try:
        importlib.import_module(_name)
    except BaseException:
        pass


def observe(program):
    space = {{}}
    exec(program, space)
    return space["observe"]()
"""


@dataclass(frozen=True, slots=True)
class RequiredRun:
    """How the required tests went.

    Attributes:
        failed: ids of tests that did not pass, with the reason.
        is_whole: complete results arrived for all of them, and none was forged.
    """

    failed: Mapping[str, str]
    is_whole: bool
    reason: str = ""
    proof: Mapping[str, JSON] | None = None


def package_files(task: Task, tree: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a checkout that are graded: the package's Python files."""
    root = f"{task.metadata['package']}/"
    return {p: t for p, t in tree.items() if p.startswith(root) and p.endswith(".py")}


def run_required(task: Task, tree: Mapping[str, str], services: Services) -> RequiredRun:
    """Run all required tests of a task over a checkout.

    Raises:
        UnscoredError: when no sandbox was handed in.
        InfrastructureError: when the sandbox failed; the candidate is not judged.
    """
    if services.sandbox is None:
        raise UnscoredError(
            f"{task.domain} runs model-written code: it needs Services.sandbox, and none was given"
        )
    from educe.sandbox.contract import Limits
    from educe.sandbox.graders import Case, grade_function

    files = package_files(task, tree)
    required: Sequence[tuple[str, str, list[JSON]]] = task.metadata["required"]
    grade = grade_function(
        services.sandbox,
        _DRIVER.format(modules=sorted(_modules(files))),
        "observe",
        [Case((program,), expected) for _, program, expected in required],
        limits=Limits(cpu_s=_CPU_S, wall_s=_WALL_S, case_wall_s=_CASE_WALL_S, memory_mb=_MEMORY_MB),
        files={path: text.encode() for path, text in files.items()},
    )
    if not grade.is_scored:
        raise InfrastructureError(f"{task.task_id}: the sandbox failed: {grade.reason}")
    is_forged = any(flag.startswith("tamper:") for flag in grade.flags)
    failed = {
        test_id: case.error or (f"observed {case.got}" if case.got else str(case.outcome))
        for (test_id, _, _), case in zip(required, grade.cases, strict=True)
        if case.outcome != "right" or is_forged
    }
    return RequiredRun(
        failed,
        grade.all_right and not is_forged,
        grade.reason,
        {
            "integrity": grade.integrity,
            "level": grade.level.name.lower(),
            "verdict": str(grade.verdict),
            "flags": list(grade.flags),
        },
    )


def _modules(files: Mapping[str, str]) -> set[str]:
    names = {path[: -len(".py")].replace("/", ".").removesuffix(".__init__") for path in files}
    return {name for name in names if all(part.isidentifier() for part in name.split("."))}


def score_run(
    task: Task, run: RequiredRun, parts: Mapping[str, float], *, is_partial: bool
) -> Score:
    """Return the score: 1 when every required test passes.

    With ``is_partial``, otherwise the share of tests that failed at the start and pass now, as long
    as the edits broke none.
    """
    required = [row[0] for row in task.metadata["required"]]
    before = set(task.metadata["failing"])
    broken = [name for name in required if name in run.failed and name not in before]
    left = [name for name in required if name in run.failed and name in before]
    share = 1 - len(left) / len(before)
    value = float(run.is_whole)
    if not run.is_whole:
        # Nothing failed and yet the run was not whole: then it was forged or broken off.
        value = share if is_partial and left and not broken else 0.0
    verdict = Verdict.RIGHT if run.is_whole else Verdict.PARTIAL if value > 0 else Verdict.WRONG
    proof = dict(run.proof or {})
    return Score(
        value,
        verdict,
        None if proof.get("verdict", "OK") == "OK" else Fault.CANDIDATE,
        _reason(run, len(required), broken, left),
        {
            "required": 1 - len(run.failed) / len(required),
            "repaired": share,
            "broken": float(len(broken)),
            **parts,
        },
        {
            "integrity": "outside",
            **proof,
            "num_required": len(required),
            "failing": left[:_MAX_NAMED],
            "broken": broken[:_MAX_NAMED],
            "kind": task.metadata["kind"],
        },
    )


def _reason(run: RequiredRun, count: int, broken: Sequence[str], left: Sequence[str]) -> str:
    texts = [f"{count - len(run.failed)} of {count} required tests pass"]
    if broken:
        texts.append(f"broken by the edits: {_names(run, broken)}")
    if left:
        texts.append(f"still failing: {_names(run, left)}")
    if run.reason:
        texts.append(run.reason)
    return "; ".join(texts)[:1000]


def _names(run: RequiredRun, names: Sequence[str]) -> str:
    shown = [f"{name} ({' '.join(run.failed[name].split())[:100]})" for name in names[:3]]
    return ", ".join([*shown, *([f"{len(names) - 3} more"] if len(names) > 3 else [])])
