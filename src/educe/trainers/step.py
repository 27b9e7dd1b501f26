"""One optimizer step: sum weight * loss over the packs, sum over ranks, clip, apply.

Knows no algorithm, domain or reward by name: losses come by id, everything else is in the streams.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from educe.algorithms.importance import effective_sample_share, mismatch_per_token
from educe.algorithms.losses import LossFunction, Segments, TokenLoss, proximal_logprobs
from educe.config.settings import OptimizerSettings
from educe.core.metrics import Tally
from educe.models.attention import ForestContext
from educe.models.load import LoadedModel
from educe.models.logprobs import TokenLogprobs, token_logprobs
from educe.models.value_head import ValueHead
from educe.observability.timing import SILENT, PhaseTimer
from educe.parallel.collectives import Collectives, SingleProcess, rank_slice
from educe.rollout.packing import BESIDE, Pack, TrainingSample, pack_samples
from educe.trainers.optimizers import build_optimizer, set_learning_rate
from educe.trainers.step_limits import StepLimits


@dataclass(slots=True)
class TrainerState:
    """What training changes: the model, its optimizer, and how often they were changed.

    Attributes:
        value_head: the critic, where an algorithm needs one.
        frozen: tensors that no step changes but a resume needs (a refreshed reference), by name.
    """

    model: LoadedModel
    optimizer: torch.optim.Optimizer
    settings: OptimizerSettings
    compute_dtype: torch.dtype
    step: int = 0
    collectives: Collectives = field(default_factory=SingleProcess)
    limits: StepLimits = field(default_factory=StepLimits)
    rate_scale: float = 1.0
    value_head: ValueHead | None = None
    frozen: dict[str, Tensor] = field(default_factory=dict)
    timeline: PhaseTimer = SILENT

    @staticmethod
    def create(
        model: LoadedModel,
        settings: OptimizerSettings,
        learning_rate: float,
        *,
        compute_dtype: torch.dtype | None = None,
        collectives: Collectives | None = None,
        value_head: ValueHead | None = None,
        value_learning_rate: float = 0.0,
    ) -> TrainerState:
        """Return a fresh state; ``value_learning_rate`` 0 takes the model's."""
        head = [] if value_head is None else list(value_head.parameters())
        scale = (value_learning_rate or learning_rate) / learning_rate
        optimizer = build_optimizer(
            model.trainable(), settings, learning_rate, head=head, head_scale=scale
        )
        return TrainerState(
            model,
            optimizer,
            settings,
            compute_dtype or model.head_weight().dtype,
            collectives=collectives or SingleProcess(),
            value_head=value_head,
        )

    def trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return (name, parameter) of everything the optimizer changes: the model's, the head's."""
        head = [] if self.value_head is None else self.value_head.trainable()
        return self.model.trainable() + head


@dataclass(slots=True)
class StepResult:
    """``skipped`` says why a step changed nothing, empty when it did."""

    grad_norm: float
    tally: Tally
    num_tokens: int
    seconds: float
    skipped: str = ""


Forward = Callable[[LoadedModel, Pack, torch.dtype | None], TokenLogprobs]


class Probe(Protocol):
    """Watches a step's gradient grow, part by part (``domain_gradients.GradientProbe``)."""

    def parts(
        self, samples: Sequence[TrainingSample], mine: Sequence[TrainingSample]
    ) -> list[list[TrainingSample]]:
        """Return this rank's samples in parts, as many on every rank."""
        ...

    def take(
        self, part: Sequence[TrainingSample], parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        """Take in that ``.grad`` has grown by a part."""
        ...

    def finish(self, collectives: Collectives) -> None: ...


def forward_pack(
    model: LoadedModel, pack: Pack, compute_dtype: torch.dtype | None = None
) -> TokenLogprobs:
    """Return log-probabilities and entropies of a pack's trained tokens, with gradients."""
    rows, temperature, targets = trained_rows(model, pack, compute_dtype)
    return token_logprobs(rows, model.head_weight(), targets, temperature)


def trained_rows(
    model: LoadedModel, pack: Pack, compute_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (hidden rows [N, D] that predict the trained tokens, temperatures N, targets N)."""
    device = model.device
    weight = model.head_weight()
    dtype = compute_dtype or weight.dtype
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != weight.dtype):
        hidden = model.hidden(
            torch.as_tensor(pack.token_ids_T, device=device)[None],
            torch.as_tensor(pack.positions_T, device=device)[None],
            ForestContext(pack.spans, model.shelf),
        )[0]
    rows = hidden[torch.as_tensor(pack.source_N, device=device)].to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    temperature = torch.as_tensor(pack.streams["temperature"], dtype=wide, device=device)
    return rows, temperature, torch.as_tensor(pack.target_N, device=device)


def forward_with_values(
    state: TrainerState, pack: Pack, forward: Forward = forward_pack
) -> tuple[TokenLogprobs, Tensor | None]:
    """Return a pack's log-probabilities, and the head's N values where its samples learn values.

    Both come from one forward of the model.
    """
    if state.value_head is None or "returns" not in pack.streams:
        return forward(state.model, pack, state.compute_dtype), None
    rows, temperature, targets = trained_rows(state.model, pack, state.compute_dtype)
    outputs = token_logprobs(rows, state.model.head_weight(), targets, temperature)
    return outputs, state.value_head(rows)


def pack_loss(
    outputs: TokenLogprobs,
    pack: Pack,
    losses: Mapping[str, LossFunction],
    values_N: Tensor | None = None,
) -> tuple[Tensor, TokenLoss, dict[str, Tensor]]:
    """Return (sum of weight * loss, the per-token loss, the streams as tensors)."""
    policy, entropy = outputs
    device, dtype = policy.device, policy.dtype
    streams = {n: torch.as_tensor(v, dtype=dtype, device=device) for n, v in pack.streams.items()}
    if values_N is not None:
        streams["values"] = values_N.to(dtype)
    sequence_N = torch.as_tensor(pack.sequence_N, device=device)
    segments = Segments(sequence_N, pack.num_sequences)
    if len(pack.losses) == 1:
        loss = losses[pack.losses[0]](policy, entropy, streams, segments)
    else:
        loss = _mixed_losses(outputs, pack, losses, streams)
    return (loss.loss_N * streams["weight"]).sum(), loss, streams


def _mixed_losses(
    outputs: TokenLogprobs,
    pack: Pack,
    losses: Mapping[str, LossFunction],
    streams: Mapping[str, Tensor],
) -> TokenLoss:
    """Each token by its own loss; a loss never sees another's tokens."""
    policy, entropy = outputs
    which = torch.as_tensor(pack.loss_N, device=policy.device)
    sequence_N = torch.as_tensor(pack.sequence_N, device=policy.device)
    total = torch.zeros_like(policy)
    diagnostics: dict[str, Tensor] = {}
    for number, name in enumerate(pack.losses):
        rows = (which == number).nonzero().squeeze(1)
        own = losses[name](
            policy[rows],
            entropy[rows],
            {n: v[rows] for n, v in streams.items()},
            Segments(sequence_N[rows], pack.num_sequences),
        )
        total = total.index_put((rows,), own.loss_N)
        for key, values in own.diagnostics.items():
            kept = diagnostics.setdefault(key, torch.full_like(policy, float("nan")).detach())
            kept[rows] = values.detach()
    return TokenLoss(total, diagnostics)


@torch.no_grad()
def fill_logprobs(
    model: LoadedModel,
    samples: Sequence[TrainingSample],
    stream: str,
    max_tokens: int,
    compute_dtype: torch.dtype | None = None,
) -> None:
    """Write the model's log-probabilities of trained tokens into each sample's stream."""
    for pack in pack_samples(samples, max_tokens):
        values = forward_pack(model, pack, compute_dtype).logprobs_N
        pack.write_back(stream, values.double().cpu().numpy())


def accumulate_gradients(
    state: TrainerState,
    samples: Sequence[TrainingSample],
    losses: Mapping[str, LossFunction],
    forward: Forward = forward_pack,
    probe: Probe | None = None,
) -> Tally:
    """Add the samples' gradients into ``.grad``, pack by pack, and sum them over ranks.

    ``forward`` replaces the model's plain forward (noise, smoothing); ``probe`` orders the samples
    in parts and sees the gradient after each.
    """
    tally = Tally()
    mine = rank_slice(samples, state.collectives.rank, state.collectives.world_size)
    if probe is None:
        _add_gradients(state, mine, losses, forward, tally)
    else:
        parameters = [p for _, p in state.model.trainable()]
        for part in probe.parts(samples, mine):
            _add_gradients(state, part, losses, forward, tally)
            probe.take(part, parameters)
        probe.finish(state.collectives)
    state.collectives.sum_gradients(p for _, p in state.trainable())
    merged = Tally()
    for told in state.collectives.gather(tally.to_json()):
        merged.merge(Tally.from_json(told))
    merged.counts["loss"] = 1.0  # a sum over packs and ranks, not a mean
    _tell_effective_share(merged)
    return merged


def _add_gradients(
    state: TrainerState,
    samples: Sequence[TrainingSample],
    losses: Mapping[str, LossFunction],
    forward: Forward,
    tally: Tally,
) -> None:
    """Add the gradients of this rank's samples into ``.grad``, and what they say into the tally."""
    timeline = state.timeline
    with timeline.measure("packing", len(samples)):
        packs = pack_samples(samples, state.settings.micro_batch_tokens)
    for pack in packs:
        with timeline.measure("forward", pack.num_tokens):
            outputs, values = forward_with_values(state, pack, forward)
        with timeline.measure("backward", pack.num_tokens):
            total, loss, streams = pack_loss(outputs, pack, losses, values)
            total.backward()  # type: ignore[no-untyped-call]
        with timeline.measure("diagnostics", pack.num_tokens):
            _measure(tally, pack, outputs, loss, streams)
        tally.mean("loss", float(total.detach()), 0.0)


def _tell_effective_share(tally: Tally) -> None:
    """Replace the mean squared correction by the share of samples that the weights are worth."""
    for name in [n for n in tally.sums if n.endswith("correction_square")]:
        squares, count = tally.sums.pop(name), tally.counts.pop(name)
        prefix = name.removesuffix("correction_square")
        if count:
            share = effective_sample_share(tally.sums[prefix + "correction"], squares, count)
            tally.mean(prefix + "effective_share", share)


def optimizer_step(
    state: TrainerState,
    samples: Sequence[TrainingSample],
    losses: Mapping[str, LossFunction],
    learning_rate: float,
    forward: Forward = forward_pack,
    probe: Probe | None = None,
) -> StepResult:
    """Take one step on the samples. A non-finite gradient changes nothing and says so."""
    begin = time.perf_counter()
    state.optimizer.zero_grad(set_to_none=True)
    tally = accumulate_gradients(state, samples, losses, forward, probe)
    with state.timeline.measure("optimizer"):
        norm, skipped = _apply(state, tally, learning_rate)
    state.step += 1
    state.optimizer.zero_grad(set_to_none=True)
    num_tokens = sum(s.num_trained for s in samples)
    return StepResult(norm, tally, num_tokens, time.perf_counter() - begin, skipped)


def _apply(state: TrainerState, tally: Tally, learning_rate: float) -> tuple[float, str]:
    """Clip and apply the gradients; return their norm and why nothing was changed, if so."""
    parameters = [p for _, p in state.model.trainable()]
    limit = state.settings.max_grad_norm or float("inf")
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
    # Clipped apart: the critic's errors are large at first and would shrink the policy's step.
    head = [] if state.value_head is None else list(state.value_head.parameters())
    head_norm = float(torch.nn.utils.clip_grad_norm_(head, limit)) if head else 0.0
    if head:
        tally.maximum("value_grad_norm", head_norm)
    skipped = state.limits.reason_to_skip(norm)
    if not math.isfinite(head_norm):
        skipped = skipped or f"gradient norm of the value head is {head_norm}"
    if not skipped:
        rate = learning_rate * state.rate_scale
        set_learning_rate(state.optimizer, rate)
        tally.mean("learning_rate", rate)
        tally.maximum("update_norm", state.limits.apply(state.optimizer, parameters))
    return norm, skipped


_DIAGNOSTICS = ("clip_low", "clip_high", "correction", "rejected", "value_loss", "value_clip")


@torch.no_grad()
def _measure(
    tally: Tally, pack: Pack, outputs: TokenLogprobs, loss: TokenLoss, streams: Mapping[str, Tensor]
) -> None:
    """Add per-token diagnostics, overall and per origin (domain)."""
    policy, entropy = (x.detach() for x in outputs)
    values: dict[str, Tensor] = {"entropy": entropy, "token_loss": loss.loss_N.detach()}
    for name in _DIAGNOSTICS:
        if name in loss.diagnostics:
            values[name] = loss.diagnostics[name]
    if "correction" in values:
        values["correction_square"] = values["correction"] ** 2
    if "behaviour_logprobs" in streams:
        proximal = proximal_logprobs(policy, streams)
        values.update(mismatch_per_token(proximal, streams["behaviour_logprobs"]))
        values.update(_kl("update", policy, proximal))
    if "reference_logprobs" in streams:
        values.update(_kl("kl", policy, streams["reference_logprobs"]))
    ratio = loss.diagnostics.get("ratio")
    origins = [s.origin for s, _ in pack.rows]
    sequence = torch.as_tensor(pack.sequence_N, device=policy.device)
    names: list[Any] = ["", *dict.fromkeys(o for o in origins if o and o != BESIDE)]
    for name in names:
        prefix = f"domain/{name}/" if name else ""
        chosen = [o == name if name else o != BESIDE for o in origins]
        rows = (
            slice(None) if all(chosen) else torch.as_tensor(chosen, device=policy.device)[sequence]
        )
        for key, tensor in values.items():
            picked = tensor[rows]
            picked = picked[~picked.isnan()]
            tally.mean(prefix + key, float(picked.sum()), float(picked.numel()))
        if ratio is not None:
            picked = ratio[rows]
            picked = picked[~picked.isnan()]
            if picked.numel():
                tally.maximum(prefix + "max_ratio", float(picked.max()))


def _kl(prefix: str, policy: Tensor, other: Tensor) -> dict[str, Tensor]:
    from educe.algorithms.kl import kl_per_token

    return {f"{prefix}_{k}": kl_per_token(policy, other, k) for k in ("k1", "k3")}
