"""Groups are consumed in the order of issue, fresh enough, each once, across restarts."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import group, request

from educe.core.errors import CheckpointError
from educe.core.types import Group
from educe.rollout.buffer import GroupBuffer, oldest_version, staleness
from educe.rollout.ledger import Ledger, LedgerError


def issued(ledger: Ledger, count: int) -> list[int]:
    ids = list(range(ledger.next_request_id, ledger.next_request_id + count))
    for request_id in ids:
        ledger.issue(request(request_id))
    return ids


def ids_of(batch: tuple[Group, ...] | None) -> list[int] | None:
    return None if batch is None else [g.request.request_id for g in batch]


def resumed(buffer: GroupBuffer) -> tuple[GroupBuffer, list[int]]:
    """Through JSON text, as a checkpoint does; returns what must be run again too."""
    state = json.loads(json.dumps([buffer.ledger.state(), buffer.state()]))
    again = GroupBuffer(
        Ledger.from_state(state[0]),
        batch_size=buffer.batch_size,
        max_staleness=buffer.max_staleness,
    )
    return again, [r.request_id for r in again.load_state(state[1])]


def test_arrival_order_does_not_matter() -> None:
    buffer = GroupBuffer(Ledger(), batch_size=2)
    issued(buffer.ledger, 4)
    for late_first in (3, 1, 2):
        buffer.add(group(request(late_first)))
        assert buffer.next_batch(0) is None
    buffer.add(group(request(0)))
    first = buffer.next_batch(0)
    assert ids_of(first) == [0, 1]
    assert buffer.next_batch(0) == first, "asking is not taking"
    assert first is not None
    buffer.mark_trained(first, step=0)
    assert ids_of(buffer.next_batch(0)) == [2, 3]


def test_a_second_copy_is_counted_and_never_trained() -> None:
    buffer = GroupBuffer(Ledger(), batch_size=1)
    issued(buffer.ledger, 1)
    assert buffer.add(group(request(0)))
    assert not buffer.add(group(request(0)))
    batch = buffer.next_batch(0)
    assert batch is not None
    buffer.mark_trained(batch, step=0)
    assert not buffer.add(group(request(0))), "after training, too"
    assert buffer.num_duplicates == 2
    assert len(buffer) == 0


def test_foreign_and_incomplete_groups_are_refused() -> None:
    buffer = GroupBuffer(Ledger(), batch_size=1)
    with pytest.raises(LedgerError, match="order 5 was never issued"):
        buffer.add(group(request(5)))
    issued(buffer.ledger, 1)
    short = group(request(0))
    with pytest.raises(LedgerError, match=r"wants samples 0 to 1 in order, the group has \[0\]"):
        buffer.add(Group(short.request, short.task, short.trajectories[:1]))
    with pytest.raises(ValueError, match="batch_size"):
        GroupBuffer(Ledger(), batch_size=0)


def test_stale_groups_are_dropped_and_counted() -> None:
    buffer = GroupBuffer(Ledger(), batch_size=2, max_staleness=1)
    issued(buffer.ledger, 3)
    for request_id, version in enumerate([3, 5, 4]):
        buffer.add(group(request(request_id), version))
    assert ids_of(buffer.next_batch(5)) == [1, 2]
    assert [(g.request.request_id, why) for g, why in buffer.take_dropped()] == [(0, "stale")]
    assert buffer.take_dropped() == []
    assert buffer.ledger.dropped == {"stale": 1}


def test_staleness_is_that_of_the_oldest_token() -> None:
    mixed = group(request(0), 7)
    assert (oldest_version(mixed), staleness(mixed, 9)) == (7, 2)
    empty = Group(mixed.request, mixed.task, ())
    assert (oldest_version(empty), staleness(empty, 9)) == (None, 0)


def test_trivial_groups_can_be_left_out_of_the_batch_size() -> None:
    def trivial(found: Group) -> str:
        return "trivial" if len({s.value for s in found.scores}) == 1 else ""

    buffer = GroupBuffer(Ledger(), batch_size=2, reject=trivial)
    issued(buffer.ledger, 4)
    for request_id in range(4):
        values = (1.0, 1.0) if request_id in (0, 2) else (0.0, 1.0)
        buffer.add(group(request(request_id), values=values))
    assert ids_of(buffer.next_batch(0)) == [1, 3]
    assert buffer.ledger.dropped == {"trivial": 2}


def test_the_last_batch_may_be_smaller_but_not_empty() -> None:
    buffer = GroupBuffer(Ledger(), batch_size=4)
    assert buffer.next_batch(0, is_last=True) is None
    issued(buffer.ledger, 2)
    buffer.add(group(request(0)))
    assert buffer.next_batch(0, is_last=True) is None
    buffer.add(group(request(1)))
    assert buffer.next_batch(0) is None
    assert ids_of(buffer.next_batch(0, is_last=True)) == [0, 1]


def test_a_restart_between_batch_and_training_loses_nothing() -> None:
    buffer = GroupBuffer(Ledger(), batch_size=2, max_staleness=1)
    issued(buffer.ledger, 4)
    for request_id in (0, 1, 3):
        buffer.add(group(request(request_id)))
    batch = buffer.next_batch(0)
    again, to_run = resumed(buffer)
    assert to_run == [2]
    assert again.next_batch(0) == batch
    assert again.state() == buffer.state()


def test_states_of_different_checkpoints_do_not_mix() -> None:
    buffer = GroupBuffer(Ledger(), batch_size=1)
    issued(buffer.ledger, 1)
    buffer.add(group(request(0)))
    with pytest.raises(CheckpointError, match="not open in the ledger"):
        GroupBuffer(Ledger(), batch_size=1).load_state(buffer.state())
    with pytest.raises(CheckpointError, match="format None"):
        buffer.load_state({})


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 12),
    st.integers(0, 2**32),
    st.sets(st.integers(0, 60)),
)
def test_the_bound_holds_by_construction_for_any_arrival_and_any_restart(
    batch_size: int, bound: int, max_running: int, seed: int, restarts: set[int]
) -> None:
    """An asynchronous loop in miniature: groups start at the version that issued them at best."""
    chance = random.Random(seed)
    buffer = GroupBuffer(Ledger(), batch_size=batch_size, max_staleness=bound)
    version, trained = 0, []
    running: dict[int, int] = {}  # order: version that its first token was sampled with
    for tick in range(60):
        room = buffer.capacity(version, max_running)
        assert room <= max_running - len(running)
        for request_id in issued(buffer.ledger, room):
            buffer.ledger.mark_running(request_id)
            running[request_id] = version
        if running and chance.random() < 0.8:
            done = chance.choice(list(running))
            buffer.add(group(request(done), running.pop(done)))
        if tick in restarts:
            buffer, to_run = resumed(buffer)
            assert to_run == sorted(running)
            running = dict.fromkeys(to_run, version)
            for request_id in to_run:
                buffer.ledger.mark_running(request_id)
        while (batch := buffer.next_batch(version)) is not None:
            assert len(batch) == batch_size
            assert all(staleness(g, version) <= bound for g in batch)
            buffer.mark_trained(batch, step=version)
            trained += [g.request.request_id for g in batch]
            version += 1
    assert trained == list(range(len(trained))), "in order of issue, none missing, none twice"
    assert buffer.ledger.dropped == {}, "nothing ever had to be dropped as stale"
