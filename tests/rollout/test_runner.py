"""The runner: groups in order, several turns, failures unscored, early stop leaves nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from educe.core.protocols import DomainBase, DomainSpec
from educe.core.types import (
    Fault,
    Message,
    Reply,
    Score,
    Split,
    StopReason,
    Task,
    TaskRequest,
    user,
)
from educe.engines.embedded import EmbeddedEngine
from educe.models.chat import ChatFormat
from educe.models.load import LoadedModel, load
from educe.rollout.outcomes import ReplyFailure
from educe.rollout.packing import trajectory_sequences
from educe.rollout.runner import RolloutRunner


class Echo(DomainBase):
    """Three turns; the environment repeats the length of what was said."""

    spec = DomainSpec("echo", "echo", "text", "Talk.", max_turns=3, has_gold=False)

    def task(self, split, index):
        return Task("echo", split, index, (user(f"say {index}"),))

    def initial_state(self, task):
        return 0


class InstantScoring:
    """Answers at once, in reverse order of submission; scripted failures by turn."""

    def __init__(self, fail_turn: int = -1) -> None:
        self.queue = []
        self.fail_turn = fail_turn
        self.cancelled = []

    def submit_score(self, key, task, state, transcript):
        self.queue.append((key, Score.graded(0.5, f"{len(transcript)} messages")))

    def submit_respond(self, key, task, state, transcript):
        if state == self.fail_turn:
            self.queue.append((key, ReplyFailure(Fault.GRADER, "broken")))
            return
        said = Message("tool", f"{len(transcript[-1].content)} characters")
        self.queue.append((key, Reply((said,), done=False, state=state + 1)))

    def poll(self, timeout_s=0.0):
        done, self.queue = self.queue[::-1], []
        return done

    def cancel(self, key):
        self.cancelled.append(key)
        self.queue = [q for q in self.queue if q[0] != key]

    @property
    def num_pending(self):
        return len(self.queue)

    def close(self):
        pass


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> LoadedModel:
    return load(str(tiny_folder))


def make_runner(model: LoadedModel, scoring=None, **options) -> RolloutRunner:
    chat = ChatFormat(model.tokenizer)
    engine = EmbeddedEngine(
        model, stop_token_ids=chat.stop_token_ids, decode=chat.decode, max_rows=6, exact=True
    )
    settings = {"seed": 1, "context_length": 512, **options}
    return RolloutRunner(engine, chat, {"echo": Echo()}, scoring or InstantScoring(), **settings)


def requests(count: int, **options) -> list[TaskRequest]:
    fields = {"num_samples": 3, "max_completion_tokens": 400, "max_turns": 3, **options}
    return [TaskRequest(i, "echo", Split.TRAIN, i, **fields) for i in range(count)]


def test_groups_come_in_order_with_all_their_samples(model):
    groups = list(make_runner(model).run_requests(requests(5, max_completion_tokens=5)))
    assert [g.request.request_id for g in groups] == [0, 1, 2, 3, 4]
    assert all([t.sample_index for t in g.trajectories] == [0, 1, 2] for g in groups)
    texts = {t.messages[-1].content for g in groups for t in g.trajectories}
    assert len(texts) > 5, "samples differ"


def test_turns_continue_the_sampled_ids(model):
    (group,) = make_runner(model).run_requests(requests(1))
    several = [t for t in group.trajectories if len(t.turns) > 1]
    assert several, "the tiny model ends some turns"
    for trajectory in several:
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            known = (*before.context_token_ids, *before.completion_token_ids)
            assert after.context_token_ids[: len(known)] == known
        (sequence,) = trajectory_sequences(trajectory)
        tokens, mask, logprobs, _ = sequence
        sampled = [x for t in trajectory.turns for x in t.completion_token_ids]
        assert tokens[mask].tolist() == sampled
        behaviour = [x for t in trajectory.turns for x in t.behaviour_logprobs]
        assert np.allclose(logprobs[mask], behaviour)
        assert [m.role for m in trajectory.messages[:4]] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]


def test_a_truncated_turn_ends_the_attempt(model):
    (group,) = make_runner(model).run_requests(requests(1, max_completion_tokens=2))
    for trajectory in group.trajectories:
        if trajectory.turns[-1].stop_reason is StopReason.LENGTH:
            assert trajectory.is_truncated
            assert trajectory.score.value == 0.5


def test_a_broken_environment_is_unscored_never_zero(model):
    scoring = InstantScoring(fail_turn=0)
    (group,) = make_runner(model, scoring).run_requests(requests(1))
    failed = [t for t in group.trajectories if t.score.fault is Fault.GRADER]
    assert failed
    assert all(t.score.value is None and "broken" in t.score.reason for t in failed)


def test_a_prompt_beyond_the_context_is_unscored(model):
    runner = make_runner(model, context_length=10)
    (group,) = runner.run_requests(requests(1))
    assert all(
        t.score.value is None and "limit is 10" in t.score.reason for t in group.trajectories
    )


def test_the_order_of_other_requests_changes_no_text(model):
    def texts(groups):
        return {
            (g.request.request_id, t.sample_index): t.messages
            for g in groups
            for t in g.trajectories
        }

    forward = texts(make_runner(model).run_requests(requests(4, max_completion_tokens=8)))
    backward = texts(make_runner(model).run_requests(requests(4, max_completion_tokens=8)[::-1]))
    assert forward == backward


def test_stopping_early_leaves_the_engine_at_rest(model):
    scoring = InstantScoring()
    runner = make_runner(model, scoring)
    for _ in runner.run_requests(requests(6)):
        break
    assert runner.engine.num_unfinished == 0
    assert not runner.engine._runner.store.num_segments
    runner.engine.publish(1)


def test_a_raised_check_stops_the_loop(model):
    calls = []

    def check():
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt

    runner = make_runner(model, check=check)
    with pytest.raises(KeyboardInterrupt):
        list(runner.run_requests(requests(2)))
    assert runner.engine.num_unfinished == 0


def test_outcomes_taken_by_somebody_else_are_not_waited_for(model):
    class Robbed(InstantScoring):
        def poll(self, timeout_s=0.0):
            self.queue.clear()
            return []

    runner = make_runner(model, Robbed())
    with pytest.raises(RuntimeError, match="wait for a completion or a score"):
        list(runner.run_requests(requests(2, max_completion_tokens=5)))


class JudgingScoring(InstantScoring):
    """Judges every second turn, and two steps of the last completion."""

    def submit_respond(self, key, task, state, transcript):
        judged = Score(float(state)) if state % 2 == 0 else None
        self.queue.append((key, Reply((user("on"),), done=False, state=state + 1, score=judged)))

    def submit_score(self, key, task, state, transcript):
        steps = ((1, 0.25), (len(transcript[-1].content), 0.75))
        self.queue.append((key, Score(0.5, steps=steps)))


def test_judged_turns_and_steps_are_kept_with_their_places(model):
    (group,) = make_runner(model, JudgingScoring()).run_requests(requests(1))
    assert any(len(t.turns) > 1 for t in group.trajectories)
    for trajectory in group.trajectories:
        told = [s.value for s in trajectory.turn_scores]
        assert told == [0.0, None][: len(trajectory.turns) - 1]
        last = len(trajectory.turns[-1].completion_token_ids)
        before = trajectory.num_completion_tokens - last
        (first, _), (end, value) = trajectory.step_scores
        assert before <= first <= end < trajectory.num_completion_tokens and value == 0.75


def test_the_last_samples_are_greedy_where_the_order_says_so(model):
    order = requests(2, num_samples=3, num_greedy=2, max_completion_tokens=5)
    for group in make_runner(model).run_requests(order):
        sampled, *greedy = group.trajectories
        assert [t.turns[0].temperature for t in group.trajectories] == [1.0, 0.0, 0.0]
        ids = [t.turns[0].completion_token_ids for t in (sampled, *greedy)]
        assert ids[1] == ids[2] != ids[0]


class SlowForOne(InstantScoring):
    """Answers for all domains at once but for ``slow``, which waits until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.held = []
        self.is_held = True

    def submit_score(self, key, task, state, transcript):
        if task.domain == "slow":
            self.held.append((key, Score.graded(0.5, "at last")))
        else:
            super().submit_score(key, task, state, transcript)

    def poll(self, timeout_s=0.0):
        done = super().poll()
        if not done and not self.is_held:
            done, self.held = self.held, []
        return done

    @property
    def num_pending(self):
        return len(self.queue) + len(self.held)


