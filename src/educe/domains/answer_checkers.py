"""How a row's answer decides where no reward function does: a named checker, a declared policy.

A recipe names both, ``options = { checker = "math", policy = { percent = "either" } }``, and a row
may declare its own in a column ``policy``, which goes before the recipe's. Checkers run in the
scoring workers, which can be killed: one that took for ever would cost its deadline, not the run.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from educe.core.errors import DomainError, UnscoredError, did_you_mean
from educe.core.types import JSON, Score, Verdict

POLICY_COLUMN = "policy"
Check = Callable[[str, Sequence[str], Mapping[str, JSON]], Score]


@dataclass(frozen=True, slots=True)
class Checker:
    """One way to judge by the answer column.

    Attributes:
        check: (completion, answers, policy) to score.
        policy_names: what a policy may declare.
        has_gold: whether an answer is itself a right completion (a schema or a pattern is not).
    """

    check: Check
    policy_names: tuple[str, ...] = ()
    has_gold: bool = True


def _any_of(judge: Callable[[str], Score], answers: Sequence[str]) -> Score:
    """Return the best score over the accepted answers; one that is none spoils no other.

    Raises:
        UnscoredError: none is right, and one of them could not be read.
    """
    best, broken = None, None
    for answer in answers:
        try:
            found = judge(answer)
        except UnscoredError as error:
            broken = broken or error
            continue
        if found.verdict is Verdict.RIGHT:
            return found
        best = best or found
    if best is None or broken is not None:
        raise broken or UnscoredError("there is no answer to compare with")
    return best


def _math(completion: str, answers: Sequence[str], policy: Mapping[str, JSON]) -> Score:
    from educe.rewards.outcome.math import check_math

    declared = _math_policy(json.dumps(policy, sort_keys=True))
    return _any_of(lambda gold: check_math(completion, gold, declared), answers)


@functools.lru_cache(maxsize=256)
def _math_policy(text: str) -> Any:
    from educe.rewards.outcome.math_equality import MathPolicy

    return MathPolicy(**json.loads(text))


def _number(completion: str, answers: Sequence[str], policy: Mapping[str, JSON]) -> Score:
    from educe.rewards.outcome.numeric import numeric_match

    tolerance = policy.get("relative_tolerance", 0.0)
    return _any_of(
        lambda gold: numeric_match(completion, gold, relative_tolerance=tolerance), answers
    )


def _text(completion: str, answers: Sequence[str], policy: Mapping[str, JSON]) -> Score:
    from educe.rewards.outcome.text import Normalisation, exact_match

    return exact_match(completion, answers, normalisation=Normalisation(**policy))


def _set(completion: str, answers: Sequence[str], policy: Mapping[str, JSON]) -> Score:
    from educe.rewards.outcome.text import Normalisation, set_match

    return set_match(completion, answers, normalisation=Normalisation(**policy))


def _schema(completion: str, answers: Sequence[str], policy: Mapping[str, JSON]) -> Score:
    from educe.rewards.outcome.schema import schema_match

    try:
        schemas = {answer: json.loads(answer) for answer in answers}
    except ValueError as error:
        raise UnscoredError(f"the answer is no JSON schema: {error}") from error
    return _any_of(lambda answer: schema_match(completion, schemas[answer]), answers)


def _pattern(completion: str, answers: Sequence[str], policy: Mapping[str, JSON]) -> Score:
    from educe.rewards.outcome.format import pattern_format

    return _any_of(lambda pattern: pattern_format(completion, pattern), answers)


_NORMALISATION = ("case", "whitespace", "unicode", "edge_punctuation", "articles")
_MATH = (
    "percent", "units", "base", "significant_digits", "decimals", "relative_tolerance",
    "has_decimal_comma", "form",
)  # fmt: skip
CHECKERS: dict[str, Checker] = {
    "math": Checker(_math, _MATH),
    "number": Checker(_number, ("relative_tolerance",)),
    "text": Checker(_text, _NORMALISATION),
    "set": Checker(_set, _NORMALISATION),
    "schema": Checker(_schema, has_gold=False),
    "pattern": Checker(_pattern, has_gold=False),
}


def named_checker(name: str, policy: Mapping[str, JSON], place: str) -> Checker:
    """Return the checker of that name; its policy is checked too.

    Raises:
        DomainError: an unknown checker, or a policy that is none of its; begins with ``place``.
    """
    if name not in CHECKERS:
        raise DomainError(
            f"{place}: options.checker knows {', '.join(CHECKERS)}; got {name!r}."
            + did_you_mean(str(name), CHECKERS)
        )
    check_policy(name, policy, place)
    return CHECKERS[name]


def check_policy(name: str, policy: Any, place: str) -> None:
    """Refuse a policy that the checker of that name does not have.

    Raises:
        DomainError: begins with ``place`` and names what is wrong.
    """
    known = CHECKERS[name].policy_names
    if not isinstance(policy, Mapping):
        raise DomainError(f"{place}: a policy must be a table, got {policy!r:.80}")
    for key in policy:
        if key not in known:
            told = f"its policy may declare {', '.join(known)}" if known else "it has no policy"
            raise DomainError(
                f"{place}: the checker {name!r} does not know {key!r}; {told}."
                + did_you_mean(str(key), known)
            )
    try:
        if name == "math":
            _math_policy(json.dumps(policy, sort_keys=True))
        elif name == "number":
            tolerance = policy.get("relative_tolerance", 0.0)
            if isinstance(tolerance, bool) or not 0 <= tolerance < 1:
                raise ValueError(f"relative_tolerance must be in [0, 1), got {tolerance!r}")
        else:
            _require_booleans(policy)
    except (TypeError, ValueError) as error:
        raise DomainError(f"{place}: {error}") from error


def _require_booleans(policy: Mapping[str, JSON]) -> None:
    for key, value in policy.items():
        if type(value) is not bool:
            raise ValueError(f"{key} must be true or false, got {value!r}")
