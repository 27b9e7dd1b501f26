"""Exact matches of text under a declared normalisation, for one answer or a set of them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from educe.core.errors import UnscoredError
from educe.core.types import Score, Verdict
from educe.rewards.outcome.extraction import final_answer

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# No white space around: a long run of blanks would be gone through from each of its characters.
_SEPARATORS = re.compile(r",\s*and\s|,|;|\n|\band\b")


@dataclass(frozen=True, slots=True)
class Normalisation:
    """What does not count as a difference between two texts.

    Attributes:
        case: fold upper and lower case.
        whitespace: runs of white space are one blank, none at the ends.
        unicode: compatibility forms (full-width digits, ligatures) are folded by NFKC.
        edge_punctuation: quotes, asterisks and closing punctuation around the text are dropped.
        articles: a, an, the are dropped.
    """

    case: bool = True
    whitespace: bool = True
    unicode: bool = True
    edge_punctuation: bool = True
    articles: bool = False

    def __call__(self, text: str) -> str:
        if self.unicode:
            text = unicodedata.normalize("NFKC", text)
        if self.case:
            text = text.casefold()
        if self.edge_punctuation:
            text = text.strip().strip("\"'`*“”‘’").rstrip(".!?,;: ").strip("\"'`*“”‘’")
        if self.articles:
            text = _ARTICLES.sub(" ", text)
        if self.whitespace:
            text = " ".join(text.split())
        return text


VERBATIM = Normalisation(False, False, False, False)
LENIENT = Normalisation(articles=True)


def exact_match(
    completion: str,
    gold: str | Sequence[str],
    *,
    normalisation: Normalisation = LENIENT,
    extract: Callable[[str], str] = final_answer,
) -> Score:
    """Score 1 when the extracted answer equals the gold (or one of several golds).

    Raises:
        UnscoredError: when no gold is left after normalisation.
    """
    golds = {normalisation(g) for g in ([gold] if isinstance(gold, str) else gold)} - {""}
    if not golds:
        raise UnscoredError(f"exact_match expected a non-empty gold answer, got {gold!r}")
    answer = normalisation(extract(completion))
    if not answer:
        return Score.unparseable("no answer found")
    if answer in golds:
        return Score.right()
    return Score.wrong(f"expected {sorted(golds)[0]!r}, got {answer[:80]!r}")


def split_items(text: str, normalisation: Normalisation = LENIENT) -> list[str]:
    """Split a list answer at commas, semicolons, line ends and 'and'; empty items vanish."""
    items = (
        normalisation(re.sub(r"^(?:[-*•]|\d{1,3}[.)])\s+", "", i.strip()))
        for i in _SEPARATORS.split(text)
    )
    return [i for i in items if i]


def set_match(
    completion: str,
    gold: Sequence[str],
    *,
    normalisation: Normalisation = LENIENT,
    extract: Callable[[str], str] = final_answer,
) -> Score:
    """Score 1 when the answer names exactly the gold items, in any order.

    Printing everything fails, as does a repeated item. ``precision`` and ``recall`` are parts, not
    the value. An answer that equals the single gold item as a whole is not split.

    Raises:
        UnscoredError: when the gold set is empty or holds an empty item.
    """
    wanted = [normalisation(g) for g in gold]
    if not wanted or not all(wanted):
        raise UnscoredError(f"set_match expected non-empty gold items, got {list(gold)!r}")
    answer = extract(completion)
    if len(wanted) == 1 and normalisation(answer) == wanted[0]:
        return Score.right("", precision=1.0, recall=1.0)
    items = split_items(answer, normalisation)
    if not items:
        return Score.unparseable("no answer found", precision=None, recall=0.0)
    hits = len(set(items) & set(wanted))
    precision, recall = hits / len(items), hits / len(set(wanted))
    is_right = precision == 1.0 and recall == 1.0
    return Score(
        1.0 if is_right else 0.0,
        Verdict.RIGHT if is_right else Verdict.WRONG,
        reason="" if is_right else f"expected {wanted}, got {items[:12]}"[:300],
        parts={"precision": precision, "recall": recall},
    )
