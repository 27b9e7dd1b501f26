"""``educe runs mixture``: which domain gets how much of a run, and why."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path

from educe.core.errors import EduceError, did_you_mean
from educe.core.types import JSON
from educe.observability.history import History
from educe.observability.mixture_view import MixtureRow, mixture_rows, plot_mixture
from educe.observability.run_reader import RunReader
from educe.observability.terminal_text import format_number, printable, sparkline
from educe.scheduling.controller import reason_text

_HEAD = ("domain", "share", "weight", "level", "signal", "response", "cost")


def select_rows(store: RunReader, domain: str, stage: str = "rl") -> list[MixtureRow]:
    """Return a run's rows, of domains that match a name or glob (all when it is empty).

    Raises:
        EduceError: the run has no shares, or none of the domain.
    """
    rows = mixture_rows(History(store.metrics(stage)), stage)
    if not rows:
        raise EduceError(
            f"{store.folder} has recorded no shares: expected metrics 'domain/NAME/share' in the "
            f"stage {stage!r}; it has not begun, or an older educe wrote it"
        )
    kept = [r for r in rows if not domain or fnmatch.fnmatchcase(r.domain, domain)]
    if not kept:
        raise EduceError(f"no domain {domain!r}.{did_you_mean(domain, [r.domain for r in rows])}")
    return kept


def rows_json(rows: Sequence[MixtureRow]) -> list[JSON]:
    return [
        {
            "domain": row.domain,
            "share": row.share,
            "by_weight": row.by_weight,
            "reason": None if row.reason is None else reason_text(row.reason),
            **row.estimates,
            "shares": [list(pair) for pair in row.shares],
        }
        for row in rows
    ]


def rows_text(rows: Sequence[MixtureRow]) -> str:
    """Return the table: one line a domain, its curve and the reason of its newest share."""
    is_ascii = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    width = max(len(_HEAD[0]), *(len(printable(row.domain)) for row in rows))
    lines = [f"{_HEAD[0]:<{width}} " + "".join(f"{name:>9}" for name in _HEAD[1:]) + "  reason"]
    for row in rows:
        cells = [f"{row.share:.2%}", "-" if row.by_weight is None else f"{row.by_weight:.2%}"]
        cells += [format_number(row.estimates.get(name)) for name in _HEAD[3:]]
        line = sparkline([v for _, v in row.shares], 24, ascii_only=is_ascii)
        reason = "its weight" if row.reason is None else reason_text(row.reason)
        lines.append(
            f"{printable(row.domain):<{width}} "
            + "".join(f"{cell:>9}" for cell in cells)
            + f"  {reason}  {line}"
        )
    return "\n".join(lines)


def write_plot(store: RunReader, rows: Sequence[MixtureRow], folder: Path) -> Path:
    return plot_mixture(rows, folder / "mixture.png", f"{store.name}: shares of prompts")
