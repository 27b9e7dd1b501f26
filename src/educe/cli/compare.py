"""``educe compare``: two finished evaluations of the same tasks, without running a model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from educe.evaluation.records import EvalResult


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="compare two finished evaluations, with a verdict per domain",
        description="Compare what two `educe eval … --out` folders (or files NAME.json in them) "
        "hold: paired by task, a verdict per domain, learned and forgotten tasks; of suites, a "
        "verdict per dimension.",
    )
    parser.add_argument("before", metavar="A", type=Path, help="the earlier one")
    parser.add_argument("after", metavar="B", type=Path, help="the later one")
    parser.add_argument("--relevant", type=float, default=0.1, metavar="X",
                        help="difference that matters, 0.1 is ten points (default)")  # fmt: skip
    parser.add_argument("--fdr", type=float, default=0.05, metavar="Q",
                        help="tolerated share of false ones among claimed domains")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the report")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    """Print the comparison; 0 whatever it says."""
    from educe.core.errors import EduceError
    from educe.evaluation.report import build_report, to_markdown, write_report
    from educe.evaluation.report.files import to_json_text
    from educe.evaluation.saved import load_saved

    for name in ("relevant", "fdr"):
        if not 0 < getattr(arguments, name) < 1:
            raise EduceError(f"--{name} must lie in (0, 1), got {getattr(arguments, name):g}")
    before, after = load_saved(arguments.before), load_saved(arguments.after)
    if "suite" in before.settings and "suite" in after.settings:
        return _compare_suites(arguments, before, after)
    report = build_report(
        after,
        before,
        title=f"{after.label} against {before.label}",
        relevant_difference=arguments.relevant,
        false_discovery_rate=arguments.fdr,
    )
    if arguments.json:
        print(to_json_text(report.to_json()), end="")
    else:
        print(to_markdown(report, examples_per_domain=0), end="")
    if arguments.out is not None:
        paths = write_report(report, arguments.out)
        print(f"report: {paths.html} {paths.markdown} {paths.json}", file=sys.stderr)
    return 0


def _compare_suites(arguments: argparse.Namespace, before: EvalResult, after: EvalResult) -> int:
    """Print two finished suites side by side, dimension by dimension."""
    from educe.evaluation.report.files import to_json_text
    from educe.evaluation.report.suite_content import build_suite_report
    from educe.evaluation.report.suite_pages import suite_to_markdown, write_suite_report
    from educe.evaluation.suite import read_suite
    from educe.evaluation.suite_compare import compare_suites

    comparison = compare_suites(
        read_suite(before),
        read_suite(after),
        level=1 - arguments.fdr,
        relevant_difference=arguments.relevant,
    )
    title = f"{after.label} against {before.label}"
    report = build_suite_report(comparison.after, comparison, title=title)
    print(to_json_text(report.to_json()) if arguments.json else suite_to_markdown(report), end="")
    if arguments.out is not None:
        paths = write_suite_report(report, arguments.out)
        print(f"report: {paths.html} {paths.markdown} {paths.json}", file=sys.stderr)
    return 0
