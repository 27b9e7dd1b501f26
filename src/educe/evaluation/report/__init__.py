"""The evaluation report: Markdown, one self-contained HTML page, and JSON of everything.

>>> paths = write_report(build_report(after, before), Path("out"))   # doctest: +SKIP
"""

from __future__ import annotations

from educe.evaluation.report.board import board_to_html, board_to_markdown
from educe.evaluation.report.content import Report, build_report
from educe.evaluation.report.examples import Example, pick_examples
from educe.evaluation.report.files import ReportPaths, write_report
from educe.evaluation.report.markdown import to_markdown
from educe.evaluation.report.page import to_html

__all__ = [
    "Example",
    "Report",
    "ReportPaths",
    "board_to_html",
    "board_to_markdown",
    "build_report",
    "pick_examples",
    "to_html",
    "to_markdown",
    "write_report",
]
