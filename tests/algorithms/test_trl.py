"""Our losses against TRL's on the same tensors, where TRL is installed (it is no dependency).

TRL's loss is a method that reads attributes of its trainer; it is called here with just those.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from educe.algorithms.aggregate import sequence_weights
from educe.algorithms.catalogue import BUNDLES, resolve_bundle
from educe.algorithms.losses import Segments, build_loss

grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer")

B, T, LMAX = 4, 7, 16
LENGTHS = (7, 3, 5, 1)

# name: (our bundle, its changes; TRL's loss type, what its trainer is set to)
CASES = {
    "grpo": ("grpo", {}, "grpo", {}),
    "dr_grpo": ("dr_grpo", {}, "dr_grpo", {}),
    "dapo": ("dapo", {}, "dapo", {"epsilon_high": 0.28}),
    "gspo": (
        "gspo",
        {},
        "grpo",
        {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    ),
    "cispo": ("cispo", {}, "cispo", {"epsilon_high": 5.0}),
    "sapo": ("sapo", {}, "sapo", {}),
    "dual clip": ("grpo", {"dual_clip": 1.2}, "grpo", {"args.delta": 1.2}),
    "k3": ("grpo", {"kl_coefficient": 0.3}, "grpo", {"beta": 0.3}),
    "k3 by the ratio": (
        "grpo",
        {"kl_coefficient": 0.3, "kl_estimator": "rk3"},
        "grpo",
        {"beta": 0.3, "args.use_bias_correction_kl": True},
    ),
    "sequences left behind": (
        "grpo",
        {"sequence_drop": 0.05},
        "grpo",
        {"off_policy_mask_threshold": 0.05},
    ),
}


def tensors():
    generator = torch.Generator().manual_seed(3)

    def draw(scale):
        noise = torch.randn(B, T, generator=generator, dtype=torch.float64)
        return -1.5 + scale * noise

    policy = draw(0.4)
    return {
        "policy": policy,
        "old": policy + 0.7 * torch.randn(B, T, generator=generator, dtype=torch.float64),
        "reference": draw(0.6),
        "advantages": torch.tensor([1.2, -0.7, 0.4, -1.1], dtype=torch.float64),
        "mask": torch.arange(T)[None] < torch.tensor(LENGTHS)[:, None],
    }


def theirs(given, loss_type, changes):
    """TRL's loss, and its gradient in the policy's log-probabilities."""
    policy = given["policy"].clone().requires_grad_()
    mask = given["mask"].to(torch.float64)
    args = SimpleNamespace(
        delta=None,
        use_bias_correction_kl=False,
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=1,
    )
    owner = SimpleNamespace(
        args=args,
        accelerator=SimpleNamespace(
            gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1
        ),
        model=SimpleNamespace(training=True),
        loss_type=loss_type,
        beta=0.0,
        epsilon_low=0.2,
        epsilon_high=0.2,
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=LMAX,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *a, **k: (policy, torch.zeros_like(policy), None),
        get_off_policy_mask=grpo_trainer.GRPOTrainer.get_off_policy_mask,
    )
    for name, value in changes.items():
        target = args if name.startswith("args.") else owner
        setattr(target, name.removeprefix("args."), value)
    ids = torch.zeros(B, T, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": given["advantages"],
        "old_per_token_logps": given["old"],
        "ref_per_token_logps": given["reference"],
        "num_items_in_batch": mask.sum(),
    }
    loss = grpo_trainer.GRPOTrainer._compute_loss(owner, None, inputs)
    loss.backward()
    return loss.item(), policy.grad


def ours(given, bundle):
    mask = given["mask"]
    rows = mask.nonzero()
    policy = given["policy"].clone().requires_grad_()
    streams = {
        "advantage": given["advantages"][rows[:, 0]],
        "proximal_logprobs": given["old"][mask],
        "reference_logprobs": given["reference"][mask],
    }
    segments = Segments(rows[:, 0], B)
    out = build_loss(bundle)(policy[mask], torch.zeros(len(rows)), streams, segments)
    weights = torch.as_tensor(sequence_weights(bundle.aggregation, LENGTHS, range(B), LMAX))
    loss = (out.loss_N * weights[rows[:, 0]]).sum()
    loss.backward()
    return loss.item(), policy.grad


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_trls(name):
    bundle_name, overrides, loss_type, changes = CASES[name]
    bundle = replace(resolve_bundle(bundle_name, overrides), importance_cap=0.0)
    given = tensors()
    mine, gradient = ours(given, bundle)
    other, expected = theirs(given, loss_type, changes)
    assert mine == pytest.approx(other, rel=1e-9)
    assert torch.allclose(gradient, expected, rtol=1e-9, atol=1e-12)
    assert gradient.norm() > 0


def test_the_cases_differ():
    """Options that bind: none of the cases is plain GRPO in disguise."""
    given = tensors()
    plain, _ = ours(given, replace(BUNDLES["grpo"], importance_cap=0.0))
    for name, (bundle_name, overrides, _, _) in CASES.items():
        if name != "grpo":
            bundle = replace(resolve_bundle(bundle_name, overrides), importance_cap=0.0)
            assert abs(ours(given, bundle)[0] - plain) > 1e-6, name
