"""Quality parts of a program in a coding domain's scores, and what a recipe lets them weigh.

The parts are measured in the sandbox (``educe.sandbox.quality``) and kept apart under
``quality:NAME``. Weights are the recipe's: ``options = { quality = { lint = 0.2, secure = 0.5 } }``
of a Python domain. Style never makes a wrong program right: it only takes from what is paid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from educe.core.errors import (
    DomainError,
    InfrastructureError,
    MissingExtraError,
    UnscoredError,
    did_you_mean,
)
from educe.core.protocols import Domain, Services
from educe.core.types import JSON, Message, Reply, Score, Split, Task

PREFIX = "quality:"
PARTS = ("compiles", "executes", "pass_rate", "passes_all", "simple", "secure", "tidy", "lint")
FindProgram = Callable[[Task, str], str]


class QualityDomain:
    """A coding domain whose scores carry the quality parts of the program.

    Args:
        inner: the domain; without ``weights`` the value stays its own.
        find_program: returns the program that a completion hands in, "" for none.
        weights: part to weight, see :func:`weighed`.

    Raises:
        DomainError: for an unknown part, or a weight that is negative or not finite.
        MissingExtraError: ``lint`` has a weight, and ruff is not installed.
    """

    def __init__(
        self, inner: Domain, find_program: FindProgram, weights: Mapping[str, float] | None = None
    ) -> None:
        self.inner = inner
        self.spec = replace(inner.spec, executes_code=True)
        self._find_program = find_program
        self._weights = checked_weights(inner.spec.name, weights or {})

    def task(self, split: Split, index: int) -> Task:
        return self.inner.task(split, index)

    def size(self, split: Split) -> int | None:
        return self.inner.size(split)

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        return self.inner.demonstration(task)

    def initial_state(self, task: Task) -> JSON:
        return self.inner.initial_state(task)

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        return self.inner.respond(task, state, transcript, services)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        if services.sandbox is None:
            raise UnscoredError(f"{task.domain} reads and runs programs and needs a sandbox")
        score = self.inner.score(task, state, transcript, services)
        if score.value is None:
            return score
        text = next((m.content for m in reversed(transcript) if m.role == "assistant"), "")
        found = with_quality(score, self._find_program(task, text), services)
        return weighed(found, self._weights) if self._weights else found


def checked_weights(name: str, weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights of a recipe as they are.

    Raises:
        DomainError: for an unknown part, or a weight that is negative or not finite.
        MissingExtraError: ``lint`` has a weight, and ruff is not installed.
    """
    for part, weight in weights.items():
        if part not in PARTS:
            raise DomainError(
                f"{name}: options.quality knows {', '.join(PARTS)}; got {part!r}."
                + did_you_mean(part, PARTS)
            )
        if type(weight) not in (int, float) or not 0 <= weight < math.inf:
            raise DomainError(
                f"{name}: options.quality.{part} must be a weight of 0 or more, got {weight!r}"
            )
    if weights.get("lint"):
        from educe.sandbox.quality import ruff_program

        if ruff_program() is None:
            raise MissingExtraError("ruff", "quality", f"options.quality.lint of {name}")
    return {part: float(weight) for part, weight in weights.items()}


def weighed(score: Score, weights: Mapping[str, float]) -> Score:
    """Return a score that is paid in full only for a program without blemish.

    The value v becomes v · (1 + Σ w·q) / (1 + Σ w) over the parts q that have a value: a wrong
    program stays at 0 and a right one keeps at least 1 / (1 + Σ w). The verdict stays.
    """
    if score.value is None:
        return score
    values = {name: score.parts.get(PREFIX + name) for name in weights}
    there = {name: value for name, value in values.items() if value is not None}
    total = 1.0 + math.fsum(weights[name] for name in there)
    kept = (1.0 + math.fsum(weights[name] * value for name, value in there.items())) / total
    return replace(score, value=score.value * kept, parts={**score.parts, "tests": score.value})


def with_quality(score: Score, source: str, services: Services) -> Score:
    """Return the score with parts ``quality:compiles``, ``quality:lint`` … of its program.

    Raises:
        InfrastructureError: the sandbox failed; the program is not judged.
    """
    from educe.sandbox.quality import assess_quality

    quality = assess_quality(services.sandbox, source) if source.strip() else None
    if quality is not None and not quality.is_scored:
        raise InfrastructureError(f"the program could not be read: {quality.reason}")
    parts: dict[str, float | None] = {"compiles": 0.0} if quality is None else dict(quality.parts)
    if not parts.get("compiles"):
        # Nothing can be said of the style of what is no program.
        parts = {"compiles": 0.0}
    parts["executes"] = _executes(score, parts["compiles"])
    parts["pass_rate"] = _pass_rate(score)
    parts["passes_all"] = float((score.value or 0.0) >= 1.0)
    findings = [] if quality is None else list(quality.findings)
    return replace(
        score,
        parts={**score.parts, **{f"{PREFIX}{name}": value for name, value in parts.items()}},
        proof={**score.proof, "quality_findings": findings[:20]},
    )


def _executes(score: Score, compiles: float | None) -> float:
    if not compiles:
        return 0.0
    outcomes = score.proof.get("outcomes")
    if not outcomes:
        return float(score.fault is None and (score.value or 0) > 0)
    return float(not set(outcomes) & {"error", "timeout", "missing"})


def _pass_rate(score: Score) -> float:
    if (score.value or 0.0) >= 1.0:
        return 1.0
    for name in ("cases", "hidden_fraction"):
        found = score.parts.get(name)
        if found is not None:
            return float(found)
    return 0.0
