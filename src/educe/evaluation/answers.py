"""Which answers are the same answer: the classes that votes, agreement and entropy count.

Right answers are one class, as the verifier saw it; the others are told apart by the answer that
the scorer recorded (``proof["answer"]``), else by the text that is read as the answer, folded. No
answer (unparseable, refused, cut) is None: a class of its own that wins no vote.
"""

from __future__ import annotations

from collections.abc import Hashable

from educe.evaluation.records import EvalRow, Outcome
from educe.rewards.outcome.extraction import boxed_answer, final_answer
from educe.rewards.outcome.numeric import parse_number
from educe.rewards.outcome.text import Normalisation

RIGHT = "right"
_FOLD = Normalisation(articles=True)
_NONE = frozenset({Outcome.UNPARSEABLE, Outcome.REFUSED, Outcome.TRUNCATED, Outcome.TIMED_OUT})


def answer_class(row: EvalRow) -> Hashable:
    """Return the class of a scored row's answer; None for no answer.

    Raises ValueError for a row without a score: it has no class and must be left out.
    """
    if row.value is None:
        raise ValueError(f"{row.domain}#{row.index}/{row.sample} has no score, so no answer class")
    if row.outcome is Outcome.RIGHT:
        return RIGHT
    if row.outcome in _NONE:
        return None
    recorded = row.proof.get("answer")
    if recorded is not None:
        return ("answer", str(recorded))
    text = next((m.content for m in reversed(row.completion) if m.role == "assistant"), "")
    boxes = boxed_answer(text)
    answer = ", ".join(boxes) if boxes else final_answer(text)
    number = parse_number(answer)
    return ("number", number) if number is not None else ("text", _FOLD(answer))
