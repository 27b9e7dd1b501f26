"""EmbeddedEngine: token prompts in, sampled completions out, by continuous batching.

Knows nothing of text beyond stop strings, nothing of tasks or rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch

from educe.core.errors import UnsupportedModelError
from educe.core.protocols import Completion, GenerateRequest
from educe.core.types import StopReason
from educe.engines.embedded.execution import Forward, ModuleForward, Runner
from educe.engines.embedded.fused import FusedForward, has_fused_forward
from educe.engines.embedded.prompt_scores import PromptScores, score_prompts
from educe.engines.embedded.quantised import QuantisedForward
from educe.engines.embedded.sampler import sample
from educe.engines.embedded.scheduler import CacheBook, PrefillJob, PrefixCache, Row, RowScheduler
from educe.models.load import LoadedModel
from educe.observability.timing import SILENT, PhaseTimer

ForwardChoice = Literal["auto", "torch", "module"]
TokenObserver = Callable[[Sequence[Row], torch.Tensor], None]
"""Called with the rows that got a token and the raw logits [R, V] it was sampled from, before it is
decided which rows end: it may cancel some."""


class EmbeddedEngine:
    """Samples from a :class:`educe.models.load.LoadedModel`.

    Args:
        model: the trainer's own model, read again at every ``publish``.
        stop_token_ids: tokens that end a completion (they are part of it).
        decode: tokens to text, for stop strings and ``Completion.text``.
        max_rows: completions decoded at once.
        exact: the same request gives the same tokens whatever else is in the batch (fp32).
        prefill_tokens: prompt tokens computed in one forward; longer prompts go in chunks.
        dtype: type of the weights and of the cache; None takes the model's. int8 quantises the
            products (see ``quantised``), with a cache in bf16.
        forward: ``auto`` compiles a fused forward from the module where there is one (packed copies
            of the weights) and ``exact`` is off, with compiled kernels where there is a C compiler;
            ``torch`` goes without these kernels; ``module`` runs the module itself.
        drafts: whether few rows try looked-up tokens along with their newest (never if ``exact``).
        graphs: whether decode steps on CUDA are recorded and launched as a whole (never if
            ``exact``).
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        stop_token_ids: Iterable[int],
        decode: Callable[[Sequence[int]], str],
        max_rows: int = 64,
        exact: bool = False,
        prefill_tokens: int = 2048,
        dtype: torch.dtype | None = None,
        forward: ForwardChoice = "auto",
        drafts: bool = True,
        graphs: bool = True,
    ) -> None:
        self._runner = Runner(
            _forward(model, dtype, "module" if exact else forward),
            model.causal.config,
            model.device,
            max_rows,
            exact,
            graphs,
        )
        self._exact = exact
        self._longest_draft = _LONGEST_DRAFT if drafts and not exact else 0
        # What a prompt shares with others depends on the others: not in exact mode.
        prefixes = PrefixCache(0 if exact else 4 * prefill_tokens, prefill_tokens)
        self._scheduler = RowScheduler(max_rows, prefixes)
        self._book = CacheBook()
        self._stop = frozenset(stop_token_ids)
        self._decode = decode
        self.timeline: PhaseTimer = SILENT
        self.observer: TokenObserver | None = None
        self._prefill_tokens = prefill_tokens
        self.version = 0
        self._rests = False
        self._cancelled: list[GenerateRequest] = []

    @property
    def num_unfinished(self) -> int:
        return self._scheduler.num_unfinished + len(self._cancelled)

    @property
    def num_free_rows(self) -> int:
        return self._scheduler.max_rows - self._scheduler.num_unfinished

    def submit(self, request: GenerateRequest) -> None:
        """Queue a request.

        Raises:
            ValueError: for an empty prompt or no room for a token.
        """
        if not request.prompt_token_ids:
            raise ValueError(f"request {request.request_id} has an empty prompt")
        if request.parameters.max_tokens < 1:
            raise ValueError(
                f"request {request.request_id}: max_tokens must be at least 1, "
                f"got {request.parameters.max_tokens}"
            )
        self._scheduler.submit(request)

    def cancel(self, request_id: str) -> None:
        """End a request; it comes back from ``step`` with what it has, as CANCELLED."""
        request = self._scheduler.cancel(request_id)
        if request is not None:
            self._cancelled.append(request)

    def release(self, request_id: str) -> None:
        self._runner.store.forget(self._book.release(request_id))

    def publish(self, version: int) -> None:
        if self.num_unfinished:
            raise RuntimeError(
                f"weights change only at rest, but {self.num_unfinished} requests are unfinished"
            )
        with self.timeline.measure("publish"):
            self._runner.load()
        self._rests = False
        self._forget_all()
        self.version = version

    def rest(self) -> None:
        """Give back the memory of packed weights and cache until the next ``publish``.

        For the time of an optimizer step, which wants all memory there is. Work that comes before
        that publish reads the weights as they are then.

        Raises:
            RuntimeError: while requests are unfinished.
        """
        if self.num_unfinished:
            raise RuntimeError(f"no rest while {self.num_unfinished} requests are unfinished")
        self._forget_all()
        self._runner.release()
        self._rests = True

    def _wake(self) -> None:
        if self._rests:
            self._runner.load()
            self._rests = False

    def _forget_all(self) -> None:
        self._scheduler.prefixes.clear()
        self._runner.store.forget(self._book.clear())

    def step(self) -> list[Completion]:
        """Add one token to every running row, admit and prefill what fits."""
        self._wake()
        finished = [
            Completion(r.request_id, (), (), self.version, StopReason.CANCELLED, "")
            for r in self._cancelled
        ]
        self._cancelled.clear()
        finished += self._retire([row for row in self._scheduler.running if row.cancelled])
        # Exact mode admits after decoding and computes every prompt alone: a row's bits must not
        # depend on what else runs. Otherwise prompts ride along with the rows that decode.
        if self._exact and self._scheduler.running:
            rows = list(self._scheduler.running)  # slot order
            finished += self._decode_rows(rows)
        rows = [] if self._exact else list(self._scheduler.running)
        self._runner.store.forget(self._scheduler.prefixes.trim(self._book))
        if not self._exact:
            self._join_turns()
        batches = list(self._batches(self._scheduler.admit(self._book)))
        for jobs in batches or ([[]] if rows else []):
            finished += self._advance(rows, jobs)
            rows = []
        return finished

    def _join_turns(self) -> None:
        """Make one segment of a dialogue's earlier turns: each one costs every step some calls.

        Not in exact mode: what others still refer to must not decide how a sum is split.
        """
        for parent in self._scheduler.parents():
            tail = self._book.own_tail(parent, _LONGEST_JOINED)
            if len(tail) > 1:
                joined = self._book.join(parent, tail)
                self._runner.store.join(joined.segment_id, len(joined.token_ids), tail)

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Submit all and run to the end; completions come in the requests' order."""
        for request in requests:
            self.submit(request)
        done: dict[str, Completion] = {}
        while self.num_unfinished:
            done.update({c.request_id: c for c in self.step()})
        return [done[r.request_id] for r in requests]

    def score(self, prompts: Sequence[Sequence[int]], num_top: int = 0) -> list[PromptScores]:
        """Return the log-probabilities of prompts' own tokens; may be called between steps.

        Raises:
            ValueError: for an empty prompt.
        """
        self._wake()
        size = 0 if self._exact else self._prefill_tokens
        with self.timeline.measure("scoring prompts", sum(map(len, prompts))):
            return score_prompts(
                self._runner,
                self._book,
                prompts,
                num_top,
                together=size,
                chunk=self._prefill_tokens,
            )

    def _batches(self, jobs: Sequence[PrefillJob]) -> Iterable[list[PrefillJob]]:
        """Cut jobs into forwards of at most ``prefill_tokens``; exact mode runs each alone."""
        batch: list[PrefillJob] = []
        for job in jobs:
            used = sum(len(j.token_ids) for j in batch)
            if batch and (self._exact or used + len(job.token_ids) > self._prefill_tokens):
                yield batch
                batch = []
            batch.append(job)
        if batch:
            yield batch

    def _advance(self, rows: Sequence[Row], jobs: Sequence[PrefillJob]) -> list[Completion]:
        """Compute one token of the rows and the prompts of the jobs; sample for all of them."""
        heads = [self._prefill_chunks(job) for job in jobs]
        if not heads:
            return self._decode_rows(rows)
        size = len(rows) + sum(len(head.token_ids) for head in heads)
        with self.timeline.measure("decode with prefill" if rows else "prefill", size):
            if rows:
                logits, segment_ids = self._runner.mixed(rows, heads, self._book)
            else:
                logits, segment_ids = self._runner.prefill(heads, self._book)
        sampled = list(rows)
        sources = list(range(len(rows)))
        for number, (head, segment_id) in enumerate(zip(heads, segment_ids, strict=True)):
            chain = (*head.chain, segment_id)
            for request in head.requests:
                self._book.hold(chain)
                row = Row(request, chain, len(request.prompt_token_ids))
                self._scheduler.start(row)
                sampled.append(row)
                sources.append(len(rows) + number)
        index = torch.tensor(sources, dtype=torch.long, device=logits.device)
        return self._sample(sampled, logits[index])

    def _decode_rows(self, rows: Sequence[Row]) -> list[Completion]:
        """Compute the rows' next token; where they are few, as many more as drafts are right."""
        if not rows:
            return []
        room = min(_DRAFT_TOKENS // len(rows) - 1, self._longest_draft)
        drafts = [row.draft(room) for row in rows] if room > 0 else [()] * len(rows)
        with self.timeline.measure("decode", len(rows)):
            logits = self._runner.decode(rows, drafts)
        right = [0] * len(rows)
        places = list(range(len(rows)))
        for ahead in range(logits.shape[1]):
            self._draw([rows[p] for p in places], logits[places, ahead])
            # A row goes on while what it drew is what its draft said.
            places = [
                p
                for p in places
                if ahead < len(drafts[p])
                and rows[p].token_ids[-1] == drafts[p][ahead]
                and self._stop_reason(rows[p]) is None
            ]
            for place in places:
                right[place] += 1
            if not places:
                break
        for row, draft, count in zip(rows, drafts, right, strict=True):
            if draft and row.lookup is not None:
                row.lookup.note(count)
        return self._retire([row for row in rows if self._stop_reason(row) is not None])

    def _prefill_chunks(self, job: PrefillJob) -> PrefillJob:
        """Compute a long prompt's leading chunks; return the job of its last chunk."""
        chunk = self._prefill_tokens
        while len(job.token_ids) > chunk:
            head = PrefillJob(job.chain, job.start, job.token_ids[:chunk], [])
            with self.timeline.measure("prefill", chunk):
                _, (segment_id,) = self._runner.prefill([head], self._book)
            job = PrefillJob(
                (*job.chain, segment_id), job.start + chunk, job.token_ids[chunk:], job.requests
            )
        return job

    def _sample(self, rows: Sequence[Row], logits: torch.Tensor) -> list[Completion]:
        if not rows:
            return []  # only beginnings were computed
        self._draw(rows, logits)
        return self._retire([row for row in rows if self._stop_reason(row) is not None])

    def _draw(self, rows: Sequence[Row], logits: torch.Tensor) -> None:
        """Append one token to each row from its logits [R, V]."""
        parameters = [row.request.parameters for row in rows]
        with self.timeline.measure("sampling", len(rows)):
            places = [len(row.token_ids) for row in rows]
            tokens, logprobs = sample(logits, parameters, places, self._runner.forward.kernels)
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
        if self.observer is not None:
            self.observer(rows, logits)

    def _stop_reason(self, row: Row) -> StopReason | None:
        parameters = row.request.parameters
        if row.cancelled:
            return StopReason.CANCELLED
        if row.token_ids and row.token_ids[-1] in self._stop and not parameters.ignore_end:
            return StopReason.END
        if parameters.stop and row.token_ids:
            tail = self._decode(row.token_ids[-_STOP_TAIL:])
            if any(s in tail for s in parameters.stop):
                return StopReason.END
        if len(row.token_ids) >= parameters.max_tokens:
            return StopReason.LENGTH
        return None

    def _retire(self, rows: Sequence[Row]) -> list[Completion]:
        out = []
        for row in rows:
            reason = self._stop_reason(row) or StopReason.CANCELLED
            if row.request.retain:
                self._keep(row)
            moved = self._scheduler.finish(row)
            if moved is not None:
                self._runner.store.move(moved.slot, row.slot, moved.suffix_length)
                moved.slot = row.slot
            self._runner.store.forget(self._book.drop(row.chain))
            out.append(
                Completion(
                    row.request.request_id,
                    tuple(row.token_ids),
                    tuple(row.logprobs),
                    self.version,
                    reason,
                    self._decode(row.token_ids),
                )
            )
        return out

    def _keep(self, row: Row) -> None:
        """Turn what a row computed into a segment that its next turn can start from."""
        chain = row.chain
        if row.suffix_length:
            segment = self._book.add(row.prefix_length, tuple(row.token_ids[:-1]))
            self._runner.store.freeze(segment.segment_id, row.slot, row.suffix_length)
            chain = (*chain, segment.segment_id)
        self._book.retain(row.request.request_id, chain)


def _forward(model: LoadedModel, dtype: torch.dtype | None, choice: ForwardChoice) -> Forward:
    if dtype == torch.int8:
        if choice == "module" or not has_fused_forward(model):
            raise UnsupportedModelError(
                "8-bit sampling needs the fused forward: not in mode exact, not with "
                f"engine.forward = module, not for {model.causal.config.model_type} models"
            )
        return QuantisedForward(model, torch.bfloat16, native=choice == "auto")
    if choice != "module" and has_fused_forward(model):
        return FusedForward(model, dtype or model.head_weight().dtype, native=choice == "auto")
    return ModuleForward(model, dtype)


_STOP_TAIL = 24
_DRAFT_TOKENS = 32  # a product of so few rows costs hardly more than one of a single row
_LONGEST_DRAFT = 7
_LONGEST_JOINED = 1024  # tokens; longer histories are not copied once a turn