def test_a_slow_scorer_holds_up_its_own_domain_only(model):
    """As many trajectories as may be open wait for the slow scorer; all others are done before."""

    class Named(Echo):
        def __init__(self, name: str) -> None:
            self.spec = DomainSpec(name, name, "text", "Talk.", has_gold=False)

        def task(self, split, index):
            return Task(self.spec.name, split, index, (user(f"say {index}"),))

    scoring = SlowForOne()
    runner = make_runner(model, scoring, max_open=4)
    runner.domains = {name: Named(name) for name in ("slow", "quick")}
    fields = {"num_samples": 2, "max_completion_tokens": 3, "max_turns": 1}
    names = ["slow"] * 6 + ["quick"] * 6
    orders = [TaskRequest(i, name, Split.TRAIN, i, **fields) for i, name in enumerate(names)]
    finished = []
    end = runner._finish

    def note(attempt, score):
        finished.append(attempt.request.domain)
        scoring.is_held = finished.count("quick") < 12
        end(attempt, score)

    runner._finish = note
    groups = list(runner.run_requests(orders))
    assert finished == ["quick"] * 12 + ["slow"] * 12
    assert [g.request.request_id for g in groups] == list(range(12))


class GroupScoring(InstantScoring):
    """Scores by what stands in the state; keeps the states."""

    def __init__(self, fail_turn: int = -1) -> None:
        super().__init__(fail_turn)
        self.states = {}

    def submit_score(self, key, task, state, transcript):
        self.states[key] = state
        mine = [message.to_json() for message in transcript]
        is_own = state["group"][state["index"]] == mine
        self.queue.append((key, Score(float(is_own) / len(state["group"]))))


