"""Which examples a step trains on: sources, mixed by weights, in an order that a seed decides.

An *entry* is (source, index). An indexed feed is a pure function of the step, so nothing about it
has to be saved; a stream reads on from where it was, and its state is a few numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from educe.core.protocols import Domain
from educe.core.seeds import numpy_random
from educe.core.types import JSON, Split
from educe.domains.example_sets import ExampleSet, ExampleStream
from educe.domains.formats import Example, Labelled, Pair, Written
from educe.scheduling.mixture import StaticMixture

Entry = tuple[str, int]


class Source(Protocol):
    """Examples by index.

    ``moves_on`` tells whether a later epoch takes up where the one before ended (data sets), or
    repeats the same ones (a domain's endless tasks).
    """

    moves_on: bool

    def train(self, index: int) -> Any: ...

    def held_out(self, count: int) -> Sequence[Any]: ...


class DemonstrationSource:
    """A domain's gold answers; what is held out are those of its screen tasks."""

    moves_on = False

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._size = domain.size(Split.TRAIN)

    def train(self, index: int) -> Written:
        return self._at(Split.TRAIN, index if self._size is None else index % max(1, self._size))

    def order(self, index: int) -> JSON:
        """Return what a process of [prefetch] is asked for instead of ``train``."""
        return {"gold": [self._domain.spec.name, index]}

    def held_out(self, count: int) -> list[Written]:
        size = self._domain.size(Split.SCREEN)
        known = count if size is None else min(count, size)
        return [self._at(Split.SCREEN, i) for i in range(known)]

    def _at(self, split: Split, index: int) -> Written:
        task = self._domain.task(split, index)
        return Written(tuple(task.messages), tuple(self._domain.demonstration(task)))


class SetSource:
    """The rows of a data set."""

    moves_on = True

    def __init__(self, examples: ExampleSet) -> None:
        self._examples = examples

    def train(self, index: int) -> Example:
        return self._examples.train(index)

    def order(self, index: int) -> JSON:
        return {"row": [self._examples.name, self._examples.key_of(index)]}

    def held_out(self, count: int) -> list[Example]:
        return self._examples.held_out(count)


class ListSource:
    """Examples that are in memory: what was sampled."""

    moves_on = True

    def __init__(self, examples: Sequence[Any]) -> None:
        self._examples = list(examples)

    def train(self, index: int) -> Any:
        return self._examples[index % len(self._examples)]

    def held_out(self, count: int) -> list[Any]:
        return []


class LabelledSource:
    """Each pair of another source as two labelled examples: wanted, then unwanted."""

    moves_on = True

    def __init__(self, inner: Source) -> None:
        self._inner = inner

    def train(self, index: int) -> Labelled:
        pair, side = divmod(index, 2)
        return self._halves(self._inner.train(pair))[side]

    def held_out(self, count: int) -> list[Labelled]:
        return [half for pair in self._inner.held_out(count) for half in self._halves(pair)]

    @staticmethod
    def _halves(pair: Any) -> tuple[Labelled, Labelled]:
        if not isinstance(pair, Pair):
            raise TypeError(f"expected a pair, got {type(pair).__name__}")
        return Labelled(pair.chosen, True), Labelled(pair.rejected, False)


@dataclass(slots=True)
class IndexedFeed:
    """Batches from a virtual list of ``num_examples`` entries, shuffled anew each epoch.

    Args:
        sources: by name.
        weights: share of each source (largest deficit first, see ``StaticMixture``).
        num_examples: of an epoch.
        batch_size: entries of a step.
    """

    sources: Mapping[str, Source]
    weights: Mapping[str, float]
    num_examples: int
    batch_size: int
    seed: int
    _names: list[str] = field(default_factory=list)
    _source_E: Any = None
    _cursor_E: Any = None
    _draws: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mixture = StaticMixture(self.weights, self.seed)
        self._names = sorted(mixture.shares)
        numbers = {name: i for i, name in enumerate(self._names)}
        self._source_E = np.empty(self.num_examples, np.int32)
        self._cursor_E = np.empty(self.num_examples, np.int64)
        draws = dict.fromkeys(self._names, 0)
        for entry in range(self.num_examples):
            name = self._names[0] if len(self._names) == 1 else mixture.next_domain()
            self._source_E[entry], self._cursor_E[entry] = numbers[name], draws[name]
            draws[name] += 1
        self._draws = draws

    def entries(self, step: int) -> list[Entry]:
        """Return the entries of batch ``step``: a function of the step alone."""
        found = []
        for position in range(step * self.batch_size, (step + 1) * self.batch_size):
            epoch, offset = divmod(position, self.num_examples)
            row = _shuffle(self.num_examples, self.seed, epoch)[offset]
            name = self._names[self._source_E[row]]
            index = int(self._cursor_E[row])
            if self.sources[name].moves_on:
                index += epoch * self._draws[name]
            found.append((name, index))
        return found

    def examples(self, step: int) -> list[tuple[str, Any]]:
        """Return (source, example) of the batch."""
        return [(name, self.sources[name].train(index)) for name, index in self.entries(step)]

    def orders(self, step: int) -> list[tuple[str, JSON]]:
        """Return (source, order) of the batch, for processes that make examples ahead."""
        return [(name, self._order_of(name, index)) for name, index in self.entries(step)]

    def _order_of(self, name: str, index: int) -> JSON:
        source = self.sources[name]
        if not isinstance(source, DemonstrationSource | SetSource):
            raise TypeError(f"{name}: a {type(source).__name__} cannot be made in other processes")
        return source.order(index)

    def progress(self) -> JSON:
        return None

    def restore(self, state: JSON) -> None:
        """There is nothing to restore: the step says it all."""


@dataclass(slots=True)
class StreamFeed:
    """Batches read on and on: at least one source is a stream. Steps must come in order."""

    sources: Mapping[str, Source]
    streams: dict[str, ExampleStream]
    weights: Mapping[str, float]
    batch_size: int
    seed: int
    mixture: StaticMixture = field(init=False)
    _cursors: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mixture = StaticMixture(self.weights, self.seed)

    def examples(self, step: int) -> list[tuple[str, Any]]:
        return [
            (name, self.streams[name].source.at(place))
            if name in self.streams
            else (name, self.sources[name].train(place))
            for name, place in self._entries()
        ]

    def orders(self, step: int) -> list[tuple[str, JSON]]:
        """Return (source, order) of the next batch, for processes that make examples ahead."""
        found: list[tuple[str, JSON]] = []
        for name, place in self._entries():
            source = self.sources.get(name)
            if name in self.streams:
                found.append((name, {"row": [self.streams[name].source.name, place]}))
            elif isinstance(source, DemonstrationSource | SetSource):
                found.append((name, source.order(place)))
        return found

    def _entries(self) -> Iterator[tuple[str, int]]:
        """Move on by a batch: the keys of streams, the indices of everything else."""
        for _ in range(self.batch_size):
            name = self.mixture.next_domain()
            if name in self.streams:
                yield name, self.streams[name].next_key()
                continue
            index = self._cursors.get(name, 0)
            self._cursors[name] = index + 1
            yield name, index

    def progress(self) -> JSON:
        return {
            "mixture": self.mixture.state(),
            "cursors": dict(self._cursors),
            "streams": {name: stream.progress() for name, stream in self.streams.items()},
        }

    def restore(self, state: JSON) -> None:
        self.mixture.restore(state["mixture"])
        self._cursors = dict(state["cursors"])
        for name, saved in state["streams"].items():
            self.streams[name] = ExampleStream(self.streams[name].source, saved)


Feed = IndexedFeed | StreamFeed


@functools.lru_cache(maxsize=4)
def _shuffle(num_rows: int, seed: int, epoch: int) -> Any:
    return numpy_random("sft-order", seed, epoch).permutation(num_rows)
