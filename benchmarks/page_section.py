"""Sections of a page that commands write, each between marks of its own."""

from __future__ import annotations

from pathlib import Path


def replace_section(page: Path, name: str, section: str) -> str:
    """Put a section between its marks in the page, at the end where it has none yet; return it."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    section = f"{begin}\n\n{section}\n\n{end}"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if begin in text:
        before, _, rest = text.partition(begin)
        text = before + section + rest.partition(end)[2]
    else:
        text = f"{text.rstrip()}\n\n{section}\n".lstrip()
    page.write_text(text, encoding="utf-8")
    return section
