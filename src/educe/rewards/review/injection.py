"""Prompt injection: text that tries to give orders to a model, a tool or a judge.

For what comes in (documents, tool output) as well as for what goes out. Patterns of orders run over
folded text, so that look-alike letters and zero-width characters hide nothing. The rules stand in
``injection_rules.toml``.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
import tomllib
from collections.abc import Sequence
from importlib import resources

from educe.core.types import Message
from educe.rewards.review.findings import ReviewFinding
from educe.rewards.review.folding import fold

Pattern = tuple[str, re.Pattern[str], float]

_BASE64 = re.compile(r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{40,4000}={0,2}(?![A-Za-z0-9+/=])")


@functools.cache
def injection_rules() -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
    """Return (orders, forms) as (name, pattern, severity)."""
    text = resources.files(__package__).joinpath("injection_rules.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    orders, forms = (
        tuple((r["name"], re.compile(r["pattern"]), r["severity"]) for r in raw[kind])
        for kind in ("order", "form")
    )
    return orders, forms


class InjectionLayer:
    """Findings of orders, fake turns, hidden text and encoded orders.

    Args:
        own_tokens: whether control tokens of chat templates count; off for a model whose decoded
            text legitimately contains them.
    """

    name = "injection"

    def __init__(self, *, own_tokens: bool = True) -> None:
        self.own_tokens = own_tokens

    def inspect(self, text: str, prompt: Sequence[Message]) -> Sequence[ReviewFinding]:
        orders, forms = injection_rules()
        folded = fold(text)
        found = [
            ReviewFinding(self.name, name, severity, *folded.span(m.start(), m.end()))
            for name, pattern, severity in orders
            for m in pattern.finditer(folded.text)
        ]
        for name, pattern, severity in forms:
            if name == "control_token" and not self.own_tokens:
                continue
            found += [
                ReviewFinding(self.name, name, severity, m.start(), m.end())
                for m in pattern.finditer(text)
            ]
        for match in _BASE64.finditer(text):
            inner = _decoded(match.group())
            rules = [n for n, p, _ in orders if inner and p.search(fold(inner).text)]
            if rules:
                found.append(
                    ReviewFinding(self.name, "encoded", 0.9, match.start(), match.end(), rules[0])
                )
        return found


def _decoded(text: str) -> str:
    """Return printable text that a Base64 run holds, else an empty one."""
    try:
        raw = base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), validate=True)
        inner = raw.decode("utf-8")
    except (binascii.Error, ValueError):
        return ""
    return inner if all(c.isprintable() or c.isspace() for c in inner) else ""
