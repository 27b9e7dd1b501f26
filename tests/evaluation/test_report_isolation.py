"""A report on programs says how they were isolated."""

from __future__ import annotations

from educe.core.types import JSON
from educe.evaluation.records import EvalResult, EvalRow, Outcome
from educe.evaluation.report import build_report


def result(label: str, *proofs: dict[str, JSON], domain: str = "code") -> EvalResult:
    rows = tuple(
        EvalRow(
            domain, i, 0, f"h{i}", 1.0, Outcome.RIGHT, False, 1, 1, "", (), (), None, proof=proof
        )
        for i, proof in enumerate(proofs)
    )
    return EvalResult(label, rows, {domain: 0.0})


def test_levels_of_both_sides_are_told() -> None:
    after = result("after", {"level": "cgroups", "integrity": "outside"}, {"level": "tiny"})
    before = result("before", {"level": "confined", "integrity": "outside"})
    facts = build_report(after, before).facts
    assert facts["sandbox level"] == "cgroups, confined"
    assert "tests in the candidate's process" not in facts


def test_shared_processes_are_told() -> None:
    facts = build_report(
        result("one", {"level": "namespaces", "integrity": "in_process"}), None
    ).facts
    assert facts["tests in the candidate's process"] == "code"


def test_reports_without_programs_say_nothing() -> None:
    assert "sandbox level" not in build_report(result("one", {}, {"level": "easy"}), None).facts
