"""Balance on the tiny model: what is measured is each domain's gradient, whatever the cut; what is
decided is done; and the step's gradient is otherwise untouched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from educe.algorithms.catalogue import BUNDLES
from educe.cluster.launch import free_port
from educe.config.balance_settings import BackOffSettings, BalanceSettings
from educe.config.settings import OptimizerSettings
from educe.core.metrics import Tally
from educe.core.protocols import DomainSpec
from educe.models.load import LoadedModel, load
from educe.models.tiny import save_tiny
from educe.scheduling.gradients import cosines
from educe.trainers.balance import Balance
from educe.trainers.batch_credit import credit_batch
from educe.trainers.credit import losses_of, training_samples
from educe.trainers.domain_gradients import GradientProbe, GradientSketcher
from educe.trainers.step import TrainerState, accumulate_gradients
from tests.trainers.made_groups import group, trajectory
from tests.trainers.test_gradients import distance, make_samples

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = {"grpo": "grpo", "cispo": "cispo", "dapo": "dapo"}
NAMES = tuple(sorted(CLUSTERS))
LOSSES = losses_of({n: BUNDLES[n] for n in NAMES})


@pytest.fixture(scope="module")
def model64(tmp_path_factory) -> LoadedModel:
    folder = save_tiny(tmp_path_factory.mktemp("tiny64"), dtype="float64", seed=3)
    return load(str(folder), dtype="float64")


def state_of(model: LoadedModel, limit: int = 10_000) -> TrainerState:
    state = TrainerState.create(model, OptimizerSettings(micro_batch_tokens=limit), 1e-3)
    state.optimizer.zero_grad(set_to_none=True)
    return state


def flat(state: TrainerState) -> torch.Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in state.trainable()]
    return torch.cat([g.reshape(-1) for g in grads]).clone()


def sketcher(model: LoadedModel, width: int = 1024, sample: int = 2**22) -> GradientSketcher:
    return GradientSketcher([p.numel() for _, p in model.trainable()], width, sample, seed=5)


def samples_of_three(groups: int = 9) -> list:
    return make_samples(["grpo", "cispo", "dapo"], groups=groups)


def test_a_probe_finds_each_domains_gradient_and_leaves_the_sum_alone(model64):
    samples = samples_of_three()
    plain = state_of(model64)
    accumulate_gradients(plain, samples, LOSSES)
    whole = flat(plain)
    halves, results = [], []
    for limit in (10_000, 60, 1):
        state = state_of(model64, limit)
        probe = GradientProbe(sketcher(model64), NAMES, CLUSTERS)
        tally = accumulate_gradients(state, samples, LOSSES, probe=probe)
        halves.append(probe.halves_R2K)
        results.append(tally.values())
        assert distance(flat(state), whole) <= 1e-9
    for other in halves[1:]:
        assert np.linalg.norm(other - halves[0]) / np.linalg.norm(halves[0]) <= 1e-9
    assert results[0].keys() == results[1].keys()
    for row, name in enumerate(NAMES):
        own = [s for s in samples if s.origin == name]
        for half in (0, 1):
            part = sorted({s.group for s in own})[half::2]
            state = state_of(model64)
            accumulate_gradients(state, [s for s in own if s.group in part], LOSSES)
            found = sketcher(model64)([p for _, p in model64.trainable()])
            difference = np.linalg.norm(halves[0][row, half] - found)
            assert difference / np.linalg.norm(found) <= 1e-9


def test_cosines_of_sketches_are_those_of_whole_gradients(model64):
    samples = samples_of_three()
    probe = GradientProbe(sketcher(model64, width=4096), NAMES, CLUSTERS)
    accumulate_gradients(state_of(model64), samples, LOSSES, probe=probe)
    whole = []
    for name in NAMES:
        state = state_of(model64)
        accumulate_gradients(state, [s for s in samples if s.origin == name], LOSSES)
        whole.append(flat(state).numpy())
    true = cosines(np.stack(whole))
    found = cosines(probe.halves_R2K.sum(1))
    assert np.abs(found - true).max() < 0.08
    # A part of the weights says the same, with a little more noise.
    probe = GradientProbe(sketcher(model64, 4096, sample=8000), NAMES, CLUSTERS)
    accumulate_gradients(state_of(model64), samples, LOSSES, probe=probe)
    assert np.abs(cosines(probe.halves_R2K.sum(1)) - true).max() < 0.25
    norms = np.linalg.norm(probe.halves_R2K.sum(1), axis=1)
    np.testing.assert_allclose(norms, np.linalg.norm(np.stack(whole), axis=1), rtol=0.35)


def test_samples_of_no_cluster_are_trained_and_not_measured(model64):
    samples = samples_of_three()
    state = state_of(model64)
    accumulate_gradients(state, samples, LOSSES)
    probe = GradientProbe(sketcher(model64), ("grpo",), {"grpo": "grpo"})
    probed = state_of(model64)
    accumulate_gradients(probed, samples, LOSSES, probe=probe)
    assert probe.halves_R2K.shape == (1, 2, 1024)
    assert distance(flat(probed), flat(state)) <= 1e-9


_RANK = """
import sys, torch
from safetensors.torch import save_file
torch.set_num_threads(1)
from educe.models.load import load
from educe.parallel.collectives import ProcessGroup, SingleProcess
from educe.trainers.domain_gradients import GradientProbe
from educe.trainers.step import accumulate_gradients
from tests.trainers.test_balance import *
folder, out, rank, size, port = sys.argv[1:6]
group = SingleProcess() if size == "1" else ProcessGroup(
    int(rank), int(size), "127.0.0.1", int(port))
