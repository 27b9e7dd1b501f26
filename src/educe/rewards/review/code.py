"""Insecure code in answers: line patterns for the mistakes that reviewers stop at.

Patterns, not a parser: the text is hostile, and a parser can be made to die on it. Comments are
cut off first. The rules stand in ``code_rules.toml``, each with its CWE.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from educe.core.types import Message
from educe.rewards.review.findings import ReviewFinding

_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
_NAMES = {
    "py": "python", "python3": "python", "js": "javascript", "ts": "javascript",
    "jsx": "javascript", "tsx": "javascript", "typescript": "javascript", "node": "javascript",
    "c++": "c", "cpp": "c", "h": "c", "cc": "c", "sh": "shell", "bash": "shell", "zsh": "shell",
    "console": "shell", "kt": "java", "kotlin": "java",
}  # fmt: skip
_HASH = re.compile(r"(?:^|\s)#(?![^\"']*[\"'][^\"']*$).*")
_SLASHES = re.compile(r"(?<![:\"'])//.*")
_HASH_LANGUAGES = frozenset({"python", "shell", "ruby", "perl", "yaml"})
_MAX_LINE = 1000


@dataclass(frozen=True, slots=True)
class CodeRule:
    """A pattern for lines of some languages; an empty set is all of them."""

    name: str
    languages: frozenset[str]
    pattern: re.Pattern[str]
    severity: float
    advice: str


@functools.cache
def code_rules() -> tuple[CodeRule, ...]:
    """Return the rules that ship."""
    text = resources.files(__package__).joinpath("code_rules.toml").read_text(encoding="utf-8")
    return tuple(
        CodeRule(
            r["name"],
            frozenset(r["languages"].split()),
            re.compile(r["pattern"]),
            r["severity"],
            r["advice"],
        )
        for r in tomllib.loads(text)["rule"]
    )


def code_blocks(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield (language, code, start) of every fenced block; an unclosed one runs to the end."""
    position = 0
    while (opening := _FENCE.search(text, position)) is not None:
        fence, language = opening.group(1), opening.group(2).casefold()
        start = min(opening.end() + 1, len(text))
        closing = re.compile(rf"^[ \t]{{0,3}}{re.escape(fence)}[ \t]*$", re.MULTILINE)
        end = closing.search(text, start)
        stop = len(text) if end is None else end.start()
        yield _NAMES.get(language, language), text[start:stop], start
        position = len(text) if end is None else end.end()


class CodeLayer:
    """Insecure patterns in fenced blocks.

    Args:
        rules: which ones; those that ship by default.
        whole_text: take a text without any fence as code of unknown language (for code domains).
    """

    name = "code"

    def __init__(
        self, rules: Sequence[CodeRule] | None = None, *, whole_text: bool = False
    ) -> None:
        self.rules = code_rules() if rules is None else tuple(rules)
        self.whole_text = whole_text

    def inspect(self, text: str, prompt: Sequence[Message]) -> Sequence[ReviewFinding]:
        blocks = list(code_blocks(text))
        if not blocks and self.whole_text:
            blocks = [("", text, 0)]
        return [f for block in blocks for f in self._findings(*block)]

    def _findings(self, language: str, code: str, offset: int) -> Iterator[ReviewFinding]:
        rules = [
            r for r in self.rules if not r.languages or not language or language in r.languages
        ]
        for line, start in _lines(code, language):
            for rule in rules:
                match = rule.pattern.search(line)
                if match is not None:
                    yield ReviewFinding(
                        self.name, rule.name, rule.severity, offset + start + match.start(),
                        offset + start + match.end(), rule.advice,
                    )  # fmt: skip


def _lines(code: str, language: str) -> Iterator[tuple[str, int]]:
    """Yield every line without its comment, and where it begins."""
    comment = None
    if language in _HASH_LANGUAGES:
        comment = _HASH
    elif language:
        comment = _SLASHES
    position = 0
    for line in code.splitlines(keepends=True):
        bare = line.rstrip("\n")[:_MAX_LINE]
        yield (comment.sub("", bare) if comment is not None else bare), position
        position += len(line)
