"""What the faded means say of domains that help, conflict or have nothing to do with each other."""

from __future__ import annotations

import json

import numpy as np
import pytest

from educe.scheduling.interference import OTHERS, Interference, clusters_of

K = 400
NAMES = ("a", "b", "c", "d")


def measurement(rng: np.random.Generator, noise: float = 0.5) -> np.ndarray:
    """Halves of four clusters: a and b conflict, c helps a, d is of its own."""
    axis, other = np.zeros(K), np.zeros(K)
    axis[:100], other[100:200] = 0.1, 0.1
    true = [axis, -axis, axis, other]
    return np.stack([[t + noise * rng.normal(size=K) / K**0.5 for _ in range(2)] for t in true])


def measured(count: int = 20, **options: object) -> Interference:
    rng = np.random.default_rng(0)
    found = Interference(NAMES, **options)  # type: ignore[arg-type]
    for _ in range(count):
        found.observe(measurement(rng), np.full(4, 0.25))
    return found


def test_the_matrix_tells_conflict_from_help_and_from_nothing():
    matrix = measured().matrix()
    cosines, errors = matrix.cosines, matrix.errors
    assert cosines[0, 1] < -0.5 and cosines[0, 2] > 0.5
    assert abs(cosines[0, 3]) < 3 * errors[0, 3] + 0.02
    assert (errors[np.triu_indices(4, 1)] < 0.05).all()
    np.testing.assert_allclose(cosines, cosines.T)
    assert (np.diag(cosines) > 0.5).all(), "two halves of a domain agree"


def test_noise_alone_agrees_with_nothing_not_even_itself():
    rng = np.random.default_rng(1)
    found = Interference(NAMES, projects=True)
    for _ in range(30):
        found.observe(rng.normal(size=(4, 2, K)), np.full(4, 0.25))
    cosines = found.matrix().cosines
    assert np.abs(cosines).max() < 0.1
    weights = list(found.weights.values())
    assert max(weights) / min(weights) < 1.1


def test_what_noise_dilutes_is_corrected_for_where_the_diagonal_allows_it():
    rng = np.random.default_rng(2)
    found = Interference(NAMES)
    for _ in range(60):
        found.observe(measurement(rng, noise=2.5), np.full(4, 0.25))
    matrix = found.matrix()
    assert -0.5 < matrix.cosines[0, 1] < -0.1
    assert matrix.corrected[0, 1] < -0.75 and matrix.corrected[0, 2] > 0.75
    assert abs(matrix.corrected[0, 3]) < 0.4
    blind = Interference(NAMES)
    for _ in range(10):
        blind.observe(rng.normal(size=(4, 2, K)), np.full(4, 0.25))
    assert np.isnan(blind.matrix().corrected).sum() >= 12


def test_a_projection_sees_through_noise():
    """The weaker of two is restored as far with noise as without it."""
    rng = np.random.default_rng(4)
    strong, weak = np.zeros(K), np.zeros(K)
    strong[0], weak[0], weak[1] = 1.0, -0.3, 0.1
    weights = []
    for noise in (0.0, 0.6):
        found = Interference(("strong", "weak"), projects=True, limit=100.0, memory=100.0)
        for _ in range(80):
            halves = np.stack([[t / 2 + noise * rng.normal(size=K) / K**0.5 for _ in range(2)]
                               for t in (strong, weak)])  # fmt: skip
            found.observe(halves, np.full(2, 0.5))
        weights.append(found.weights["weak"] / found.weights["strong"])
    assert weights[0] > 1.5 and weights[1] == pytest.approx(weights[0], rel=0.35)


def test_a_single_measurement_has_no_error_and_projects_nothing():
    found = measured(1, projects=True)
    assert np.isnan(found.matrix().errors).all()
    assert list(found.weights.values()) == [1.0] * 4


