"""What a message says never becomes a special token; only the chat template writes those.

A user who writes ``<|im_end|>`` would else end the turn and open another in anybody's name. So the
names of special tokens are marked in messages before the template sees them, and what stands under
a mark is encoded as ordinary text. Texts without such a name take the tokenizer's ordinary way, so
their ids are those of ``tokenizer.apply_chat_template``.
"""

from __future__ import annotations

import re
from typing import Any

# Letters and digits alone: templates trim, split and quote what they are given.
_MARK = "EducePlainText"
_MARKED = re.compile(_MARK + r"(\d+)x")


class MessageText:
    """Marks messages for a template, and encodes what the template made of them.

    Added tokens that are not special (``<think>``, ``<tool_call>`` in some vocabularies) are words
    of messages and stay tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        names = {str(name) for name in tokenizer.all_special_tokens}
        names |= {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special}
        longest_first = sorted(names, key=lambda name: (-len(name), name))
        # The mark itself is marked as well: a message that holds it says nothing else by it.
        self._names = (_MARK, *longest_first)
        self._places = {name: i for i, name in enumerate(self._names)}
        self._named = re.compile("|".join(map(re.escape, self._names)))
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._plain_encoder: Any = None

    def mark(self, text: str) -> str:
        """Return a message's text with its names of special tokens under marks."""
        return self._named.sub(lambda found: f"{_MARK}{self._places[found[0]]}x", text)

    def unmark(self, marked: str) -> str:
        """Return the text as it is meant to be read."""
        return _MARKED.sub(lambda found: self._names[int(found[1])], marked)

    def after_special(self, marked: str) -> str:
        """Return what stands behind the last special token of a rendered text."""
        return str(self._special.split(marked)[-1])

    def encode(self, marked: str) -> list[int]:
        """Return the ids of a rendered text: its own special tokens are tokens, marked ones text.

        Special tokens cut a text; what lies between two of them is encoded by itself in any case,
        so only stretches that hold a mark need another way.
        """
        if _MARK not in marked:
            return self._tokens(marked)
        ids: list[int] = []
        kept = ""
        for part in self._special.split(marked):
            if _MARK not in part:
                kept += part
                continue
            ids += self._tokens(kept) + self._plain(self.unmark(part))
            kept = ""
        return ids + self._tokens(kept)

    def _tokens(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def _plain(self, text: str) -> list[int]:
        """Return ids without any special one."""
        specials = set(self._tokenizer.all_special_ids)
        ids = self._encode_plain(text)
        if specials.isdisjoint(ids):
            return ids
        # A vocabulary that holds such a name as a word, too: its characters are none.
        letters = [i for character in text for i in self._encode_plain(character)]
        return [i for i in letters if i not in specials]

    def _encode_plain(self, text: str) -> list[int]:
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            return list(
                self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
            )
        if self._plain_encoder is None:
            from tokenizers import Tokenizer

            # A copy, as the setting belongs to the encoder and other threads use the original. The
            # stretch follows a special token: a blank "before the first word" is not due there.
            form = backend.to_str().replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
            encoder = Tokenizer.from_str(form)
            encoder.encode_special_tokens = True
            self._plain_encoder = encoder
        return list(self._plain_encoder.encode(text, add_special_tokens=False).ids)
