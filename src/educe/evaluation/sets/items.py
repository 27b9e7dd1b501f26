"""A set's items, and the domain that asks them: evaluation only, in a fixed shuffled order."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from educe.core.errors import DomainError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.types import JSON, Message, Score, Split, Task

Grade = Callable[[Task, str, Services], Score]
"""Judges the visible text of a completion."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question as it is asked: prompt, a gold text that the grader must accept, and what the
    grader needs. ``gold`` is None where the set ships no answer of its own."""

    messages: tuple[Message, ...]
    gold: str | None
    metadata: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read: usable items without repetitions, and how many rows were left out and why."""

    items: tuple[Item, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    checksum: str = ""


class PackagedSet(DomainBase):
    """A set as a domain. All items are in the eval split; training and screening have none.

    Scoring needs the task only, so a worker never reads the package.
    """

    def __init__(self, spec: DomainSpec, load: Callable[[], Loaded], grade: Grade) -> None:
        self.spec = spec
        self._load, self._grade = load, grade

    @functools.cached_property
    def loaded(self) -> Loaded:
        """The items in the order of their shuffle, which only their content decides."""
        loaded = self._load()
        items = sorted(loaded.items, key=_place)
        return Loaded(tuple(items), loaded.dropped, loaded.checksum)

    def size(self, split: Split) -> int | None:
        return len(self.loaded.items) if split is Split.EVAL else 0

    def task(self, split: Split, index: int) -> Task:
        items = self.loaded.items if split is Split.EVAL else ()
        if not 0 <= index < len(items):
            raise IndexError(f"{self.spec.name} has {len(items)} {split} tasks, no task {index}")
        item = items[index]
        return Task(
            self.spec.name, split, index, item.messages, item.gold, metadata=dict(item.metadata)
        )

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        if task.gold is None:
            raise DomainError(f"task {task.task_id}: the set ships no answer for it")
        return (Message("assistant", task.gold),)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        text = next((m.content for m in reversed(transcript) if m.role == "assistant"), "")
        return self._grade(task, text, services)


def _place(item: Item) -> str:
    # Files are ordered by subject or difficulty; the first hundred of a set must be like the rest.
    text = "\x1e".join([*(m.content for m in item.messages), item.gold or ""])
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"educe-set").hexdigest()


def without_repetitions(items: Sequence[Item]) -> tuple[tuple[Item, ...], int]:
    """Return the items with each prompt once, and how many were dropped.

    Rows that ask the same with different golds are all dropped: one of them is wrong.
    """
    golds: dict[str, set[str]] = {}
    first: dict[str, Item] = {}
    for item in items:
        key = "\x1e".join(m.content for m in item.messages)
        golds.setdefault(key, set()).add(item.gold or "")
        first.setdefault(key, item)
    kept = tuple(item for key, item in first.items() if len(golds[key]) == 1)
    return kept, len(items) - len(kept)
