"""Writes a report to a folder, each file whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from educe.core.strict_json import strict_json
from educe.core.types import JSON
from educe.evaluation.report.content import Report
from educe.evaluation.report.markdown import to_markdown
from educe.evaluation.report.page import to_html


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """Where the three formats lie."""

    markdown: Path
    html: Path
    json: Path


def write_report(report: Report, folder: Path, *, name: str = "report") -> ReportPaths:
    """Write NAME.md, NAME.html and NAME.json into ``folder`` (made if missing)."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = ReportPaths(*(folder / f"{name}.{end}" for end in ("md", "html", "json")))
    write_whole(paths.markdown, to_markdown(report))
    write_whole(paths.html, to_html(report))
    write_whole(paths.json, to_json_text(report.to_json()))
    return paths


def to_json_text(value: JSON) -> str:
    """Return strict JSON: numbers that JSON has no word for become null."""
    return strict_json(value, indent=1, ensure_ascii=False) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write beside and rename, so that no reader ever sees half a file."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)  # noqa: PTH105
