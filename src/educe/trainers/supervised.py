"""Supervised fine-tuning: the negative log-probability of what examples show, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from educe.algorithms.losses import cross_entropy
from educe.config.settings import SupervisedSettings
from educe.core.errors import DomainError
from educe.core.metrics import Tally
from educe.core.protocols import Domain
from educe.core.seeds import numpy_random
from educe.core.types import Split
from educe.models.chat import ChatFormat
from educe.rollout.packing import TrainingSample
from educe.scheduling.mixture import StaticMixture
from educe.trainers.feeds import Feed
from educe.trainers.optimizers import learning_rate_at
from educe.trainers.regularise import regularised_forward
from educe.trainers.rendering import Side
from educe.trainers.step import StepResult, TrainerState, fill_logprobs, optimizer_step

_LOSSES = {"cross_entropy": cross_entropy}
_EVALUATED = "evaluated_logprobs"

Render = Callable[[Any], Side | None]


@dataclass(frozen=True, slots=True)
class Item:
    """A rendered example and the source that it is from."""

    origin: str
    side: Side


def steps_of(steps: int, num_examples: int, epochs: float, batch_size: int) -> int:
    """Return the optimizer steps of a stage: as many as set, else those of its epochs."""
    return steps or max(1, math.ceil(num_examples * epochs / batch_size))


def supervised_samples(items: Sequence[Item]) -> list[TrainingSample]:
    """Return a batch's samples; each trained token weighs 1 / all trained tokens of the batch.

    The sequences of one item (turns that a template rewrites) share what they have in common.
    """
    total = max(1, sum(s.num_trained for item in items for s in item.side))
    samples = []
    for number, item in enumerate(items):
        for sequence in item.side:
            length = len(sequence)
            streams = {"weight": np.full(length, 1.0 / total), "temperature": np.ones(length)}
            samples.append(
                TrainingSample(
                    sequence.token_ids,
                    sequence.mask,
                    streams,
                    group=number,
                    sequence=len(samples),
                    loss="cross_entropy",
                    origin=item.origin,
                )
            )
    return samples


@dataclass(slots=True)
class SupervisedLoop:
    """Steps on a feed of examples.

    Attributes:
        feed: which examples each step has.
        render: an example as tokens; None where it does not fit.
        held_out: what :meth:`evaluate` measures.
        total_steps: of the stage, for the schedule.
        num_skipped: examples left out so far, because they did not fit.
    """

    state: TrainerState
    feed: Feed
    render: Render
    learning_rate: float
    total_steps: int
    seed: int
    label_smoothing: float = 0.0
    neftune_alpha: float = 0.0
    held_out: Sequence[Item] = ()
    num_skipped: int = field(default=0)

    def step(self, number: int) -> StepResult:
        """Take step ``number`` (from 0)."""
        items = self._items(number)
        rate = learning_rate_at(number, self.learning_rate, self.state.settings, self.total_steps)
        samples = supervised_samples(items)
        forward = regularised_forward(
            label_smoothing=self.label_smoothing,
            noise=self.neftune_alpha,
            longest=max((len(s.token_ids) for s in samples), default=1),
            key=(self.seed, number),
        )
        result = optimizer_step(self.state, samples, _LOSSES, rate, forward)
        result.tally.mean("learning_rate", rate)
        result.tally.mean("skipped_examples", float(self.num_skipped))
        return result

    def _items(self, number: int) -> list[Item]:
        items = []
        for origin, example in self.feed.examples(number):
            side = self.render(example)
            if side is None:
                self.num_skipped += 1
            else:
                items.append(Item(origin, side))
        return items

    def evaluate(self) -> Tally:
        """Return ``eval_loss`` on what is held out: over all tokens, and of each source."""
        return evaluate_loss(self.state, self.held_out)

    def progress(self) -> dict[str, Any]:
        return {"feed": self.feed.progress(), "skipped": self.num_skipped}

    def restore(self, saved: dict[str, Any]) -> None:
        self.feed.restore(saved["feed"])
        self.num_skipped = saved["skipped"]


def evaluate_loss(state: TrainerState, items: Sequence[Item]) -> Tally:
    """Return the mean negative log-probability a trained token, without smoothing or noise."""
    collectives = state.collectives
    mine = supervised_samples(items)[collectives.rank :: collectives.world_size]
    fill_logprobs(
        state.model, mine, _EVALUATED, state.settings.micro_batch_tokens, state.compute_dtype
    )
    tally = Tally()
    for sample in mine:
        loss = -float(sample.streams[_EVALUATED][sample.mask].sum())
        for prefix in ("", f"domain/{sample.origin}/"):
            tally.mean(f"{prefix}eval_loss", loss, sample.num_trained)
    merged = Tally()
    for part in collectives.gather(tally.to_json()):
        merged.merge(Tally.from_json(part))
    return merged


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
