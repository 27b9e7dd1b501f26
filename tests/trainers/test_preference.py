"""Preference losses: closed forms written out, gradients through the model, and no cut matters."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from educe.algorithms.preferences import PREFERENCES, Preference, resolve_preference
from educe.config.settings import OptimizerSettings
from educe.core.errors import CheckpointError, RecipeError
from educe.core.types import assistant, user
from educe.domains.formats import Labelled, Pair, Written
from educe.models.load import LoadedModel, load
from educe.models.tiny import save_tiny
from educe.rollout.packing import build_pack, pack_samples
from educe.trainers.case_making import CaseMaker
from educe.trainers.feeds import LabelledSource, ListSource
from educe.trainers.preference import (
    Case,
    case_samples,
    evaluate_preferences,
    preference_credit,
    preference_metrics,
    preference_step,
    side_lengths,
    side_logprobs,
)
from educe.trainers.references import FrozenCopy, Precomputed, case_key
from educe.trainers.rendering import Rendered, render
from educe.trainers.step import TrainerState, forward_pack

POLICY = np.array([[-10.0, -14.0], [-9.0, -7.0], [-20.0, -21.0]])
REFERENCE = np.array([[-11.0, -12.0], [-9.5, -9.0], [-20.0, -20.0]])
LENGTHS = np.array([[5.0, 7.0], [3.0, 2.0], [10.0, 4.0]])
WANTED = [True, False, True]
NAMES = sorted(PREFERENCES)


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def log_odds(mean: float) -> float:
    return mean - math.log1p(-math.exp(mean))


def closed_form(loss: Preference, row: int, policy: Any = POLICY) -> float:
    """The loss of one case, written out from its paper with plain numbers."""
    c, r = policy[row]
    rc, rr = REFERENCE[row]
    h = (c - rc) - (r - rr)
    mean_c, mean_r = c / LENGTHS[row, 0], r / LENGTHS[row, 1]
    if loss.name == "dpo":
        e = loss.label_smoothing
        value = -(1 - e) * log_sigmoid(loss.beta * h) - e * log_sigmoid(-loss.beta * h)
    elif loss.name == "ipo":
        value = (h - 1 / (2 * loss.beta)) ** 2
    elif loss.name == "ipo_mean":
        h = (c - rc) / LENGTHS[row, 0] - (r - rr) / LENGTHS[row, 1]
        value = (h - 1 / (2 * loss.beta)) ** 2
    elif loss.name == "simpo":
        value = -log_sigmoid(loss.beta * (mean_c - mean_r) - loss.margin)
    elif loss.name == "orpo":
        value = -mean_c - loss.odds_weight * log_sigmoid(log_odds(mean_c) - log_odds(mean_r))
    else:
        z = max(0.0, float((POLICY[:, 1] - REFERENCE[:, 1]).mean()))
        sign = 1 if WANTED[row] else -1
        weight = loss.desirable_weight if WANTED[row] else loss.undesirable_weight
        value = weight * (1 - sigmoid(sign * loss.beta * ((c - rc) - z)))
        return value - (loss.sft_weight * mean_c if WANTED[row] else 0.0)
    return value - loss.sft_weight * mean_c


def variants() -> list[Preference]:
    changed = [
        resolve_preference("dpo", {"beta": 0.3, "label_smoothing": 0.1, "sft_weight": 0.5}),
        resolve_preference("kto", {"desirable_weight": 1.3, "undesirable_weight": 0.7}),
        resolve_preference("kto", {"beta": 0.5, "sft_weight": 0.2}),
        resolve_preference("simpo", {"beta": 2.5, "margin": 0.3, "sft_weight": 0.1}),
        resolve_preference("orpo", {"odds_weight": 0.7}),
    ]
    return [*(PREFERENCES[name] for name in NAMES), *changed]


@pytest.mark.parametrize("loss", variants(), ids=lambda p: p.formula()[:60])
def test_closed_forms_and_their_slopes(loss: Preference) -> None:
    reference = REFERENCE if loss.needs_reference else None
    credit = preference_credit(loss, POLICY, reference, LENGTHS, WANTED)
    sides = (0, 1) if loss.is_paired else (0,)
    for row in range(3):
        assert credit.losses_C[row] == pytest.approx(closed_form(loss, row))
        for side in sides:  # by difference quotients; z of KTO has no gradient
            up, down = POLICY.copy(), POLICY.copy()
            up[row, side] += 1e-6
            down[row, side] -= 1e-6
            slope = (closed_form(loss, row, up) - closed_form(loss, row, down)) / 2e-6
            assert credit.coefficients_C2[row, side] == pytest.approx(slope, abs=1e-6)
    if not loss.is_paired:
        assert not credit.coefficients_C2[:, 1].any()


def test_names_and_settings_that_do_nothing_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"preference\.loss must be one of .*'dpoo'.*mean 'dpo'"):
        resolve_preference("dpoo", {})
    with pytest.raises(RecipeError, match=r"preference\.margin does nothing in dpo.*simpo"):
        resolve_preference("dpo", {"margin": 0.5})
    with pytest.raises(RecipeError, match=r"preference\.beta does nothing in orpo"):
        resolve_preference("orpo", {"beta": 0.5})
    assert resolve_preference("dpo", {"beta": None, "desirable_weight": 1.0}) == PREFERENCES["dpo"]


# Through the model


@pytest.fixture(scope="module")
def model64(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_tiny(tmp_path_factory.mktemp("tiny64"), dtype="float64", seed=3)
    return load(str(folder), dtype="float64")


@pytest.fixture(scope="module")
def other64(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_tiny(tmp_path_factory.mktemp("other64"), dtype="float64", seed=4)
    return load(str(folder), dtype="float64")


def cases(count: int = 5, seed: int = 0) -> list[Case]:
    """Pairs with shared prompts; one side is two sequences, as a rewriting template gives."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        prompt = rng.integers(4, 260, rng.integers(4, 12))

        def side(parts: int = 1, prompt: Any = prompt) -> tuple[Rendered, ...]:
            out = []
            for _ in range(parts):
                tokens = np.concatenate([prompt, rng.integers(4, 260, rng.integers(2, 12))])
                out.append(Rendered(tokens, np.arange(len(tokens)) >= len(prompt)))
            return tuple(out)

        sides = side(2 if number == 2 else 1), side()
        found.append(Case(f"d{number % 2}", sides, is_wanted=number % 3 != 0))
    return found


