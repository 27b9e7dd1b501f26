"""What trainer ranks say to each other: sums and gathers, trivial for one process.

Gradients are *summed* over ranks, never averaged: the streams' weights already hold the global
denominators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
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
        host, port: of the store that rank 0 opens.
        join_timeout_s: how long to wait for the other ranks to appear.
        timeout_s: a collective that waits longer raises instead of hanging. What rank 0 does alone
            does not count: the others wait for its broadcast without a limit.
        check: called while waiting for the ranks; may raise when one is known to be dead.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        host: str,
        port: int,
        *,
        join_timeout_s: float = 180.0,
        timeout_s: float = 3600.0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        import torch.distributed as dist

        store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            world_size,
            is_master=rank == 0,
            timeout=timedelta(seconds=join_timeout_s),
            wait_for_workers=False,
        )
        store.add("joined", 1)
        deadline = time.monotonic() + join_timeout_s
        while store.add("joined", 0) < world_size:
            check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all {world_size} ranks came within {join_timeout_s:g} s")
            time.sleep(0.05)
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        self._dist = dist
        self._store = store
        self._num_broadcasts = 0
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
        self._wait_for_rank_0()
        box = [value]
        self._dist.broadcast_object_list(box, src=0)
        return box[0]

    def _wait_for_rank_0(self) -> None:
        """Wait without a limit until rank 0 broadcasts: it may sample or evaluate for hours.

        Its store dies with it, which raises here.
        """
        self._num_broadcasts += 1
        if self.rank == 0:
            self._store.add("broadcasts", 1)
            return
        pause_s = 0.001
        while self._store.add("broadcasts", 0) < self._num_broadcasts:
            time.sleep(pause_s)
            pause_s = min(0.1, 2 * pause_s)

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
