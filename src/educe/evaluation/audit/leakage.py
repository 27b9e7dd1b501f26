"""Does training know the evaluation, and does a prompt give its own answer away?

Splits are disjoint by content hash. These checks look further: the same question under other
spacing or case, long runs of words in common with training text, and prompts that hold the
evaluated question twice, as when few-shot examples are drawn from the evaluated set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from educe.core.protocols import Domain
from educe.core.types import JSON, Message, Split, Task

_WORD = re.compile(r"\w+")
RUN_WORDS = 13
"""Words of a run that counts as copied; the length that contamination reports usually take."""
_MIN_QUESTION = 12


@dataclass(frozen=True, slots=True)
class LeakReport:
    """What was found for one domain.

    Attributes:
        shared: evaluated tasks whose question stands in the training split as well, by words.
        contradicting: those of them with another gold.
        repeated: evaluated tasks whose question stands more than once in its own prompt.
        told: evaluated tasks whose prompt holds the whole gold (at least two words or five
            letters); for some kinds of task that is as it should be.
    """

    domain: str
    num_train: int
    num_eval: int
    shared: tuple[int, ...]
    contradicting: tuple[int, ...]
    repeated: tuple[int, ...]
    told: tuple[int, ...]

    @property
    def problems(self) -> list[str]:
        found = []
        if self.shared:
            found.append(f"{len(self.shared)} of {self.num_eval} evaluated questions are trained")
        if self.repeated:
            found.append(f"{len(self.repeated)} prompts hold their question more than once")
        return [f"{self.domain}: {line}" for line in found]

    def to_json(self) -> dict[str, JSON]:
        return {n: getattr(self, n) for n in self.__slots__}


Prepare = Callable[[Task], Sequence[Message]]


def leak_report(
    domain: Domain,
    *,
    num_train: int = 500,
    num_eval: int = 100,
    prepare: Prepare | None = None,
) -> LeakReport:
    """Compare the first tasks of the splits of a domain.

    Args:
        prepare: how prompts are made for the model (few-shot, say); the task's own messages by
            default.
    """
    train = _tasks(domain, Split.TRAIN, num_train)
    held_out = _tasks(domain, Split.EVAL, num_eval)
    known = {_words(_question(t)): t.gold for t in train}
    shared = [t for t in held_out if _words(_question(t)) in known]
    make: Prepare = prepare or (lambda task: task.messages)
    return LeakReport(
        domain.spec.name,
        len(train),
        len(held_out),
        tuple(t.index for t in shared),
        tuple(t.index for t in shared if known[_words(_question(t))] != t.gold),
        tuple(t.index for t in held_out if question_count(make(t), t) > 1),
        tuple(t.index for t in held_out if _is_told(t)),
    )


def _tasks(domain: Domain, split: Split, count: int) -> list[Task]:
    size = domain.size(split)
    return [domain.task(split, i) for i in range(count if size is None else min(size, count))]


def _question(task: Task) -> str:
    return "\n".join(m.content for m in task.messages)


def _words(text: str) -> str:
    """Return the words alone. Signs stay where they would change a question."""
    return " ".join(re.findall(r"\w+|[-+*/=<>^%]", text.casefold()))


def question_count(prompt: Sequence[Message], task: Task) -> int:
    """Return how often the task's last message stands in a rendered prompt (it should be once).

    Very short questions ("2 + 2") may stand in others by chance and count at most once.
    """
    asked = _words(task.messages[-1].content)
    text = _words("\n".join(m.content for m in prompt))
    if len(asked) < _MIN_QUESTION:
        return min(1, text.count(asked))
    return text.count(asked)


def _is_told(task: Task) -> bool:
    gold = (task.gold or "").strip()
    if len(gold) < 5 and len(gold.split()) < 2:
        return False
    return gold.casefold() in _question(task).casefold()


@dataclass(frozen=True, slots=True)
class Contamination:
    """Evaluated tasks that share long runs of words with training text.

    ``shares`` has for every evaluated task the share of its runs that were seen; ``copied`` are
    those with at least half of them.
    """

    shares: tuple[float, ...]
    num_documents: int

    @property
    def copied(self) -> tuple[int, ...]:
        return tuple(i for i, share in enumerate(self.shares) if share >= 0.5)


def contamination(
    documents: Iterable[str], questions: Sequence[str], *, run_words: int = RUN_WORDS
) -> Contamination:
    """Look for runs of ``run_words`` words of the questions in training documents.

    A question that is shorter than a run is looked for as a whole. One pass over the documents,
    memory by the questions alone.
    """
    wanted: dict[tuple[str, ...], list[int]] = {}
    totals: list[int] = []
    lengths: set[int] = set()
    for number, question in enumerate(questions):
        words = _WORD.findall(question.casefold())
        size = min(run_words, len(words))
        runs = {tuple(words[i : i + size]) for i in range(len(words) - size + 1)} if size else set()
        totals.append(len(runs))
        lengths.add(size)
        for run in runs:
            wanted.setdefault(run, []).append(number)
    seen: set[tuple[str, ...]] = set()
    count = 0
    for document in documents:
        count += 1
        words = _WORD.findall(document.casefold())
        for size in lengths - {0}:
            for i in range(len(words) - size + 1):
                run = tuple(words[i : i + size])
                if run in wanted:
                    seen.add(run)
    hits = [0] * len(questions)
    for run in seen:
        for number in wanted[run]:
            hits[number] += 1
    shares = tuple(h / t if t else 0.0 for h, t in zip(hits, totals, strict=True))
    return Contamination(shares, count)
