"""The live view: what a run is doing, on the terminal that started it.

On a terminal a panel that redraws itself (rich); anywhere else plain lines, one a step, with no
control codes. It keeps a bounded history and reads nothing but what it is told.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from educe.core.protocols import MetricRow
from educe.core.types import JSON
from educe.observability.history import History, finite_values
from educe.observability.metric_names import HEADLINES, without_domains_but
from educe.observability.terminal_text import (
    describe_event,
    format_duration,
    format_number,
    printable,
    sparkline,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# domain, score now, change since the start, unscored share, all scores
DomainRow = tuple[str, float, float | None, float | None, list[float]]

_QUIET = ("process_end", "interference", "forgetting_look")
_WINDOW = 5  # values averaged into "now" and into the start that it is compared with


class LiveView:
    """A Recorder that shows; combine it with the run store by ``TeeRecorder``.

    A ``stage_start`` event with ``{"stage": …, "steps": N}`` (and ``minutes`` for a time budget)
    sets the progress bar. Steps count from 0, so after step 7 eight are done.

    Args:
        stream: where to write; stdout by default.
        max_domains: rows of the domain table; with more domains, those that changed most.
        plain: print one line a step on a terminal, too.
        clock: returns seconds; monotonic.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        max_domains: int = 16,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._state = ViewState(clock)
        self._max_domains = max_domains
        self._lock = threading.Lock()
        self._is_panel = not plain and _is_capable_terminal(self._stream)
        self._live = None
        if self._is_panel:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            # The refreshing thread takes our lock inside rich's: so none of our methods may call
            # into rich while it holds ours.
            self._live = Live(
                get_renderable=self.render, console=console, refresh_per_second=1, transient=False
            )
            self._live.start()

    def record_metrics(self, row: MetricRow) -> None:
        with self._lock:
            self._state.take_metrics(row)
            line = "" if self._is_panel else self._state.step_line(row)
        if line:
            self._print(line)

    def record_sample(self, stage: str, step: int, sample: Mapping[str, JSON]) -> None:
        """Samples are not shown live; ``educe runs samples`` does."""

    def record_event(self, kind: str, payload: Mapping[str, JSON]) -> None:
        if kind in _QUIET:
            return
        with self._lock:
            self._state.take_event(kind, payload)
        if not self._is_panel:
            self._print(describe_event(kind, payload))

    def close(self) -> None:
        """Draw a last time and give the terminal back; safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _print(self, line: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        safe = line.encode(encoding, "replace").decode(encoding)
        self._stream.write(safe + "\n")
        self._stream.flush()

    def render(self) -> RenderableType:
        """Return the panel as it should look now."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        is_ascii = not (self._stream.encoding or "utf-8").lower().startswith("utf")
        with self._lock:
            state = self._state
            parts: list[RenderableType] = [Text(state.progress_text()), state.progress_bar()]
            parts += [Text(line) for line in state.overall_lines(ascii_only=is_ascii)]
            table = state.domain_table(self._max_domains, ascii_only=is_ascii)
            if table is not None:
                parts.append(table)
            parts += [Text(note, style="dim") for note in state.notes]
            parts += [Text(alarm, style="bold red") for alarm in state.alarms]
            title = f"educe · {state.stage or 'starting'}" if not is_ascii else "educe"
        return Panel(Group(*parts), title=title, title_align="left")


