"""Data sets of a stage: rows by index or as a stream, some held out, and how sources are mixed.

Nothing is kept in memory but 8 bytes a row; a row is read and checked when it is used. Torch-free:
preflight reads the same sets.
"""

from __future__ import annotations

import functools
import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from educe.config.settings import DataSettings
from educe.core.errors import DomainError
from educe.core.seeds import derive, numpy_random
from educe.core.splits import split_of
from educe.core.types import JSON, Split
from educe.domains.formats import Example, Labelled, Pair, Written, read_preference, read_supervised
from educe.domains.rows import Row, Rows, offsets, open_rows

Reader = Callable[[Row, str, DataSettings], Example]
READERS: Mapping[str, Reader] = {"sft": read_supervised, "preference": read_preference}

DEFAULT_DEMONSTRATIONS = 512


@dataclass(frozen=True, slots=True)
class SetSummary:
    """What the first rows of a set showed.

    Attributes:
        num_rows: all of them, held-out ones included.
        is_complete: whether every row was looked at.
        num_held_out: among the rows that were looked at, and of ``eval_path``.
        kinds: formats found: ``written``, ``pair``, ``labelled``.
        longest: characters of the longest example.
    """

    num_rows: int
    is_complete: bool
    num_held_out: int
    kinds: frozenset[str]
    longest: int

    @property
    def num_train(self) -> int:
        return max(0, self.num_rows - self.num_held_out)


class ExampleSet:
    """A data set of a stage.

    Args:
        name: of the set; metrics carry it.
        settings: with a ``path``.
        purpose: key of ``READERS``: which formats are read.

    Raises:
        DomainError: nothing that can be read at the path.
        MissingExtraError: a folder that needs the package ``datasets``.
    """

    def __init__(self, name: str, settings: DataSettings, purpose: str) -> None:
        if not settings.path:
            raise DomainError(f"{purpose}.data.{name}: give a path")
        if settings.eval_path and settings.eval_fraction:
            raise DomainError(
                f"{purpose}.data.{name}: give either eval_path or eval_fraction, not both"
            )
        self.name, self.settings = name, settings
        self._read = READERS[purpose]
        self.rows = open_set(settings.path, settings.split)
        self._eval_rows = open_set(settings.eval_path, "") if settings.eval_path else None

    @property
    def in_process(self) -> str:
        """A task of these rows whose tests the model's code could reach (see ``RunRows``)."""
        return str(getattr(self.rows, "in_process", ""))

    def check(self, limit: int = 10_000) -> SetSummary:
        """Read the first rows; raises DomainError at the first bad one, naming file and line."""
        kinds: set[str] = set()
        longest = held_out = seen = 0
        scanned = self.rows.scan()
        for _, place, row in itertools.islice(scanned, limit):
            example = self._read(row, place, self.settings)
            kinds.add(type(example).__name__.lower())
            longest = max(longest, example.num_characters)
            held_out += self.is_held_out(example)
            seen += 1
        if not seen:
            raise DomainError(f"{self.settings.path} has no rows")
        is_complete = next(scanned, None) is None
        for _, place, row in (
            itertools.islice(self._eval_rows.scan(), limit) if self._eval_rows else ()
        ):
            self._read(row, place, self.settings)
            held_out += 1
        total = seen if is_complete else self.rows.count()
        if self._eval_rows:
            total += held_out
        if is_complete and total == held_out:
            raise DomainError(
                f"{self.settings.path}: all {seen} rows are held out; lower eval_fraction"
            )
        return SetSummary(total, is_complete, held_out, frozenset(kinds), longest)

    def is_held_out(self, example: Example) -> bool:
        """Return whether a row is for evaluation: a function of its prompt, so that equal prompts
        are never on two sides."""
        fraction = self.settings.eval_fraction
        return fraction > 0 and split_of(_prompt_key(example), fraction) is Split.EVAL

    @property
    def num_train(self) -> int:
        return len(self._keys[0])

    def train(self, index: int) -> Example:
        """Return training row ``index``, in an order shuffled once by the set's name."""
        return self.at(self.key_of(index))

    def key_of(self, index: int) -> int:
        """Return the key of training row ``index``, without reading it."""
        return int(self._order[index % len(self._order)])

    def at(self, key: int) -> Example:
        return self._read(self.rows.read(key), self.settings.path, self.settings)

    def held_out(self, count: int) -> list[Example]:
        """Return the first ``count`` held-out rows of the file (or of ``eval_path``)."""
        if self._eval_rows is not None:
            rows = itertools.islice(self._eval_rows.scan(), count)
            return [self._read(row, place, self.settings) for _, place, row in rows]
        if not self.settings.eval_fraction:
            return []
        if self.settings.streaming:
            # The index that a stream does without: read until there are enough.
            examples = (self._read(row, place, self.settings) for _, place, row in self.rows.scan())
            return list(itertools.islice(filter(self.is_held_out, examples), count))
        return [self.at(int(key)) for key in self._keys[1][:count]]

    def stream(self, state: JSON = None) -> ExampleStream:
        return ExampleStream(self, state)

    @functools.cached_property
    def _keys(self) -> tuple[array[int], array[int]]:
        """Keys of the rows to train on and of those held out, in file order; checks every row."""
        train, held_out = offsets(), offsets()
        for key, place, row in self.rows.scan():
            example = self._read(row, place, self.settings)
            (held_out if self.is_held_out(example) else train).append(key)
        if not train:
            raise DomainError(f"{self.settings.path} has no rows to train on")
        return train, held_out

    @functools.cached_property
    def _order(self) -> Any:
        import numpy as np

        keys = np.frombuffer(self._keys[0], dtype=np.uint64)
        return numpy_random("examples", self.name).permutation(keys)


