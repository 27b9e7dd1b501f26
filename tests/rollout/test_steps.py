"""Steps and turns that were judged: from characters to action tokens."""

from __future__ import annotations

from educe.core.types import Reply, Score, StopReason, TaskRequest, Trajectory, Turn
from educe.rollout.steps import judged_turns, step_scores

PIECES = {1: "ab", 2: "c", 3: "", 4: "defg", 5: "h"}


def decode(ids):
    return "".join(PIECES[i] for i in ids)


def turn(*ids):
    return Turn((9,), ids, (-1.0,) * len(ids), (0,) * len(ids), StopReason.END, 1.0)


def test_a_step_ends_with_the_token_that_writes_its_last_character():
    score = Score(1.0, steps=((2, 0.5), (3, 1.0), (6, None), (8, 0.25)))
    got = step_scores([turn(1, 2, 3, 4, 5)], score, decode)
    assert got == ((0, 0.5), (1, 1.0), (3, None), (4, 0.25))


def test_places_count_the_tokens_of_earlier_turns_too():
    score = Score(1.0, steps=((1, 0.5), (99, 1.0), (0, 0.0)))
    got = step_scores([turn(1, 2, 3), turn(2, 5)], score, decode)
    assert got == ((3, 0.5), (4, 1.0), (3, 0.0))


def test_without_steps_or_tokens_there_are_none():
    assert step_scores([turn(1)], Score(1.0), decode) == ()
    assert step_scores([], Score(1.0, steps=((1, 1.0),)), decode) == ()
    assert step_scores([turn()], Score(1.0, steps=((1, 1.0),)), decode) == ()


def test_turns_keep_their_places_where_some_were_not_judged():
    assert judged_turns([None, None]) == judged_turns([]) == ()
    got = judged_turns([None, Score(0.5)])
    assert [s.value for s in got] == [None, 0.5]


def test_what_was_judged_round_trips():
    score = Score(0.5, steps=((3, 1.0), (5, float("nan")), (7, None)))
    assert score.steps == ((3, 1.0), (5, None), (7, None))
    assert Score.from_json(score.to_json()) == score
    assert "steps" not in Score(0.5).to_json()
    reply = Reply(done=False, state={"n": 1}, score=score)
    assert Reply.from_json(reply.to_json()) == reply
    assert Reply.from_json(Reply().to_json()) == Reply()
    made = Trajectory(0, 0, (), (turn(1),), score, (Score(1.0),), None, ((0, 1.0), (0, None)))
    assert Trajectory.from_json(made.to_json()) == made
    old = {k: v for k, v in made.to_json().items() if k != "step_scores"}
    assert Trajectory.from_json(old).step_scores == ()


def test_the_last_samples_of_a_request_are_greedy():
    request = TaskRequest(0, "d", "train", 0, 3, temperature=0.8, num_greedy=1)
    assert [request.temperature_of(i) for i in range(3)] == [0.8, 0.8, 0.0]
    raw = {k: v for k, v in request.to_json().items() if k != "num_greedy"}
    assert TaskRequest.from_json({**raw, "split": "train"}).num_greedy == 0
