"""How replies to long prompts are judged: exact sets, numbers, verbatim texts, states, answers with
sources.

Every check asks for exactly what is right: naming everything that the prompt holds is wrong in all
of them, and so is a text in place of an answer, which would be right by the only value in it.
``precision`` and ``recall`` stand in the parts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from educe.core.errors import UnscoredError
from educe.core.types import Score, Verdict
from educe.rewards.outcome.extraction import strip_reasoning
from educe.rewards.outcome.numeric import numeric_match
from educe.rewards.outcome.text import LENIENT, set_match

_MAX_CHARACTERS = 20_000
_MAX_WORDS = 60
_WORDS_AN_ANSWER = 12
_ABSTAINS = re.compile(
    r"\b(?:not (?:stated|mentioned|given|specified|provided|answerable|in the)|unanswerable|"
    r"no answer|(?:does|do) not (?:say|state|mention|contain)|cannot be (?:answered|determined)|"
    r"doesn['’]t (?:say|state|mention))"
)
_LABEL = re.compile(r"(?im)^\W{0,4}(answer|sources?)\W{0,4}:\s*(.*)$")


def judge(completion: str, answers: Sequence[str], check: Mapping[str, Any]) -> Score:
    """Return the score of a reply; ``check["kind"]`` says how it is read.

    Raises UnscoredError for an unknown kind of check or without answers.
    """
    visible = strip_reasoning(completion)[:_MAX_CHARACTERS].strip()
    kind = check.get("kind")
    if not answers:
        raise UnscoredError("the task has no answers")
    if kind in ("number", "items", "values", "state"):
        most = _MAX_WORDS + _WORDS_AN_ANSWER * len(answers)
        if len(visible.split()) > most:
            return Score.wrong(f"a text of more than {most} words is no answer")
    if kind == "number":
        return numeric_match(visible, answers[0])
    if kind == "items":
        return set_match(visible, answers)
    if kind == "values":
        return judge_values(visible, answers, check["pattern"])
    if kind == "verbatim":
        return judge_verbatim(visible, answers[0], check["prefix"])
    if kind == "state":
        return judge_state(visible, answers, check["stale"])
    if kind == "sources":
        return judge_sources(visible, answers, check)
    raise UnscoredError(f"unknown check {kind!r}")


def judge_values(visible: str, answers: Sequence[str], pattern: str) -> Score:
    """Score 1 when the reply names exactly the values; each counts once, other words do not.

    Values are whole tokens of their type: a longer number that contains one is another value.
    """
    found = {m.group().casefold() for m in re.finditer(pattern, visible.casefold())}
    wanted = {a.casefold() for a in answers}
    if not found:
        return Score.unparseable("no value found", precision=None, recall=0.0)
    hits = len(found & wanted)
    return _set_score(hits, len(found), len(wanted), f"{len(found)} values named, {hits} right")


def _set_score(hits: int, named: int, wanted: int, reason: str) -> Score:
    precision, recall = hits / named, hits / wanted
    is_right = precision == 1.0 and recall == 1.0
    return Score(
        float(is_right),
        Verdict.RIGHT if is_right else Verdict.WRONG,
        reason="" if is_right else reason,
        parts={"precision": precision, "recall": recall},
    )


def judge_verbatim(visible: str, answer: str, prefix: str) -> Score:
    """Score 1 when the reply is the prefix and the very text; ``similarity`` is a part.

    Without the prefix nothing counts, so a text copied from elsewhere earns no part either.
    """
    said = " ".join(visible.strip("\"'“”` \n").split())
    wanted = " ".join(answer.split())
    if not said:
        return Score.unparseable("empty reply")
    if not said.casefold().startswith(prefix.casefold()):
        return Score.wrong("the prefix is missing", similarity=0.0)
    rest, text = said[len(prefix) :].strip(" ,:.-\"'"), wanted[len(prefix) :].strip()
    likeness = SequenceMatcher(None, rest[:2000], text[:2000], autojunk=False).ratio()
    if rest.casefold().rstrip(".") == text.casefold().rstrip("."):
        return Score.right("", similarity=1.0)
    return Score.wrong("the text differs", similarity=likeness)


def judge_state(visible: str, answers: Sequence[str], stale: Sequence[str]) -> Score:
    """Score 1 when the reply is the current code word and the target, without a stale word."""
    words = [w.casefold() for w in re.findall(r"[^\W_]+", visible)]
    code, target = (a.casefold() for a in answers[:2])
    if not words:
        return Score.unparseable("empty reply")
    uses_stale = bool({s.casefold() for s in stale} & set(words))
    opens = words[0] == code
    is_right = opens and target in words[1:] and not uses_stale and len(words) <= 12
    parts = {"current": float(opens), "stale": float(uses_stale), "target": float(target in words)}
    return Score(
        float(is_right), Verdict.RIGHT if is_right else Verdict.WRONG, reason="", parts=parts
    )


def judge_sources(visible: str, answers: Sequence[str], check: Mapping[str, Any]) -> Score:
    """Score 1 when the short answer equals an accepted one; parts: F1, abstention, citations.

    The reply may have lines ``Answer:`` and ``Sources: [1], [2]``; without labels, its first line
    is the answer. ``check["sources"]`` are the numbers of the paragraphs that hold the evidence;
    ``check["answerable"]`` says whether there is an answer at all.
    """
    labelled = {m.group(1).casefold().rstrip("s"): m.group(2) for m in _LABEL.finditer(visible)}
    lines = [line for line in visible.splitlines() if line.strip()]
    answer = labelled.get("answer", lines[0] if lines else "")
    abstains = bool(_ABSTAINS.search(answer.casefold()))
    parts: dict[str, float | None] = {"abstained": float(abstains)}
    parts |= _citations(labelled.get("source", ""), check.get("sources", ()))
    if not answer.strip():
        return Score(0.0, Verdict.UNPARSEABLE, reason="no answer found", parts=parts)
    if not check.get("answerable", True):
        is_right = abstains
        parts["f1"] = float(abstains)
    else:
        said = LENIENT(re.sub(r"\[\d+\]", "", answer))
        accepted = [LENIENT(a) for a in answers]
        is_right = not abstains and said in accepted
        parts["f1"] = max(_token_f1(said, a) for a in accepted)
    verdict = Verdict.RIGHT if is_right else Verdict.WRONG
    return Score(float(is_right), verdict, reason="" if is_right else "another answer", parts=parts)


def _citations(line: str, sources: Sequence[int]) -> dict[str, float | None]:
    cited = {int(n) for n in re.findall(r"\d{1,5}", line)}
    wanted = set(sources)
    hits = len(cited & wanted)
    precision = hits / len(cited) if cited else 0.0
    recall = hits / len(wanted) if wanted else 0.0
    total = precision + recall
    return {"citation_f1": 2 * precision * recall / total if total else 0.0}


def _token_f1(said: str, gold: str) -> float:
    a, b = Counter(said.split()), Counter(gold.split())
    shared = sum((a & b).values())
    return 2 * shared / (sum(a.values()) + sum(b.values())) if shared else 0.0
