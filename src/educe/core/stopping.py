"""Stopping on purpose: budgets and signals become one question asked at safe points."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopRequested(BaseException):
    """Raised at a safe point after Ctrl-C or SIGTERM. Like KeyboardInterrupt, no handler that
    catches ``Exception`` swallows it."""


class StopSignal:
    """Remembers that a stop was asked for; ``check`` raises it where stopping is safe."""

    def __init__(self) -> None:
        self.reason = ""

    def request(self, reason: str) -> None:
        self.reason = self.reason or reason

    def check(self) -> None:
        if self.reason:
            raise StopRequested(self.reason)

    @contextmanager
    def on_signals(self, announce: Callable[[str], None]) -> Iterator[None]:
        """Turn the first SIGINT or SIGTERM into a request; the second SIGINT interrupts at once.

        Does nothing outside the main thread, where signals cannot be handled.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _frame: object) -> None:
            name = signal.Signals(number).name
            if self.reason and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.request(name)
            announce(f"{name}: stopping at the next safe point (Ctrl-C again stops at once)")

        before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)


class Budget:
    """A stage's budget in seconds of its own running time; survives a resume by its state.

    Args:
        minutes: 0 is none.
        spent_s: seconds that earlier attempts spent.
    """

    def __init__(self, minutes: float, spent_s: float = 0.0) -> None:
        self.limit_s = minutes * 60.0
        self._before = spent_s
        self._begin = time.monotonic()

    @property
    def spent_s(self) -> float:
        return self._before + time.monotonic() - self._begin

    @property
    def is_spent(self) -> bool:
        return self.limit_s > 0 and self.spent_s >= self.limit_s

    @property
    def share(self) -> float:
        """Return the spent share in [0, 1]; 0 without a limit."""
        return min(1.0, self.spent_s / self.limit_s) if self.limit_s else 0.0