model = load(folder, dtype="float64")
state = state_of(model, 70)
state.collectives = group
probe = GradientProbe(sketcher(model), NAMES, CLUSTERS)
accumulate_gradients(state, samples_of_three(), LOSSES, probe=probe)
save_file({"halves": torch.as_tensor(probe.halves_R2K), "gradient": flat(state)}, out)
"""


def test_two_ranks_measure_what_one_does(tmp_path):
    folder = save_tiny(tmp_path / "m", dtype="float64", seed=3)
    found = {}
    for size in (1, 2):
        port = str(free_port())
        files = [tmp_path / f"{size}-{rank}.safetensors" for rank in range(size)]
        children = [
            subprocess.Popen(
                [sys.executable, "-c", _RANK, str(folder), str(f), str(r), str(size), port],
                cwd=ROOT,
            )
            for r, f in enumerate(files)
        ]
        assert [child.wait(timeout=240) for child in children] == [0] * size
        found[size] = [load_file(f) for f in files]
    one = found[1][0]
    for rank in found[2]:
        for name, tensor in one.items():
            assert float((rank[name] - tensor).norm() / tensor.norm()) <= 1e-9
    assert torch.equal(found[2][0]["halves"], found[2][1]["halves"])


# What is decided


SPECS = {n: DomainSpec(n, n, "text", "") for n in ("long", "short")}
BUNDLE = dict.fromkeys(SPECS, BUNDLES["dapo"])


def balance(back_off: dict | None = None, **settings: object) -> Balance:
    made = BalanceSettings.model_validate(settings)
    return Balance.of(made, BackOffSettings.model_validate(back_off or {}), SPECS, seed=1)


def credits_of(scores: dict[str, list[float | None]], lengths: dict[str, int]) -> list:
    groups = []
    for domain, values in scores.items():
        for _ in range(2):
            made = [trajectory(s, (lengths[domain],)) for s in values]
            groups.append(group(made, domain, len(groups), limit=200))
    return credit_batch(groups, BUNDLE)


MIXED = {"long": [1.0, 0.0, 0.0, 0.0], "short": [1.0, 0.0, 0.0, 0.0]}


@pytest.mark.parametrize("by_domain", [False, True])
def test_long_answers_outvote_short_ones_unless_denominators_are_the_domains(by_domain):
    credits = credits_of(MIXED, {"long": 90, "short": 3})
    samples = training_samples(credits, BUNDLE, by_domain=by_domain)
    say = {
        d: sum(float(np.abs(s.streams["weight"][s.mask]).sum()) for s in samples if s.origin == d)
        for d in SPECS
    }
    if by_domain:
        assert say["long"] == pytest.approx(say["short"]) == pytest.approx(0.5)
    else:
        assert say["long"] > 20 * say["short"]
        assert sum(say.values()) == pytest.approx(1.0)


def test_advantages_of_all_domains_come_to_one_size():
    # The same algorithm without the division by the deviation: rewards of 10 are ten times louder.
    loud = {"long": [10.0, 0.0, 0.0, 0.0], "short": [1.0, 0.0, 0.0, 0.0]}
    bundles = dict.fromkeys(SPECS, BUNDLES["dr_grpo"])
    groups = [g.group for g in credits_of(loud, {"long": 3, "short": 3})]
    credits = credit_batch(groups, bundles)
    whole = balance(advantages="alike", advantage_limit=100.0)
    scaled = whole.scaled(credits)
    sizes = {d: [] for d in SPECS}
    for credit in scaled:
        sizes[credit.group.request.domain] += [c.value for c in credit.credits_G]
    root = {d: np.sqrt(np.mean(np.square(v))) for d, v in sizes.items()}
    assert root["long"] == pytest.approx(root["short"])
    assert [np.sign(c.value) for c in scaled[0].credits_G] == [1, -1, -1, -1]
    assert balance().scaled(credits) == credits, "own: nothing is touched"


def test_domains_without_any_signal_are_left_alone():
    flat_scores = {"long": [0.0] * 4, "short": [None] * 4}
    credits = credits_of(flat_scores, {"long": 3, "short": 3})
    whole = balance(advantages="alike")
    assert [c.advantages_G for c in whole.scaled(credits)] == [c.advantages_G for c in credits]
    assert whole.metrics() == {}


def test_factors_multiply_the_weights_of_a_domains_samples():
    whole = balance(rates="follow", rate_kl=0.05, rate_step=0.5)
    tally = Tally()
    tally.mean("domain/long/kl_k3", 0.4)
    tally.mean("domain/short/kl_k3", 0.0)
    whole.observe([tally], {"long": 0.5, "short": 0.5}, reference_kl=0.2)
    credits = credits_of(MIXED, {"long": 3, "short": 3})
    plain, weighed = (training_samples(credits, BUNDLE) for _ in range(2))
    whole.weigh(weighed)
    for before, after in zip(plain, weighed, strict=True):
        factor = np.exp(-0.5) if before.origin == "long" else 1.0
        np.testing.assert_allclose(after.streams["weight"], factor * before.streams["weight"])
    assert whole.metrics()["domain/long/rate_factor"] == pytest.approx(np.exp(-0.5))


def test_the_back_off_follows_the_kl_that_it_is_told_to():
    tally = Tally()
    tally.mean("update_k3", 0.3)
    update = balance({"kl": 0.1, "of": "update", "factor": 0.5})
    reference = balance({"kl": 0.1, "of": "reference", "factor": 0.5})
    for whole in (update, reference):
        whole.observe([tally], {}, reference_kl=0.01)
    assert (update.rate_factor, reference.rate_factor) == (0.5, 1.0)
    update.observe([], {}, reference_kl=0.0)
    assert update.rate_factor == 0.5, "nothing was updated, so nothing is known"
    assert balance().rate_factor == 1.0 and update.metrics() == {"rate_factor": 0.5}


def test_weights_in_force_are_not_measured_again():
    """Equal norms would undo themselves if what they did were not taken out of the measurement."""
    whole = balance(measure_every=1, norms=1.0, weight_limit=50.0, sketch=64)
    credits = credits_of(MIXED, {"long": 3, "short": 3})

    class Found:
        halves_R2K = np.random.default_rng(0).normal(size=(2, 2, 64))

    Found.halves_R2K[0] *= 10.0
    raw = Found.halves_R2K.copy()
    seen = []
    for _ in range(4):
        weights = np.array(list(whole.interference.weights.values()))
        Found.halves_R2K = raw * weights[:, None, None]
        matrix = whole.measured(Found, credits)
        seen.append(matrix.weights[1] / matrix.weights[0])
    assert seen == pytest.approx([seen[0]] * 4) and seen[0] == pytest.approx(10.0, rel=0.3)


def test_balance_resumes_as_json():
    def whole() -> Balance:
        return balance({"kl": 0.1}, advantages="alike", measure_every=2, rates="follow", sketch=64)

    one, two = whole(), whole()
    credits = credits_of(MIXED, {"long": 9, "short": 3})
    tally = Tally()
    tally.mean("update_k3", 0.3)
    one.scaled(credits)
    one.observe([tally], {"long": 0.1, "short": 0.3}, reference_kl=0.0)
    two.restore(json.loads(json.dumps(one.state())))
    assert one.state() == two.state() and one.metrics() == two.metrics()
    fresh = whole()
    fresh.restore({})
    assert fresh.rate_factor == 1.0
