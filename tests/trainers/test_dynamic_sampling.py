"""Which groups make a batch: a filter on raw scores, refilled in the order of issue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from educe.algorithms.catalogue import BUNDLES
from educe.config.algorithm_settings import ShapingSettings
from educe.config.settings import DomainSettings, ReinforceSettings
from educe.core.protocols import DomainSpec
from educe.parallel.collectives import SingleProcess
from educe.scheduling.batches import BatchSize
from educe.trainers.mixing import TaskOrder
from educe.trainers.rl import ReinforceLoop
from tests.trainers.made_groups import group, trajectory


class Scripted:
    """Gives each order the next scores of a list, and hands groups over last first."""

    def __init__(self, scores):
        self.scores, self.seen = scores, []

    def run_requests(self, requests, ledger):
        made = []
        for request in requests:
            ledger.mark_running(request.request_id)
            self.seen.append(request)
            number = request.request_id
            scores = self.scores[number] if number < len(self.scores) else [1, 0]
            # The completion's length says which order it answers.
            attempts = [trajectory(s, (number + 1,)) for s in scores]
            one = group(attempts, request.domain, number)
            made.append(replace(one, request=request))
        return reversed(made)

    def publish(self, version):
        return None

    def rest(self):
        return None


class InTurn:
    def next_domain(self):
        return "d"

    def observe(self, results, seconds):
        self.results = results

    def metrics(self):
        return {}


def loop_of(scores, bundle="dapo", **settings) -> ReinforceLoop:
    domain = SimpleNamespace(spec=DomainSpec("d", "d", "text", "-"), size=lambda split: None)
    state = SimpleNamespace(collectives=SingleProcess(), value_head=None)
    return ReinforceLoop(
        state=state,
        source=Scripted(scores),
        domains={"d": domain},
        settings=ReinforceSettings(group_size=2, prompts=2, **settings),
        domain_settings={"d": DomainSettings()},
        bundles={"d": BUNDLES[bundle]},
        order=TaskOrder(InTurn(), BatchSize(2)),
        recorder=None,
        spans=None,
        folder=Path(),
        shaping=ShapingSettings(overlong=1.0),
    )


def taken(loop):
    return [
        (g.request.request_id, [t.score.value for t in g.trajectories]) for g in loop._collect(0)
    ]


def test_groups_without_a_spread_are_drawn_again_in_the_order_of_issue():
    loop = loop_of([[1, 1], [1, 0], [0, 0], [0, 1], [0, 1]])
    assert taken(loop) == [(1, [1, 0]), (3, [0, 1])]
    assert loop.ledger.dropped == {"trivial": 2}
    assert [r.index for r in loop.source.seen] == [0, 1, 2, 3]


def test_rows_keep_their_own_rewards_over_the_rounds():
    """Filtered rewards were overwritten by those of all rounds (NeMo-RL 3794)."""
    loop = loop_of([[0, 0], [0.25, 0.75], [1, 0.5]])
    for made in loop._collect(0):
        number = made.request.request_id
        assert [t.num_completion_tokens for t in made.trajectories] == [number + 1] * 2
        assert [t.score.value for t in made.trajectories] == [[], [0.25, 0.75], [1, 0.5]][number]


def test_the_filter_reads_raw_scores():
    """A length penalty gives all-wrong groups a spread, and they passed (NeMo-RL 2431); a filter
    by mean keeps half-right groups of equal scores (OpenRLHF 1270)."""
    loop = loop_of([[0, 0], [0.5, 0.5], [1, 0], [0, 1]])
    assert [number for number, _ in taken(loop)] == [2, 3]


def test_unscored_siblings_are_no_spread():
    """One scored sample has no baseline (TRL 5773)."""
    loop = loop_of([[None, 1], [None, None], [1, 0], [0, 1]])
    assert [number for number, _ in taken(loop)] == [2, 3]


def test_drawing_again_has_an_end():
    loop = loop_of([[1, 1]] * 100)
    assert taken(loop) == [] and len(loop.source.seen) == 20


def test_others_take_what_comes_unless_told():
    assert [n for n, _ in taken(loop_of([[1, 1], [0, 0]], "grpo"))] == [0, 1]
    assert [n for n, _ in taken(loop_of([[1, 1], [1, 0], [0, 1]], "grpo", drop_trivial=True))] == [
        1,
        2,
    ]
    # Where the batch or values are the baseline, equal scores say something.
    loop = loop_of([[1, 1], [0, 0]], "reinforce_plus_plus", drop_trivial=True)
    assert [n for n, _ in taken(loop)] == [0, 1]


def test_an_algorithm_with_values_needs_a_head():
    with pytest.raises(ValueError, match="d trains with values, but the state has no value head"):
        loop_of([], "ppo")
