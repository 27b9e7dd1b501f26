"""Runs a forward for prefill and decode over the cache.

Shapes: B rows, T tokens, N tokens of all rows, W model width, V vocabulary, R decoded rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from educe.engines.embedded.attention import (
    DecodeContext,
    Level,
    MixedContext,
    PrefillContext,
)
from educe.engines.embedded.cache import CacheStore
from educe.engines.embedded.graphs import DecodeGraphs, cuda_record
from educe.engines.embedded.native_attention import (
    ChainTable,
    NativeDecodeContext,
    NativeMixedContext,
)
from educe.engines.embedded.scheduler import CacheBook, PrefillJob, Row
from educe.models.load import LoadedModel
from educe.native.kernels import Kernels


class Forward(Protocol):
    """Tokens to hidden states to logits; keeps no cache of its own.

    With ``kernels`` it takes contexts that attend from joined projections.
    """

    kernels: Kernels | None

    @property
    def dtype(self) -> torch.dtype:
        """The type of the keys and values that ``hidden`` hands to the context."""
        ...

    def load(self) -> None:
        """Read the module's weights again."""
        ...

    def release(self) -> None:
        """Let go of what ``load`` makes."""
        ...

    def hidden(self, tokens_BT: Tensor, positions_BT: Tensor, context: Any) -> Tensor:
        """Return states [B, T, W]."""
        ...

    def logits(self, hidden_NW: Tensor) -> Tensor:
        """Return logits [N, V]."""
        ...


class ModuleForward:
    """The module itself: the reference path of every engine.

    With a ``dtype`` of its own it works on a copy, else on the trainer's own tensors.
    """

    kernels: Kernels | None = None

    def __init__(self, model: LoadedModel, dtype: torch.dtype | None) -> None:
        self._source = model
        self._copies = dtype is not None and dtype != model.head_weight().dtype
        if self._copies:
            causal = copy.deepcopy(model.causal).to(dtype)
            model = replace(model, causal=causal, adapter=None)
        self._model = model

    @property
    def dtype(self) -> torch.dtype:
        return self._model.head_weight().dtype

    @torch.no_grad()
    def load(self) -> None:
        if self._copies:
            pairs = zip(
                self._model.causal.parameters(), self._source.causal.parameters(), strict=True
            )
            for mine, theirs in pairs:
                mine.copy_(theirs)

    def release(self) -> None:
        """Nothing: what it works on is the trainer's, or a copy that is only written over."""

    def hidden(self, tokens_BT: Tensor, positions_BT: Tensor, context: Any) -> Tensor:
        return self._model.hidden(tokens_BT, positions_BT, context)

    def logits(self, hidden_NW: Tensor) -> Tensor:
        logits: Tensor = hidden_NW @ self._model.head_weight().T
        return logits


