"""Nothing is lost, nothing trained twice, nothing out of turn; a resume changes none of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from orders import request

from educe.core.errors import CheckpointError
from educe.core.types import Split
from educe.rollout.ledger import (
    Ledger,
    LedgerError,
    Standing,
    place_in_epoch,
    staleness_capacity,
)


def resumed(ledger: Ledger) -> Ledger:
    return Ledger.from_state(json.loads(json.dumps(ledger.state())))


def scored(ledger: Ledger, count: int) -> list[int]:
    ids = []
    for _ in range(count):
        order = request(ledger.next_request_id)
        ledger.issue(order)
        ledger.mark_running(order.request_id)
        ledger.mark_scored(order.request_id)
        ids.append(order.request_id)
    return ids


def test_an_order_goes_its_way_and_is_counted() -> None:
    ledger = Ledger()
    scored(ledger, 3)
    ledger.mark_trained([0], step=0)
    ledger.mark_dropped([1], "trivial")
    assert ledger.counters() == {
        "ledger/issued": 0,
        "ledger/running": 0,
        "ledger/scored": 1,
        "ledger/trained": 1,
        "ledger/dropped": 1,
        "ledger/total": 3,
        "ledger/reissued": 0,
        "ledger/dropped_trivial": 1,
        "domain/d/trained": 1,
        "domain/d/dropped": 1,
    }
    assert ledger.next_index("d") == 3
    assert ledger.next_index("d", Split.EVAL) == ledger.next_index("e") == 0


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda x: x.mark_trained([0], step=0), "order 0 is closed and cannot become trained"),
        (lambda x: x.mark_trained([2], step=0), "while order 1 is still open"),
        (lambda x: x.mark_trained([1, 1], step=0), "comes twice"),
        (lambda x: x.mark_trained([1, 3], step=0), "order 3 is running and cannot become trained"),
        (lambda x: x.mark_trained([1], step=-2), "step -2 was trained after step -1"),
        (lambda x: x.mark_trained([9], step=0), "order 9 was never issued"),
        (lambda x: x.mark_dropped([1, 0], "stale"), "order 0 is closed"),
        (lambda x: x.mark_scored(2), "order 2 is scored and cannot become scored"),
        (lambda x: x.mark_running(3), "order 3 is running"),
        (lambda x: x.issue(request(9)), "order 9 was issued, expected id 4"),
    ],
)
def test_what_would_break_the_books_is_refused_whole(
    act: Callable[[Ledger], None], text: str
) -> None:
    ledger = Ledger()
    scored(ledger, 3)
    ledger.mark_dropped([0], "stale")
    ledger.issue(request(3))
    ledger.mark_running(3)
    before = ledger.state()
    with pytest.raises(LedgerError, match=text):
        act(ledger)
    assert ledger.state() == before


def test_a_state_that_does_not_add_up_is_refused() -> None:
    ledger = Ledger()
    scored(ledger, 2)
    with pytest.raises(CheckpointError, match="format 99, expected 1"):
        Ledger.from_state({**ledger.state(), "format": 99})
    with pytest.raises(CheckpointError, match="2 orders were issued, but 1 are open"):
        Ledger.from_state({**ledger.state(), "open": ledger.state()["open"][:1]})


def test_the_state_stays_small() -> None:
    ledger = Ledger()
    for step in range(300):
        ledger.mark_trained(scored(ledger, 4), step=step)
    assert len(json.dumps(ledger.state())) < 300


# Resume at an epoch's end, with the bound, and after drops


def test_resume_at_an_epochs_end_goes_on_training() -> None:
    size, batch = 4, 2
    ledger = Ledger()
    trained: list[tuple[int, int]] = []

    def train_until(epochs: int) -> None:
        while place_in_epoch(ledger.next_index("d"), size)[0] < epochs:
            places = [place_in_epoch(ledger.next_index("d") + i, size) for i in range(batch)]
            ledger.mark_trained(scored(ledger, batch), step=len(trained) // batch)
            trained.extend(places)

    train_until(1)
    ledger = resumed(ledger)
    assert place_in_epoch(ledger.next_index("d"), size) == (1, 0)
    train_until(2)
    assert trained == [(epoch, place) for epoch in range(2) for place in range(size)]


def test_the_staleness_bound_survives_a_resume() -> None:
    bound, batch = 2, 3
    ledger = Ledger()
    for step in range(60):  # the version is the step: one publish a batch
        room = ledger.capacity(
            version=step, max_staleness=bound, batch_size=batch, max_running=1000
        )
        scored(ledger, room)
        num_open = len(ledger.open_requests())
        assert num_open == (bound + 1) * batch, "full, and no fuller"
        # The last batch of the day was smaller: fewer trained than version * batch.
        take = batch if step % 10 else batch - 1
        ledger.mark_trained([r.request_id for r in ledger.open_requests()[:take]], step=step)
        if step == 50:
            ledger = resumed(ledger)


def test_dropped_orders_do_not_come_back_on_resume() -> None:
    ledger = Ledger()
    trained: list[int] = []
    for step in range(20):
        batch = scored(ledger, 5)
        ledger.mark_dropped(batch[4:], "stale")
        ledger.mark_trained(batch[:4], step=step)
        trained += batch[:4]
        if step % 6 == 5:
            cursor = ledger.next_index("d")
            ledger = resumed(ledger)
            assert ledger.next_index("d") == cursor
            assert ledger.recover() == []
    assert len(set(trained)) == len(trained) == 80
    assert ledger.dropped == {"stale": 20}
    assert ledger.next_index("d") == 100


def test_recover_returns_what_must_run_again_in_order() -> None:
    ledger = Ledger()
    scored(ledger, 3)
    for request_id in (3, 4):
        ledger.issue(request(request_id))
    ledger.mark_running(3)
    again = resumed(ledger).recover(kept=[1])
    assert [r.request_id for r in again] == [0, 2, 3, 4]
    ledger.mark_lost(4)
    assert ledger.num_reissued == 0, "what never ran was not lost"


# AReaL's capacity formula


@pytest.mark.parametrize(
    ("version", "max_staleness", "num_running", "num_accepted", "expected"),
    [
        (0, 0, 0, 0, 8),  # the first batch
        (0, 0, 8, 0, 0),  # synchronous: nothing beyond it
        (0, 0, 0, 8, 0),  # not before the version moves
        (1, 0, 0, 8, 8),
        (0, 2, 10, 4, 6),  # by running: 16 - 10
        (0, 2, 2, 16, 6),  # by staleness: 24 - 18
        (5, 1, 0, 60, -4),  # over the bound: negative, nothing may start
    ],
)
def test_capacity_is_the_published_formula(
    version: int, max_staleness: int, num_running: int, num_accepted: int, expected: int
) -> None:
    assert expected == staleness_capacity(
        version=version,
        max_staleness=max_staleness,
        batch_size=8,
        max_running=16,
        num_running=num_running,
        num_accepted=num_accepted,
    )


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_places_cover_every_epoch_once(position: int, size: int) -> None:
    epoch, place = place_in_epoch(position, size)
    assert epoch * size + place == position
    assert 0 <= place < size
    assert place_in_epoch(position, None) == (0, position)


# Any history at all


class Histories(RuleBasedStateMachine):
    """Random lives of orders, with restarts from the state at any moment, against a plain model."""

    seen: ClassVar[Counter[str]] = Counter()  # what the histories came to, over all of them

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger()
        self.model: dict[int, str] = {}
        self.trained: list[int] = []
        self.step = 0

    def _ids(self, *standings: str) -> list[int]:
        return [i for i, s in self.model.items() if s in standings]

    @rule(count=st.integers(1, 4), domain=st.sampled_from("de"))
    def issue(self, count: int, domain: str) -> None:
        for _ in range(count):
            order = request(self.ledger.next_request_id, domain)
            self.ledger.issue(order)
            self.model[order.request_id] = "issued"

    @precondition(lambda self: self._ids("issued"))
    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self._ids("issued")))
        self.ledger.mark_running(chosen)
        self.model[chosen] = "running"

    @precondition(lambda self: self._ids("running", "issued"))
    @rule(data=st.data())
    def score(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self._ids("running", "issued")))
        self.ledger.mark_scored(chosen)
        self.model[chosen] = "scored"

    @precondition(lambda self: self._ids("running", "issued"))
    @rule()
    def score_all(self) -> None:
        """A batch is seldom complete by single scores alone."""
        for order in self._ids("running", "issued"):
            self.ledger.mark_scored(order)
            self.model[order] = "scored"

    @precondition(lambda self: self._ids("issued", "running", "scored"))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self._ids("issued", "running", "scored")))
        self.ledger.mark_dropped([chosen], "stale")
        self.model[chosen] = "dropped"
        self.seen["dropped"] += 1

    @rule(count=st.integers(1, 4))
    def train(self, count: int) -> None:
        due = [i for i, s in self.model.items() if s not in ("trained", "dropped")][:count]
        if not due:
            return
        if all(self.model[i] == "scored" for i in due):
            self.ledger.mark_trained(due, step=self.step)
            self.trained += due
            self.model |= dict.fromkeys(due, "trained")
            self.seen["trained"] += 1
            self.step += 1
        else:
            with pytest.raises(LedgerError):
                self.ledger.mark_trained(due, step=self.step)
            self.seen["refused"] += 1

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        state = self.ledger.state()
        self.ledger = resumed(self.ledger)
        assert self.ledger.state() == state
        in_buffer = self._ids("scored")
        kept = [i for i in in_buffer if data.draw(st.booleans())]
        again = [r.request_id for r in self.ledger.recover(kept)]
        for lost in self._ids("running", "scored"):
            if lost not in kept:
                self.model[lost] = "issued"
                self.seen["lost"] += 1
        self.seen["restarted"] += 1
        assert again == self._ids("issued")

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "ledger"):
            return
        self.ledger.check()
        for standing in Standing:
            assert self.ledger.count(standing) == len(self._ids(str(standing)))
        assert self.trained == sorted(set(self.trained)), "in order of issue, each once"
        assert [r.request_id for r in self.ledger.open_requests()] == self._ids(
            "issued", "running", "scored"
        )


def test_any_history_keeps_the_books() -> None:
    """The assertions are in ``Histories``; here, that the histories came to what they are for."""
    Histories.seen.clear()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Histories, settings=settings(max_examples=25, stateful_step_count=30, deadline=None)
    )
    assert all(Histories.seen[k] for k in ("trained", "refused", "dropped", "lost", "restarted")), (
        Histories.seen
    )
