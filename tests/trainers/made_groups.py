"""Groups made by hand: scores, lengths, turns with observations between, judged turns and steps."""

from __future__ import annotations

from collections.abc import Sequence

from educe.core.types import (
    Fault,
    Group,
    Message,
    Score,
    Split,
    StopReason,
    Task,
    TaskRequest,
    Trajectory,
    Turn,
)

PROMPT = (7, 8, 9)


def turn(length, context=PROMPT, stop=StopReason.END, temperature=1.0, first=20):
    ids = tuple(range(first, first + length))
    return Turn(context, ids, (-1.0,) * length, (0,) * length, stop, temperature)


def turns_of(lengths: Sequence[int], observation: int = 3) -> tuple[Turn, ...]:
    """Turns of these lengths, each followed by an observation of ``observation`` tokens."""
    made: list[Turn] = []
    context = PROMPT
    for number, length in enumerate(lengths):
        made.append(turn(length, context, first=20 + 40 * number))
        context = (*context, *made[-1].completion_token_ids, *range(200, 200 + observation))
    return tuple(made)


def trajectory(
    score, lengths=(2,), *, index=0, parts=None, turn_scores=(), steps=(), truncated=False, gap=3
):
    judged = (
        Score.unscored(Fault.GRADER, "lost")
        if score is None
        else Score(float(score), parts=parts or {})
    )
    turns = turns_of(lengths, gap)
    if truncated:
        last = turn(lengths[-1], turns[-1].context_token_ids, StopReason.LENGTH)
        turns = (*turns[:-1], last)
    return Trajectory(
        0,
        index,
        (Message("user", "?"),),
        turns,
        judged,
        turn_scores=tuple(Score(s) for s in turn_scores),
        step_scores=tuple(steps),
    )


def group(attempts, domain="d", number=0, *, greedy=None, limit=128, max_turns=1):
    """A group of trajectories (or plain scores); ``greedy`` adds a greedy baseline at the end."""
    made = [a if isinstance(a, Trajectory) else trajectory(a) for a in attempts]
    if greedy is not None:
        made.append(greedy if isinstance(greedy, Trajectory) else trajectory(greedy))
    placed = [
        Trajectory(number, i, t.messages, t.turns, t.score, t.turn_scores, t.state, t.step_scores)
        for i, t in enumerate(made)
    ]
    request = TaskRequest(
        number,
        domain,
        Split.TRAIN,
        number,
        len(placed),
        max_completion_tokens=limit,
        max_turns=max_turns,
        num_greedy=int(greedy is not None),
    )
    task = Task(domain, Split.TRAIN, number, (Message("user", "?"),))
    return Group(request, task, tuple(placed))
