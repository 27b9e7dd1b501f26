"""On-policy distillation: the policy samples, a teacher says how likely each token would have been.

Each sampled token has the advantage log teacher - log policy, so what is minimised is the reverse
KL from policy to teacher on the policy's own texts (GKD, arXiv 2306.13649; MiniLLM, arXiv
2306.08543). No reward enters; scores are recorded because they tell whether it helps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from educe.algorithms.losses.distillation import on_policy_distillation
from educe.config.settings import DistillationSettings
from educe.core.metrics import Tally
from educe.core.types import Group
from educe.models.load import LoadedModel
from educe.rollout.packing import FloatArray, TrainingSample, trajectory_sequences
from educe.trainers.optimizers import learning_rate_at
from educe.trainers.sampling import TaskSampler, group_metrics
from educe.trainers.step import StepResult, TrainerState, fill_logprobs, optimizer_step


def distillation_samples(groups: Sequence[Group]) -> list[TrainingSample]:
    """Return all sampled tokens as samples; each weighs 1 / all sampled tokens of the batch.

    Unscored completions are as good as others: the teacher is who judges.
    """
    total = sum(t.num_completion_tokens for g in groups for t in g.trajectories)
    samples: list[TrainingSample] = []
    for number, group in enumerate(groups):
        for trajectory in group.trajectories:
            for tokens, mask, behaviour, temperature in trajectory_sequences(trajectory):
                streams = {
                    "weight": np.full(len(tokens), 1.0 / max(1, total)),
                    "behaviour_logprobs": behaviour,
                    "temperature": temperature,
                }
                samples.append(
                    TrainingSample(
                        tokens,
                        mask,
                        streams,
                        group=number,
                        sequence=len(samples),
                        loss="distillation",
                        origin=group.request.domain,
                    )
                )
    return samples


@dataclass(slots=True)
class DistillationLoop:
    """One distillation stage: sample, ask the teacher, step, publish.

    Attributes:
        publish: shows the new weights to the engine.
        floors: chance level of each domain, for the recorded scores.
    """

    state: TrainerState
    teacher: LoadedModel
    sampler: TaskSampler
    publish: Callable[[int], None]
    floors: dict[str, float]
    settings: DistillationSettings
    version: int = 0
    num_completion_tokens: int = 0

    def step(self, number: int) -> StepResult:
        """Take step ``number`` (from 0); the tally also tells the samples' scores."""
        settings = self.settings
        groups = self.sampler.sample(settings.prompts)
        samples = distillation_samples(groups)
        fill_logprobs(
            self.teacher,
            samples,
            "teacher_logprobs",
            self.state.settings.micro_batch_tokens,
            self.state.compute_dtype,
        )
        if settings.baseline == "others":
            fill_baseline(samples, settings.limit)
        loss = partial(
            on_policy_distillation, coefficient=settings.coefficient, limit=settings.limit
        )
        rate = learning_rate_at(number, settings.learning_rate, self.state.settings, settings.steps)
        result = optimizer_step(self.state, samples, {"distillation": loss}, rate)
        result.tally.merge(group_metrics(groups, self.floors))
        result.tally.merge(teacher_gap(samples))
        self.num_completion_tokens += sum(
            t.num_completion_tokens for g in groups for t in g.trajectories
        )
        self.version += 1
        self.publish(self.version)
        return result

    def progress(self) -> dict[str, Any]:
        return {
            "sampler": self.sampler.progress(),
            "version": self.version,
            "completion_tokens": self.num_completion_tokens,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.sampler.restore(saved["sampler"])
        self.version = saved["version"]
        self.num_completion_tokens = saved["completion_tokens"]


def fill_baseline(samples: Sequence[TrainingSample], limit: float) -> None:
    """Write each completion's baseline: the mean log-ratio to the teacher of all others' tokens.

    From the log-probabilities it was sampled with, counted over the whole batch before any cut.
    Sequences of one completion (turns rendered afresh) count as others of each other. A token whose
    log-ratio is unknown (NaN) is in no mean.
    """
    sums, counts = [], []
    for sample in samples:
        gap = _teacher_gaps(sample)
        sums.append(float(gap.clip(-limit, limit).sum()))
        counts.append(gap.size)
    total, number = sum(sums), sum(counts)
    for sample, own, count in zip(samples, sums, counts, strict=True):
        others = number - count
        value = (total - own) / others if others else 0.0
        sample.streams["baseline"] = np.full(len(sample.token_ids), value)


def teacher_gap(samples: Sequence[TrainingSample]) -> Tally:
    """Return the reverse KL to the teacher a sampled token, as sampled: mean log mu - log teacher.

    Overall and of each domain; the estimate that the stage is about (``teacher_kl``).
    """
    tally = Tally()
    for sample in samples:
        gap = -_teacher_gaps(sample)
        for prefix in ("", f"domain/{sample.origin}/"):
            tally.mean(f"{prefix}teacher_kl", float(gap.sum()), float(gap.size))
    return tally


def _teacher_gaps(sample: TrainingSample) -> FloatArray:
    """Return log teacher - log mu of a sample's trained tokens, as far as both are known."""
    gap = sample.streams["teacher_logprobs"] - sample.streams["behaviour_logprobs"]
    own = gap[sample.mask]
    return own[~np.isnan(own)]
