"""What the start of a stage sampled and what it thought of it: to measure drift, and to hold on to.

The kept completions are a file's worth of numbers; no second model is held. ``replay`` imitates
the right ones; ``anchor`` keeps the policy's log-probabilities of all of them where they were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from educe.algorithms.kl import kl_per_token
from educe.algorithms.losses import LossFunction, Segments, TokenLoss, cross_entropy
from educe.algorithms.streams import Streams
from educe.core.types import JSON, Group
from educe.rollout.packing import BESIDE, TrainingSample, trajectory_sequences
from educe.trainers.step import TrainerState, fill_logprobs

KEPT = "kept_logprobs"
_NOW = "now_logprobs"
REPLAY, ANCHOR = "replay", "anchor"
# A domain's kept sequences that one step trains on, at most; the next step takes the next ones.
_A_STEP = 4
_RIGHT = 0.5


def anchored(
    policy_logprobs_N: Tensor, entropy_N: Tensor, streams: Streams, segments: Segments
) -> TokenLoss:
    """Return half the squared log-ratio to what was kept (k2 of ``algorithms.kl``)."""
    return TokenLoss(kl_per_token(policy_logprobs_N, streams[KEPT], "k2"))


LOSSES: Mapping[str, LossFunction] = {REPLAY: cross_entropy, ANCHOR: anchored}


@dataclass(frozen=True, slots=True)
class KeptSequence:
    """A sampled sequence of T tokens: which of them are the completion's, at which temperature,
    the start's log-probabilities of those, and whether the attempt was right."""

    token_ids: tuple[int, ...]
    trained: tuple[int, ...]
    temperature: float
    logprobs: tuple[float, ...]
    is_right: bool

    def sample(self, number: int, loss: str = "") -> TrainingSample:
        """Return it with ``KEPT`` filled, alone in its group; of no domain, so that the figures of
        rollouts leave it out."""
        length = len(self.token_ids)
        mask = np.zeros(length, np.bool_)
        mask[list(self.trained)] = True
        kept = np.full(length, np.nan)
        kept[mask] = self.logprobs
        streams = {KEPT: kept, "temperature": np.full(length, self.temperature)}
        ids = np.array(self.token_ids, np.int64)
        return TrainingSample(ids, mask, streams, number, number, loss, BESIDE)

    def to_json(self) -> JSON:
        return [
            list(self.token_ids),
            list(self.trained),
            self.temperature,
            list(self.logprobs),
            self.is_right,
        ]

    @staticmethod
    def from_json(raw: Sequence[Any]) -> KeptSequence:
        ids, trained, temperature, logprobs, is_right = raw
        return KeptSequence(
            tuple(ids), tuple(trained), float(temperature), tuple(logprobs), bool(is_right)
        )


def keep_groups(state: TrainerState, groups: Sequence[Group]) -> dict[str, list[KeptSequence]]:
    """Return what the model, as it is now, sampled, with its log-probabilities; by domain."""
    samples: list[TrainingSample] = []
    rights: list[bool] = []
    for group in groups:
        for trajectory in group.trajectories:
            value = trajectory.score.value
            for ids, mask, _, temperature in trajectory_sequences(trajectory):
                if mask.any():
                    number = len(samples)
                    streams = {"temperature": temperature}
                    samples.append(
                        TrainingSample(ids, mask, streams, number, number, "", group.request.domain)
                    )
                    rights.append(value is not None and value >= _RIGHT)
    limit = state.settings.micro_batch_tokens
    fill_logprobs(state.model, samples, KEPT, limit, state.compute_dtype)
    kept: dict[str, list[KeptSequence]] = {}
    for sample, is_right in zip(samples, rights, strict=True):
        kept.setdefault(str(sample.origin), []).append(
            KeptSequence(
                tuple(sample.token_ids.tolist()),
                tuple(np.flatnonzero(sample.mask).tolist()),
                float(sample.streams["temperature"][0]),
                tuple(sample.streams[KEPT][sample.mask].tolist()),
                is_right,
            )
        )
    return kept


@dataclass(slots=True)
class Rehearsal:
    """What was kept, and what of it is trained on.

    Attributes:
        kept: by domain, the same on every rank.
        strength: of each domain's term, beside the step's own loss.
        active: by domain, its terms (``replay``, ``anchor``).
    """

    strength: float = 0.1
    kept: dict[str, list[KeptSequence]] = field(default_factory=dict)
    active: dict[str, list[str]] = field(default_factory=dict)

    def start(self, domain: str, term: str) -> bool:
        """Train on a domain's kept sequences from here on; return whether there are any."""
        if not self._usable(domain, term):
            return False
        terms = self.active.setdefault(domain, [])
        if term not in terms:
            terms.append(term)
        return True

    def _usable(self, domain: str, term: str) -> list[KeptSequence]:
        kept = self.kept.get(domain, [])
        return kept if term == ANCHOR else [k for k in kept if k.is_right]

    def samples(self, step: int, first: int) -> list[TrainingSample]:
        """Return what step ``step`` rehearses; the mean over each domain's tokens weighs
        ``strength``.

        Args:
            first: number of the first group and sequence, beyond those of the step's own samples.
        """
        out: list[TrainingSample] = []
        for domain, terms in sorted(self.active.items()):
            for term in terms:
                usable = self._usable(domain, term)
                begin = step * _A_STEP
                count = min(_A_STEP, len(usable))
                chosen = [usable[(begin + i) % len(usable)] for i in range(count)]
                total = sum(len(k.trained) for k in chosen)
                for kept in chosen:
                    sample = kept.sample(first + len(out), term)
                    weight = self.strength / total
                    sample.streams["weight"] = np.full(len(sample.token_ids), weight)
                    out.append(sample)
        return out

    def kl_to_start(self, state: TrainerState, domains: Sequence[str]) -> dict[str, float]:
        """Return KL(start || policy) on the kept sequences, nats a token, estimated by k3.

        The start sampled them, so the expected value is that of log start - log policy.
        """
        told: dict[str, float] = {}
        for domain in domains:
            samples = [k.sample(i) for i, k in enumerate(self.kept.get(domain, []))]
            if not samples:
                continue
            limit = state.settings.micro_batch_tokens
            fill_logprobs(state.model, samples, _NOW, limit, state.compute_dtype)
            ratios = [s.streams[_NOW][s.mask] - s.streams[KEPT][s.mask] for s in samples]
            ratio = np.clip(np.concatenate(ratios), -20.0, 20.0)
            told[domain] = float(np.mean(np.exp(ratio) - 1.0 - ratio))
        return {d: v for d, v in told.items() if math.isfinite(v)}

    def to_json(self) -> JSON:
        return {d: [k.to_json() for k in kept] for d, kept in sorted(self.kept.items())}

    def load(self, raw: Mapping[str, Any]) -> None:
        """Take what was kept from a file."""
        self.kept = {d: [KeptSequence.from_json(k) for k in kept] for d, kept in raw.items()}

    def state(self) -> JSON:
        return {d: list(terms) for d, terms in sorted(self.active.items())}

    def restore(self, state: Mapping[str, Sequence[str]]) -> None:
        """Continue; domains of which nothing is kept any more are left out."""
        self.active = {}
        for domain, terms in state.items():
            for term in terms:
                self.start(domain, term)
