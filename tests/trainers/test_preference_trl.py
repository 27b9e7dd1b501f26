"""The same numbers through TRL's own losses, where TRL is installed (it is no dependency).

TRL's trainers are not built: their loss methods are called with a stand-in for ``self`` and a model
that returns given log-probabilities, so that only the formulas meet. Written against TRL 1.16; a
TRL that has moved them is skipped.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from educe.algorithms.preferences import PREFERENCES
from educe.trainers.preference import preference_credit
from tests.trainers.test_preference import LENGTHS, POLICY, REFERENCE, WANTED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    trl = pytest.importorskip("trl")


def same(value: Any) -> Any:
    return value


def stand_in(**attributes: Any) -> SimpleNamespace:
    accelerator = SimpleNamespace(device="cpu", gather=same, gather_for_metrics=same)
    return SimpleNamespace(
        model=SimpleNamespace(training=False),
        accelerator=accelerator,
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        label_smoothing=0.0,
        _metrics={"eval": defaultdict(list)},
        _total_train_tokens=0,
        **attributes,
    )


class Rows:
    """R sequences: a prompt of one token, then completions of given lengths, summing to a value."""

    def __init__(self, sums: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> None:
        width = int(lengths.max()) + 1
        self.mask = torch.zeros(len(sums), width, dtype=torch.long)
        self.logprobs = torch.zeros(len(sums), width - 1, dtype=torch.float64)
        for row, (value, length) in enumerate(zip(sums, lengths, strict=True)):
            self.mask[row, 1 : int(length) + 1] = 1
            self.logprobs[row, : int(length)] = float(value) / float(length)
        self.logprobs.requires_grad_()

    def model(self, **_: Any) -> SimpleNamespace:
        zeros = torch.zeros_like(self.logprobs)
        return SimpleNamespace(
            log_probs=self.logprobs, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool()
        )

    def slopes(self, loss: torch.Tensor) -> np.ndarray[Any, Any]:
        """d loss / d the sum of each row: every token of a row has the same one."""
        (gradient,) = torch.autograd.grad(loss, self.logprobs)
        first = [row[m[1:].bool()][0] for row, m in zip(gradient, self.mask, strict=True)]
        return torch.stack(first).numpy()


@pytest.mark.parametrize(("name", "kind"), [("dpo", "sigmoid"), ("ipo_mean", "ipo")])
def test_pairs_with_a_reference(name: str, kind: str) -> None:
    function = getattr(trl.DPOTrainer, "_compute_loss", None)
    if function is None:
        pytest.skip("this TRL has no DPOTrainer._compute_loss")
    loss = PREFERENCES[name]
    rows = Rows(POLICY.T.reshape(-1), LENGTHS.T.reshape(-1))
    trainer = stand_in(
        beta=loss.beta,
        loss_types=[kind],
        loss_weights=[1.0],
        ld_alpha=None,
        f_divergence_type="reverse_kl",
        use_weighting=False,
    )
    inputs = {
        "input_ids": torch.ones_like(rows.mask),
        "attention_mask": torch.ones_like(rows.mask),
        "completion_mask": rows.mask,
        "ref_chosen_logps": torch.tensor(REFERENCE[:, 0]),
        "ref_rejected_logps": torch.tensor(REFERENCE[:, 1]),
    }
    theirs = function(trainer, rows.model, inputs, False)
    own = preference_credit(loss, POLICY, REFERENCE, LENGTHS, WANTED)
    assert theirs.item() == pytest.approx(own.losses_C.mean())
    assert rows.slopes(theirs) == pytest.approx(own.coefficients_C2.T.reshape(-1) / len(POLICY))


def test_labels() -> None:
    function = getattr(trl.KTOTrainer, "_compute_loss", None)
    if function is None:
        pytest.skip("this TRL has no KTOTrainer._compute_loss")
    loss = PREFERENCES["kto"]
    rows = Rows(POLICY[:, 0], LENGTHS[:, 0])
    trainer = stand_in(
        beta=loss.beta,
        loss_type="kto",
        calculate_KL=True,
        desirable_weight=1.0,
        undesirable_weight=1.0,
        _compute_kl_logps=lambda model, batch: torch.tensor(POLICY[:, 1]),
    )
    inputs = {
        "input_ids": torch.ones_like(rows.mask),
        "attention_mask": torch.ones_like(rows.mask),
        "completion_mask": rows.mask,
        "label": torch.tensor(WANTED),
        "ref_logps": torch.tensor(REFERENCE[:, 0]),
        "ref_KL_logps": torch.tensor(REFERENCE[:, 1]),
    }
    theirs = function(trainer, rows.model, inputs, False)
    own = preference_credit(loss, POLICY, REFERENCE, LENGTHS, WANTED)
    assert theirs.item() == pytest.approx(own.losses_C.mean())
    assert rows.slopes(theirs) == pytest.approx(own.coefficients_C2[:, 0] / len(POLICY))


@pytest.mark.parametrize("name", ["simpo", "orpo"])
def test_pairs_without_a_reference(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from trl.experimental.cpo import CPOTrainer
            from trl.experimental.orpo import ORPOTrainer
        except ImportError:
            pytest.skip("this TRL has them elsewhere")
    loss = PREFERENCES[name]
    means = torch.tensor(POLICY / LENGTHS)
    own = preference_credit(loss, POLICY, None, LENGTHS, WANTED).losses_C
    if name == "simpo":
        trainer = stand_in(beta=loss.beta, loss_type="simpo", simpo_gamma=loss.margin, alpha=0.0)
        theirs = CPOTrainer.cpo_loss(trainer, means[:, 0], means[:, 1])[0]
        assert theirs.numpy() == pytest.approx(own)
    else:
        trainer = stand_in(beta=loss.odds_weight)
        ratio = ORPOTrainer.odds_ratio_loss(trainer, means[:, 0], means[:, 1])[0]
        # In fp32 there; the imitation term of ORPO is ours.
        assert (-means[:, 0] - ratio).numpy() == pytest.approx(own, rel=1e-5)
