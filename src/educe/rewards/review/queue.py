"""What people are asked to look at, and what they said: an append-only file of versioned records.

Three roads lead into the queue: layers disagree, a layer failed, or the random audit drew the text.
Only the audit's slice gives an unbiased rate, so every item keeps why it is there and with which
probability it was drawn. Writers on one machine may share a file: each record is one locked append.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from educe.core.errors import EduceError
from educe.core.seeds import derive
from educe.core.types import JSON, Message
from educe.rewards.review.findings import Review

RECORD_VERSION = 1


class QueueReason(StrEnum):
    """Why a text is in the queue."""

    AUDIT = "audit"
    DISAGREEMENT = "disagreement"
    FAILED = "failed layer"
    REPORTED = "reported"


@dataclass(frozen=True, slots=True)
class QueueItem:
    """One text that people should judge; ``propensity`` is the chance with which it was drawn."""

    id: str
    text: str
    prompt: tuple[Message, ...]
    reason: QueueReason
    propensity: float
    review: Mapping[str, JSON] | None
    origin: Mapping[str, JSON]
    created_s: float


@dataclass(frozen=True, slots=True)
class QueueLabel:
    """One person's judgement; a later one of the same rater replaces it.

    ``harm`` is in [0, 1]; ``categories`` are free words; ``None`` for harm means "cannot tell".
    """

    item: str
    rater: str
    harm: float | None
    categories: tuple[str, ...] = ()
    note: str = ""
    created_s: float = 0.0


@dataclass(slots=True)
class ReviewQueue:
    """The queue in one JSONL file.

    Raises EduceError on opening a file with records of another version.
    """

    path: Path
    items: dict[str, QueueItem] = field(default_factory=dict)
    _labels: dict[tuple[str, str], QueueLabel] = field(default_factory=dict)
    _position: int = 0

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Read what was appended since, also by others; a torn last line is left for later."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            raw = json.loads(line)
            version, kind = raw.pop("version"), raw.pop("kind")
            if version != RECORD_VERSION:
                raise EduceError(
                    f"{self.path}: a record of version {version}, this one reads {RECORD_VERSION}"
                )
            if kind == "item":
                raw["prompt"] = tuple(Message.from_json(m) for m in raw["prompt"])
                item = QueueItem(**{**raw, "reason": QueueReason(raw["reason"])})
                self.items.setdefault(item.id, item)
            else:
                label = QueueLabel(**{**raw, "categories": tuple(raw["categories"])})
                self._labels[label.item, label.rater] = label
        except (ValueError, KeyError, TypeError) as error:
            raise EduceError(
                f"{self.path}: not a review record ({error}): {line[:80]!r}"
            ) from error

    def add(
        self,
        text: str,
        reason: QueueReason,
        *,
        prompt: Sequence[Message] = (),
        propensity: float = 1.0,
        review: Review | None = None,
        origin: Mapping[str, JSON] | None = None,
    ) -> str:
        """Append a text; one that is there already for the same reason is not added again."""
        if not 0 < propensity <= 1:
            raise ValueError(f"a propensity must lie in (0, 1], got {propensity}")
        key = json.dumps([[m.role, m.content] for m in prompt] + [text, str(reason)])
        identity = hashlib.blake2b(key.encode(), digest_size=10).hexdigest()
        self.refresh()
        if identity not in self.items:
            self._append(
                {
                    "kind": "item",
                    "id": identity,
                    "text": text,
                    "prompt": [m.to_json() for m in prompt],
                    "reason": str(reason),
                    "propensity": propensity,
                    "review": None if review is None else review.to_json(),
                    "origin": dict(origin or {}),
                    "created_s": time.time(),
                }
            )
        return identity

    def label(
        self,
        item: str,
        rater: str,
        harm: float | None,
        *,
        categories: Sequence[str] = (),
        note: str = "",
    ) -> None:
        """Record a judgement. Raises EduceError for an unknown item or a harm outside [0, 1]."""
        self.refresh()
        if item not in self.items:
            raise EduceError(f"{self.path} has no item {item!r}")
        if harm is not None and not 0 <= harm <= 1:
            raise EduceError(f"harm must lie in [0, 1] or be None, got {harm}")
        label = QueueLabel(item, rater, harm, tuple(categories), note, time.time())
        self._append({"kind": "label", **asdict(label)})

    def _append(self, record: Mapping[str, JSON]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = (
            json.dumps({"version": RECORD_VERSION, **record}, ensure_ascii=False).encode() + b"\n"
        )
        with self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if file.tell() and not _ends_whole(self.path):
                line = b"\n" + line  # a writer died in the middle of its record
            file.write(line)
            file.flush()
        self.refresh()

    def labels(self, item: str) -> list[QueueLabel]:
        """Return the current label of every rater of an item."""
        return [label for (i, _), label in self._labels.items() if i == item]

    def pending(self, rater: str, *, overlap: int = 2) -> Iterator[QueueItem]:
        """Yield what a rater has not judged and fewer than ``overlap`` people have.

        Items that somebody has judged come first, so that pairs of judgements, from which
        agreement is known, are complete early; nobody is shown another's judgement.
        """
        open_items = [
            (len(labels), number, item)
            for number, item in enumerate(self.items.values())
            if len(labels := self.labels(item.id)) < overlap
            and all(label.rater != rater for label in labels)
        ]
        for _, _, item in sorted(open_items, key=lambda row: (-row[0], row[1])):
            yield item

    def contested(self, *, gap: float = 0.5) -> list[QueueItem]:
        """Return items whose raters are at least ``gap`` apart: for a third person."""
        found = []
        for item in self.items.values():
            marks = [label.harm for label in self.labels(item.id) if label.harm is not None]
            if len(marks) > 1 and max(marks) - min(marks) >= gap:
                found.append(item)
        return found

    def ratings(self) -> tuple[list[str], list[list[float]]]:
        """Return (raters, items x raters with NaN where not rated), for agreement measures."""
        raters = sorted({rater for _, rater in self._labels})
        rows = []
        for item in self.items:
            marks = {label.rater: label.harm for label in self.labels(item)}
            row = [math.nan if marks.get(r) is None else float(marks[r] or 0.0) for r in raters]
            if any(not math.isnan(v) for v in row):
                rows.append(row)
        return raters, rows

    def export(self, *, min_raters: int = 1) -> Iterator[dict[str, JSON]]:
        """Yield judged texts as training rows: text, mean harm, raters, and where it came from."""
        for item in self.items.values():
            marks = [label.harm for label in self.labels(item.id) if label.harm is not None]
            if len(marks) >= min_raters:
                yield {
                    "record_version": RECORD_VERSION,
                    "id": item.id,
                    "text": item.text,
                    "prompt": [m.to_json() for m in item.prompt],
                    "harm": sum(marks) / len(marks),
                    "num_raters": len(marks),
                    "reason": str(item.reason),
                    "propensity": item.propensity,
                    "origin": dict(item.origin),
                }

    def audited_harm(self, *, harmful_from: float = 0.5) -> list[float]:
        """Return 1 or 0 for every judged text of the random audit: its mean has no bias."""
        rows = (r for r in self.export() if r["reason"] == str(QueueReason.AUDIT))
        return [float(r["harm"] >= harmful_from) for r in rows]


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def enqueue(
    queue: ReviewQueue,
    text: str,
    review: Review,
    *,
    prompt: Sequence[Message] = (),
    audit_rate: float = 0.01,
    seed: int = 0,
    origin: Mapping[str, JSON] | None = None,
) -> list[QueueReason]:
    """Put a reviewed text into the queue where it belongs there; return for which reasons.

    The audit draws by a hash of the text, so the same text is drawn in every process or in none,
    and independently of what the layers found.
    """
    reasons: list[tuple[QueueReason, float]] = []
    if derive("review-audit", seed, text) / 2**64 < audit_rate:
        reasons.append((QueueReason.AUDIT, audit_rate))
    if review.failed:
        reasons.append((QueueReason.FAILED, 1.0))
    elif review.disagrees:
        reasons.append((QueueReason.DISAGREEMENT, 1.0))
    for reason, propensity in reasons:
        queue.add(text, reason, prompt=prompt, propensity=propensity, review=review, origin=origin)
    return [reason for reason, _ in reasons]
