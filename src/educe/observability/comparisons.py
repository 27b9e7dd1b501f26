"""Before and after, out of the ``eval`` events of a run.

An ``eval`` event may carry ``domains`` ({name: {"score": …, "low": …, "high": …}}) and ``answers``
([{"task_id", "domain", "prompt", "completion", "score", "gold"}]). The first and the last event to
carry an item are its before and after. An event may also bring both itself: ``before`` beside
``domains``, and answers with "before", "after", "score_before", "score_after".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from educe.core.types import JSON
from educe.observability.run_reader import StoredEvent


@dataclass(frozen=True, slots=True)
class DomainResult:
    """Held-out score of a domain, with the bounds of its interval where the event had them."""

    score: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class DomainComparison:
    domain: str
    before: DomainResult | None
    after: DomainResult


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """One task with the completion before and after training; scores are None when unscored."""

    task_id: str
    domain: str
    prompt: str
    gold: str
    before: str
    after: str
    score_before: float | None
    score_after: float | None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _result(raw: JSON) -> DomainResult:
    if isinstance(raw, Mapping):
        return DomainResult(*(_number(raw.get(key)) for key in ("score", "low", "high")))
    return DomainResult(_number(raw))


def compare_domains(events: Sequence[StoredEvent]) -> list[DomainComparison]:
    """Return each domain's held-out result before and after, sorted by name.

    An event that brings ``before`` (same form as ``domains``) says itself what it is compared with;
    else that is the domain's first result. ``before`` is None for a domain evaluated once.
    """
    found: dict[str, DomainComparison] = {}
    for event in events:
        told = _mapping(event.payload.get("before"))
        for domain, raw in _mapping(event.payload.get("domains")).items():
            earlier = found.get(domain)
            if domain in told:
                before: DomainResult | None = _result(told[domain])
            elif earlier is not None:
                before = earlier.before or earlier.after
            else:
                before = None
            found[domain] = DomainComparison(domain, before, _result(raw))
    return [found[domain] for domain in sorted(found)]


def compare_answers(events: Sequence[StoredEvent]) -> list[AnswerComparison]:
    """Return the tasks whose completions are known both before and after, in the event's order."""
    found: dict[str, AnswerComparison] = {}
    has_both: set[str] = set()
    for event in events:
        answers = event.payload.get("answers")
        for raw in answers if isinstance(answers, list) else []:
            if not isinstance(raw, Mapping):
                continue
            answer = _answer(raw)
            if "before" in raw and "after" in raw:
                has_both.add(answer.task_id)
            elif answer.task_id in found:
                has_both.add(answer.task_id)
                earlier = found[answer.task_id]
                answer = replace(answer, before=earlier.before, score_before=earlier.score_before)
            found[answer.task_id] = answer
    return [answer for task_id, answer in found.items() if task_id in has_both]


def _answer(raw: Mapping[str, JSON]) -> AnswerComparison:
    completion, score = raw.get("completion", ""), raw.get("score")
    return AnswerComparison(
        task_id=str(raw.get("task_id", "")),
        domain=str(raw.get("domain", "")),
        prompt=str(raw.get("prompt", "")),
        gold="" if raw.get("gold") is None else str(raw["gold"]),
        before=str(raw.get("before", completion)),
        after=str(raw.get("after", completion)),
        score_before=_number(raw.get("score_before", score)),
        score_after=_number(raw.get("score_after", score)),
    )


def _mapping(value: JSON) -> Mapping[str, JSON]:
    return value if isinstance(value, Mapping) else {}


def domain_scores(payload: Mapping[str, JSON]) -> dict[str, float | None]:
    """Return the score of each domain in an ``eval`` event."""
    return {d: _result(raw).score for d, raw in _mapping(payload.get("domains")).items()}
