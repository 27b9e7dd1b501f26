"""The layout of a packed forest, shared by packing (numpy) and attention (torch)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One segment in a depth-first layout: [start, end) its tokens, [end, last) its descendants."""

    start: int
    end: int
    last: int
