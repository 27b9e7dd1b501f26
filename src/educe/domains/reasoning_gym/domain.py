"""One family at one level, as a domain."""

from __future__ import annotations

import contextlib
import functools
import io
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from educe.core.errors import DomainError, MissingExtraError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import draw_task
from educe.core.types import JSON, Message, Score, Split, Task, user
from educe.domains.extraction import extract_answer
from educe.domains.reasoning_gym.scoring import Entry, judge

INSTRUCTION = "Give only the final answer."

# Families that prepare their items when they are made, so each item needs a fresh instance.
_MADE_PER_ITEM = frozenset({"acre", "gsm_symbolic", "list_functions"})
_MAX_DRAWS = 200

# Some families draw from Python's and numpy's global generators, and print.
_GLOBAL_STATE = threading.RLock()


class ReasoningGymDomain(DomainBase):
    """Tasks of one reasoning-gym family; item keys are the family's own seeds.

    A task stores only its key: the scorer regenerates the item from it, so nothing of the item has
    to survive JSON. Items without a gold text, and keys for which the generator gives up, are
    skipped by drawing the next key.

    Args:
        spec: from the manifest.
        family: name within reasoning-gym.
        configuration: overrides of the family's configuration.
        is_multiline, is_numeric: the shape of answers, from the manifest.
    """

    def __init__(
        self,
        spec: DomainSpec,
        *,
        family: str,
        configuration: Mapping[str, Any],
        is_multiline: bool,
        is_numeric: bool,
    ) -> None:
        self.spec = spec
        self._family = family
        self._configuration = dict(configuration)
        self._is_multiline, self._is_numeric = is_multiline, is_numeric
        self._generator = _make_generator(spec.name, family, self._configuration)
        self._entry = functools.lru_cache(maxsize=256)(self._generate)

    def task(self, split: Split, index: int) -> Task:
        return draw_task(self._draw, self.spec.name, split, index)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        entry = self._entry(task.metadata["key"])
        answer = extract_answer(
            transcript[-1].content, is_multiline=self._is_multiline, is_numeric=self._is_numeric
        )
        with _private_globals(0):
            return judge(self._family, answer, entry, self._generator.score_answer)

    def _draw(self, rng: random.Random) -> Task:
        error: Exception | None = None
        for _ in range(_MAX_DRAWS):
            key = rng.getrandbits(32)
            try:
                entry = self._entry(key)
            except Exception as failure:  # a generator that finds no puzzle for this key
                error = failure
                continue
            gold = str(entry["answer"])
            if gold.strip():
                prompt = f"{entry['question'].strip()}\n{INSTRUCTION}"
                return Task(
                    self.spec.name, Split.TRAIN, 0, (user(prompt),), gold, metadata={"key": key}
                )
        raise DomainError(f"{self.spec.name}: no task in {_MAX_DRAWS} draws; last error: {error!r}")

    def _generate(self, key: int) -> Entry:
        with _private_globals(key):
            if self._family in _MADE_PER_ITEM:
                made = _instantiate(self._family, {**self._configuration, "seed": key, "size": 1})
                return dict(made[0])
            # An item is drawn from Random(seed + index), so the key is set as the seed of item 0.
            self._generator.seed = key
            self._generator.config.seed = key
            return dict(self._generator[0])


def _instantiate(family: str, configuration: Mapping[str, Any]) -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise MissingExtraError("reasoning_gym", "dev", f"the domain rg/{family}") from error
    return reasoning_gym.create_dataset(family, **configuration)


def _make_generator(name: str, family: str, configuration: Mapping[str, Any]) -> Any:
    try:
        with _private_globals(0):
            generator = _instantiate(family, {"size": 1, **configuration, "seed": 0})
    except (TypeError, ValueError, AssertionError) as error:
        raise DomainError(
            f"{name}: reasoning-gym refuses the configuration {dict(configuration)}: {error}"
        ) from error
    _make_reproducible(family, generator)
    return generator


class _SortedSet(set[str]):
    """A set that is iterated in order, whatever PYTHONHASHSEED is."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))

    def __sub__(self, other: Any) -> _SortedSet:
        return _SortedSet(super().__sub__(other))


def _make_reproducible(family: str, generator: Any) -> None:
    """Give an order to the sets from which four families draw; string hashes differ by process."""
    if family in ("isomorphic_strings", "ransom_note"):
        generator.letters = _SortedSet(generator.letters)
    elif family == "word_ladder":
        generator.word_graphs = {
            length: {word: sorted(near) for word, near in graph.items()}
            for length, graph in generator.word_graphs.items()
        }
    elif family == "polynomial_multiplication":
        unordered = generator._get_monomials
        generator._get_monomials = lambda rng: sorted(unordered(rng), key=str)


@contextlib.contextmanager
def _private_globals(key: int) -> Iterator[None]:
    """Seed the global generators for the block, restore them after it, and drop what is printed."""
    import numpy as np

    with _GLOBAL_STATE:
        python_state, numpy_state = random.getstate(), np.random.get_state()
        random.seed(key)
        np.random.seed(key % 2**32)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
