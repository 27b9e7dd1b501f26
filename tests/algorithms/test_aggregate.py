"""Aggregation identities: weights carry the whole mean, so no cut of the batch can change it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from educe.algorithms.aggregate import AGGREGATIONS, sequence_weights

LENGTHS = [3, 5, 1, 7, 2, 4]
PROMPTS = [0, 0, 0, 1, 1, 2]
MAX = 20


@pytest.fixture
def losses():
    rng = np.random.default_rng(0)
    return [rng.normal(size=n) for n in LENGTHS]


def total(losses, weights):
    return sum(w * x.sum() for w, x in zip(weights, losses, strict=True))


def test_token_mean(losses):
    weights = sequence_weights("token-mean", LENGTHS, PROMPTS)
    assert total(losses, weights) == pytest.approx(np.concatenate(losses).mean())


def test_mean_of_sequence_means(losses):
    weights = sequence_weights("seq-mean-token-mean", LENGTHS, PROMPTS)
    assert total(losses, weights) == pytest.approx(np.mean([x.mean() for x in losses]))


def test_sums_over_a_constant_length(losses):
    weights = sequence_weights("seq-mean-token-sum-norm", LENGTHS, PROMPTS, MAX)
    assert total(losses, weights) == pytest.approx(np.mean([x.sum() / MAX for x in losses]))


def test_mean_of_prompt_means(losses):
    weights = sequence_weights("prompt-mean", LENGTHS, PROMPTS)
    of_prompt = [
        np.concatenate([x for x, p in zip(losses, PROMPTS, strict=True) if p == prompt]).mean()
        for prompt in (0, 1, 2)
    ]
    assert total(losses, weights) == pytest.approx(np.mean(of_prompt))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_cuts_into_micro_batches_or_ranks_change_nothing(losses, aggregation, size):
    """Normalising each micro-batch by its own tokens biases gradients (prime-rl 2358, TRL 3021)."""
    weights = sequence_weights(aggregation, LENGTHS, PROMPTS, MAX)
    parts = [
        total(losses[i : i + size], weights[i : i + size]) for i in range(0, len(losses), size)
    ]
    assert sum(parts) == pytest.approx(total(losses, weights), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    aggregation=st.sampled_from(AGGREGATIONS),
    num_prompts=st.integers(1, 4),
)
def test_a_constant_loss_keeps_its_value(lengths, aggregation, num_prompts):
    prompts = [i % num_prompts for i in range(len(lengths))]
    weights = sequence_weights(aggregation, lengths, prompts, 50)
    assert np.isfinite(weights).all() and (weights >= 0).all()
    assert all(w == 0 for w, n in zip(weights, lengths, strict=True) if n == 0)
    mass = float(weights @ np.array(lengths))
    if aggregation == "seq-mean-token-sum-norm":
        used = [n for n in lengths if n]
        assert mass == pytest.approx(np.mean(used) / 50 if used else 0)
    else:
        assert mass == pytest.approx(1.0 if any(lengths) else 0.0)


def test_each_sequence_may_have_its_own_constant(losses):
    limits = [20, 20, 20, 40, 40, 10]
    weights = sequence_weights("seq-mean-token-sum-norm", LENGTHS, PROMPTS, limits)
    want = np.mean([x.sum() / limit for x, limit in zip(losses, limits, strict=True)])
    assert total(losses, weights) == pytest.approx(want)
    with pytest.raises(ValueError, match="max_length > 0"):
        sequence_weights("seq-mean-token-sum-norm", [1, 1], [0, 0], [5, 0])


def test_empty_sequences_count_nothing():
    with_empty = sequence_weights("seq-mean-token-mean", [2, 0, 4], [0, 0, 1])
    without = sequence_weights("seq-mean-token-mean", [2, 4], [0, 1])
    assert with_empty[[0, 2]] == pytest.approx(without)
    assert sequence_weights("token-mean", [], []).shape == (0,)


def test_refusals():
    with pytest.raises(ValueError, match="max_length > 0"):
        sequence_weights("seq-mean-token-sum-norm", [1], [0])
    with pytest.raises(ValueError, match="aggregation must be one of"):
        sequence_weights("mean", [1], [0])
