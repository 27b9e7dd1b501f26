"""What sampled groups become: kept completions, pairs, distillation samples; and the harvest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from educe.algorithms.losses.distillation import on_policy_distillation
from educe.config.settings import DomainSettings, OptimizerSettings
from educe.core.errors import CheckpointError
from educe.core.types import (
    Fault,
    Group,
    Score,
    Split,
    StopReason,
    Task,
    TaskRequest,
    Trajectory,
    Turn,
    assistant,
    user,
)
from educe.models.load import LoadedModel, load
from educe.models.tiny import save_tiny
from educe.parallel.collectives import SingleProcess
from educe.rollout.ledger import Ledger
from educe.scheduling.mixture import StaticMixture
from educe.trainers.distillation import distillation_samples, fill_baseline, teacher_gap
from educe.trainers.rejection import kept_items, kept_trajectories, labelled_cases, mined_cases
from educe.trainers.sampling import SamplingPlan, TaskSampler, group_metrics, harvest
from educe.trainers.step import TrainerState, accumulate_gradients, fill_logprobs
from tests.trainers.letters import Letters

PROMPT = (5, 6, 7, 8)


def trajectory(
    number: int,
    text: str,
    value: float | None,
    *,
    length: int = 0,
    stop: StopReason = StopReason.END,
) -> Trajectory:
    """An attempt whose completion has a token for each letter (or ``length`` ones)."""
    tokens = tuple(range(20, 20 + (length or len(text))))
    turn = Turn(PROMPT, tokens, (-2.0,) * len(tokens), (0,) * len(tokens), stop, 1.0)
    score = Score.unscored(Fault.GRADER, "gone") if value is None else Score.graded(value)
    return Trajectory(0, number, (user("q"), assistant(text)), (turn,), score)


def group(*trajectories: Trajectory, index: int = 0) -> Group:
    request = TaskRequest(index, "letters", Split.TRAIN, index, len(trajectories))
    return Group(request, Task("letters", Split.TRAIN, index, (user("q"),)), trajectories)


def texts(found: Iterable[Trajectory]) -> list[str]:
    return [t.messages[-1].content for t in found]


# Rejection


def test_the_best_are_kept_the_shorter_first_and_no_text_twice() -> None:
    made = group(
        trajectory(0, "low", 0.2),
        trajectory(1, "long", 1.0, length=9),
        trajectory(2, "short", 1.0),
        trajectory(3, "short", 1.0),
        trajectory(4, "half", 0.5),
        trajectory(5, "lost", None),
        trajectory(6, "cut", 1.0, stop=StopReason.LENGTH),
    )
    assert texts(kept_trajectories(made, keep=1, min_score=0.5)) == ["short"]
    assert texts(kept_trajectories(made, keep=9, min_score=0.5)) == ["short", "long", "half"]
    assert texts(kept_trajectories(made, keep=9, min_score=0.9)) == ["short", "long"]
    assert kept_trajectories(made, keep=9, min_score=1.5) == []


def test_what_is_kept_are_the_sampled_tokens() -> None:
    items = kept_items([group(trajectory(0, "abc", 1.0))], keep=1, min_score=0.5)
    (item,) = items["letters"]
    (side,) = item.side
    assert tuple(side.token_ids) == (*PROMPT, 20, 21, 22)
    assert tuple(side.token_ids[side.mask]) == (20, 21, 22)


# Mining


def test_pairs_from_a_group() -> None:
    made = group(
        trajectory(0, "bad", 0.0),
        trajectory(1, "good", 1.0),
        trajectory(2, "fair", 0.6),
        trajectory(3, "lost", None),
    )
    (case,) = mined_cases([made], min_gap=0.5, limit=3)["letters"]
    assert [side[0].num_trained for side in case.sides] == [4, 3]  # good, bad
    assert case.origin == "letters"
    assert mined_cases([made], min_gap=1.1, limit=3) == {}
    first, second = labelled_cases([case])
    assert (first.is_wanted, second.is_wanted) == (True, False)
    assert second.sides[0] is case.sides[1]


# Harvest


class Source:
    """Answers orders backwards; may be lost after a number of groups."""

    def __init__(self, lost_after: int = 1000) -> None:
        self.left = lost_after
        self.asked: list[int] = []

    def run_requests(self, requests: Sequence[TaskRequest], ledger: Ledger) -> Iterable[Group]:
        for request in requests:
            ledger.mark_running(request.request_id)
        for request in reversed(requests):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            self.asked.append(request.index)
            task = Letters().task(request.split, request.index)
            yield Group(request, task, (trajectory(0, f"t{request.index}", 1.0),))


def sampler(source: Any, **plan: Any) -> TaskSampler:
    return TaskSampler(
        source,
        {"letters": Letters()},
        {"letters": DomainSettings()},
        SamplingPlan(**{"group_size": 1, "temperature": 1.0, **plan}),
        StaticMixture({"letters": 1.0}, 0),
        SingleProcess(),
    )


def test_a_harvest_that_was_interrupted_runs_only_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    whole = harvest(sampler(Source()), 6, tmp_path / "whole.jsonl")
    assert [g.request.request_id for g in whole] == list(range(6))
    with pytest.raises(KeyboardInterrupt):
        harvest(sampler(Source(lost_after=2)), 6, file)
    with file.open("a") as stream:
        stream.write('{"request": {"requ')  # killed while writing
    source = Source()
    again = harvest(sampler(source), 6, file)
    assert [g.to_json() for g in again] == [g.to_json() for g in whole]
    assert sorted(source.asked) == [0, 1, 2, 3]
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 6
    source = Source()
    harvest(sampler(source), 6, file)
    assert source.asked == []


def test_a_harvest_of_other_orders_is_refused(tmp_path: Path) -> None:
    harvest(sampler(Source()), 3, tmp_path / "h.jsonl")
    with pytest.raises(CheckpointError, match="samples of other orders"):
        harvest(sampler(Source(), temperature=0.5), 3, tmp_path / "h.jsonl")


def test_a_repeated_stage_takes_the_next_tasks() -> None:
    first = sampler(Source())
    first.first_index = 7
    assert [g.request.index for g in first.sample(3)] == [7, 8, 9]
    second = sampler(Source())
    second.restore(first.progress())
    second.first_index = 7
    assert [g.request.index for g in second.sample(2)] == [10, 11]


def test_metrics_of_groups() -> None:
    made = group(trajectory(0, "a", 1.0), trajectory(1, "bb", 0.5), trajectory(2, "c", None))
    values = group_metrics([made], {"letters": 0.5}).values()
    assert values["reward"] == 0.75
    assert values["domain/letters/score"] == 0.5
    assert values["unscored"] == pytest.approx(1 / 3)
    assert values["completion_tokens"] == pytest.approx(4 / 3)


# Distillation


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, LoadedModel]:
    root = tmp_path_factory.mktemp("models")
    pair = [save_tiny(root / str(i), dtype="float64", seed=i + 3) for i in range(2)]
    student, teacher = (load(str(folder), dtype="float64") for folder in pair)
    return student, teacher


def made_groups(count: int = 5) -> list[Group]:
    sizes = (3, 9, 1, 6)
    return [
        group(*(trajectory(i, "x", 1.0, length=sizes[(g + i) % 4]) for i in range(3)), index=g)
        for g in range(count)
    ]


def distilled(models: tuple[LoadedModel, LoadedModel], limit: int) -> Any:
    student, teacher = models
    samples = distillation_samples(made_groups())
    fill_logprobs(teacher, samples, "teacher_logprobs", limit)
    fill_logprobs(student, samples, "behaviour_logprobs", limit)
    fill_baseline(samples, 20.0)
    state = TrainerState.create(student, OptimizerSettings(micro_batch_tokens=limit), 1e-3)
    state.optimizer.zero_grad(set_to_none=True)
    loss = partial(on_policy_distillation, coefficient=1.0, limit=20.0)
    accumulate_gradients(state, samples, {"distillation": loss})
    flat = torch.cat([p.grad.reshape(-1) for _, p in student.trainable() if p.grad is not None])
    state.optimizer.zero_grad(set_to_none=True)
    return flat.clone(), samples


def test_no_cut_changes_the_gradient_of_distillation(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    whole, _ = distilled(models, 10_000)
    assert whole.norm() > 0
    for limit in (1, 25, 60):
        found, _ = distilled(models, limit)
        assert float((found - whole).norm() / whole.norm()) <= 1e-9


def test_the_baseline_is_the_mean_of_the_other_completions(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    _, samples = distilled(models, 10_000)
    gaps = [
        (s.streams["teacher_logprobs"] - s.streams["behaviour_logprobs"])[s.mask] for s in samples
    ]
    for i, sample in enumerate(samples):
        others = np.concatenate([g for j, g in enumerate(gaps) if j != i])
        assert sample.streams["baseline"][0] == pytest.approx(others.mean())
    gap = teacher_gap(samples).values()
    assert gap["teacher_kl"] == pytest.approx(-np.concatenate(gaps).mean())


def test_an_unknown_log_ratio_is_in_no_baseline_and_in_no_metric(
    models: tuple[LoadedModel, LoadedModel],
) -> None:
    """One token that nobody measured must not turn the whole batch's baselines into NaN."""
    _, samples = distilled(models, 10_000)
    place = int(np.argmax(samples[1].mask))
    samples[1].streams["behaviour_logprobs"][place] = np.nan
    gaps = [
        (s.streams["teacher_logprobs"] - s.streams["behaviour_logprobs"])[s.mask] for s in samples
    ]
    fill_baseline(samples, 20.0)
    for i, sample in enumerate(samples):
        others = np.concatenate([g for j, g in enumerate(gaps) if j != i])
        assert sample.streams["baseline"][0] == pytest.approx(np.nanmean(others))
    told = teacher_gap(samples).values()
    assert told["teacher_kl"] == pytest.approx(-np.nanmean(np.concatenate(gaps)))


def test_the_loss_is_the_policy_gradient_of_the_reverse_kl() -> None:
    """Over all outcomes of one token, weighted by their probability, it is d KL / d logits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(-1)
    policy = logits.log_softmax(-1)
    kl = (policy.exp() * (policy - teacher)).sum()
    (exact,) = torch.autograd.grad(kl, logits, retain_graph=True)
    for baseline in (None, 0.3):
        streams = {"teacher_logprobs": teacher}
        if baseline is not None:
            streams["baseline"] = torch.full((7,), baseline, dtype=torch.float64)
        per_token = on_policy_distillation(policy, policy, streams, None).loss_N  # type: ignore[arg-type]
        (found,) = torch.autograd.grad(
            (policy.detach().exp() * per_token).sum(), logits, retain_graph=True
        )
        assert torch.allclose(found, exact)
