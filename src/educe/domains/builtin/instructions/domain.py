"""Tasks that combine instructions, their demonstrations and the all-or-nothing score."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from educe.core.errors import DomainError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import draw_task
from educe.core.types import JSON, Message, Score, Split, Task, Verdict, user
from educe.domains.builtin.instructions.constraints import KINDS, Kind
from educe.domains.builtin.instructions.reading import count_word, words_of
from educe.domains.builtin.instructions.vocabulary import ANCHORS
from educe.domains.builtin.instructions.writing import Draft, ImpossibleError, write
from educe.rewards.outcome.extraction import strip_reasoning

_FORMS = (
    "Write about {topic}.",
    "Write a short note about {topic}.",
    "Write a line or two about {topic}.",
    "Tell me something about {topic}.",
    "Write a message about {topic}.",
    "Describe {topic}.",
)
_MAX_TRIES = 25
# Repeating what the request gives, its words in quotes above all, is no text about anything.
_OWN_WORDS = 2
# Rules that ask for a copy of their own wording; it does not count as copying the request.
_COPIED = frozenset({"copy-line", "end-sentence"})


@dataclass(frozen=True, slots=True)
class Level:
    """What the tasks of one domain combine.

    Attributes:
        num_constraints: instructions a task, beside its words and its limit of length.
        kinds: names to draw from.
        num_anchors: words that the text must use.
        max_words: the limit of length where no instruction sets one; it also keeps a constant text
            from holding a fair share of all words.
    """

    num_constraints: int
    kinds: tuple[str, ...]
    num_anchors: int
    max_words: int


class InstructionDomain(DomainBase):
    """Write a text that keeps all instructions; 1 only when every single one holds.

    Args:
        mode: ``strict`` judges the text as it stands; ``loose`` also accepts it without its first
            or last line (a greeting, a closing remark) or without asterisks.
    """

    def __init__(self, spec: DomainSpec, level: Level, *, mode: str = "strict") -> None:
        if mode not in {"strict", "loose"}:
            raise DomainError(f"{spec.name}: mode must be 'strict' or 'loose', got {mode!r}")
        self.spec = spec
        self._level = level
        self._mode = mode

    def task(self, split: Split, index: int) -> Task:
        return draw_task(self._candidate, self.spec.name, split, index)

    def _candidate(self, rng: random.Random) -> Task:
        while True:
            try:
                return self._draw(rng)
            except ImpossibleError:
                continue

    def _draw(self, rng: random.Random) -> Task:
        level = self._level
        anchors = rng.sample(ANCHORS, level.num_anchors)
        kinds = _compatible(rng, level)
        params = [kind.draw(rng, anchors) for kind in kinds]
        limit = None if any("length" in k.slots for k in kinds) else level.max_words
        rules: list[JSON] = [{"kind": k.name, **p} for k, p in zip(kinds, params, strict=True)]
        form = rng.choice(_FORMS).format(topic=" and ".join(f"'{a}'" for a in anchors))
        ending = "that word" if len(anchors) == 1 else "these words"
        parts = [form, f"Use {ending}."]
        if limit is not None:
            parts.append(f"Write at most {limit} words.")
        told = [(k.name, k.describe(p)) for k, p in zip(kinds, params, strict=True)]
        request = " ".join([*parts, *(text for name, text in told if name not in _COPIED)])
        metadata = {"words": anchors, "limit": limit, "rules": rules, "request": request}
        gold = _demonstrate(rng, metadata, kinds, params)
        parts += [text for _, text in told]
        return Task("", Split.TRAIN, 0, (user(" ".join(parts)),), gold, metadata)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        replies = [m for m in transcript[len(task.messages) :] if m.role == "assistant"]
        text = strip_reasoning(replies[-1].content) if replies else ""
        texts = [text] if self._mode == "strict" else list(_variants(text))
        best = max((held_parts(t, task.metadata) for t in texts), key=lambda p: sum(p.values()))
        is_right = all(best.values())
        broken = [name for name, holds in best.items() if not holds]
        return Score(
            1.0 if is_right else 0.0,
            Verdict.RIGHT if is_right else Verdict.WRONG,
            reason="" if is_right else f"broken: {', '.join(broken)}",
            parts={name: float(holds) for name, holds in best.items()},
        )


def held_parts(text: str, metadata: JSON) -> dict[str, bool]:
    """Return whether a text keeps each instruction of a task, its words and its limit.

    ``own-words``: it is no copy of the request, and two of its words at least do not stand there.
    """
    parts = {f"word:{w}": count_word(text, w) > 0 for w in metadata["words"]}
    if metadata["limit"] is not None:
        parts["limit"] = len(words_of(text)) <= metadata["limit"]
    told = [KINDS[rule["kind"]].describe(rule) for rule in metadata["rules"]]
    given = set(words_of(" ".join([metadata["request"], *told])))
    num_own = len(set(words_of(text)) - given)
    parts["own-words"] = num_own >= _OWN_WORDS and not is_copy(text, metadata["request"])
    for rule in metadata["rules"]:
        parts[rule["kind"]] = KINDS[rule["kind"]].check(text, rule)
    return parts


def is_copy(text: str, request: str) -> bool:
    """Whether over a third of a text's runs of four words stand in the request.

    Repeating the request uses its words and keeps rules such as 'no exclamation marks'; it is no
    text about anything.
    """
    runs = _runs(text)
    return bool(runs) and len(runs & _runs(request)) > len(runs) / 3


def _runs(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    return set(zip(words, words[1:], words[2:], words[3:], strict=False))


def _variants(text: str) -> Iterator[str]:
    lines = text.strip().splitlines()
    for start, end in ((0, 0), (1, 0), (0, 1), (1, 1)):
        kept = "\n".join(lines[start : len(lines) - end]).strip()
        if kept:
            yield kept
            yield kept.replace("*", "")
    yield text


def _compatible(rng: random.Random, level: Level) -> list[Kind]:
    """Draw kinds that share no slot."""
    taken: set[str] = set()
    chosen: list[Kind] = []
    for name in rng.sample(level.kinds, len(level.kinds)):
        kind = KINDS[name]
        if kind.slots & taken:
            continue
        chosen.append(kind)
        taken |= kind.slots
        if len(chosen) == level.num_constraints:
            return chosen
    raise ImpossibleError("too few kinds fit together")


def _demonstrate(
    rng: random.Random,
    metadata: dict[str, JSON],
    kinds: Sequence[Kind],
    params: Sequence[dict[str, JSON]],
) -> str:
    """Write a text and verify it; a task exists only with a text that keeps all of it."""
    for _ in range(_MAX_TRIES):
        draft = Draft(rng, list(metadata["words"]))
        if metadata["limit"] is not None:
            draft.num_words = (1, metadata["limit"])
        for kind, values in zip(kinds, params, strict=True):
            kind.shape(draft, values)
        try:
            text = write(draft)
        except ImpossibleError:
            continue
        if all(held_parts(text, metadata).values()):
            return text
    raise ImpossibleError("no text found that keeps all instructions")
