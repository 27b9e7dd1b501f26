"""Preference pairs from scored samples: better against worse completions of one prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from educe.core.errors import DomainError
from educe.domains.rows import Row

T = TypeVar("T")

_MIN_GAP = 0.5


def best_against_worst(
    scored: Sequence[tuple[float, str, T]], *, min_gap: float, limit: int
) -> list[tuple[T, T, float]]:
    """Return (better, worse, difference) pairs: the best with the worst, then inwards.

    Args:
        scored: (score, text, item) of each scored sample of one prompt, in sample order.
        min_gap: least difference of scores.
        limit: pairs at most.

    A text is used once: equal samples would only repeat a pair. Ties keep the order of sampling.
    """
    distinct: dict[str, tuple[float, str, T]] = {}
    for entry in scored:
        distinct.setdefault(entry[1], entry)
    order = sorted(distinct.values(), key=lambda entry: -entry[0])
    pairs: list[tuple[T, T, float]] = []
    for better, worse in zip(order, reversed(order), strict=True):
        gap = better[0] - worse[0]
        if len(pairs) >= limit or gap < min_gap:
            break
        pairs.append((better[2], worse[2], gap))
    return pairs


class RunRows:
    """Rows with ``prompt``, ``chosen`` and ``rejected`` from the samples that a run has stored.

    One pair a prompt and step, where its scores differ by at least 0.5. Keys are row numbers.

    Attributes:
        in_process: the task of a pair whose tests ran in the process of the model's code ("" for
            none): training on it must be opted in to.

    Raises:
        DomainError: the run has no samples that make a pair.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows, self.in_process = _rows_of(folder)
        if not self._rows:
            raise DomainError(
                f"{folder}: no two samples of one prompt differ by {_MIN_GAP} in their reward, so "
                f"there is nothing to prefer; name a run that sampled groups"
            )

    def scan(self, start: int = 0) -> Iterator[tuple[int, str, Row]]:
        for number in range(start, len(self._rows)):
            yield number, f"{self._folder}: pair {number}", self._rows[number]

    def read(self, key: int) -> Row:
        return self._rows[key]

    def count(self) -> int:
        return len(self._rows)


def _rows_of(folder: Path) -> tuple[list[Row], str]:
    from educe.observability.run_reader import RunReader

    in_process: set[tuple[str, int, str]] = set()
    groups: dict[tuple[str, int, str], list[tuple[float, str, list[Any]]]] = {}
    for sample in RunReader(folder).samples():
        body = sample.body
        if body.get("reward") is not None and body.get("split") == "train":
            key = (sample.stage, sample.step, str(body["task_id"]))
            # The text of a tool call is in the content already.
            turns = [{k: m[k] for k in ("role", "content")} for m in body["messages"]]
            text = "\x1f".join(m["content"] for m in turns)
            groups.setdefault(key, []).append((float(body["reward"]), text, turns))
            if (body.get("score") or {}).get("proof", {}).get("integrity") == "in_process":
                in_process.add(key)
    rows, sharing = [], ""
    for key, scored in groups.items():
        for better, worse, _ in best_against_worst(scored, min_gap=_MIN_GAP, limit=1):
            rows.append({"chosen": better, "rejected": worse})
            sharing = sharing or (key[2] if key in in_process else "")
    return rows, sharing
