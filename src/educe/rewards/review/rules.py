"""Exact rules: secrets by their formats, personal data by pattern and checksum, risky URLs.

Each rule is one linear-time pattern, with a check behind it where a pattern alone would cry wolf:
card numbers must satisfy Luhn's sum, account numbers ISO 7064 (mod 97).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from educe.core.types import Message
from educe.rewards.review.findings import ReviewFinding

Check = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern with a severity and, where needed, a check of what it matched."""

    name: str
    pattern: re.Pattern[str]
    severity: float
    check: Check | None = None


def luhn(digits: str) -> bool:
    """Whether a number of digits satisfies Luhn's checksum (ISO/IEC 7812-1)."""
    total = 0
    for place, character in enumerate(reversed(digits)):
        value = int(character) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def is_card(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    if not 13 <= len(digits) <= 19 or len(set(digits)) < 2:
        return False
    return digits[0] in "3456" and luhn(digits)


# Lengths by country (ISO 13616 registry), for those most often seen.
_IBAN_LENGTHS = {
    "AT": 20, "BE": 16, "BG": 22, "CH": 21, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "EE": 20,
    "ES": 24, "FI": 18, "FR": 27, "GB": 22, "GR": 27, "HR": 21, "HU": 28, "IE": 22, "IL": 23,
    "IS": 26, "IT": 27, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "MC": 27, "MT": 31, "NL": 18,
    "NO": 15, "PL": 28, "PT": 25, "RO": 24, "SA": 24, "SE": 24, "SI": 19, "SK": 24, "TR": 26,
}  # fmt: skip


def is_iban(text: str) -> bool:
    """Whether a text is an international bank account number with the right check digits."""
    bare = re.sub(r"\s", "", text).upper()
    if _IBAN_LENGTHS.get(bare[:2]) != len(bare):
        return False
    turned = bare[4:] + bare[:4]
    return int("".join(str(int(c, 36)) for c in turned)) % 97 == 1


def _holds_iban(text: str) -> bool:
    """Whether a run of capitals and digits begins with an account number."""
    bare = re.sub(r"\s", "", text)
    length = _IBAN_LENGTHS.get(bare[:2], len(bare) + 1)
    return len(bare) >= length and is_iban(bare[:length])


_RESERVED = re.compile(
    r"@(?:[\w-]+\.)*(?:example\.(?:com|org|net|edu)|example|test|invalid)$", re.I
)


def _is_real_address(text: str) -> bool:
    return not _RESERVED.search(text)


def _is_risky_url(text: str) -> bool:
    try:
        parts = urlsplit(text.rstrip(".,;:!?)'\""))
        host = parts.hostname or ""
    except ValueError:
        return True
    return bool(parts.password) or bool(re.fullmatch(r"[\d.]+", host)) or "xn--" in host


def _rule(name: str, pattern: str, severity: float, check: Check | None = None) -> Rule:
    return Rule(name, re.compile(pattern), severity, check)


SECRETS: tuple[Rule, ...] = (
    _rule("aws_key", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", 1.0),
    _rule("github_token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,251}|github_pat_\w{22,251})\b", 1.0),
    _rule("slack_token", r"\bxox[abeprs]-[A-Za-z0-9-]{10,250}", 1.0),
    _rule("google_key", r"\bAIza[0-9A-Za-z_-]{35}\b", 1.0),
    _rule("stripe_key", r"\b[rs]k_live_[0-9A-Za-z]{20,247}\b", 1.0),
    _rule("model_api_key", r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,250}\b", 1.0),
    _rule("private_key", r"-----BEGIN (?:[A-Z]{2,10} ){0,2}PRIVATE KEY-----", 1.0),
    _rule("web_token", r"\beyJ[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10,1000}", 0.8),
    _rule(
        "assigned_secret",
        r"(?i)\b(?:password|passwd|secret|api[_-]?key|access[_-]?token)\b[\"']?\s{0,3}[:=]\s{0,3}"
        r"[\"'](?!<|\$\{|your|xxx|\*\*\*|change|example)[^\"'\s]{8,200}[\"']",
        0.5,
    ),
)
PERSONAL: tuple[Rule, ...] = (
    _rule("card_number", r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d.]?\d)", 0.9, is_card),
    _rule("iban", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b", 0.9, _holds_iban),
    _rule("us_ssn", r"(?<![\d-])(?!000|666|9\d\d)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\d-])", 0.8),
    _rule(
        "e_mail",
        r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,4}[A-Za-z]{2,24}\b",
        0.4,
        _is_real_address,
    ),
    _rule(
        "phone",
        r"(?<![\d+])\+\d{1,3}[ -]?(?:\(\d{1,4}\)[ -]?)?\d{2,4}(?:[ -]?\d{2,4}){2,4}\b",
        0.3,
    ),
)  # fmt: skip
ADDRESSES: tuple[Rule, ...] = (
    _rule("script_url", r"(?i)\b(?:javascript|vbscript):\s{0,3}[^\s\"'<>]{1,200}", 0.7),
    _rule("data_url", r"(?i)\bdata:text/html[;,][^\s\"'<>]{1,200}", 0.7),
    _rule("risky_url", r"(?i)\b(?:https?|ftp)://[^\s<>\"]{3,500}", 0.7, _is_risky_url),
)


class RuleLayer:
    """Secrets, personal data and risky URLs.

    Args:
        rules: which ones; all three groups by default.
    """

    name = "rules"

    def __init__(self, rules: Sequence[Rule] = (*SECRETS, *PERSONAL, *ADDRESSES)) -> None:
        self.rules = tuple(rules)

    def inspect(self, text: str, prompt: Sequence[Message]) -> Sequence[ReviewFinding]:
        return [
            ReviewFinding(
                self.name, rule.name, rule.severity, match.start(), match.end(),
                masked(match.group()),
            )
            for rule in self.rules
            for match in rule.pattern.finditer(text)
            if rule.check is None or rule.check(match.group())
        ]  # fmt: skip


def masked(text: str) -> str:
    """Return the first characters only: enough to find it again, not to use it."""
    return f"{text[:4]}… ({len(text)} characters)"
