"""What the parts of a step cost on a machine: measured curves, or a known GPU's limits.

One description for both, so that what predicts a step does not know where its figures come from.
Torch-free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from educe.core.types import JSON
from educe.models.architectures import ModelShape
from educe.preflight.activations import BYTES, layer_bytes, shelved_layer_bytes
from educe.preflight.hardware import GpuProfile

# Part of a pack's tokens that is trained where its cost is measured: groups of 8 completions of 48
# tokens that share a prompt of 64.
TRAINED = 8 * 48 / (64 + 8 * 48)


@dataclass(frozen=True, slots=True)
class Curve:
    """A cost over a size, straight between measured points and beyond them.

    Attributes:
        points: (size, cost), sizes ascending, at least one.
    """

    points: tuple[tuple[float, float], ...]

    def __call__(self, size: float) -> float:
        """Return the cost at a size; 0 at size 0, and never below 0."""
        if size <= 0:
            return 0.0
        if len(self.points) == 1:
            known, cost = self.points[0]
            return cost * size / known
        sizes = [s for s, _ in self.points]
        place = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
        (low, cost_low), (high, cost_high) = self.points[place - 1], self.points[place]
        cost = cost_low + (cost_high - cost_low) * (size - low) / (high - low)
        # Below the first point nothing is cheaper than in proportion.
        return max(cost, self.points[0][1] * min(1.0, size / sizes[0]))

    def to_json(self) -> JSON:
        return [list(point) for point in self.points]

    @staticmethod
    def from_json(raw: Sequence[Sequence[float]]) -> Curve:
        return Curve(tuple((float(size), float(cost)) for size, cost in raw))


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds and bytes of a step's parts, for one model, its types and one machine.

    Attributes:
        source: where the figures come from, in words.
        decode_s: of one token for so many rows with short contexts, sampling included.
        cached_s: added by each row and each token of its context.
        prefill_s: of so many prompt tokens in one forward.
        train_s: forward, backward and loss of a pack; the part ``TRAINED`` of it is trained.
        head_s: of that, what a trained token adds.
        forward_s: of the forward part of that alone (log-probabilities).
        optimizer_s, publish_s: of one optimizer step and of handing weights to the engine.
        start_bytes: of a process before it has a model.
        train_bytes: what a pack of so many tokens adds to weights, gradients and moments.
        sample_bytes: what decoding so many rows adds to weights and caches.
        num_cores: that reward workers share with the model; 0 where the model has its own device.
    """

    source: str
    decode_s: Curve
    cached_s: float
    prefill_s: Curve
    train_s: Curve
    head_s: float
    forward_s: Curve
    optimizer_s: float
    publish_s: float
    start_bytes: float
    train_bytes: Curve
    sample_bytes: Curve
    num_cores: int = 0

    def pack_s(self, tokens: float, trained: float) -> float:
        """Return the seconds of a pack of which so many tokens are trained."""
        return max(0.0, self.train_s(tokens) - self.head_s * (TRAINED * tokens - trained))

    def to_json(self) -> dict[str, JSON]:
        told: dict[str, JSON] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            told[name] = value.to_json() if isinstance(value, Curve) else value
        return told

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> StepCosts:
        told: dict[str, Any] = {
            k: Curve.from_json(v) if isinstance(v, list) else v for k, v in raw.items()
        }
        return StepCosts(**told)


@dataclass(frozen=True, slots=True)
class Workspace:
    """How a recipe computes: types by name, and what else a part's cost depends on."""

    compute: str
    sampling: str
    master: str
    has_checkpointing: bool = False


# Operations that a layer's forward starts one by one, and the time of one start: without captured
# graphs, small batches wait for these. A measured decode of small models at one row comes to this.
_STARTS_A_LAYER = 25
_START_S = 6e-6
# Parts of a GPU's peak that plain kernels reach: matrix products of training, bytes of decoding.
_OF_PEAK, _OF_BANDWIDTH = 0.45, 0.7
_ROWS = (1, 8, 64, 256, 1024)
_TOKENS = (256, 2048, 16384, 65536)
_GPU_CONTEXT_BYTES = 600 * 1024**2
_LOGIT_ROWS = 512


def gpu_costs(gpu: GpuProfile, shape: ModelShape, work: Workspace, trained: int) -> StepCosts:
    """Return what a step costs by a GPU's published limits (a roofline: Williams et al. 2009).

    Args:
        trained: weights that the optimizer changes.
    """
    bandwidth = gpu.bandwidth_gb_s * 1e9 * _OF_BANDWIDTH
    sampling = BYTES[work.sampling]
    weights = shape.num_parameters
    starts = shape.num_layers * _STARTS_A_LAYER * _START_S

    def products(tokens: float, kind: str) -> float:
        rate = gpu.teraflops(kind) * 1e12 * _OF_PEAK
        return 2.0 * weights * tokens / rate

    def decode(rows: float) -> float:
        logits = rows * shape.vocabulary * 4 * 3
        moved = (weights * sampling + logits) / bandwidth
        return starts + max(moved, products(rows, work.sampling))

    def train(tokens: float, passes: float) -> float:
        moved = passes * tokens * activation_bytes(shape, work) / bandwidth
        return passes * starts + max(products(tokens, work.compute) * passes, moved)

    passes = 4.0 if work.has_checkpointing else 3.0
    cached = shape.cache_values_per_token * sampling / bandwidth
    master = BYTES[work.master]
    return StepCosts(
        source=f"{gpu.name}, published limits: {gpu.source}",
        decode_s=Curve(tuple((r, decode(r)) for r in _ROWS)),
        cached_s=cached,
        prefill_s=Curve(tuple((t, starts + products(t, work.sampling)) for t in _TOKENS)),
        train_s=Curve(tuple((t, train(t, passes)) for t in _TOKENS)),
        head_s=passes
        * 2
        * shape.vocabulary
        * shape.width
        / (gpu.teraflops(work.compute) * 1e12 * _OF_PEAK),
        forward_s=Curve(tuple((t, train(t, 1.0)) for t in _TOKENS)),
        # Weights, gradients and two moments are read, all but the gradients written.
        optimizer_s=7 * trained * master / bandwidth,
        publish_s=(weights * (master + sampling)) / bandwidth,
        start_bytes=_GPU_CONTEXT_BYTES,
        train_bytes=Curve(tuple((t, train_bytes(shape, work, t)) for t in _TOKENS)),
        sample_bytes=Curve(tuple((r, r * shape.vocabulary * 4 * 3) for r in _ROWS)),
    )


def activation_bytes(shape: ModelShape, work: Workspace) -> int:
    """Return the bytes that a token keeps for the backward."""
    master, compute = BYTES[work.master], BYTES[work.compute]
    layer = layer_bytes(shape, master=master, compute=compute)
    if work.has_checkpointing:
        kept = shelved_layer_bytes(shape, master=master, compute=compute)
        return shape.num_layers * kept + layer
    return shape.num_layers * layer


def train_bytes(shape: ModelShape, work: Workspace, tokens: float) -> float:
    """Return the bytes that a pack of tokens adds at its peak."""
    width = BYTES[work.compute]
    logits = 2 * min(tokens, _LOGIT_ROWS) * shape.vocabulary * max(width, 4)
    copies = shape.num_parameters * width if work.compute != work.master else 0
    return tokens * activation_bytes(shape, work) + logits + copies
