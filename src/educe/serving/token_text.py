"""What single tokens look like to people and to programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any


class TokenTexts:
    """Texts and bytes of single tokens of a tokenizer.

    A token may hold a part of a character: its text then shows a replacement character, while its
    bytes are the real ones where the tokenizer is of the byte-level kind.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes = _byte_table() if _is_byte_level(tokenizer) else None
        self._specials = set(tokenizer.get_added_vocab())
        self._texts: dict[int, str] = {}

    @property
    def num_tokens(self) -> int:
        return len(self._tokenizer)

    def text(self, token_id: int) -> str:
        found = self._texts.get(token_id)
        if found is None:
            found = self._texts[token_id] = str(self._tokenizer.decode([token_id]))
        return found

    def name(self, token_id: int) -> str:
        """Return the token's text, or ``bytes:\\xe2\\x82`` for a part of a character.

        So tokens of different bytes have different names, and a reader that looks for the likeliest
        token by its text finds the right one.
        """
        text = self.text(token_id)
        if "\N{REPLACEMENT CHARACTER}" not in text:
            return text
        values = self.bytes_of(token_id)
        if values is None:
            return str(self._tokenizer.convert_ids_to_tokens(token_id))
        return "bytes:" + "".join(f"\\x{value:02x}" for value in values)

    def bytes_of(self, token_id: int) -> list[int] | None:
        """Return the token's bytes; None for a part of a character of unknown bytes."""
        name = self._tokenizer.convert_ids_to_tokens(token_id)
        if self._bytes is not None and name not in self._specials:
            try:
                return [self._bytes[c] for c in name]
            except KeyError:
                return None
        text = self.text(token_id)
        return None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())

    def plain(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens with special tokens shown."""
        return str(self._tokenizer.decode(list(token_ids)))


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    return '"ByteLevel"' in json.dumps(json.loads(backend.to_str()).get("decoder"))


@lru_cache(maxsize=1)
def _byte_table() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    The printable bytes of Latin-1 stand for themselves; the others, in order, are the characters
    from 256 on (the alphabet of GPT-2's tokenizer).
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in set(printable))
    return table | {chr(256 + i): b for i, b in enumerate(others)}
