"""Two trainer ranks take the step that one takes.

Preference losses, SFT with noise, distillation, evaluation.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from educe.algorithms.preferences import PREFERENCES
from educe.cluster.launch import free_port
from educe.models.tiny import save_tiny

ROOT = Path(__file__).resolve().parents[2]

_RANK = """
import sys, torch
import numpy as np
from safetensors.torch import save_file
torch.set_num_threads(1)
from educe.algorithms.losses import cross_entropy
from educe.algorithms.preferences import PREFERENCES
from educe.config.settings import OptimizerSettings
from educe.models.load import load
from educe.parallel.collectives import ProcessGroup, SingleProcess
from educe.algorithms.losses.distillation import on_policy_distillation
from educe.trainers.distillation import distillation_samples, fill_baseline
from educe.trainers.preference import evaluate_preferences, preference_step, side_logprobs
from educe.trainers.regularise import regularised_forward
from educe.trainers.step import TrainerState, fill_logprobs, optimizer_step
from educe.trainers.supervised import evaluate_loss, supervised_samples
from tests.trainers.test_preference import cases
from tests.trainers.test_sampled import made_groups
from tests.trainers.test_supervised import items
folder, out, rank, size, port = sys.argv[1:6]
group = SingleProcess() if size == "1" else ProcessGroup(
    int(rank), int(size), "127.0.0.1", int(port))
model = load(folder, dtype="float64")
other = load(folder, dtype="float64")
with torch.no_grad():
    for _, parameter in other.trainable():
        parameter.mul_(1.01)
settings = OptimizerSettings(name="sgd", beta1=0.0, micro_batch_tokens=70, max_grad_norm=0)
before = [p.detach().clone() for _, p in model.trainable()]
found = {}

def state():
    with torch.no_grad():
        for old, (_, parameter) in zip(before, model.trainable()):
            parameter.copy_(old)
    return TrainerState.create(model, settings, 1e-3, collectives=group)

def keep(name, result):
    change = [(a - b.detach()).reshape(-1) for a, (_, b) in zip(before, model.trainable())]
    found[name] = torch.cat(change)
    values = result.tally.values()
    found[name + "/loss"] = torch.tensor([values["loss"]], dtype=torch.float64)

for name, loss in PREFERENCES.items():
    own = state()
    reference = side_logprobs(other, cases(), own) if loss.needs_reference else None
    values = evaluate_preferences(own, cases(), loss, reference).values()
    found[name + "/eval"] = torch.tensor([values["eval_loss"]], dtype=torch.float64)
    keep(name, preference_step(own, cases(), loss, reference, 1.0))
own = state()
values = evaluate_loss(own, items()).values()
found["sft/eval"] = torch.tensor([values["eval_loss"]], dtype=torch.float64)
forward = regularised_forward(label_smoothing=0.1, noise=5.0, longest=36, key=(0, 1))
keep("sft", optimizer_step(
    own, supervised_samples(items()), {"cross_entropy": cross_entropy}, 1.0, forward))
own = state()
samples = distillation_samples(made_groups())
fill_logprobs(other, samples, "teacher_logprobs", 70)
fill_baseline(samples, 20.0)
keep("distillation", optimizer_step(own, samples, {"distillation": on_policy_distillation}, 1.0))
save_file({k: v.contiguous() for k, v in found.items()}, out)
"""


def run_ranks(folder: Path, out: Path, size: int) -> list[dict[str, torch.Tensor]]:
    port = str(free_port())
    files = [out / f"{size}-{rank}.safetensors" for rank in range(size)]
    command = [sys.executable, "-c", _RANK]
    children = [
        subprocess.Popen([*command, str(folder), str(file), str(rank), str(size), port], cwd=ROOT)
        for rank, file in enumerate(files)
    ]
    assert [child.wait(timeout=600) for child in children] == [0] * size
    return [load_file(file) for file in files]


def test_two_ranks_take_one_rank_s_steps(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "m", dtype="float64", seed=3)
    (one,) = run_ranks(folder, tmp_path, 1)
    for rank in run_ranks(folder, tmp_path, 2):
        for name in [*PREFERENCES, "sft", "distillation"]:
            assert one[name].norm() > 0
            assert (rank[name] - one[name]).norm() / one[name].norm() <= 1e-9
            for part in ("loss", "eval") if name != "distillation" else ("loss",):
                both = rank[f"{name}/{part}"], one[f"{name}/{part}"]
                assert torch.allclose(*both, rtol=1e-11), (name, part)
