"""Supervised fine-tuning on the domains' own demonstrations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from educe.algorithms.losses import cross_entropy
from educe.config.settings import SupervisedSettings
from educe.core.errors import DomainError
from educe.core.protocols import Domain
from educe.core.seeds import numpy_random
from educe.core.types import Split
from educe.models.chat import ChatFormat
from educe.rollout.packing import TrainingSample
from educe.scheduling.mixture import StaticMixture
from educe.trainers.optimizers import learning_rate_at
from educe.trainers.step import StepResult, TrainerState, optimizer_step

_LOSSES = {"cross_entropy": cross_entropy}


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A rendered perfect attempt: T token ids, mask true on the assistant's tokens."""

    domain: str
    index: int
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]


def collect_demonstrations(
    domains: Mapping[str, Domain],
    weights: Mapping[str, float],
    chat: ChatFormat,
    *,
    count: int,
    seed: int,
    context_length: int,
) -> list[Demonstration]:
    """Return ``count`` training demonstrations, domains in proportion to their weights.

    Domains without gold answers are passed over. Demonstrations longer than the context are left
    out of the count.

    Raises:
        DomainError: when no domain can demonstrate anything.
    """
    able = {n: w for n, w in weights.items() if domains[n].spec.has_gold and w > 0}
    if not able:
        raise DomainError(
            "the sft stage needs gold answers, and none of the recipe's domains has them: "
            + ", ".join(weights)
        )
    mixture = StaticMixture(able, seed)
    cursors = dict.fromkeys(able, 0)
    out: list[Demonstration] = []
    skipped = 0
    while len(out) < count:
        name = mixture.next_domain()
        domain = domains[name]
        size = domain.size(Split.TRAIN)
        index = cursors[name] if size is None else cursors[name] % max(1, size)
        cursors[name] += 1
        task = domain.task(Split.TRAIN, index)
        tokens = chat.demonstration(task.messages, domain.demonstration(task))
        if len(tokens.token_ids) > context_length:
            skipped += 1
            if skipped > 10 * count:
                raise DomainError(
                    f"demonstrations do not fit the context of {context_length} tokens; "
                    f"{name} gave {len(tokens.token_ids)}"
                )
            continue
        out.append(Demonstration(name, index, tokens.token_ids, tokens.mask))
    return out


def planned_steps(settings: SupervisedSettings) -> int:
    """Return the optimizer steps that the settings ask for."""
    if settings.steps:
        return settings.steps
    return max(1, math.ceil(settings.num_tasks * settings.epochs / settings.batch_size))


def batch_rows(num_rows: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Return the rows of batch ``step``: every epoch is its own shuffle, a function of the seed."""
    rows = []
    for position in range(step * batch_size, (step + 1) * batch_size):
        epoch, offset = divmod(position, num_rows)
        rows.append(int(_shuffle(num_rows, seed, epoch)[offset]))
    return rows


def _shuffle(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    return numpy_random("sft-order", seed, epoch).permutation(num_rows)


def supervised_batch(rows: Sequence[Demonstration]) -> list[TrainingSample]:
    """Return the batch's samples; each trained token weighs 1 / all trained tokens of the batch."""
    total = sum(sum(r.mask) for r in rows)
    samples = []
    for number, row in enumerate(rows):
        length = len(row.token_ids)
        streams = {"weight": np.full(length, 1.0 / total), "temperature": np.ones(length)}
        samples.append(
            TrainingSample(
                np.array(row.token_ids, np.int64),
                np.array(row.mask, np.bool_),
                streams,
                group=number,
                sequence=number,
                loss="cross_entropy",
                origin=row.domain,
            )
        )
    return samples


def supervised_step(
    state: TrainerState,
    rows: Sequence[Demonstration],
    settings: SupervisedSettings,
    stage_step: int,
    total_steps: int,
) -> StepResult:
    """Take one optimizer step on a batch of demonstrations."""
    rate = learning_rate_at(stage_step, settings.learning_rate, state.settings, total_steps)
    return optimizer_step(state, supervised_batch(rows), _LOSSES, rate)
