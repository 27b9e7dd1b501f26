"""The policy that the KL of reinforcement learning is measured against.

It is the policy as the stage began (a frozen copy, or the trained model without its adapters where
that is the same), and may be refreshed: then it becomes the policy of that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from educe.models.load import LoadedModel, merged_state
from educe.rollout.packing import TrainingSample
from educe.trainers.step import TrainerState, fill_logprobs

_PREFIX = "reference."


class ReferencePolicy(Protocol):
    """Gives log-probabilities under the reference."""

    def fill(self, state: TrainerState, samples: Sequence[TrainingSample], stream: str) -> None:
        """Write its log-probabilities of trained tokens into each sample's stream."""
        ...

    def refresh(self, state: TrainerState) -> None:
        """Become the policy as it is now."""
        ...

    def restore(self, state: TrainerState) -> None:
        """Become what it was at the checkpoint that the state was loaded from."""
        ...


class FrozenCopy:
    """A second model that no step trains."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        model.causal.requires_grad_(False)

    def fill(self, state: TrainerState, samples: Sequence[TrainingSample], stream: str) -> None:
        limit = state.settings.micro_batch_tokens
        fill_logprobs(self.model, samples, stream, limit, state.compute_dtype)

    @torch.no_grad()
    def refresh(self, state: TrainerState) -> None:
        """Copy the policy's weights, and hand them to the state for its checkpoints."""
        self._copy(merged_state(state.model))
        state.frozen = {
            _PREFIX + name: p.detach().clone().cpu()
            for name, p in self.model.causal.named_parameters()
        }

    def restore(self, state: TrainerState) -> None:
        held = {n.removeprefix(_PREFIX): t for n, t in state.frozen.items() if _PREFIX in n}
        if held:
            self._copy(held)

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.causal.named_parameters():
            parameter.copy_(tensors[name])


class WithoutAdapter:
    """The trained model with its adapters switched off: the base, in the same memory."""

    def fill(self, state: TrainerState, samples: Sequence[TrainingSample], stream: str) -> None:
        limit = state.settings.micro_batch_tokens
        with _adapter_off(state.model):
            fill_logprobs(state.model, samples, stream, limit, state.compute_dtype)

    def refresh(self, state: TrainerState) -> None:
        """Raises RuntimeError: the base cannot become the policy; take a frozen copy."""
        raise RuntimeError("a reference without adapters cannot be refreshed; use a frozen copy")

    def restore(self, state: TrainerState) -> None:
        return None


@contextmanager
def _adapter_off(model: LoadedModel) -> Iterator[None]:
    adapter: Any = model.adapter
    if adapter is None:
        raise RuntimeError("this model has no adapters; its reference is a frozen copy")
    with adapter.disable_adapter():
        yield
