"""Log-probabilities of prompts that are read, not sampled: what likelihood evaluations ask for.

They are of the softmax at temperature 1 over the whole vocabulary, computed by the very forward
that samples, whatever else is running.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from educe.engines.embedded.execution import Runner
from educe.engines.embedded.scheduler import CacheBook, PrefillJob

TopTokens = tuple[tuple[int, float], ...]
_CHUNK_ROWS = 256


@dataclass(frozen=True, slots=True)
class PromptScores:
    """``logprobs[i]`` is of token i + 1 of the prompt given all before it; the first has none.

    ``top[i]`` are the likeliest tokens at that place with their log-probabilities, best first.
    """

    logprobs: tuple[float, ...]
    top: tuple[TopTokens, ...]


def score_prompts(
    runner: Runner,
    book: CacheBook,
    prompts: Sequence[Sequence[int]],
    num_top: int,
    *,
    together: int,
    chunk: int,
) -> list[PromptScores]:
    """Read prompts and return the scores of their tokens; leaves nothing in the cache.

    Args:
        together: tokens of several prompts read in one forward; 0 reads each prompt alone.
        chunk: longest piece of a prompt in one forward.
    """
    if any(not prompt for prompt in prompts):
        raise ValueError("a prompt to score has no token")
    found: list[PromptScores] = []
    for batch in _batches(prompts, together):
        found += _score_batch(runner, book, batch, num_top, chunk)
    return found


def _batches(prompts: Sequence[Sequence[int]], together: int) -> Iterator[list[tuple[int, ...]]]:
    batch: list[tuple[int, ...]] = []
    for prompt in prompts:
        if batch and sum(map(len, batch)) + len(prompt) > together:
            yield batch
            batch = []
        batch.append(tuple(prompt))
    if batch:
        yield batch


def _score_batch(
    runner: Runner, book: CacheBook, prompts: Sequence[tuple[int, ...]], num_top: int, chunk: int
) -> list[PromptScores]:
    """Read all prompts side by side, a chunk of each at a time."""
    chains: list[tuple[int, ...]] = [()] * len(prompts)
    logprobs: list[list[float]] = [[] for _ in prompts]
    tops: list[list[TopTokens]] = [[] for _ in prompts]
    try:
        for start in range(0, max(map(len, prompts)), chunk):
            places = [i for i, prompt in enumerate(prompts) if len(prompt) > start]
            jobs = [
                PrefillJob(chains[i], start, prompts[i][start : start + chunk], []) for i in places
            ]
            hidden, segment_ids = runner.read(jobs, book)
            for i, segment_id in zip(places, segment_ids, strict=True):
                chains[i] = (*chains[i], segment_id)
                book.hold((segment_id,))
            cursor = 0
            for i, job in zip(places, jobs, strict=True):
                states = hidden[cursor : cursor + len(job.token_ids)]
                cursor += len(job.token_ids)
                targets = prompts[i][start + 1 : start + 1 + chunk]
                values, top = _of_targets(runner, states[: len(targets)], targets, num_top)
                logprobs[i] += values
                tops[i] += top
    finally:
        for chain in chains:
            runner.store.forget(book.drop(chain))
    return [
        PromptScores(tuple(values), tuple(top)) for values, top in zip(logprobs, tops, strict=True)
    ]


def _of_targets(
    runner: Runner, states: Tensor, targets: Sequence[int], num_top: int
) -> tuple[list[float], list[TopTokens]]:
    """Return the scores of the tokens that stand behind the states [N, W]."""
    values: list[float] = []
    top: list[TopTokens] = []
    for first in range(0, len(targets), _CHUNK_ROWS):
        rows = slice(first, first + _CHUNK_ROWS)
        more, more_top = token_scores(runner.logits(states[rows]), targets[rows], num_top)
        values += more
        top += more_top
    return values, top


@torch.no_grad()
def token_scores(
    logits_NV: Tensor, targets_N: Sequence[int], num_top: int
) -> tuple[list[float], list[TopTokens]]:
    """Return each target's log-probability, and the ``num_top`` likeliest tokens of each row."""
    wide = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    normaliser_N1 = wide.logsumexp(-1, keepdim=True)
    index_N1 = torch.tensor(targets_N, device=wide.device).unsqueeze(1)
    values = (wide.gather(1, index_N1) - normaliser_N1).squeeze(1).tolist()
    count = min(num_top, wide.shape[1])
    if count < 1:
        return values, [()] * len(values)
    best = wide.topk(count)
    logprobs = (best.values - normaliser_N1).tolist()
    rows = zip(best.indices.tolist(), logprobs, strict=True)
    return values, [tuple(zip(ids, row, strict=True)) for ids, row in rows]
