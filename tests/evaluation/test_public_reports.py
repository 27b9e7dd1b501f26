"""Every public bug of evaluation tools has a test, and the page that says so tells the truth."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from educe.baseline import few_shot_prompt
from educe.core.types import Split
from educe.domains.registry import load_domain
from educe.evaluation.audit.leakage import question_count
from educe.rewards.outcome.math import check_math
from educe.rewards.outcome.numeric import numeric_match

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "0019-public-evaluation-bugs.md"
NUM_REPORTS = 50


@functools.cache
def names_of_tests(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef))


def test_every_report_has_its_test() -> None:
    rows = [r for r in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d+ \|", r)]
    assert [int(r.split("|")[1]) for r in rows] == list(range(1, NUM_REPORTS + 1))
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"no test in: {row}"
        for path, name in named:
            assert name in names_of_tests(path), f"{path} has no {name}"


def test_examples_never_hold_the_question() -> None:
    """Solved examples are train tasks as their domain writes them; the question is asked once."""
    names = ("arithmetic/percent/tiny", "word-problems/part-of/tiny", "rg/gcd/tiny")
    domains = {name: load_domain(name) for name in names}
    prepare = few_shot_prompt(domains, 3)
    for domain in domains.values():
        shown: set[str] = set()
        for index in range(12):
            task = domain.task(Split.EVAL, index)
            messages = prepare(task)
            assert [m.role for m in messages] == ["user", "assistant"] * 3 + ["user"]
            assert messages[-1:] == list(task.messages)
            assert question_count(messages, task) == 1
            shown |= {m.content for m in messages[:-1] if m.role == "user"}
        held_out = {domain.task(Split.EVAL, i).messages[-1].content for i in range(200)}
        assert not shown & held_out
        # The examples do not depend on the question: nothing of it can be on them.
        first, second = (prepare(domain.task(Split.EVAL, i))[:-1] for i in (0, 1))
        assert first == second


def test_a_percent_sign_is_a_policy() -> None:
    """For plain numbers it is a unit, which is not judged; in mathematics it is 1/100."""
    assert numeric_match("60%", "60").value == numeric_match("It is 60 %.", "60").value == 1.0
    assert numeric_match("0.6", "60").value == 0.0
    assert check_math(r"\boxed{60\%}", "0.6").value == 1.0
