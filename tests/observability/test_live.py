"""The live view: a panel on a terminal, plain lines without control codes anywhere else."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import threading
import tracemalloc
from pathlib import Path

import pytest
from rich.console import Console

from educe.core.protocols import MetricRow
from educe.observability.live import LiveView
from educe.observability.run_store import RunStore
from educe.observability.tee import TeeRecorder
from educe.observability.terminal_text import (
    describe_event,
    format_duration,
    format_number,
    one_line,
    printable,
    sparkline,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def feed(view: LiveView, clock: Clock, num_steps: int, num_domains: int = 2) -> None:
    view.record_event("stage_start", {"stage": "rl", "steps": 40})
    for step in range(num_steps):
        clock.now += 2.0
        values = {"rl/reward": (step + 1) / 40, "rl/kl_k1": 0.001, "other/unknown": 1.0}
        for i in range(num_domains):
            values[f"domain/rg/fam{i}/score"] = 0.1 + i * step / 1000
            values[f"domain/rg/fam{i}/unscored"] = 0.25 if i == 1 else 0.0
        view.record_metrics(MetricRow("rl", step, values))


def test_plain_lines_hold_no_control_codes() -> None:
    stream, clock = io.StringIO(), Clock()
    with LiveView(stream, clock=clock) as view:
        feed(view, clock, 3)
        view.record_event("checkpoint", {"step": 3})
        view.record_event("alarm", {"kind": "kl_blow_up", "step": 3, "cause": "\x1b[31mfar\n away"})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "stage_start: stage rl, steps 40"
    assert lines[1] == "rl step 0 (1/40)  reward 0.025  kl_k1 0.001"
    assert lines[3] == "rl step 2 (3/40)  reward 0.075  kl_k1 0.001  1 min 14 s left"
    assert lines[4] == "checkpoint: step 3"
    assert lines[5].startswith("ALARM kl_blow_up at step 3: ")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", stream.getvalue())
    assert len(lines) == 6


def test_a_plain_stream_of_another_encoding_is_no_problem() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    view = LiveView(stream, clock=Clock())
    view.record_event("note", {"text": "é▁"})
    assert raw.getvalue() == b"note: text ??\n"


def panel(view: LiveView) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(view.render())
    return out.getvalue()


def test_the_panel_shows_stage_time_left_curves_domains_and_alarms() -> None:
    clock = Clock()
    view = LiveView(io.StringIO(), clock=clock)
    feed(view, clock, 20)
    view.record_event(
        "alarm", {"kind": "unscored", "step": 20, "domain": "rg/fam1", "cause": "why"}
    )
    text = panel(view)
    assert "20 of 40 steps  40 s, 40 s left" in text
    assert re.search(r"reward +0\.500 +▁", text)
    assert re.search(r"rg/fam0 +0\.100 +[+-]0\.000 +0\.0%", text)
    assert re.search(r"rg/fam1 +0\.117 +\+0\.015 +25\.0%", text)
    assert "ALARM unscored rg/fam1 at step 20: why" in text


def test_of_many_domains_those_that_moved_most_are_shown() -> None:
    clock = Clock()
    view = LiveView(io.StringIO(), max_domains=3, clock=clock)
    feed(view, clock, 10, num_domains=50)
    text = panel(view)
    assert "rg/fam49" in text and "rg/fam47" in text and "rg/fam46" not in text
    assert "and 47 more" in text


def test_a_time_budget_counts_down() -> None:
    clock = Clock()
    view = LiveView(io.StringIO(), clock=clock)
    view.record_event("stage_start", {"stage": "rl", "minutes": 2.0})
    clock.now = 30.0
    assert "30 s, 1 min 30 s left" in panel(view)


def test_a_new_stage_starts_over() -> None:
    clock = Clock()
    view = LiveView(io.StringIO(), clock=clock)
    feed(view, clock, 5)
    view.record_metrics(MetricRow("eval", 0, {"domain/x/score": 0.5}))
    text = panel(view)
    assert "educe · eval" in text and "1 steps " in text and "reward" not in text


class Terminal:
    """A pseudo-terminal with somebody who reads it, as a terminal's writer expects."""

    def __enter__(self) -> Terminal:
        self._ours, theirs = pty.openpty()
        self.stream = os.fdopen(theirs, "w", encoding="utf-8")
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()
        return self

    def _drain(self) -> None:
        with contextlib.suppress(OSError):  # EIO is how a pseudo-terminal ends
            while data := os.read(self._ours, 1 << 16):
                self._read.append(data)

    def __exit__(self, *exception: object) -> None:
        self.stream.close()
        self._reader.join()
        os.close(self._ours)
        self.shown = b"".join(self._read).decode()


def test_a_real_terminal_gets_a_panel_and_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with Terminal() as terminal:
        view = LiveView(terminal.stream)
        feed(view, Clock(), 2)
        view.close()
        view.close()
    assert "rg/fam1" in terminal.shown and "\x1b[?25l" in terminal.shown
    assert terminal.shown.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Terminal() as terminal:
        LiveView(terminal.stream).record_event("note", {"x": 1})
    assert terminal.shown == "note: x 1\r\n"


def test_plain_lines_on_a_terminal_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with Terminal() as terminal:
        LiveView(terminal.stream, plain=True).record_metrics(MetricRow("rl", 0, {"rl/reward": 0.5}))
    assert terminal.shown == "rl step 0  reward 0.500\r\n"


def test_the_view_is_a_guest_of_the_tee(tmp_path: Path) -> None:
    store, stream = RunStore.create(tmp_path / "r", {}), io.StringIO()
    tee = TeeRecorder(store, LiveView(stream, clock=Clock()))
    tee.record_metrics(MetricRow("rl", 1, {"rl/reward": 0.5}))
    tee.record_sample("rl", 1, {"domain": "d"})
    tee.close()
    assert stream.getvalue() == "rl step 1  reward 0.500\n"
    assert store.counts()["samples"] == 1
    store.close()


def test_memory_stays_flat_over_a_thousand_steps() -> None:
    clock = Clock()
    view = LiveView(io.StringIO(), clock=clock)
    feed(view, clock, 300)
    view._stream = open(os.devnull, "w")  # noqa: PTH123, SIM115
    tracemalloc.start()
    feed(view, clock, 1000)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    view._stream.close()
    assert grown < 300_000  # 200 steps x 7 series of numbers, replaced


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.4, "59 s"),
        (200, "3 min 20 s"),
        (3900, "1 h 05 min"),
        (183600, "2 d 03 h"),
        (float("nan"), "?"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_numbers() -> None:
    values = [0.0, 0.4123, 12.345, 1.2e-5, -0.5, float("inf"), None]
    assert [format_number(v) for v in values] == [
        "0.000",
        "0.412",
        "12.3",
        "1.2e-05",
        "-0.500",
        "inf",
        "-",
    ]


def test_sparklines() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, float("nan"), 1]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline(list(range(1000)), 40)) == 40
    assert sparkline([0, 1], ascii_only=True) == "_#"


def test_model_text_cannot_drive_the_terminal() -> None:
    nasty = "a\x1b[2J\x07\r\u202eb\ud800\x9b31m"
    shown = printable(nasty)
    assert shown == "a\\x1b[2J\\x07\\x0d\\u202eb\\ud800\\x9b31m"
    shown.encode()
    assert one_line("a\nb\tc" + "d" * 99, 8) == "a\u23ceb cdd…"
    assert "\x1b" not in describe_event("x", {"y": "\x1b[31m"})