class Runner:
    """Computes the logits that rows are sampled from, and fills the cache."""

    def __init__(
        self,
        forward: Forward,
        config: Any,
        device: torch.device,
        max_rows: int,
        exact: bool,
        graphs: bool = False,
    ) -> None:
        self.forward = forward
        self._graphs: DecodeGraphs | None = None
        if graphs and device.type == "cuda" and not exact:
            self._graphs = DecodeGraphs(self._decoded, cuda_record())
        self.exact = exact
        self.device = device
        self.store = CacheStore(config, max_rows, forward.dtype, device)
        self._chains: list[tuple[int, ...]] = []
        self._levels: list[Level] = []
        self._table: ChainTable | None = None
        self._regrets: list[float] = []

    def load(self) -> None:
        """Read the module's weights again."""
        self._forget_recorded()
        self.forward.load()

    def release(self) -> None:
        """Let go of packed weights and of the slots; no row may be running."""
        self._forget_recorded()
        self.store.release()
        self.forward.release()

    def _forget_recorded(self) -> None:
        if self._graphs is not None:
            self._graphs.clear()

    @torch.no_grad()
    def prefill(self, jobs: Sequence[PrefillJob], book: CacheBook) -> tuple[Tensor, list[int]]:
        """Compute the jobs' tokens; return the logits after each job's last token and segments."""
        hidden, segment_ids = self.read(jobs, book)
        return self.logits(hidden[_last_places(jobs)]), segment_ids

    @torch.no_grad()
    def read(self, jobs: Sequence[PrefillJob], book: CacheBook) -> tuple[Tensor, list[int]]:
        """Compute the jobs' tokens; return their states [N, W], job after job, and segments."""
        context, segment_ids = self._reading(jobs, book)
        tokens, positions = _flat(jobs)
        return self._hidden([tokens], [positions], context)[0], segment_ids

    @torch.no_grad()
    def decode(self, rows: Sequence[Row], drafts: Sequence[tuple[int, ...]] = ()) -> Tensor:
        """Return the logits [R, 1 + longest draft, V] after each row's newest token and its draft.

        What stands behind a shorter draft means nothing. No drafts in exact mode.
        """
        padding = self._padding(len(rows))
        width = 1 + max(map(len, drafts), default=0)
        drafts = drafts or [()] * len(rows)
        tokens = [
            [row.token_ids[-1], *draft, *[0] * (width - 1 - len(draft))]
            for row, draft in zip(rows, drafts, strict=True)
        ]
        positions = [[row.next_position + i for i in range(width)] for row in rows]
        nothing = [[0] * width] * padding
        tokens_BT, positions_BT = (
            torch.tensor(numbers + nothing, device=self.device) for numbers in (tokens, positions)
        )
        if self.forward.kernels is not None:
            native = self._native(self.forward.kernels, rows, width)
            logits = self._decoded(tokens_BT, positions_BT, native)
        else:
            levels = self._levels_of(rows)
            context = DecodeContext(self.store, rows, levels, self.exact, width)
            recorded = self._graphs if width == 1 else None
            compute = self._decoded if recorded is None else recorded.logits
            logits = compute(tokens_BT, positions_BT, context)
        return logits.view(len(tokens_BT), width, -1)[: len(rows)]

    def _decoded(self, tokens_BT: Tensor, positions_BT: Tensor, context: Any) -> Tensor:
        """Return logits [B * T, V] of the rows' newest tokens."""
        hidden = self.forward.hidden(tokens_BT, positions_BT, context)
        return self.logits(hidden.reshape(tokens_BT.numel(), -1))

    def _padding(self, num_rows: int) -> int:
        """Return how many empty rows to decode along with some.

        In exact mode up to the count from which a row's bits stop depending on it. Otherwise up to
        one of few counts: rows leave one by one, and a CPU's matrix kernel makes plans for every
        new count, while eight rows cost it what one more does.
        """
        pays = self.device.type == "cpu" and num_rows > _ROW_MULTIPLE
        return -num_rows % _ROW_MULTIPLE if self.exact or pays else 0

    @torch.no_grad()
    def mixed(
        self, rows: Sequence[Row], jobs: Sequence[PrefillJob], book: CacheBook
    ) -> tuple[Tensor, list[int]]:
        """Decode rows and read prompts in one forward; logits [rows, then jobs; V], segments.

        Not for exact mode, where a row's bits must not depend on what else is read.
        """
        prefill, segment_ids = self._reading(jobs, book)
        context: Any
        if self.forward.kernels is not None:
            context = NativeMixedContext(self._native(self.forward.kernels, rows), prefill)
        else:
            decode = DecodeContext(self.store, rows, self._levels_of(rows), exact=False)
            context = MixedContext(decode, prefill)
        tokens, positions = _flat(jobs)
        tokens = [row.token_ids[-1] for row in rows] + tokens
        positions = [row.next_position for row in rows] + positions
        hidden = self._hidden([tokens], [positions], context)[0]
        wanted = [*range(len(rows)), *(len(rows) + place for place in _last_places(jobs))]
        return self.logits(hidden[wanted]), segment_ids

    def _hidden(
        self, tokens: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], context: Any
    ) -> Tensor:
        return self.forward.hidden(
            torch.tensor(tokens, device=self.device),
            torch.tensor(positions, device=self.device),
            context,
        )

    def _reading(
        self, jobs: Sequence[PrefillJob], book: CacheBook
    ) -> tuple[PrefillContext, list[int]]:
        """Make room for the jobs' segments."""
        segment_ids = [
            book.add(job.start, job.token_ids).segment_id if job.segment_id < 0 else job.segment_id
            for job in jobs
        ]
        self.store.new_segments(segment_ids, [len(job.token_ids) for job in jobs])
        kept = [(j, self.store.segment(s)) for j, s in zip(jobs, segment_ids, strict=True)]
        return PrefillContext(self.store, kept), segment_ids

    def _native(self, kernels: Kernels, rows: Sequence[Row], width: int = 1) -> NativeDecodeContext:
        chains = [row.chain for row in rows]
        if self._table is None or chains != self._chains:
            self._table = ChainTable(self.store, chains)
            self._chains = chains
        return NativeDecodeContext(self.store, rows, self._table, kernels, width)

    def _levels_of(self, rows: Sequence[Row]) -> Sequence[Level]:
        """Return how the rows read their chains' segments; made anew when the rows change."""
        chains = [row.chain for row in rows]
        if self.exact:
            return ()
        depth = max((len(chain) for chain in chains), default=0)
        if chains != self._chains:
            self._levels = [Level(self.store, chains, d, self.device) for d in range(depth)]
            self._chains = chains
            self._regrets = [*self._regrets[:depth], *[0.0] * (depth - len(self._regrets))]
        # Copying is put off until the steps that went without it lost as much: at most twice what
        # would have been best, however long rows turn out to live.
        for number, level in enumerate(self._levels):
            self._regrets[number] += max(0.0, level.plan.saving)
            if level.plan.saving > 0 and self._regrets[number] >= level.plan.copying:
                level.rearrange()
                self._levels[number] = Level(self.store, chains, number, self.device)
                self._regrets[number] = 0.0
        return self._levels

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [N, V] of states [N, W]."""
        if self.exact and len(hidden) < _ROW_MULTIPLE:
            padded = hidden.new_zeros(_ROW_MULTIPLE, hidden.shape[1])
            padded[: len(hidden)] = hidden
            return self.logits(padded)[: len(hidden)]
        return self.forward.logits(hidden)


_ROW_MULTIPLE = 8


def _flat(jobs: Sequence[PrefillJob]) -> tuple[list[int], list[int]]:
    """Return the tokens and positions of all jobs, one after the other."""
    tokens = [t for job in jobs for t in job.token_ids]
    positions = [job.start + i for job in jobs for i in range(len(job.token_ids))]
    return tokens, positions


def _last_places(jobs: Sequence[PrefillJob]) -> list[int]:
    """Return where each job's last token stands in the flat row."""
    return [end - 1 for end in accumulate(len(job.token_ids) for job in jobs)]
