"""Whether a long answer keeps, from its first line to its last, what was settled before it.

What was settled is a list of *commitments*, plain JSON, each with a ``role`` (``fact``,
``constraint`` or ``goal``) and a rule that words alone decide:

- ``{"says": "in Selby", "where": "any"}``: the words stand in some section (``each``: in every one;
  ``first``, ``last``: in that one; ``nowhere``: in none);
- ``"instead": ["in Lorsk", …]``: words that contradict it, wherever they stand;
- ``{"number": 4300, "unit": "crowns", "where": "any"}``: the number before its unit; every other
  number before that unit contradicts it.

The form says how the answer falls into sections: ``{"heading": "Part", "sections": 4,
"least_words": 30}`` wants lines that begin ``Part 1:`` to ``Part 4:``, in order, with as many words
in each. An answer of another form is wrong: without its length there is nothing to keep it over.

Checked is what words can show. Whether the text is any good is another reward's question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from educe.core.errors import UnscoredError
from educe.core.types import Score

ROLES = ("fact", "constraint", "goal")
PLACES = ("any", "each", "first", "last", "nowhere")
# Of a whole point, what an answer can earn at most that breaks something.
_BROKEN_AT_MOST = 0.7


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one commitment; ``reason`` is empty when it was kept."""

    name: str
    role: str
    reason: str

    @property
    def is_kept(self) -> bool:
        return not self.reason


def sections_of(text: str, form: Mapping[str, Any]) -> list[str] | str:
    """Return the sections' texts, or what is wrong with the form."""
    heading, count = str(form["heading"]), int(form["sections"])
    pattern = re.compile(rf"^[#*\s]*{re.escape(heading)}\s+(\d+)\s*[:.][*\s]*", re.M | re.I)
    found = list(pattern.finditer(text))
    numbers = [int(match.group(1)) for match in found]
    if numbers != list(range(1, count + 1)):
        return f"expected {heading} 1 to {heading} {count}, once each and in order, got {numbers}"
    ends = [match.start() for match in found[1:]] + [len(text)]
    parts = [text[m.end() : end].strip() for m, end in zip(found, ends, strict=True)]
    least = int(form.get("least_words", 0))
    short = next((i for i, part in enumerate(parts, 1) if len(part.split()) < least), 0)
    if short:
        words = len(parts[short - 1].split())
        return f"{heading} {short} has {words} words, expected at least {least}"
    return parts


def check_commitments(
    sections: Sequence[str], commitments: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """Return what became of each commitment over all sections.

    Raises:
        UnscoredError: a commitment that is not of the form above.
    """
    return [
        Finding(str(c.get("name") or i), str(c.get("role")), _broken_by(sections, c))
        for i, c in enumerate(commitments)
    ]


def score_commitments(
    completion: str, form: Mapping[str, Any], commitments: Sequence[Mapping[str, Any]]
) -> Score:
    """Score 1 when the form and every commitment are kept.

    With the form kept and something else broken it is 0.7 times the share of what had to be said
    and was, times the share of what had to stay unsaid and did: who says nothing earns nothing.
    Parts are the shares by role.
    """
    if not commitments:
        raise UnscoredError("score_commitments expected at least one commitment, got none")
    sections = sections_of(completion, form)
    if isinstance(sections, str):
        return Score.unparseable(sections) if not completion.strip() else Score.wrong(sections)
    findings = check_commitments(sections, commitments)
    parts: dict[str, float | None] = {}
    for role in ROLES:
        own = [f.is_kept for f in findings if f.role == role]
        parts[role] = sum(own) / len(own) if own else None
    broken = [f for f in findings if not f.is_kept]
    if not broken:
        return Score.right("", **parts)
    told = "; ".join(f"{f.role} {f.name}: {f.reason}" for f in broken)
    shares = _BROKEN_AT_MOST
    for is_unsaid in (False, True):
        own = [
            f.is_kept
            for f, c in zip(findings, commitments, strict=True)
            if (c.get("where") == "nowhere") == is_unsaid
        ]
        shares *= sum(own) / len(own) if own else 1.0
    return Score.graded(shares, told[:300], **parts)


def _broken_by(sections: Sequence[str], commitment: Mapping[str, Any]) -> str:
    """Return how a commitment is broken, empty when it is kept."""
    role, where = commitment.get("role"), commitment.get("where", "any")
    if role not in ROLES or where not in PLACES:
        raise UnscoredError(
            f"a commitment needs a role of {', '.join(ROLES)} and a place of {', '.join(PLACES)}, "
            f"got {dict(commitment)!r}"
        )
    if "number" in commitment:
        return _number_broken_by(sections, commitment, str(where))
    if not commitment.get("says"):
        raise UnscoredError(f"a commitment needs 'says' or 'number', got {dict(commitment)!r}")
    for number, section in enumerate(sections, 1):
        wrong = next((w for w in commitment.get("instead", ()) if _says(section, w)), "")
        if wrong:
            return f"section {number} says {wrong!r}"
    words = str(commitment["says"])
    return _misplaced([_says(s, words) for s in sections], where, repr(words))


def _number_broken_by(sections: Sequence[str], commitment: Mapping[str, Any], where: str) -> str:
    number, unit = float(commitment["number"]), str(commitment["unit"])
    pattern = re.compile(rf"(?<![\w.,])(\d[\d,. ]*?)\s*{re.escape(unit)}\b", re.I)
    said = [[_value(m) for m in pattern.findall(section)] for section in sections]
    for place, values in enumerate(said, 1):
        wrong = next((v for v in values if v != number), None)
        if wrong is not None:
            return f"section {place} says {wrong:g} {unit}"
    return _misplaced([number in values for values in said], where, f"'{number:g} {unit}'")


def _value(digits: str) -> float:
    # A comma or blank between groups of three digits separates thousands.
    plain = re.sub(r"(?<=\d)[, ](?=\d{3}\b)", "", digits.strip()).rstrip(".,")
    try:
        return float(plain)
    except ValueError:
        return float("nan")


def _misplaced(is_said: Sequence[bool], where: str, words: str) -> str:
    if where == "nowhere":
        return f"section {is_said.index(True) + 1} says {words}" if any(is_said) else ""
    if where == "each":
        return "" if all(is_said) else f"section {is_said.index(False) + 1} lacks {words}"
    if where in ("first", "last"):
        return (
            "" if is_said[0 if where == "first" else -1] else f"the {where} section lacks {words}"
        )
    return "" if any(is_said) else f"no section says {words}"


def _says(text: str, words: str) -> bool:
    """Whether whole words stand in a text, whatever their case and the blanks between them."""
    inner = r"\s+".join(re.escape(word) for word in words.split())
    return re.search(rf"(?<!\w){inner}(?!\w)", text, re.I) is not None
