"""Style and quality of a program's text: parts for a score, each in [0, 1], weights in the recipe.

The text is parsed inside a box, never here: a hostile program can make a parser recurse until the
process dies. Nothing of it is executed for these parts, so they cannot be talked into a good mark;
they also say nothing about whether it is right. Combine them with the share of passed tests.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from educe.sandbox.box import Sandbox
from educe.sandbox.contract import BoxVerdict, Job, JobError, Limits
from educe.sandbox.graders import Grade

_LIMITS = Limits(cpu_s=5, wall_s=20, memory_mb=256, disk_mb=8)
_ANALYSIS = Path(__file__).with_name("inside") / "style.py"


@dataclass(frozen=True, slots=True)
class Quality:
    """Parts in [0, 1] (None where nothing can be said) and what was found, for feedback."""

    parts: Mapping[str, float | None]
    findings: tuple[str, ...] = ()
    is_scored: bool = True
    reason: str = ""

    def weighted(self, weights: Mapping[str, float]) -> float | None:
        """Return the weighted mean of the parts that are there; None when unscored.

        Raises:
            JobError: for a weight of a part that does not exist, or weights that sum to 0.
        """
        unknown = set(weights) - set(self.parts)
        if unknown:
            known = ", ".join(sorted(self.parts))
            raise JobError(f"unknown quality parts {sorted(unknown)}; known: {known}")
        if not self.is_scored:
            return None
        there = {name: value for name, value in self.parts.items() if value is not None}
        total = sum(weight for name, weight in weights.items() if name in there)
        if total <= 0:
            raise JobError("the weights of the quality parts must sum to more than 0")
        return sum(weights[name] * there[name] for name in weights if name in there) / total


@dataclass(frozen=True, slots=True)
class QualityPolicy:
    """Where each part begins to lose marks. ``worst_*`` gives 0, anything between is linear."""

    good_complexity: int = 8
    worst_complexity: int = 25
    worst_findings_per_100_lines: float = 10.0
    ruff_rules: tuple[str, ...] = field(default=("E", "F", "W", "B", "C4", "SIM", "UP"))


def assess_quality(
    sandbox: Sandbox,
    source: str,
    *,
    tests: Grade | None = None,
    policy: QualityPolicy | None = None,
) -> Quality:
    """Return the quality parts of a Python program.

    ``compiles``; ``simple`` (cyclomatic complexity of the worst function); ``secure`` (no dynamic
    code, shells, bare excepts …); ``tidy`` (line length, docstrings); ``lint`` (ruff's findings per
    hundred lines, None where ruff is not installed); with ``tests``: ``executes``, ``pass_rate``,
    ``passes_all``.
    """
    policy = policy or QualityPolicy()
    job = Job(
        _analysis(), files={"candidate.py": source.encode("utf-8", "replace")}, limits=_LIMITS
    )
    result = sandbox.run(job)
    if result.verdict is BoxVerdict.INFRA:
        return Quality({}, is_scored=False, reason=result.reason)
    facts = _facts(result.stdout_text) if result.verdict is BoxVerdict.OK else None
    parts: dict[str, float | None] = dict.fromkeys(
        ("compiles", "simple", "secure", "tidy", "lint"), 0.0
    )
    findings: list[str] = []
    if facts is None or not facts["compiles"]:
        findings.append("does not compile")
    else:
        parts.update(_static_parts(facts, policy))
        findings += facts["insecure"]
        parts["lint"], lint = _lint(source, facts["lines"], policy)
        findings += lint
    if tests is not None:
        if not tests.is_scored:
            return Quality({}, is_scored=False, reason=tests.reason)
        parts["executes"] = float(tests.verdict is BoxVerdict.OK)
        parts["pass_rate"], parts["passes_all"] = tests.fraction, float(tests.all_right)
    return Quality(parts, tuple(findings))


@functools.cache
def _analysis() -> str:
    return _ANALYSIS.read_text()


def _facts(text: str) -> dict[str, list[str]] | None:
    import ast

    # Printed by our own analysis, which executes nothing of the candidate; small by construction.
    try:
        return dict(ast.literal_eval(text)) if len(text) < 100_000 else None
    except (ValueError, SyntaxError, TypeError):
        return None


def _static_parts(facts: Mapping[str, object], policy: QualityPolicy) -> dict[str, float]:
    functions, worst = _number(facts["functions"]), _number(facts["worst"])
    span = policy.worst_complexity - policy.good_complexity
    simple = 1.0 - (worst - policy.good_complexity) / span
    insecure, lines = facts["insecure"], max(1, _number(facts["lines"]))
    assert isinstance(insecure, list)
    documented = _number(facts["documented"]) / functions if functions else 1.0
    long_lines = 1.0 - min(1.0, 5.0 * _number(facts["long_lines"]) / lines)
    return {
        "compiles": 1.0,
        "simple": min(1.0, max(0.0, simple)),
        "secure": 0.5 ** len(insecure),
        "tidy": 0.5 * documented + 0.5 * long_lines,
    }


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def ruff_program() -> str | None:
    """Return the path of ruff: of this interpreter's environment, else the first on the path."""
    beside = Path(sys.executable).with_name("ruff")
    return str(beside) if beside.exists() else shutil.which("ruff")


def _lint(source: str, num_lines: object, policy: QualityPolicy) -> tuple[float | None, list[str]]:
    """Return (part, findings) by ruff, which runs nothing of the text; (None, []) without it."""
    program = ruff_program()
    if program is None:
        return None, []
    try:
        rows = _ruff(program, source, policy)
        if rows is None and _ruff(program, "", policy) is not None:
            return 0.0, ["ruff cannot read it"]
    except subprocess.TimeoutExpired:
        return None, []
    if rows is None:  # it reads nothing here: not this program's fault
        return None, []
    found = [f"line {r['location']['row']}: {r['code']} {r['message']}"[:200] for r in rows][:50]
    rate = 100.0 * len(rows) / max(20, _number(num_lines))
    return max(0.0, 1.0 - rate / policy.worst_findings_per_100_lines), found


def _ruff(program: str, source: str, policy: QualityPolicy) -> list[Any] | None:
    """Return what ruff finds, None when it ends in another way than with findings or without."""
    command = [program, "check", "--isolated", "--no-cache", "--quiet", "--output-format", "json"]
    # What a program says of its own faults does not count.
    command += [
        "--ignore-noqa",
        "--select",
        ",".join(policy.ruff_rules),
        "--stdin-filename",
        "candidate.py",
        "-",
    ]
    try:
        done = subprocess.run(
            command,
            input=source.encode("utf-8", "replace"),
            capture_output=True,
            timeout=20,
            check=False,
            cwd=Path(program).parent,
        )
        rows = json.loads(done.stdout)
    except (OSError, ValueError):
        return None
    return rows if done.returncode in (0, 1) and isinstance(rows, list) else None
