"""Whether a completion declines to answer: exact phrases at its beginning, nothing learned.

Made to keep refusals apart from wrong answers, not to measure safety: on human labels, phrases like
these find about half of all refusals and are nearly always right where they match (the safety
dimension says so beside its own classifier).
"""

from __future__ import annotations

import re

from educe.rewards.outcome.extraction import strip_reasoning

_HEAD_CHARACTERS = 240
_APOLOGY = r"(?:i['’]?m|i am|we['’]?re|we are)?\s*(?:very |really |so |truly )?(?:sorry|afraid)\b"
_CANNOT = (
    r"\bi(?: simply| just)? (?:can(?:not|['’]?t|\s+not)|won['’]?t|will not|am (?:not able|unable)|"
    r"['’]?m (?:not able|unable))|\bi['’]m (?:not able|unable)"
)
_HELP = (
    r"\s+(?:(?:really|directly|ethically|in good conscience|be able to|to) ){0,2}"
    r"(?:help|assist|answer|comply|fulfil?l|provide|do that|support|engage|discuss|share|create|"
    r"write|generate|give|continue|respond|participate|solve)\b"
)
_REFUSAL = re.compile(
    rf"^(?:{_APOLOGY}[^.!?\n]{{0,60}})?[\s,.;:—-]*(?:but\s+)?(?:as an ai[^.\n]{{0,60}}?)?"
    rf"(?:{_CANNOT}){_HELP}",
    re.IGNORECASE,
)
_DECLINE = re.compile(
    r"^(?:i (?:must |have to |respectfully |will have to )?(?:decline|refuse)\b|"
    r"sorry, (?:but )?(?:no|i can['’]?t)\b|no comment\b|i['’]?d rather not\b)",
    re.IGNORECASE,
)


def is_refusal(text: str) -> bool:
    """Return whether the visible text opens by declining; "I cannot find 3" does not decline."""
    head = strip_reasoning(text)[:_HEAD_CHARACTERS].strip()
    return bool(_REFUSAL.search(head) or _DECLINE.search(head))
