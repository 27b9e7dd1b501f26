"""Arithmetic, word problems and algebra: every domain proves itself; answers cannot be dodged."""

from __future__ import annotations

import re
import subprocess
import sys
from fractions import Fraction

import pytest

from educe.core.errors import DomainError
from educe.core.protocols import Services
from educe.core.types import Split, assistant
from educe.domains.builtin import arithmetic, measure_floors
from educe.domains.builtin.arithmetic.family import check_answer
from educe.domains.check import check_domain

SPECS = arithmetic.specs()
NAMES = [s.name for s in SPECS]


def score(name: str, index: int, text: str, **options: bool) -> float | None:
    domain = arithmetic.create(name, **options)
    task = domain.task(Split.TRAIN, index)
    return domain.score(task, None, [*task.messages, assistant(text)], Services()).value


def test_names_and_size_of_the_offer() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 190
    groups = {n.split("/")[0] for n in NAMES}
    assert groups == {"arithmetic", "word-problems", "algebra"}
    assert len({s.family for s in SPECS if s.kind == "word-problems"}) >= 12
    assert all(re.fullmatch(r"[a-z-]+/[a-z-]+/(tiny|easy|medium|hard)", n) for n in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_domain_proves_itself(name: str) -> None:
    report = check_domain(arithmetic.create(name), num_tasks=6)
    assert report.problems == ()
    assert report.gold == 1.0 and report.empty == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_domain_proves_itself_on_many_tasks(name: str) -> None:
    assert check_domain(arithmetic.create(name), num_tasks=200).problems == ()
    assert check_domain(arithmetic.create(name, worked=True), num_tasks=30).problems == ()


@pytest.mark.parametrize(
    "name", ["arithmetic/remainder/tiny", "arithmetic/gcd/tiny", "word-problems/average/tiny"]
)
def test_declared_floor_holds_the_best_constant(name: str) -> None:
    domain = arithmetic.create(name)
    mean, _ = measure_floors.best_constant(domain, 400)
    assert 0.05 < mean <= domain.spec.floor + 0.05


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith("/tiny")])
def test_tiny_prompts_and_answers_are_short(name: str) -> None:
    domain = arithmetic.create(name)
    for index in range(5):
        task = domain.task(Split.TRAIN, index)
        assert len(re.findall(r"\w+|[^\w\s]", task.messages[0].content)) < 50
        assert len(task.gold or "") <= 12


@pytest.mark.parametrize("name", NAMES[::3])
def test_worked_gold_keeps_tasks_and_splits(name: str) -> None:
    plain, worked = arithmetic.create(name), arithmetic.create(name, worked=True)
    for index in range(3):
        a, b = plain.task(Split.EVAL, index), worked.task(Split.EVAL, index)
        assert a.metadata == b.metadata
        assert (b.gold or "").splitlines()[-1] == f"Answer: {a.gold}"
        transcript = [*b.messages, *worked.demonstration(b)]
        assert worked.score(b, None, transcript, Services()).value == 1.0


def test_worked_steps_are_true() -> None:
    """Every 'left = right' of purely numeric steps holds."""
    num_checked = 0
    for name in NAMES:
        if name.startswith("algebra") or "gcd" in name or "base" in name:
            continue
        domain = arithmetic.create(name)
        for index in range(4):
            for line in domain.task(Split.TRAIN, index).metadata["steps"].splitlines():
                left, equals, right = line.rpartition(" = ")
                if not equals or not re.fullmatch(r"[\d.+\-×÷() /]+", left + right):
                    continue
                text = re.sub(r"(\d+(?:\.\d+)?)", r"Fraction('\1')", left)
                text = text.replace("×", "*").replace("÷", "/")
                value = eval(text, {"Fraction": Fraction})
                if "/" in right:
                    assert value == eval(re.sub(r"(\d+)", r"Fraction(\1)", right))
                else:
                    assert value == Fraction(right.strip("() ")), (name, line)
                num_checked += 1
    assert num_checked > 400


def test_restating_the_question_earns_next_to_nothing() -> None:
    """The bare expression never; the whole prompt only where its last number happens to fit."""
    echoed: list[float] = []
    lead = r"^(Compute|What is|Work out|Calculate|Find|Expand|Factor|Simplify|Solve for x:)\s"
    for name in NAMES:
        domain = arithmetic.create(name)
        for index in range(3):
            task = domain.task(Split.TRAIN, index)
            prompt = task.messages[0].content
            transcript = [*task.messages, assistant(prompt)]
            echoed.append(domain.score(task, None, transcript, Services()).value or 0.0)
            if not re.match(lead, prompt) or re.search(r"[a-z]{4}", prompt.split(".")[0][8:]):
                continue
            expression = re.split(r"[.?] |\s=\s\?", re.sub(lead, "", prompt))[0]
            for text in (expression, f"Answer: {expression}"):
                result = domain.score(task, None, [*task.messages, assistant(text)], Services())
                assert not result.value, (name, text)
    assert sum(echoed) / len(echoed) < 0.1


def test_listing_many_answers_earns_nothing() -> None:
    everything = ", ".join(map(str, range(200)))
    for name in ("arithmetic/add/tiny", "algebra/quadratic/easy", "arithmetic/sort/tiny"):
        assert not score(name, 0, everything)


@pytest.mark.parametrize(
    ("completion", "answer", "check", "value"),
    [
        ("7", "7", "number", 1.0),
        ("3 + 4 = 7.", "7", "number", 1.0),
        ("The answer is 7", "7", "number", 1.0),
        ("3 + 4", "7", "number", 0.0),
        ("17", "7", "number", 0.0),
        ("5/3", "5/3", "fraction", 1.0),
        ("10/6", "5/3", "fraction", 0.0),
        ("1 2/3", "5/3", "fraction", 1.0),
        ("1, 2, 3", "1, 2, 3", "list", 1.0),
        ("1 2 3", "1, 2, 3", "list", 1.0),
        ("Answer: 1, 2 and 3.", "1, 2, 3", "list", 1.0),
        ("3, 2, 1", "1, 2, 3", "list", 0.0),
        ("1, 2, 3, 4", "1, 2, 3", "list", 0.0),
        ("xiv", "XIV", "text", 1.0),
        ("x^2 - 16", "x^2 - 16", "expanded", 1.0),
        ("(x-4)(x+4)", "x^2 - 16", "expanded", 0.0),
        ("(x+4)(x-4)", "(x - 4)(x + 4)", "factored", 1.0),
        ("x^2-16", "(x - 4)(x + 4)", "factored", 0.0),
        ("x = 2 or x = -3", "-3, 2", "any", 1.0),
        ("x < 6", "x < 6", "solved", 1.0),
        ("2x < 12", "x < 6", "solved", 0.0),
        ("", "7", "number", 0.0),
    ],
)
def test_checks(completion: str, answer: str, check: str, value: float) -> None:
    assert check_answer(completion, answer, check).value == value


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(DomainError, match="Did you mean"):
        arithmetic.create("arithmetic/ad/tiny")
    with pytest.raises(DomainError, match="unknown option 'wrked'"):
        arithmetic.create("arithmetic/add/tiny", wrked=True)


def test_listing_imports_no_heavy_library() -> None:
    code = (
        "import sys; from educe.domains.builtin import arithmetic; arithmetic.specs();"
        "print([m for m in ('torch', 'sympy', 'mpmath', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
