"""Forwards of supervised training that are not plain: noise on embeddings, smoothed labels.

Both keep decision 2: what they add is a function of a token's own history, of the step and of
numbers counted before the cut, so a gradient does not depend on the packs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from educe.core.seeds import derive, uniforms
from educe.models.load import LoadedModel
from educe.models.logprobs import TokenLogprobs, token_logprobs
from educe.rollout.packing import Pack
from educe.trainers.step import Forward, forward_pack, trained_rows

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so its powers never vanish modulo 2**64


def regularised_forward(
    *, label_smoothing: float, noise: float, longest: int, key: tuple[object, ...]
) -> Forward:
    """Return the forward of one optimizer step; the plain one when nothing is asked for.

    Args:
        label_smoothing: e in (1 - e) log p(target) + e mean over the vocabulary of log p, which
            stands in for the target's log-probability (Szegedy et al. 2015, arXiv 1512.00567).
        noise: alpha of NEFTune (Jain et al. 2023, arXiv 2310.05914): embeddings get a uniform
            draw in +- alpha / sqrt(L D).
        longest: L, tokens of the longest sequence of the whole batch (the paper's padded length).
        key: names the draw: seed and step.
    """
    if not label_smoothing and not noise:
        return forward_pack

    def forward(
        model: LoadedModel, pack: Pack, compute_dtype: torch.dtype | None = None
    ) -> TokenLogprobs:
        with _noisy(model, pack, noise, longest, key):
            rows, temperature, targets = trained_rows(model, pack, compute_dtype)
        weight = model.head_weight()
        outputs = token_logprobs(rows, weight, targets, temperature)
        if not label_smoothing:
            return outputs
        mean = uniform_logprobs(rows, weight, targets, temperature, outputs.logprobs_N)
        smoothed = (1.0 - label_smoothing) * outputs.logprobs_N + label_smoothing * mean
        return TokenLogprobs(smoothed, outputs.entropy_N)

    return forward


def uniform_logprobs(
    rows_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, temperature_N: Tensor, logprobs_N: Tensor
) -> Tensor:
    """Return the mean over the vocabulary of log p, per row, without the [N, V] matrix.

    With z = h W^T / temperature: log p(v) = z_v - lse, so the mean is log p(target) plus
    h (mean of W's rows - W[target]) / temperature.
    """
    wide = logprobs_N.dtype
    weight = weight_VD.to(wide)
    gap_ND = weight.mean(0) - weight[targets_N]
    return logprobs_N + (rows_ND.to(wide) * gap_ND).sum(-1) / temperature_N.to(wide)


def prefix_hashes(pack: Pack) -> NDArray[np.uint64]:
    """Return for each of the pack's T tokens a hash of the tokens from its sequence's start to it.

    Equal prefixes are equal hashes, whatever they are packed with: a shared segment is one token
    for all that descend from it.
    """
    powers = _BASE ** np.arange(int(pack.positions_T.max()) + 1, dtype=np.uint64)
    terms = (pack.token_ids_T.astype(np.uint64) + np.uint64(1)) * powers[pack.positions_T]
    hashes = np.empty(len(terms), np.uint64)
    open_spans: list[Any] = []
    for span in pack.spans:
        while open_spans and open_spans[-1].last <= span.start:
            open_spans.pop()
        before = hashes[open_spans[-1].end - 1] if open_spans else np.uint64(0)
        hashes[span.start : span.end] = before + np.cumsum(terms[span.start : span.end])
        open_spans.append(span)
    return hashes


@contextlib.contextmanager
def _noisy(
    model: LoadedModel, pack: Pack, alpha: float, longest: int, key: tuple[object, ...]
) -> Iterator[None]:
    if not alpha:
        yield
        return
    embeddings = model.causal.get_input_embeddings()
    width = int(embeddings.weight.shape[1])
    keys = prefix_hashes(pack) ^ np.uint64(derive("neftune", *key))
    draws = uniforms(keys[:, None], np.arange(width, dtype=np.uint64)[None, :])
    size = alpha / (longest * width) ** 0.5
    noise = torch.as_tensor((2.0 * draws - 1.0) * size, device=model.device)

    def add(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
        return output + noise.to(output)

    handle = embeddings.register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()