def state_of(model: LoadedModel, limit: int = 10_000) -> TrainerState:
    settings = OptimizerSettings(
        name="sgd", beta1=0.0, micro_batch_tokens=limit, max_grad_norm=0, warmup_steps=0
    )
    return TrainerState.create(model, settings, 1e-3)


def logprob(model: LoadedModel, side: tuple[Rendered, ...]) -> Tensor:
    """A side's log-probability with its gradient, each sequence in a pack of its own."""
    case = Case("x", (side, side))
    parts = [forward_pack(model, build_pack([[s]])) for s in case_samples([case], (0,))]
    return torch.stack([part.logprobs_N.sum() for part in parts]).sum()


def direct_gradient(model: LoadedModel, loss: Preference, reference: Any) -> Tensor:
    """The gradient of the batch's mean loss by autograd alone, with both sides in one graph."""
    from educe.algorithms.losses.preference import dpo, ipo, kto, orpo, simpo

    total = torch.zeros((), dtype=torch.float64)
    batch = cases()
    lengths = side_lengths(batch)
    z = 0.0
    if loss.name == "kto":
        with torch.no_grad():
            gaps = [logprob(model, c.sides[1]) - reference[i, 1] for i, c in enumerate(batch)]
        z = max(0.0, float(sum(gaps)) / len(gaps))
    for row, case in enumerate(batch):
        c, r = (logprob(model, side)[None] for side in case.sides)
        mean_c, mean_r = c / lengths[row, 0], r / lengths[row, 1]
        known = [torch.tensor([x]) for x in reference[row]] if reference is not None else []
        if loss.name in ("dpo", "ipo"):
            function = dpo if loss.name == "dpo" else ipo
            value = function(c, r, *known, beta=loss.beta)
        elif loss.name == "ipo_mean":
            means = [x / lengths[row, i] for i, x in enumerate(known)]
            value = ipo(mean_c, mean_r, *means, beta=loss.beta)
        elif loss.name == "kto":
            value = kto(c, known[0], torch.tensor([case.is_wanted]), z, beta=loss.beta)
        else:
            value = (simpo if loss.name == "simpo" else orpo)(mean_c, mean_r)
        total = total + value.sum() / len(batch)
    for _, parameter in model.trainable():
        parameter.grad = None
    total.backward()
    return flat_gradient(model)


