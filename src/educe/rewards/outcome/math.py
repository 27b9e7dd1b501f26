r"""The checker for mathematical answers.

One answer is taken from the completion without looking at the gold (the last complete box, else the
last answer line, else the whole text, else the last formula or number), read as a typed answer and
compared. Safe in any thread, without signals; time is linear in the text's length and bounded for
the formula (sizes are checked before anything is computed).

>>> check_math(r"so \boxed{1\frac{1}{2}}", "$3/2$").value
1.0
"""

from __future__ import annotations

from dataclasses import replace

from educe.core.errors import UnscoredError
from educe.core.types import Score
from educe.rewards.outcome.extraction import (
    answer_line,
    boxed_answer,
    inline_math,
    strip_reasoning,
)
from educe.rewards.outcome.math_answers import (
    Answer,
    Choice,
    Items,
    Relation,
    Value,
    Words,
    parse_answer,
)
from educe.rewards.outcome.math_equality import MathPolicy, are_equal
from educe.rewards.outcome.math_forms import has_form
from educe.rewards.outcome.math_syntax import MathSyntaxError, Node
from educe.rewards.outcome.math_values import TooLargeError
from educe.rewards.outcome.numeric import number_tokens

DEFAULT_POLICY = MathPolicy()
_MAX_WHOLE_CHARACTERS = 600


def check_math(completion: str, gold: str, policy: MathPolicy = DEFAULT_POLICY) -> Score:
    """Score 1 when the completion's final answer equals the gold.

    Args:
        completion: all of what the model wrote.
        gold: the reference; delimiters, a box or plain notation are all understood.
        policy: what counts as equal where tastes differ.

    Raises:
        UnscoredError: the gold does not parse, or cannot be evaluated within the limits.
    """
    wanted = read_gold(gold, policy)
    found = read_completion(completion, policy)
    if found is None:
        return Score.unparseable("no mathematical answer found")
    try:
        is_equal = are_equal(found, wanted, policy)
    except TooLargeError as error:
        if _is_too_large(wanted, policy):
            raise UnscoredError(
                f"gold answer {gold[:80]!r} cannot be evaluated: {error}"
            ) from error
        return Score.wrong(f"answer cannot be evaluated: {error}")
    if not is_equal:
        return Score.wrong("not equal to the gold answer")
    if not has_form(found, policy.form):
        return Score.wrong(f"right value, but not in the form asked for ({policy.form})")
    return Score.right()


def read_gold(gold: str, policy: MathPolicy = DEFAULT_POLICY) -> Answer:
    """Return the typed gold; raises UnscoredError when it does not parse."""
    run = boxed_answer(gold) or [gold]
    try:
        return _combined([_read(r, policy) for r in run])
    except MathSyntaxError as error:
        raise UnscoredError(f"gold answer {gold[:80]!r} does not parse: {error}") from error


def read_completion(completion: str, policy: MathPolicy = DEFAULT_POLICY) -> Answer | None:
    """Return the typed final answer of a completion, None when there is none."""
    text = strip_reasoning(completion)
    boxed = boxed_answer(text)
    if boxed:
        return _read_all(boxed, policy)
    line = answer_line(text)
    for source in (line, text):
        if not source or len(source) > _MAX_WHOLE_CHARACTERS:
            continue
        answer = _read_all([source], policy)
        if answer is not None and not (isinstance(answer, Words) and source is text):
            return answer
    last_formula = inline_math(line or text)
    answer = _read_all(last_formula, policy) if last_formula else None
    if answer is not None:
        return answer
    numbers = number_tokens(line or text)
    if numbers:
        return _read_all(numbers[-1:], policy)
    return _read_all([text], policy) if len(text) <= _MAX_WHOLE_CHARACTERS else None


def _read(text: str, policy: MathPolicy) -> Answer:
    return parse_answer(text, has_decimal_comma=policy.has_decimal_comma)


def _read_all(texts: list[str], policy: MathPolicy) -> Answer | None:
    try:
        return _combined([_read(t, policy) for t in texts])
    except MathSyntaxError:
        return None


def _combined(answers: list[Answer]) -> Answer:
    return answers[0] if len(answers) == 1 else Items("list", tuple(answers))


def _is_too_large(answer: Answer, policy: MathPolicy) -> bool:
    """Whether the gold alone is beyond the limits: compare it with a copy spelt differently."""
    parts: tuple[Answer, ...]
    if isinstance(answer, Items):
        return any(_is_too_large(i, policy) for i in answer.items)
    if isinstance(answer, Relation):
        parts = tuple(Value(s) for s in answer.sides)
        return any(_is_too_large(p, policy) for p in parts)
    if isinstance(answer, Choice | Words):
        return False
    doubled = replace(answer, node=Node("neg", (Node("neg", (answer.node,)),)))
    try:
        are_equal(answer, doubled, policy)
    except TooLargeError:
        return True
    return False
