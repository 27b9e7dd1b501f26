"""Where each key of a TOML text stands: the line numbers that ``tomllib`` does not keep.

Run it on text that ``tomllib`` has accepted: the scanner trusts the syntax and only finds keys, in
tables, dotted keys, quoted keys, inline tables and arrays. A key inside an array belongs to the
array's key (recipes have no arrays of tables of their own).
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable

KeyPath = tuple[str, ...]
_Item = Callable[[KeyPath], None]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LENIENT_KEY = re.compile(r"[^\s.=\"'\[\]{}#,]+")
_SCALAR_END = re.compile(r"[,\]}\n#]")
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)+")
_SPACE = re.compile(r"[ \t]*")


def format_key(path: KeyPath) -> str:
    """Return the dotted spelling of a path, quoting what TOML would quote.

    >>> format_key(("domains", "rg/gcd/tiny", "weight"))
    'domains."rg/gcd/tiny".weight'
    """
    return ".".join(
        p if _BARE_KEY.fullmatch(p) else json.dumps(p, ensure_ascii=False) for p in path
    )


def parse_key(text: str) -> tuple[KeyPath, int]:
    """Return the dotted key at the start of ``text`` and how many characters it takes.

    More is accepted than TOML allows: an unquoted part may hold any character that does not end
    it, so ``domains.rg/gcd/tiny.weight`` needs no quotes on a command line.

    Raises:
        ValueError: there is no key.
    """
    scanner = _Scanner(text, bare=_LENIENT_KEY)
    return scanner.key(), scanner.at


def scan_positions(text: str) -> dict[KeyPath, int]:
    """Return the 1-based line of the first mention of every key and table."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


class _Scanner:
    """A cursor over the text; ``lines`` fills as keys go by."""

    def __init__(self, text: str, bare: re.Pattern[str] = _BARE_KEY) -> None:
        self.text, self.bare, self.at = text, bare, 0
        self.lines: dict[KeyPath, int] = {}
        self._newlines = [m.start() for m in re.finditer("\n", text)]

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip(_BLANK) < len(self.text):
            if self.text[self.at] == "[":
                line = self._line()
                self.at += 2 if self.text.startswith("[[", self.at) else 1
                table = self.key()
                self._record(table, line)
                self.at = self.text.index("]", self.at)
                while self.text.startswith("]", self.at):
                    self.at += 1
            else:
                self._pair(table)

    def key(self) -> KeyPath:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            parts.append(self._key_part())
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _key_part(self) -> str:
        start = self.at
        if self.text[start : start + 1] in ("'", '"') and self.text[start:]:
            self._string()
            return str(tomllib.loads(f"k = {self.text[start : self.at]}")["k"])
        match = self.bare.match(self.text, start)
        if match is None:
            raise ValueError(f"expected a key at {self.text[start : start + 20]!r}")
        self.at = match.end()
        return match.group()

    def _pair(self, table: KeyPath) -> None:
        self._skip(_SPACE)
        line = self._line()
        path = table + self.key()
        self._record(path, line)
        self.at = self.text.index("=", self.at) + 1
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        first = self.text[self.at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self._items("]", path, self._value)
        elif first == "{":
            self._items("}", path, self._pair)
        else:
            end = _SCALAR_END.search(self.text, self.at)
            self.at = end.start() if end else len(self.text)

    def _items(self, close: str, path: KeyPath, item: _Item) -> None:
        self.at += 1
        while True:
            self._skip(_BLANK)
            if self.text[self.at] == close:
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
            else:
                item(path)

    def _string(self) -> None:
        quote = self.text[self.at]
        fence = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(fence)
        while not self.text.startswith(fence, self.at):
            if self.at >= len(self.text):
                raise ValueError("a quoted text does not end")
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(fence)
        while len(fence) == 3 and self.text.startswith(quote, self.at):
            self.at += 1  # up to two quotes may touch the closing fence

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def _line(self) -> int:
        return bisect_right(self._newlines, self.at - 1) + 1 if self.at else 1

    def _record(self, path: KeyPath, line: int) -> None:
        for size in range(1, len(path) + 1):
            self.lines.setdefault(path[:size], line)