class ViewState:
    """What the view knows; bounded, and free of any terminal."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.stage = ""
        self.step = -1  # steps count from 0
        self.alarms: deque[str] = deque(maxlen=4)
        self.notes: deque[str] = deque(maxlen=4)
        self._history = History(capacity=200)
        self._domain_rows: list[DomainRow] | None = None  # redrawn more often than it changes
        self._steps: int = 0
        self._budget_s = 0.0
        self._began = self._last_row = clock()
        self._durations: deque[float] = deque(maxlen=20)

    def take_metrics(self, row: MetricRow) -> None:
        if row.stage != self.stage:
            self._begin_stage(row.stage, 0, 0.0)
        now = self._clock()
        if row.step > self.step:
            if self.step >= 0:
                self._durations.append((now - self._last_row) / (row.step - self.step))
            self.step, self._last_row = row.step, now
        values = without_domains_but(row.values, ("score", "unscored"))
        self._history.add(replace(row, values=values))
        self._domain_rows = None

    def take_event(self, kind: str, payload: Mapping[str, JSON]) -> None:
        if kind == "stage_start":
            steps, minutes = payload.get("steps") or 0, payload.get("minutes") or 0.0
            self._begin_stage(str(payload.get("stage", "")), int(steps), float(minutes) * 60)
        elif kind == "alarm":
            self.alarms.append(describe_event(kind, payload))
        else:
            self.notes.append(describe_event(kind, payload))

    def _begin_stage(self, stage: str, steps: int, budget_s: float) -> None:
        self.stage, self.step, self._steps, self._budget_s = stage, -1, steps, budget_s
        self._domain_rows = None
        self._began = self._last_row = self._clock()
        self._durations.clear()

    def seconds_left(self) -> float | None:
        """Time to the end of the stage by recent steps or by its budget; None when unknown."""
        estimates = []
        if self._steps and self._durations:
            waited = self._clock() - self._last_row
            remaining = (self._steps - self.step - 1) * median(self._durations)
            estimates.append(max(0.0, remaining - waited) if remaining else 0.0)
        if self._budget_s:
            estimates.append(max(0.0, self._budget_s - (self._clock() - self._began)))
        return min(estimates, default=None)

    def fraction_done(self) -> float | None:
        parts = []
        if self._steps:
            parts.append((self.step + 1) / self._steps)
        if self._budget_s:
            parts.append((self._clock() - self._began) / self._budget_s)
        return min(1.0, max(parts)) if parts else None

    def progress_text(self) -> str:
        of = f" of {self._steps}" if self._steps else ""
        text = f"{self.step + 1}{of} steps  {format_duration(self._clock() - self._began)}"
        left = self.seconds_left()
        return text if left is None else f"{text}, {format_duration(left)} left"

    def progress_bar(self) -> RenderableType:
        from rich.progress_bar import ProgressBar

        done = self.fraction_done()
        return ProgressBar(total=1.0, completed=done or 0.0, pulse=done is None)

    def headline_values(self) -> list[tuple[str, float]]:
        found = []
        for name in HEADLINES:
            series = self._history.overall(self.stage, name)
            if series:
                found.append((name, series[-1][1]))
        return found

    def step_line(self, row: MetricRow) -> str:
        """The plain line of a step: only what this row brought, so that nothing is repeated."""
        values = [
            f"{name} {format_number(row.values[full])}"
            for name in HEADLINES
            if (full := f"{row.stage}/{name}") in row.values
        ]
        of = f" ({row.step + 1}/{self._steps})" if self._steps else ""
        left = self.seconds_left()
        tail = [] if left is None else [f"{format_duration(left)} left"]
        return "  ".join([f"{row.stage} step {row.step}{of}", *values, *tail])

    def overall_lines(self, *, ascii_only: bool) -> list[str]:
        lines = []
        for name, value in self.headline_values()[:6]:
            values = finite_values(self._history.overall(self.stage, name))
            line = sparkline(values, 40, ascii_only=ascii_only)
            lines.append(f"{name:<18}{format_number(value):>10}  {line}")
        return lines

    def domain_rows(self) -> list[DomainRow]:
        if self._domain_rows is None:
            self._domain_rows = [
                row
                for domain in self._history.domains(self.stage)
                if (row := self._domain_row(domain)) is not None
            ]
        return self._domain_rows

    def _domain_row(self, domain: str) -> DomainRow | None:
        scores = finite_values(self._history.domain(self.stage, domain, "score"))
        unscored = finite_values(self._history.domain(self.stage, domain, "unscored"))
        if not scores:
            return None
        size = min(_WINDOW, max(1, len(scores) // 2))
        now = sum(scores[-size:]) / size
        change = now - sum(scores[:size]) / size if len(scores) > 1 else None
        share = sum(unscored[-size:]) / len(unscored[-size:]) if unscored else None
        return domain, now, change, share, scores

    def domain_table(self, max_domains: int, *, ascii_only: bool) -> Table | None:
        from rich.table import Table
        from rich.text import Text

        rows = self.domain_rows()
        if not rows:
            return None
        num_hidden = max(0, len(rows) - max_domains)
        if num_hidden:
            rows = sorted(rows, key=lambda r: -abs(r[2] or 0.0))[:max_domains]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("domain", "score", "change", "unscored", "trend"):
            numeric = heading in ("score", "change", "unscored")
            table.add_column(heading, justify="right" if numeric else "left", no_wrap=True)
        for domain, now, change, share, scores in rows:
            style = "" if not change else "green" if change > 0 else "red"
            table.add_row(
                Text(printable(domain)),
                f"{now:.3f}",
                Text("-" if change is None else f"{change:+.3f}", style=style),
                Text("-" if share is None else f"{share:.1%}", style="red" if share else ""),
                Text(sparkline(scores, 20, ascii_only=ascii_only)),
            )
        if num_hidden:
            table.add_row(Text(f"and {num_hidden} more", style="dim"), "", "", "", "")
        return table


def _is_capable_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
