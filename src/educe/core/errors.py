"""The error tree. Every error a user can cause derives from :class:`EduceError`.

EduceError
├── RecipeError          the recipe is wrong (carries file:line)
├── MissingExtraError    an optional dependency is not installed (names the extra)
├── UnsupportedModelError  an architecture that was not proven equal to plain transformers
├── DomainError          a domain, its data or its check failed
├── UnscoredError        raised by a scorer to say "I cannot judge this" (never a zero)
├── InfrastructureError  a worker, sandbox, judge or machine failed; never the candidate's fault
└── CheckpointError      a checkpoint is missing, half written or of another format
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from, for error messages and ``educe explain``."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class EduceError(Exception):
    """Base of all errors that educe raises on purpose."""


class RecipeError(EduceError):
    """A recipe that cannot run.

    Args:
        message: what was expected, what was given and what to do.
        origin: the place in the recipe (or the override) the value came from.
    """

    def __init__(self, message: str, origin: Origin | None = None) -> None:
        self.origin = origin
        super().__init__(f"{origin}: {message}" if origin else message)


class MissingExtraError(EduceError):
    """An optional dependency is missing.

    Args:
        package: import name that was not found.
        extra: the extra of educe that brings it.
        purpose: what it was wanted for.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed. "
            f"Install it with: pip install 'educe[{extra}]'"
        )


class UnsupportedModelError(EduceError):
    """The model's architecture is not one that educe has proven equal to plain transformers."""


class DomainError(EduceError):
    """A domain, one of its rows or its self-check is wrong."""


class UnscoredError(EduceError):
    """Raised by a scorer that cannot judge: the sample becomes unscored, never 0."""


class InfrastructureError(EduceError):
    """Something of ours failed (worker, sandbox, judge, machine)."""


class CheckpointError(EduceError):
    """A checkpoint is missing, incomplete or of an unknown format version."""


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return ``" Did you mean 'x'?"`` with the nearest known names, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=count, cutoff=0.55)
    if not close:
        return ""
    return " Did you mean " + " or ".join(repr(c) for c in close) + "?"
