"""Balance of gradients, against what the formulas say on whole vectors."""

from __future__ import annotations

import numpy as np
import pytest

from educe.core.seeds import derive
from educe.scheduling.gradients import (
    AdvantageScale,
    CountSketch,
    conflict_free_weights,
    cosines,
    equal_norm_weights,
)

RNG = np.random.default_rng(0)


def test_sketches_keep_inner_products_and_add_up():
    base = RNG.normal(size=20_000)
    gradients = np.stack([base, 0.6 * base + 0.8 * RNG.normal(size=20_000), -base])
    sketch = CountSketch(20_000, 4096, seed=1)
    sketches = np.stack([sketch(g) for g in gradients])
    true = cosines(gradients)
    assert np.abs(cosines(sketches) - true).max() < 0.06
    first, second = base.copy(), base.copy()
    first[7000:], second[:7000] = 0.0, 0.0
    np.testing.assert_allclose(sketch(first) + sketch(second), sketches[0], atol=1e-9)
    assert not np.allclose(CountSketch(20_000, 4096, seed=2)(base), sketches[0])
    with pytest.raises(ValueError, match="20000 numbers was given 7000"):
        sketch(base[:7000])


def test_a_sketch_of_what_is_not_finite_is_not_finite():
    values = np.zeros(300)
    values[3], values[67] = np.inf, -np.inf
    assert not np.isfinite(CountSketch(300, 64, seed=1)(values)).all()


def test_sketches_have_no_bias_when_rows_are_alike():
    """Gradients of matrices have low rank: rows that are multiples of each other."""
    rng = np.random.default_rng(3)
    one, two = (np.outer(rng.normal(size=64), rng.normal(size=64)).ravel() for _ in range(2))
    true = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    found = []
    for seed in range(40):
        sketch = CountSketch(4096, 256, seed)
        found.append(cosines(np.stack([sketch(one), sketch(two)]))[0, 1])
    assert abs(np.mean(found) - true) < 0.03 and np.std(found) < 0.12


def test_the_matrix_tells_conflict_from_help_and_nothing():
    help_, other = RNG.normal(size=500), RNG.normal(size=500)
    matrix = cosines(np.stack([help_, 2 * help_, -help_, other, np.zeros(500)]))
    assert matrix[0, 1] == pytest.approx(1.0) and matrix[0, 2] == pytest.approx(-1.0)
    assert abs(matrix[0, 3]) < 0.2
    assert np.isnan(matrix[4]).all() and np.isnan(matrix[:, 4]).all()


def projected_sum(gradients: np.ndarray, seed: int) -> np.ndarray:
    """PCGrad on whole vectors."""
    order = sorted(range(len(gradients)), key=lambda j: derive("conflicts", seed, j))
    total = np.zeros(gradients.shape[1])
    for i, own in enumerate(gradients.copy()):
        for j in order:
            if j != i and own @ gradients[j] < 0:
                own = own - (own @ gradients[j]) / (gradients[j] @ gradients[j]) * gradients[j]
        total += own
    return total


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weights_from_the_gram_matrix_are_the_projection(seed):
    gradients = RNG.normal(size=(7, 40)) + 0.2
    weights = conflict_free_weights(gradients @ gradients.T, seed)
    np.testing.assert_allclose(weights @ gradients, projected_sum(gradients, seed), rtol=1e-9)


def test_two_conflicting_gradients_no_longer_undo_each_other():
    one, two = np.array([1.0, 0.2]), np.array([-1.0, 0.2])
    gradients = np.stack([one, two])
    total = conflict_free_weights(gradients @ gradients.T) @ gradients
    assert total @ one > 0 and total @ two > 0
    alone = np.stack([one, one])
    assert conflict_free_weights(alone @ alone.T) == pytest.approx([1.0, 1.0])
    assert conflict_free_weights(np.zeros((2, 2))) == pytest.approx([1.0, 1.0])


def test_norms_become_equal():
    norms = np.array([0.01, 1.0, 100.0, 0.0])
    weights = equal_norm_weights(norms)
    assert np.ptp((weights * norms)[:3]) < 1e-9 * (weights * norms)[0]
    assert weights[3] == 1.0 and weights[:3].mean() == pytest.approx(1.0)
    assert equal_norm_weights(norms, power=0.0) == pytest.approx([1.0] * 4)
    assert equal_norm_weights(np.zeros(2)) == pytest.approx([1.0, 1.0])


def test_advantages_of_domains_become_alike():
    scale = AdvantageScale(limit=4.0)
    for _ in range(20):
        scale.observe("loud", squares=4.0 * 8, groups=8)
        scale.observe("quiet", squares=0.25 * 8, groups=8)
        scale.observe("silent", squares=0.0, groups=8)
    factors = scale.factors()
    assert factors["loud"] * 2.0 == pytest.approx(factors["quiet"] * 0.5)
    assert "silent" not in factors
    again = AdvantageScale(limit=4.0)
    again.restore(scale.state())
    assert again.factors() == factors
    scale.observe("tiny", squares=1e-9, groups=8)
    assert scale.factors()["tiny"] == 4.0
    assert AdvantageScale().factors() == {}
