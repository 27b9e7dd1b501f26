"""What trainer ranks say to each other: sums and gathers, trivial for one process.

Gradients are *summed* over ranks, never averaged: the streams' weights already hold the global
denominators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch


class Collectives(Protocol):
    """Communication among trainer ranks."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over ranks (a missing one counts as zero)."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's JSON-able value, in rank order, on every rank."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's JSON-able value on every rank (the others pass anything)."""
        ...

    def barrier(self) -> None: ...


class SingleProcess:
    """One rank: every operation is the identity."""

    rank = 0
    world_size = 1

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        return None

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def barrier(self) -> None:
        return None


class ProcessGroup:
    """Ranks joined by torch.distributed (gloo on CPU, nccl on CUDA).

    Args:
        rank, world_size: of this process.
        address: ``tcp://host:port`` or ``file://path`` of the rendezvous.
        timeout_s: a collective that waits longer raises instead of hanging.
    """

    def __init__(
        self, rank: int, world_size: int, address: str, *, timeout_s: float = 600.0
    ) -> None:
        import torch.distributed as dist

        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(
            backend,
            init_method=address,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        self._dist = dist
        self.rank = rank
        self.world_size = world_size

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for bucket in _buckets(list(parameters)):
            grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket]
            flat = torch.cat([g.reshape(-1) for g in grads])
            self._dist.all_reduce(flat)
            offset = 0
            for parameter, grad in zip(bucket, grads, strict=True):
                size = grad.numel()
                parameter.grad = flat[offset : offset + size].view_as(parameter).clone()
                offset += size

    def gather(self, value: Any) -> list[Any]:
        out: list[Any] = [None] * self.world_size
        self._dist.all_gather_object(out, value)
        return out

    def broadcast(self, value: Any) -> Any:
        box = [value]
        self._dist.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        self._dist.destroy_process_group()


def _buckets(
    parameters: Sequence[torch.nn.Parameter], limit: int = 2**24
) -> Iterable[list[torch.nn.Parameter]]:
    """Cut parameters into runs of one type and at most ``limit`` elements (a larger one alone)."""
    bucket: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        differs = bool(bucket) and bucket[0].dtype != parameter.dtype
        if bucket and (differs or size + parameter.numel() > limit):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


def rank_slice(items: Sequence[Any], rank: int, world_size: int) -> list[Any]:
    """Return the items of one rank: every ``world_size``-th, so that lengths balance."""
    return list(items[rank::world_size])


def sum_scalar(collectives: Collectives, value: float) -> float:
    return float(sum(collectives.gather(value)))
