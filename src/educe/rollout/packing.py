"""From trajectories to packed forests: what the optimizer step reads.

A :class:`TrainingSample` is one token sequence with a mask and per-token streams. Samples of a
group share their prompt as a segment of its own; a pack is a forest of segments laid out depth
first (see ``models.attention``). Streams already hold global denominators, so how samples are cut
into packs or ranks cannot change a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from educe.core.forest import Span
from educe.core.types import Trajectory

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BESIDE = "(beside the batch)"
"""Origin of samples that are trained on and have no part in a batch's own figures."""

STREAMS = (
    "advantage",
    "weight",
    "behaviour_logprobs",
    "proximal_logprobs",
    "reference_logprobs",
    "start_logprobs",
    "temperature",
    "old_values",
    "returns",
    "kl_coefficient",
    "entropy_coefficient",
    "kept_logprobs",
)
"""What samples may carry: credit and its weight; the distributions (start_logprobs become the
proximal ones of later updates); what values learn; coefficients that controllers steer; what a
rehearsed completion's log-probabilities were at the stage's start."""


@dataclass(slots=True)
class TrainingSample:
    """One sequence of T tokens.

    ``mask`` is true on trained tokens (never the first). ``streams`` are arrays of T floats, read
    where the mask is true. ``group`` marks samples that may share a prefix; ``sequence`` is unique
    in the batch (sequence-level losses need it); ``loss`` names the per-token loss.
    """

    token_ids: IntArray
    mask: NDArray[np.bool_]
    streams: dict[str, FloatArray]
    group: int
    sequence: int
    loss: str
    origin: Any = None

    @property
    def num_trained(self) -> int:
        return int(self.mask.sum())


@dataclass(slots=True)
class Pack:
    """One forward's worth of tokens.

    Attributes:
        token_ids_T, positions_T: the packed row; positions continue from the parent segment.
        spans: the forest, depth first.
        source_N: index of the token whose hidden state predicts trained token n.
        target_N: token ids of the trained tokens.
        streams: name -> N floats.
        sequence_N: sequence number within the pack, 0 … S-1; ``num_sequences`` is S.
        loss_N: index into ``losses``.
        rows: (sample, index within its sequence) of each trained token, to write results back.
    """

    token_ids_T: IntArray
    positions_T: IntArray
    spans: tuple[Span, ...]
    source_N: IntArray
    target_N: IntArray
    streams: dict[str, FloatArray]
    sequence_N: IntArray
    num_sequences: int
    loss_N: IntArray
    losses: tuple[str, ...]
    rows: list[tuple[TrainingSample, IntArray]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids_T)

    def write_back(self, stream: str, values_N: FloatArray) -> None:
        """Write a number for each trained token into its sample's stream (NaN elsewhere)."""
        cursor = 0
        for sample, trained in self.rows:
            kept = sample.streams.setdefault(stream, np.full(len(sample.token_ids), np.nan))
            kept[trained] = values_N[cursor : cursor + len(trained)]
            cursor += len(trained)


def trajectory_sequences(trajectory: Trajectory) -> list[tuple[IntArray, Any, FloatArray, Any]]:
    """Return (token ids, mask, behaviour log-probabilities, temperatures) of each sequence.

    Turns whose context continues the previous turn's tokens form one sequence; a context that was
    rendered afresh starts another, so trained ids are always the sampled ones.
    """
    sequences: list[tuple[list[int], list[bool], list[float], list[float]]] = []
    for turn in trajectory.turns:
        context, completion = list(turn.context_token_ids), list(turn.completion_token_ids)
        current = sequences[-1] if sequences else None
        if current is None or context[: len(current[0])] != current[0]:
            current = ([], [], [], [])
            sequences.append(current)
        added = len(context) - len(current[0])
        current[0].extend(context[len(current[0]) :] + completion)
        current[1].extend([False] * added + [True] * len(completion))
        current[2].extend([0.0] * added + list(turn.behaviour_logprobs))
        # The greedy limit has no density to train on; its log-probabilities are at temperature 1.
        temperature = turn.temperature or 1.0
        current[3].extend([temperature] * (added + len(completion)))
    return [
        (np.array(t, np.int64), np.array(m, np.bool_), np.array(b), np.array(h))
        for t, m, b, h in sequences
    ]


def shared_prefix(samples: Sequence[TrainingSample]) -> int:
    """Return how many leading untrained tokens all samples have in common."""
    if len(samples) < 2:
        return 0
    limit = min(int(np.argmax(s.mask)) if s.mask.any() else len(s.token_ids) for s in samples)
    first = samples[0].token_ids[:limit]
    for sample in samples[1:]:
        same = sample.token_ids[: len(first)] == first[: len(sample.token_ids)]
        first = first[: len(same) if same.all() else int(np.argmin(same))]
    # Every child keeps a token of its own.
    return min(len(first), min(len(s.token_ids) for s in samples) - 1)


