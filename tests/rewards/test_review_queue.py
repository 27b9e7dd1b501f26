"""The review's queue of records for people: nothing is lost, and what is drawn is fair."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from educe.core.errors import EduceError
from educe.core.types import user
from educe.rewards.review import (
    Reviewer,
    ReviewQueue,
    WordLayer,
    WordList,
)
from educe.rewards.review.findings import Review
from educe.rewards.review.queue import QueueReason, enqueue

WORDS = WordList(["darn", "blasted fool", "heck"])


# --- the queue ----------------------------------------------------------------------------------


def test_the_queue_keeps_versioned_records_and_reads_them_again(tmp_path: Path) -> None:
    file = tmp_path / "queue.jsonl"
    queue = ReviewQueue(file)
    first = queue.add("text one", QueueReason.AUDIT, prompt=[user("q")], propensity=0.1)
    assert queue.add("text one", QueueReason.AUDIT, prompt=[user("q")], propensity=0.1) == first
    second = queue.add("text two", QueueReason.DISAGREEMENT)
    queue.label(first, "anna", 1.0, categories=["insult"], note="clear")
    queue.label(first, "ben", 0.25)
    queue.label(first, "ben", 0.0)
    assert all(json.loads(line)["version"] == 1 for line in file.read_text().splitlines())
    again = ReviewQueue(file)
    assert set(again.items) == {first, second}
    assert [x.harm for x in again.labels(first)] == [1.0, 0.0]
    assert [i.id for i in again.contested()] == [first]
    assert [i.id for i in again.pending("carl")] == [second]
    rows = list(again.export())
    assert (
        rows[0]["harm"] == 0.5 and rows[0]["propensity"] == 0.1 and rows[0]["record_version"] == 1
    )
    assert again.audited_harm() == [1.0]
    raters, table = again.ratings()
    assert raters == ["anna", "ben"] and table == [[1.0, 0.0]]
    with pytest.raises(EduceError, match="no item"):
        queue.label("missing", "anna", 0.5)
    with pytest.raises(EduceError, match=r"\[0, 1\]"):
        queue.label(first, "anna", 2.0)


def test_a_torn_record_does_not_hide_the_others(tmp_path: Path) -> None:
    file = tmp_path / "queue.jsonl"
    ReviewQueue(file).add("whole", QueueReason.REPORTED)
    with file.open("ab") as stream:
        stream.write(b'{"version": 1, "kind": "item", "id"')
    queue = ReviewQueue(file)
    assert len(queue.items) == 1
    file.write_bytes(file.read_bytes().replace(b'"version": 1', b'"version": 9', 1))
    with pytest.raises(EduceError, match="version 9"):
        ReviewQueue(file)


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "queue.jsonl"

    def write(worker: int) -> None:
        queue = ReviewQueue(file)
        for i in range(10):
            queue.add(f"text {worker} {i}", QueueReason.REPORTED)

    threads = [threading.Thread(target=write, args=(w,)) for w in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ReviewQueue(file).items) == 80


def test_the_audit_is_a_fair_draw(tmp_path: Path) -> None:
    """Half of the texts are harmful; what layers flag is all harmful, the audit's share is not."""
    queue = ReviewQueue(tmp_path / "queue.jsonl")
    reviewer = Reviewer([WordLayer(WORDS)])
    drawn = 0
    for i in range(600):
        text = f"darn {i}" if i % 2 else f"fine {i}"
        reasons = enqueue(queue, text, reviewer.review(text), audit_rate=0.2)
        drawn += QueueReason.AUDIT in reasons
    assert 80 <= drawn <= 160
    for item in queue.items.values():
        queue.label(item.id, "anna", float(item.text.startswith("darn")))
    assert np.mean(queue.audited_harm()) == pytest.approx(0.5, abs=0.12)


def test_disagreement_and_failures_are_queued(tmp_path: Path) -> None:
    queue = ReviewQueue(tmp_path / "queue.jsonl")
    split = Review((), {"classifier": 0.9, "judge": 0.1}, {}, 0.7)
    broken = Review((), {"rules": 0.0}, {"judge": "timed out"}, 0.7)
    assert enqueue(queue, "a", split, audit_rate=0.0) == [QueueReason.DISAGREEMENT]
    assert enqueue(queue, "b", broken, audit_rate=0.0) == [QueueReason.FAILED]
    assert enqueue(queue, "c", Review((), {"rules": 1.0}, {}, 0.7), audit_rate=0.0) == []
