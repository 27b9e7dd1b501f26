"""What was recorded is found again, whatever killed the process that recorded it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hostile_domains import task_that
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from educe.config.settings import DomainSettings
from educe.core.types import JSON, Message, Score, Task, assistant
from educe.rollout.inline_scoring import InlineScoring
from educe.rollout.journal import Journal, JournalError, JournalledScoring
from educe.rollout.outcomes import Outcome

KEYS = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.jsonl"


def contents(path: Path) -> dict[str, str]:
    with Journal(path) as journal:
        return {k: repr((e.step, e.text)) for k, e in journal._entries.items()}


def test_records_are_found_by_the_next_run(path: Path) -> None:
    with Journal(path) as journal:
        journal.record("a", {"x": [1, None, 0.1]}, step=3)
        assert journal.lookup("b") is None
    with Journal(path) as journal:
        entry = journal.lookup("a")
        assert entry is not None
        assert (entry.value, entry.step) == ({"x": [1, None, 0.1]}, 3)
        assert "a" in journal
        assert "b" not in journal


def test_a_looked_up_value_is_a_copy(path: Path) -> None:
    with Journal(path) as journal:
        journal.record("a", [1], step=0)
        journal.lookup("a").value.append(2)  # type: ignore[union-attr]
        assert journal.lookup("a").value == [1]  # type: ignore[union-attr]


def test_the_same_value_twice_is_fine_another_is_an_error(path: Path) -> None:
    with Journal(path) as journal:
        journal.record("a", float("nan"), step=1)
        size = path.stat().st_size
        journal.record("a", float("nan"), step=2)
        assert path.stat().st_size == size
        with pytest.raises(JournalError, match=r"'a' was recorded as NaN at step 1.*now 0.5"):
            journal.record("a", 0.5, step=2)
        with pytest.raises(ValueError, match="no JSON"):
            journal.record("b", {1, 2}, step=2)
        assert len(journal) == 1


def test_once_computes_in_the_first_run_only(path: Path) -> None:
    with Journal(path) as journal:
        assert journal.once("cost", lambda: (1, 2), step=0) == [1, 2]
    with Journal(path) as journal:
        assert journal.once("cost", lambda: pytest.fail("computed again"), step=0) == [1, 2]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, st.tuples(VALUES, st.integers(0, 9)), max_size=6), st.data())
def test_any_cut_keeps_a_prefix_and_the_rest_can_be_recorded_again(
    tmp_path: Path, records: dict[str, tuple[JSON, int]], data: st.DataObject
) -> None:
    path = tmp_path / "cut.jsonl"
    path.unlink(missing_ok=True)
    with Journal(path) as journal:
        for key, (value, step) in records.items():
            journal.record(key, value, step=step)
    whole = contents(path)
    cut = data.draw(st.integers(0, path.stat().st_size))
    torn = data.draw(st.sampled_from([b"", b"\x00\x00", b'{"key":"k","step":1', b"junk\n\n"]))
    path.write_bytes(path.read_bytes()[:cut] + torn)
    kept = contents(path)
    assert list(kept.items()) == list(whole.items())[: len(kept)]
    with Journal(path) as journal:
        for key, (value, step) in records.items():
            journal.record(key, value, step=step)
    assert contents(path) == whole


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["record", "before", "after", "reopen"]), st.integers(0, 5)),
        max_size=25,
    )
)
def test_truncation_keeps_exactly_the_steps_it_names(
    tmp_path: Path, actions: list[tuple[str, int]]
) -> None:
    path = tmp_path / "steps.jsonl"
    path.unlink(missing_ok=True)
    model: dict[str, int] = {}
    journal = Journal(path)
    for number, (action, step) in enumerate(actions):
        match action:
            case "record":
                journal.record(f"k{number}", step, step=step)
                model[f"k{number}"] = step
            case "before":
                journal.truncate_before(step)
                model = {k: s for k, s in model.items() if s >= step}
            case "after":
                journal.truncate_after(step)
                model = {k: s for k, s in model.items() if s <= step}
            case _:
                journal.close()
                journal = Journal(path)
        found = {k: journal.lookup(k).value for k in journal._entries}  # type: ignore[union-attr]
        assert found == model
    journal.close()
    assert len(path.read_text().splitlines()) == len(model)


def test_damage_in_the_middle_is_named_by_line(path: Path) -> None:
    with Journal(path) as journal:
        for key in "abc":
            journal.record(key, key, step=0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"key":"b","st\n' + lines[2])
    with pytest.raises(JournalError, match=r"journal.jsonl:2: this line is damaged"):
        Journal(path)
    path.write_bytes(b"".join(lines) + lines[0].replace(b'"value":"a"', b'"value":"z"'))
    with pytest.raises(JournalError, match=r"journal.jsonl:4: 'a' appears with two values"):
        Journal(path)


def test_a_full_disk_leaves_no_half_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def disk_full(fd: int, data: bytes) -> int:
        if len(data) > 5:
            return real(fd, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(path) as journal:
        journal.record("a", 1, step=0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", disk_full)
            with pytest.raises(OSError, match="No space"):
                journal.record("b", 1, step=0)
        assert "b" not in journal
        journal.record("c", 1, step=0)
    assert list(contents(path)) == ["a", "c"]


WRITER = """
import sys
from pathlib import Path
from educe.rollout.journal import Journal
journal = Journal(Path(sys.argv[1]))
start = len(journal)
for number in range(start, 10**9):
    journal.record(f"k{number}", {"text": "x" * (number % 5000)}, step=number // 100)
    if number % 250 == 249:
        journal.sync()
        journal.truncate_before(0)
    print(number, flush=True)
"""


def test_kill_9_loses_nothing_that_was_recorded(path: Path) -> None:
    expected = 0
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) >= expected + 300:
                break
        with pytest.raises(JournalError, match="in use by another process"):
            Journal(path)
        writer.send_signal(signal.SIGKILL)
        reported = [int(line) for line in writer.stdout.read().split("\n")[:-1] if line]
        writer.wait()
        writer.stdout.close()
        last = max([expected + 300, *reported])
        with Journal(path) as journal:
            assert all(f"k{n}" in journal for n in range(last + 1))
            expected = len(journal)
    assert expected > 600


# JournalledScoring


class CountingScoring(InlineScoring):
    """Counts what really reached the scorer."""

    def __init__(self) -> None:
        super().__init__({"hostile": DomainSettings(function="hostile_domains:make")})
        self.submitted: list[Any] = []

    def submit_score(
        self, key: Any, task: Task, state: JSON, transcript: Sequence[Message]
    ) -> None:
        self.submitted.append(key)
        super().submit_score(key, task, state, transcript)


def run_scoring(path: Path, completions: dict[str, str]) -> tuple[dict[Any, Outcome], list[Any]]:
    inner = CountingScoring()
    with Journal(path) as journal:
        scoring = JournalledScoring(inner, journal, step=7)
        for key, completion in completions.items():
            scoring.submit_score(key, task_that("judge"), None, (assistant(completion),))
        found: dict[Any, Outcome] = {}
        while scoring.num_pending:
            found.update(scoring.poll())
        scoring.close()
        assert len(found) == len(completions)
    return found, inner.submitted


def test_scores_are_replayed_and_new_texts_scored_anew(path: Path) -> None:
    first, submitted = run_scoring(path, {"0/0": "gold", "0/1": "no"})
    assert submitted == ["0/0", "0/1"]
    again, submitted = run_scoring(path, {"0/0": "gold", "0/1": "no", "0/2": "gold"})
    assert submitted == ["0/2"]
    assert {k: again[k] for k in first} == first
    other, submitted = run_scoring(path, {"0/0": "another text"})
    assert submitted == ["0/0"], "a stranger's score must not be replayed"
    assert other["0/0"].value == 0.0  # type: ignore[union-attr]
    with Journal(path) as journal:
        assert {e.step for e in journal._entries.values()} == {7}


def test_replies_failures_and_unscored_replay_too(path: Path) -> None:
    found: list[list[tuple[Any, Outcome]]] = []
    for _ in range(2):
        with Journal(path) as journal:
            scoring = JournalledScoring(CountingScoring(), journal)
            for index, do in enumerate(["raise", "float", "judge"]):
                task = task_that(do, index)
                scoring.submit_score(f"s{index}", task, None, task.messages)
                scoring.submit_respond(f"r{index}", task, {"n": 1}, task.messages)
            found.append(sorted(scoring.poll()))
    assert found[0] == found[1]
    assert len(found[1]) == 6


def test_a_key_is_pending_once(path: Path) -> None:
    with Journal(path) as journal:
        scoring = JournalledScoring(CountingScoring(), journal)
        task = task_that("judge")
        scoring.submit_score("k", task, None, task.messages)
        with pytest.raises(ValueError, match="pending"):
            scoring.submit_score("k", task, None, task.messages)
        assert scoring.poll() == [("k", Score.wrong())]


def test_a_cancelled_job_is_neither_returned_nor_recorded(path: Path) -> None:
    task = task_that("judge")
    run_scoring(path, {"old": "gold"})
    with Journal(path) as journal:
        scoring = JournalledScoring(CountingScoring(), journal)
        scoring.submit_score("old", task, None, (assistant("gold"),))
        scoring.submit_score("new", task, None, (assistant("gold"),))
        scoring.cancel("old")
        scoring.cancel("new")
        scoring.cancel("unknown")
        assert scoring.num_pending == 0
        assert scoring.poll() == []
        assert len(journal) == 1