def pack_samples(samples: Sequence[TrainingSample], max_tokens: int) -> list[Pack]:
    """Cut samples, in order, into packs of at most ``max_tokens`` tokens.

    A single sequence longer than that gets a pack of its own. Samples without a trained token are
    left out: they carry no gradient.
    """
    groups: list[list[TrainingSample]] = []
    for sample in samples:
        if not sample.mask.any():
            continue
        if groups and groups[-1][0].group == sample.group:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    packs: list[list[list[TrainingSample]]] = []
    room = 0
    for group in groups:
        prefix = shared_prefix(group)
        for sample in group:
            own = len(sample.token_ids) - prefix
            fresh = not packs or not packs[-1] or packs[-1][-1][0].group != sample.group
            cost = own + (prefix if fresh else 0)
            if not packs or cost > room:
                packs.append([])
                room = max_tokens
                fresh, cost = True, own + prefix
            if fresh:
                packs[-1].append([])
            packs[-1][-1].append(sample)
            room -= cost
    return [build_pack(trees) for trees in packs]


def common_prefix(trees: Sequence[Sequence[TrainingSample]]) -> int:
    """Return how many leading tokens all trees share (a system prompt, say), below their prompts.

    Worth a segment of its own from two trees on; every tree keeps a token of its own.
    """
    if len(trees) < 2:
        return 0
    heads = [tree[0] for tree in trees]
    own = min(shared_prefix(tree) or len(tree[0].token_ids) for tree in trees)
    return max(0, min(shared_prefix(heads), own - 1))


def build_pack(trees: Sequence[Sequence[TrainingSample]]) -> Pack:
    """Lay out groups of samples as one pack: what all share, what a group shares, what is own."""
    layout = _Layout()
    root = common_prefix(trees)
    if root:
        layout.segment(trees[0][0].token_ids[:root], 0, below=_tree_tokens(trees, root))
    for tree in trees:
        prefix = max(root, shared_prefix(tree))
        if prefix > root:
            below = sum(len(s.token_ids) - prefix for s in tree)
            layout.segment(tree[0].token_ids[root:prefix], root, below=below)
        # The token before a sibling's own first token is the last one of what it shares.
        shared_end = layout.length - 1 if prefix > root else root - 1
        for sample in tree:
            layout.sample(sample, prefix, shared_end)
    return layout.pack()


def _tree_tokens(trees: Sequence[Sequence[TrainingSample]], root: int) -> int:
    """Return how many tokens the trees take after their first ``root`` shared ones."""
    total = 0
    for tree in trees:
        prefix = max(root, shared_prefix(tree))
        total += prefix - root + sum(len(s.token_ids) - prefix for s in tree)
    return total


class _Layout:
    """Collects a pack's arrays segment by segment."""

    def __init__(self) -> None:
        self.length = 0
        self.tokens: list[IntArray] = []
        self.positions: list[IntArray] = []
        self.spans: list[Span] = []
        self.rows: list[tuple[TrainingSample, IntArray]] = []
        self.sources: list[IntArray] = []

    def segment(self, token_ids: IntArray, first_position: int, below: int) -> None:
        """Add a segment whose descendants will take ``below`` tokens right after it."""
        end = self.length + len(token_ids)
        self.spans.append(Span(self.length, end, end + below))
        self.tokens.append(token_ids)
        self.positions.append(np.arange(first_position, first_position + len(token_ids)))
        self.length = end

    def sample(self, sample: TrainingSample, prefix: int, shared_end: int) -> None:
        trained = np.flatnonzero(sample.mask)
        if trained[0] == 0:
            raise ValueError("the first token of a sequence cannot be trained")
        start = self.length
        self.segment(sample.token_ids[prefix:], prefix, below=0)
        before = trained - 1
        self.sources.append(np.where(before >= prefix, start + before - prefix, shared_end))
        self.rows.append((sample, trained))

    def pack(self) -> Pack:
        rows = self.rows
        losses = tuple(dict.fromkeys(s.loss for s, _ in rows))
        names = sorted({n for s, _ in rows for n in s.streams})
        return Pack(
            token_ids_T=np.concatenate(self.tokens),
            positions_T=np.concatenate(self.positions),
            spans=tuple(self.spans),
            source_N=np.concatenate(self.sources),
            target_N=np.concatenate([s.token_ids[t] for s, t in rows]),
            streams={n: np.concatenate([_stream(s, n, t) for s, t in rows]) for n in names},
            sequence_N=np.concatenate([np.full(len(t), i) for i, (_, t) in enumerate(rows)]),
            num_sequences=len(rows),
            loss_N=np.concatenate([np.full(len(t), losses.index(s.loss)) for s, t in rows]),
            losses=losses,
            rows=rows,
        )


def _stream(sample: TrainingSample, name: str, trained: IntArray) -> FloatArray:
    values = sample.streams.get(name)
    # A stream that a sample's algorithm does not use is NaN: reading it by mistake is loud.
    return np.full(len(trained), np.nan) if values is None else values[trained]


def supervised_samples(
    token_ids: Sequence[Sequence[int]],
    masks: Sequence[Sequence[bool]],
    weights: Mapping[int, float],
) -> list[TrainingSample]:
    """Return samples whose loss is the negative log-probability of masked tokens.

    ``weights[i]`` is what each trained token of sequence i counts (its global denominator).
    """
    out = []
    for i, (ids, mask) in enumerate(zip(token_ids, masks, strict=True)):
        length = len(ids)
        streams = {"weight": np.full(length, weights[i]), "temperature": np.ones(length)}
        out.append(
            TrainingSample(
                np.array(ids, np.int64), np.array(mask, np.bool_), streams, i, i, "cross_entropy"
            )
        )
    return out