def flat_gradient(model: LoadedModel) -> Tensor:
    flat = torch.cat([p.grad.reshape(-1) for _, p in model.trainable() if p.grad is not None])
    for _, parameter in model.trainable():
        parameter.grad = None
    return flat.clone()


def step_gradient(model: LoadedModel, loss: Preference, reference: Any, limit: int) -> Tensor:
    """The gradient that the stage's step applies: the change of weights under plain SGD."""
    before = [p.detach().clone() for _, p in model.trainable()]
    preference_step(state_of(model, limit), cases(), loss, reference, 1e-3)
    change = [
        (old - new.detach()).reshape(-1) / 1e-3
        for old, (_, new) in zip(before, model.trainable(), strict=True)
    ]
    with torch.no_grad():
        for old, (_, parameter) in zip(before, model.trainable(), strict=True):
            parameter.copy_(old)
    return torch.cat(change)


@pytest.mark.parametrize("name", NAMES)
def test_the_step_has_the_loss_s_own_gradient_however_it_is_cut(
    model64: LoadedModel, other64: LoadedModel, name: str
) -> None:
    loss = PREFERENCES[name]
    reference = None
    if loss.needs_reference:
        reference = side_logprobs(other64, cases(), state_of(model64))
    direct = direct_gradient(model64, loss, reference)
    assert direct.norm() > 0
    for limit in (10_000, 60, 1):
        found = step_gradient(model64, loss, reference, limit)
        # The change of weights is rounded at the weights' own size.
        assert float((found - direct).norm() / direct.norm()) <= 1e-8


def test_a_pair_shares_its_prompt() -> None:
    (pack,) = pack_samples(case_samples(cases(1)), 10_000)
    (case,) = cases(1)
    first, second = case.sides[0][0], case.sides[1][0]
    prompt = int(np.argmax(first.mask))
    assert pack.num_tokens == len(first) + len(second) - prompt


def test_labelled_cases_are_judged_against_the_reference_point() -> None:
    loss = PREFERENCES["kto"]
    batch = [Case("a", c.sides, w) for c, w in zip(cases(3), WANTED, strict=True)]
    credit = preference_credit(loss, POLICY, REFERENCE, LENGTHS, WANTED)
    values = preference_metrics(batch, loss, credit, POLICY).values()
    # log-ratios 1, 0.5 and 0; z = max(0, mean of -2, 2 and -1) = 0: the third ties
    assert values["accuracy"] == pytest.approx(1 / 3)
    assert values["domain/a/reward_chosen"] == pytest.approx(0.1 * (1 + 0) / 2)
    assert values["reward_rejected"] == pytest.approx(0.1 * 0.5)


def test_pairs_are_ranked_by_their_reward() -> None:
    loss = PREFERENCES["dpo"]
    batch = [Case("a", c.sides) for c in cases(3)]
    credit = preference_credit(loss, POLICY, REFERENCE, LENGTHS, [True] * 3)
    values = preference_metrics(batch, loss, credit, POLICY).values()
    # h = 3, -1.5, 1: two of three pairs are ranked right
    assert values["accuracy"] == pytest.approx(2 / 3)
    assert values["margin"] == pytest.approx(0.1 * (3 - 1.5 + 1) / 3)
    assert values["reward_chosen"] == pytest.approx(0.1 * (1 + 0.5 + 0) / 3)


def test_held_out_metrics_have_their_own_names(model64: LoadedModel) -> None:
    loss = PREFERENCES["simpo"]
    values = evaluate_preferences(state_of(model64), cases(), loss, None).values()
    assert {"eval_loss", "eval_accuracy", "domain/d0/eval_margin"} <= values.keys()


# References


