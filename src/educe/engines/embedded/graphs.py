"""Decode steps as CUDA graphs: what a step launches is recorded once, then launched as a whole.

A small model's step on a GPU is some thousand launches of a few microseconds' work each. As long as
the same rows read the same segments and their slots stay in one extent, steps differ only in
numbers, and those are copied into the tensors that the recording reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from educe.engines.embedded.attention import DecodeContext

STEADY = 3
"""Steps of one kind before it is recorded: recording takes about as long as three of them."""

_log = logging.getLogger(__name__)


class Recording(Protocol):
    def replay(self) -> None:
        """Do again what was recorded, with what the same tensors hold now."""
        ...


Record = Callable[[Callable[[], None]], Recording]
"""Runs a function a few times and records it; it must not wait for the device."""


def cuda_record() -> Record:
    """Return what records CUDA graphs; all share one pool of memory, so one is alive at a time."""
    pool = torch.cuda.graph_pool_handle()

    def record(run: Callable[[], None]) -> Recording:
        # Libraries set themselves up on first use, which a recording must not contain.
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            run()
            run()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            run()
        return graph

    return record


@dataclass(frozen=True, slots=True)
class _Kind:
    """What must stay for a recording to hold; compared by identity, kept alive by being here."""

    slots: Tensor
    levels: tuple[object, ...]
    num_rows: int
    extent: int

    @classmethod
    def of(cls, tokens: Tensor, context: DecodeContext) -> _Kind:
        return cls(context.store.slots, tuple(context.levels), len(tokens), context.extent)

    def is_that_of(self, other: _Kind) -> bool:
        return (
            self.slots is other.slots
            and (self.num_rows, self.extent) == (other.num_rows, other.extent)
            and len(self.levels) == len(other.levels)
            and all(a is b for a, b in zip(self.levels, other.levels, strict=True))
        )


@dataclass(slots=True)
class _Recorded:
    """A recording and the tensors that it reads and writes."""

    recording: Recording
    tokens: Tensor
    positions: Tensor
    context: DecodeContext
    logits: list[Tensor]


class DecodeGraphs:
    """Records steps that come again, and replays them.

    Args:
        compute: tokens [B, 1], positions [B, 1] and a context to logits [B, V].
        record: see :data:`Record`.
    """

    def __init__(
        self, compute: Callable[[Tensor, Tensor, DecodeContext], Tensor], record: Record
    ) -> None:
        self._compute = compute
        self._record = record
        self._kind: _Kind | None = None
        self._steps = 0
        self._recorded: _Recorded | None = None
        self._is_broken = False
        self.num_replays = 0

    def clear(self) -> None:
        """Forget what was recorded: weights or cache are about to be others."""
        self._kind = self._recorded = None
        self._steps = 0

    def logits(self, tokens: Tensor, positions: Tensor, context: DecodeContext) -> Tensor:
        """Return a step's logits [B, V], by a recording where there is one."""
        if self._is_broken:
            return self._compute(tokens, positions, context)
        kind = _Kind.of(tokens, context)
        if self._kind is None or not kind.is_that_of(self._kind):
            self.clear()
            self._kind = kind
        self._steps += 1
        if self._recorded is None and self._steps >= STEADY:
            self._recorded = self._recording_of(tokens, positions, context)
        known = self._recorded
        if known is None:
            return self._compute(tokens, positions, context)
        known.tokens.copy_(tokens)
        known.positions.copy_(positions)
        known.context.places.copy_(context.places)
        known.context.bias.copy_(context.bias)
        known.recording.replay()
        self.num_replays += 1
        # The next replay writes over it.
        return known.logits[0].clone()

    def _recording_of(
        self, tokens: Tensor, positions: Tensor, context: DecodeContext
    ) -> _Recorded | None:
        """Record a step, whose tensors from now on are the recording's own; None if it fails."""
        kept: list[Tensor] = []

        def run() -> None:
            kept[:] = [self._compute(tokens, positions, context)]

        try:
            recording = self._record(run)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self._is_broken = True
            _log.warning("decode steps are not recorded as CUDA graphs: %s", error)
            return None
        return _Recorded(recording, tokens, positions, context, kept)
