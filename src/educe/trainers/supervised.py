"""Supervised fine-tuning: the negative log-probability of what examples show, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from educe.algorithms.losses import cross_entropy
from educe.core.metrics import Tally
from educe.rollout.packing import TrainingSample
from educe.trainers.feeds import Feed
from educe.trainers.optimizers import learning_rate_at
from educe.trainers.prepared import PreparedBatches
from educe.trainers.regularise import regularised_forward
from educe.trainers.rendering import Side
from educe.trainers.step import StepResult, TrainerState, fill_logprobs, optimizer_step

_LOSSES = {"cross_entropy": cross_entropy}
_EVALUATED = "evaluated_logprobs"


@dataclass(frozen=True, slots=True)
class Item:
    """A rendered example and the source that it is from."""

    origin: str
    side: Side


Render = Callable[[str, Any], Item | None]
"""From (source, example) to tokens; None where it does not fit."""


def steps_of(steps: int, num_examples: int, epochs: float, batch_size: int) -> int:
    """Return the optimizer steps of a stage: as many as set, else those of its epochs."""
    return steps or max(1, math.ceil(num_examples * epochs / batch_size))


def supervised_samples(items: Sequence[Item]) -> list[TrainingSample]:
    """Return a batch's samples; each trained token weighs 1 / all trained tokens of the batch.

    The sequences of one item (turns that a template rewrites) share what they have in common.
    """
    total = max(1, sum(s.num_trained for item in items for s in item.side))
    samples: list[TrainingSample] = []
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
        render: an example as tokens.
        held_out: what :meth:`evaluate` measures.
        total_steps: of the stage, for the schedule.
        prepared: makes batches ahead, in place of ``feed`` and ``render``; None makes them here.
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
    prepared: PreparedBatches | None = None
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
        result.tally.mean("skipped_examples", float(self.num_skipped))
        return result

    def _items(self, number: int) -> list[Item]:
        if self.prepared is not None:
            made = [
                None if side is None else Item(origin, side)
                for origin, side in self.prepared.sides(number)
            ]
        else:
            made = [self.render(origin, e) for origin, e in self.feed.examples(number)]
        items = [item for item in made if item is not None]
        self.num_skipped += len(made) - len(items)
        return items

    def evaluate(self) -> Tally:
        """Return ``eval_loss`` on what is held out: over all tokens, and of each source."""
        return evaluate_loss(self.state, self.held_out)

    def progress(self) -> dict[str, Any]:
        where = self.feed if self.prepared is None else self.prepared
        return {"feed": where.progress(), "skipped": self.num_skipped}

    def restore(self, saved: Mapping[str, Any]) -> None:
        where = self.feed if self.prepared is None else self.prepared
        where.restore(saved["feed"])
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