def test_precomputed_values_survive_an_interruption(model64: LoadedModel, tmp_path: Path) -> None:
    batch = cases(70)
    state = state_of(model64)
    expected = FrozenCopy(model64, state).logprobs(batch)
    file = tmp_path / "r.jsonl"
    done: list[int] = []

    def stop() -> None:
        if done:
            raise KeyboardInterrupt

    first = Precomputed(file)
    with pytest.raises(KeyboardInterrupt):
        first.compute(state, iter(batch), check=stop, progress=done.append)
    assert done == [32]
    with file.open("ab") as stream:
        stream.write(b'{"chunk": 1, "val')  # killed while writing
    again = Precomputed(file)
    again.compute(state, iter(batch), progress=done.append)
    assert done == [32, 64, 70]
    assert np.allclose(again.logprobs(batch), expected, rtol=0, atol=1e-10)
    assert np.array_equal(Precomputed(file).logprobs(batch), again.logprobs(batch))
    assert [json.loads(line)["chunk"] for line in file.read_text().splitlines()] == [0, 1, 2]
    with pytest.raises(CheckpointError, match="no reference value for an example of d0"):
        again.logprobs(cases(1, seed=9))


# Cases from data


WRITE = {"sky": "blue", "grass": "green", "sun": "yellow"}


def maker(chat: Any, is_paired: bool, source: Any, limit: int = 500) -> CaseMaker:
    return CaseMaker({"s": source}, lambda w: render(chat, w), is_paired, limit)


@pytest.fixture(scope="module")
def chat() -> Any:
    from educe.models.chat import ChatFormat
    from educe.models.tiny import byte_tokenizer

    return ChatFormat(byte_tokenizer())


def written(prompt: str, completion: str) -> Written:
    return Written((user(prompt),), (assistant(completion),))


def test_a_labelled_case_has_another_prompt_s_completion_as_partner(chat: Any) -> None:
    source = ListSource([Labelled(written(k, v), k != "sun") for k, v in WRITE.items()])
    made = maker(chat, False, source)
    case = made.case(("s", 0))
    assert case is not None
    assert case.is_wanted
    own, partner = case.sides[0][0], case.sides[1][0]
    assert chat.tokenizer.decode(own.token_ids[own.mask]) == "blue<|im_end|>"
    assert chat.tokenizer.decode(partner.token_ids[partner.mask]) == "green<|im_end|>"
    prompt = chat.prompt_tokens((user("sky"),))
    assert tuple(partner.token_ids[: len(prompt)]) == prompt
    last = made.case(("s", 2))
    assert last is not None
    assert not last.is_wanted


def test_pairs_serve_kto_as_two_labelled_cases(chat: Any) -> None:
    pairs = [Pair(written(k, v), written(k, "red")) for k, v in WRITE.items()]
    source = LabelledSource(ListSource(pairs))
    made = maker(chat, False, source)
    found = [made.case(("s", i)) for i in range(6)]
    assert [c.is_wanted for c in found if c] == [True, False] * 3
    for case in found:
        assert case is not None
        texts = [chat.tokenizer.decode(s[0].token_ids[s[0].mask]) for s in case.sides]
        assert texts[0] != texts[1]
    partner = found[0].sides[1][0]  # not the other half of its own pair
    assert chat.tokenizer.decode(partner.token_ids[partner.mask]) == "green<|im_end|>"


def test_the_wrong_kind_of_data_is_refused(chat: Any) -> None:
    from educe.core.errors import DomainError

    source = ListSource([Labelled(written("a", "b"), True)])
    with pytest.raises(DomainError, match="this loss learns from pairs"):
        maker(chat, True, source).case(("s", 0))


def test_different_cases_have_different_keys() -> None:
    found = {case_key(c) for c in cases(20)}
    assert len(found) == 20
    a = cases(1)[0]
    assert case_key(a) == case_key(cases(1)[0])
    assert case_key(a) != case_key(Case(a.origin, (a.sides[1], a.sides[0])))
    # The same tokens with others trained have another log-probability: loss_on may have changed.
    first = a.sides[0][0]
    masked = Rendered(first.token_ids, first.mask & (np.arange(len(first)) < len(first) - 1))
    assert case_key(a) != case_key(Case(a.origin, ((masked,), a.sides[1])))