def test_sizes_become_equal_for_the_same_share():
    rng = np.random.default_rng(0)
    found = Interference(("big", "small"), power=1.0, limit=100.0)
    for _ in range(5):
        halves = rng.normal(size=(2, 2, K))
        halves[0] *= 20.0
        # The big one has a quarter of the prompts: its gradient is 80 times the other's a prompt.
        found.observe(halves, np.array([0.2, 0.8]))
    weights = found.weights
    assert weights["small"] / weights["big"] == pytest.approx(80.0, rel=0.2)
    assert Interference(("big", "small"), power=1.0).weights == {"big": 1.0, "small": 1.0}


def test_weights_stay_within_their_limit():
    found = Interference(("big", "small"), power=1.0, limit=3.0)
    halves = np.ones((2, 2, K))
    halves[0] *= 1e6
    found.observe(halves, np.array([0.5, 0.5]))
    assert found.weights == {"big": pytest.approx(1 / 3), "small": pytest.approx(1.0, abs=1.0)}
    assert max(found.weights.values()) <= 3.0


def test_the_weaker_of_two_that_conflict_is_no_longer_run_over():
    strong, weak = np.zeros(K), np.zeros(K)
    strong[0], strong[1] = 1.0, 0.3
    weak[0], weak[1] = -0.2, 0.05
    found = Interference(("strong", "weak"), projects=True, limit=100.0)
    halves = np.stack([[strong / 2] * 2, [weak / 2] * 2])
    for _ in range(2):
        found.observe(halves, np.full(2, 0.5))
    weights = found.weights
    plain = strong + weak
    balanced = weights["strong"] * strong + weights["weak"] * weak
    assert plain @ weak < 0 < balanced @ weak + 1e-9
    assert balanced @ strong > 0


def test_who_takes_no_part_or_is_not_finite_changes_nothing():
    found = measured(4)
    before = found.matrix()
    halves = np.zeros((4, 2, K))
    halves[0] = np.nan
    found.observe(halves, np.array([1.0, 0.0, 0.0, 0.0]))
    after = found.matrix()
    np.testing.assert_allclose(after.cosines, before.cosines)
    np.testing.assert_allclose(after.norms, before.norms)
    assert found.num_measured == 5


def test_nobody_was_ever_measured():
    empty = Interference(NAMES, power=1.0, projects=True)
    empty.observe(np.zeros((4, 2, K)), np.zeros(4))
    told = empty.matrix().to_json()
    assert told["cosines"] == [[None] * 4] * 4 and told["weights"] == [1.0] * 4


def test_state_resumes_and_is_small():
    one = measured(6, power=0.5, projects=True)
    saved = json.loads(json.dumps(one.state()))
    two = Interference(NAMES, power=0.5, projects=True)
    two.restore(saved)
    rng = [np.random.default_rng(9) for _ in range(2)]
    for found, own in zip((one, two), rng, strict=True):
        found.observe(measurement(own), np.full(4, 0.25))
    assert one.state() == two.state()
    names = tuple(f"family-{i}" for i in range(24))
    big = Interference(names)
    big.observe(np.random.default_rng(0).normal(size=(24, 2, 64)), np.full(24, 1 / 24))
    assert len(json.dumps(big.state())) < 100_000


def test_clusters_come_and_go_at_a_resume():
    saved = measured(6, projects=True).state()
    other = Interference(("b", "a", "new"), projects=True)
    other.restore(saved)
    matrix = other.matrix()
    assert matrix.cosines[0, 1] < -0.5
    assert np.isnan(matrix.cosines[2]).all() and other.weights["new"] == 1.0
    nothing = Interference(("new",))
    nothing.restore(saved)
    assert nothing.weights == {"new": 1.0}


def test_hundreds_of_domains_are_a_few_clusters():
    families = {f"f{i % 60}/d{i}": f"f{i % 60}" for i in range(300)}
    kinds = {n: f"kind{i % 7}" for i, n in enumerate(families)}
    assert clusters_of(families, kinds, 300) == {n: n for n in families}
    assert set(clusters_of(families, kinds, 60).values()) == set(families.values())
    assert len(set(clusters_of(families, kinds, 24).values())) == 7
    few = clusters_of(families, kinds, 3)
    assert len(set(few.values())) == 3 and OTHERS in few.values()
    assert clusters_of({}, {}, 3) == {}
