"""The base model at its best prompt: lenient readings take nothing from the rollouts' pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from educe.baseline import LenientSession, best_reading, readings
from educe.core.protocols import DomainSpec
from educe.core.types import (
    Group,
    Message,
    Score,
    Split,
    StopReason,
    Task,
    TaskRequest,
    Trajectory,
    Turn,
    user,
)


class Pool:
    """Scores the message "7" as right; keeps what it was asked."""

    def __init__(self) -> None:
        self.queue = []

    def submit_score(self, key, task, state, transcript):
        self.queue.append((key, Score.graded(float(transcript[-1].content == "7"), "graded")))

    def poll(self, timeout_s=0.0):
        done, self.queue = self.queue, []
        return done


@dataclass
class Spoken:
    """A session with one group, and outcomes in its own pool that somebody else waits for."""

    scoring: Pool
    domains: ClassVar = {"d": type("D", (), {"spec": DomainSpec("d", "d", "text", "A domain.")})()}

    def run_requests(self, requests):
        for request in requests:
            task = Task("d", Split.EVAL, request.index, (user("3 + 4?"),))
            turn = Turn((1,), (2,), (0.0,), (0,), StopReason.END, 0.0)
            said = (*task.messages, Message("assistant", "Let me see.\nThe answer is 7"))
            trajectory = Trajectory(0, 0, said, (turn,), Score.graded(0.0, "strict"))
            yield Group(request, task, (trajectory,))


def test_readings_are_scored_in_a_pool_of_their_own():
    own, readers = Pool(), Pool()
    own.submit_score("somebody-else", None, None, [user("7")])
    session = LenientSession(Spoken(own), readers)
    request = TaskRequest(0, "d", Split.EVAL, 0, num_samples=1)
    (group,) = session.run_requests([request])
    assert group.trajectories[0].score.value == 1.0
    assert group.trajectories[0].score.reason.startswith("lenient reading")
    assert [key for key, _ in own.queue] == ["somebody-else"]


def test_sampling_goes_on_while_readings_are_scored():
    """A group whose readings take long holds up neither the sampler nor a later group's rows."""

    class Slow(Pool):
        def poll(self, timeout_s=0.0):
            return super().poll() if timeout_s else []

    inner, readers = Spoken(Pool()), Slow()
    sampled = []

    class Watched:
        domains = inner.domains

        def run_requests(self, requests):
            for group in inner.run_requests(requests):
                sampled.append(group.request.request_id)
                yield group

    requests = [TaskRequest(i, "d", Split.EVAL, i, num_samples=1) for i in range(3)]
    groups = []
    for group in LenientSession(Watched(), readers).run_requests(requests):
        assert sampled == [0, 1, 2]
        groups.append(group)
    assert [g.request.request_id for g in groups] == [0, 1, 2]
    assert all(g.trajectories[0].score.value == 1.0 for g in groups)


def test_readings_find_labelled_and_quoted_answers():
    assert "7" in readings("We add.\nThe answer is 7")
    assert "42" in readings("so x = 42")
    assert "blue" in readings("It must be **blue**, I think")
    assert len(readings("\n".join(f"a{i} = {i}" for i in range(99)))) <= 16


def test_one_answer_is_read_by_itself():
    (group,) = Spoken(Pool()).run_requests([TaskRequest(0, "d", Split.EVAL, 0, num_samples=1)])
    readers = Pool()
    found = best_reading(readers, group.task, group.trajectories[0])
    assert found.value == 1.0 and found.reason == "lenient reading: graded"
    assert readers.queue == []


def test_the_board_reads_with_real_scorers():
    """What `educe forgetting` opens for real: a recipe's domains in workers of their own."""
    from educe.cli.forgetting import _readers
    from educe.config.loader import recipe_from_values
    from educe.domains.registry import load_domain

    name = "arithmetic/add/tiny"
    task = load_domain(name).task(Split.EVAL, 0)
    turn = Turn((1,), (2,), (0.0,), (0,), StopReason.END, 0.0)
    strict = Score.wrong("not so")
    said = (*task.messages, Message("assistant", f"So **{task.gold}** it is, as 1 of 2 know."))
    with _readers(recipe_from_values({"domains": {name: {}}}).recipe) as read:
        assert read is not None
        found = read(task, Trajectory(0, 0, said, (turn,), strict))
        assert found.value == 1.0, found
        assert read(task, Trajectory(0, 0, said, (turn, turn), strict)) is strict
