"""Best of N: which of a prompt's scored samples are worth imitating, which make a pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from educe.core.types import Group, Trajectory
from educe.domains.sampled_pairs import best_against_worst
from educe.trainers.preference import Case
from educe.trainers.rendering import Side, render_trajectory
from educe.trainers.supervised import Item


def kept_trajectories(group: Group, *, keep: int, min_score: float) -> list[Trajectory]:
    """Return the best scored completions of a prompt, at most ``keep`` different ones.

    Of equal scores the shorter completion comes first, then the one sampled first. Completions cut
    by the token limit are left out: they never showed an end. (Best of N: RAFT, Dong et al. 2023,
    arXiv 2304.06767; keeping what is right: RFT, Yuan et al. 2023, arXiv 2308.01825.)
    """
    scored = [
        t
        for t in group.trajectories
        if t.score.value is not None and t.score.value >= min_score and not t.is_truncated
    ]
    scored.sort(key=lambda t: (-_value(t), t.num_completion_tokens))
    distinct = {_text(t): t for t in reversed(scored)}
    order = [t for t in scored if distinct[_text(t)] is t]
    return order[:keep]


def kept_items(groups: Iterable[Group], *, keep: int, min_score: float) -> dict[str, list[Item]]:
    """Return what is kept of each domain, in the very tokens that were sampled."""
    found: dict[str, list[Item]] = defaultdict(list)
    for group in groups:
        for trajectory in kept_trajectories(group, keep=keep, min_score=min_score):
            side = render_trajectory(trajectory)
            if side:
                found[group.request.domain].append(Item(group.request.domain, side))
    return dict(found)


def mined_cases(groups: Iterable[Group], *, min_gap: float, limit: int) -> dict[str, list[Case]]:
    """Return pairs of each domain: better against worse samples of one prompt, as sampled."""
    found: dict[str, list[Case]] = defaultdict(list)
    for group in groups:
        scored = [
            (_value(t), _text(t), render_trajectory(t))
            for t in group.trajectories
            if t.score.value is not None and t.turns
        ]
        for better, worse, _ in best_against_worst(scored, min_gap=min_gap, limit=limit):
            found[group.request.domain].append(Case(group.request.domain, (better, worse)))
    return dict(found)


def labelled_cases(cases: Iterable[Case]) -> list[Case]:
    """Return each pair as two labelled cases; their second sides are to be filled in."""
    empty: Side = ()
    out = []
    for case in cases:
        out.append(Case(case.origin, (case.sides[0], empty), is_wanted=True))
        out.append(Case(case.origin, (case.sides[1], empty), is_wanted=False))
    return out


def _value(trajectory: Trajectory) -> float:
    value = trajectory.score.value
    return float("-inf") if value is None else value


def _text(trajectory: Trajectory) -> str:
    return "\x1f".join(m.content for m in trajectory.messages)