@dataclass(slots=True)
class ExampleStream:
    """Rows in file order, shuffled over a window, again and again; its state is a few numbers.

    The window holds keys, not rows. Which one comes next is a draw counted by its position, so a
    stream that is restored goes on exactly as it would have.
    """

    source: ExampleSet
    state: JSON = None
    _window: list[int] = field(default_factory=list)
    _position: int = 0
    _last: int = -1
    _pass: int = 0
    _scan: Iterator[int] | None = None

    def __post_init__(self) -> None:
        if self.state:
            self._window = list(self.state["window"])
            self._position, self._last = self.state["position"], self.state["last"]
            self._pass = self.state["pass"]

    def next(self) -> Example:
        """Return the next row to train on.

        Raises:
            DomainError: a bad row, or none that is not held out.
        """
        return self.source.at(self.next_key())

    def next_key(self) -> int:
        """Move on by a row; return its key. Raises as ``next`` does."""
        while len(self._window) < self.source.settings.shuffle_buffer:
            key = self._next_key()
            if key is None:
                break
            self._window.append(key)
        if not self._window:
            raise DomainError(f"{self.source.settings.path} has no rows to train on")
        number = derive("stream", self.source.name, self._position) % len(self._window)
        self._position += 1
        # The last one takes the place: no row is moved but one.
        self._window[number], self._window[-1] = self._window[-1], self._window[number]
        return self._window.pop()

    def progress(self) -> JSON:
        return {
            "window": list(self._window),
            "position": self._position,
            "last": self._last,
            "pass": self._pass,
        }

    def _next_key(self) -> int | None:
        """Return the next row's key; None at the end of the pass while the window is not empty."""
        if self._scan is None:
            self._scan = self._keys_after(self._last)
        key = next(self._scan, None)
        if key is not None:
            self._last = key
            return key
        if self._window:
            return None  # a pass is used up before the next begins
        self._pass += 1
        self._last = -1
        self._scan = self._keys_after(-1)
        key = next(self._scan, None)
        if key is not None:
            self._last = key
        return key

    def _keys_after(self, last: int) -> Iterator[int]:
        for key, place, row in self.source.rows.scan(max(0, last)):
            if key > last and not self.source.is_held_out(
                self.source._read(row, place, self.source.settings)
            ):
                yield key


def open_set(path: str, split: str) -> Rows:
    """Return the rows at a path; the folder of a run gives pairs from its scored samples."""
    if (Path(path).expanduser() / "run.json").exists():
        from educe.domains.sampled_pairs import RunRows

        return RunRows(Path(path).expanduser())
    return open_rows(path, split=split)


def source_weights(
    domains: Mapping[str, float], data: Mapping[str, tuple[float | None, int]]
) -> dict[str, float]:
    """Return the weight of every source of a mixture.

    Args:
        domains: weight of each domain that takes part.
        data: of each data set its weight (None: not set) and its number of training rows.

    Data sets without a weight weigh 1 each on average and among each other as their rows: they are
    concatenated.
    """
    weights = {name: w for name, w in domains.items() if w > 0}
    unset = {name: rows for name, (weight, rows) in data.items() if weight is None}
    total = sum(unset.values())
    for name, (weight, rows) in data.items():
        weights[name] = len(unset) * rows / max(1, total) if weight is None else weight
    return {name: w for name, w in weights.items() if w > 0}


def epoch_size(num_tasks: int, weights: Mapping[str, float], rows: Mapping[str, int]) -> int:
    """Return the examples of an epoch: as many as set, or so many that ``rows`` are drawn once.

    Args:
        weights: of all sources.
        rows: training rows of those that are data sets.
    """
    if num_tasks:
        return num_tasks
    total = sum(n for name, n in rows.items() if weights.get(name))
    share = sum(weights.get(name, 0.0) for name in rows) / sum(weights.values())
    return max(1, round(total / share)) if total else DEFAULT_DEMONSTRATIONS


def _prompt_key(example: Example) -> str:
    if isinstance(example, Pair):
        return _prompt_key(example.chosen)
    if isinstance(example, Labelled):
        return _prompt_key(example.written)
    return Written(example.prompt, "").key() if example.prompt else example.key()