class Compared(Echo):
    spec = replace(Echo.spec, scores_groups=True)


def test_a_domain_that_scores_groups_sees_all_completions(model):
    scoring = GroupScoring()
    runner = make_runner(model, scoring)
    runner.domains = {"echo": Compared()}
    groups = list(runner.run_requests(requests(3)))
    assert len(scoring.states) == 9
    for group in groups:
        assert [t.score.value for t in group.trajectories] == [1.0 / 3] * 3
        states = [scoring.states[f"{group.request.request_id}/{i}#score"] for i in range(3)]
        assert [state["index"] for state in states] == [0, 1, 2]
        assert states[0]["group"] == states[1]["group"] == states[2]["group"]
        turns = [len(t.turns) for t in group.trajectories]
        assert [state["own"] for state in states] == [t.state for t in group.trajectories]
        assert [t.state for t in group.trajectories] == [min(n, 3) - 1 for n in turns]
    assert any(len({len(t.turns) for t in g.trajectories}) > 1 for g in groups), "not at one time"


def test_a_sibling_that_failed_is_not_waited_for(model):
    scoring = GroupScoring(fail_turn=0)  # who is answered at all fails
    runner = make_runner(model, scoring)
    runner.domains = {"echo": Compared()}
    trajectories = [t for g in runner.run_requests(requests(4)) for t in g.trajectories]
    failed = [t for t in trajectories if t.score.value is None]
    assert failed and len(failed) < len(trajectories)
    assert len(scoring.states) == len(trajectories) - len(failed)
    assert all(
        t.score.value is not None for t in trajectories if len(t.turns) != 1 or t.is_truncated
    )


def test_a_caller_that_leaves_early_leaves_no_parked_completion(model):
    runner = make_runner(model, GroupScoring())
    runner.domains = {"echo": Compared()}
    for _ in runner.run_requests(requests(4)):
        break
    assert not runner._attempts and not runner.engine.num_unfinished
    assert len(list(runner.run_requests(requests(1)))) == 1
