"""What the backward of a layer needs: kept, computed again, or put aside meanwhile.

Checkpointing keeps each layer's input and recomputes the layer in the backward, but for its
attention: output and log-sum-exp are kept (``models.attention``), since they cost T * T operations
to compute and T numbers to keep. What is kept can be *shelved*: in memory as it is, in pinned host
memory on CUDA, in a file on a CPU.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from educe.core.errors import EduceError

Take = Callable[[], Tensor]


class Shelf(Protocol):
    """Holds tensors between forward and backward."""

    def put(self, tensor: Tensor) -> Take:
        """Take a tensor over; what is returned gives it back, as often as it is called."""
        ...


class MemoryShelf:
    """Keeps tensors where they are."""

    def put(self, tensor: Tensor) -> Take:
        return lambda: tensor


class HostShelf:
    """Keeps tensors of an accelerator in pinned host memory."""

    def put(self, tensor: Tensor) -> Take:
        device = tensor.device
        kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        kept.copy_(tensor)
        return lambda: kept.to(device)


class FileShelf:
    """Keeps tensors in a temporary file that has no name; room that is given back is used again.

    The file lies where ``tempfile`` puts them (``TMPDIR``) and is gone with the process.
    """

    def __init__(self) -> None:
        # Open as long as the shelf is: what is kept has no name to open it by.
        self._file = tempfile.TemporaryFile(prefix="educe-activations-", buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._size = 0
        self._free: dict[int, list[int]] = {}
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """The most bytes that were ever kept at once."""
        return self._size

    def put(self, tensor: Tensor) -> Take:
        """Write a tensor.

        Raises:
            EduceError: the disk is full or cannot be written.
        """
        plain = tensor.detach().contiguous()
        amount = plain.numel() * plain.element_size()
        with self._lock:
            free = self._free.get(amount)
            offset = free.pop() if free else self._size
            self._size = max(self._size, offset + amount)
        try:
            self._file.seek(offset)
            self._write(_bytes_of(plain))
        except OSError as error:
            raise EduceError(
                f"activations could not be put aside ({amount} bytes into {tempfile.gettempdir()}: "
                f"{error.strerror or error}); set TMPDIR to a folder with more room, or "
                "model.activation_offload = false"
            ) from error
        return _Place(self, offset, amount, plain.shape, plain.dtype)

    def _write(self, data: memoryview) -> None:
        while data:
            data = data[self._file.write(data) :]

    def read(self, offset: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        out = torch.empty(shape, dtype=dtype)
        data = _bytes_of(out)
        self._file.seek(offset)
        while data:
            count = self._file.readinto(data)
            if not count:
                raise EduceError("the file of put-aside activations is shorter than what was kept")
            data = data[count:]
        return out

    def give_back(self, offset: int, amount: int) -> None:
        with self._lock:
            self._free.setdefault(amount, []).append(offset)


class _Place:
    """Room in a file; given back when nobody can ask for it any more."""

    def __init__(
        self, shelf: FileShelf, offset: int, amount: int, shape: torch.Size, dtype: torch.dtype
    ) -> None:
        self._shelf, self._offset, self._amount = shelf, offset, amount
        self._shape, self._dtype = shape, dtype

    def __call__(self) -> Tensor:
        return self._shelf.read(self._offset, self._shape, self._dtype)

    def __del__(self) -> None:
        self._shelf.give_back(self._offset, self._amount)


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, any dtype, as bytes."""
    if not math.prod(tensor.shape):
        return memoryview(b"")
    flat: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def shelf_for(device: torch.device, *, offload: bool) -> Shelf:
    """Return where a device's activations wait for the backward."""
    if not offload:
        return MemoryShelf()
    if device.type != "cpu":
        return HostShelf()
    return_freed_memory()
    return FileShelf()


def return_freed_memory() -> None:
    """Let glibc give large blocks back to the system as they are freed; does nothing elsewhere.

    Left alone it soon keeps blocks of up to 32 MiB for itself, in holes that the gradients between
    them keep apart: a fifth of the peak of a long sequence. That costs a few per cent of the time,
    so it is for who asked for the least memory. ``MALLOC_MMAP_THRESHOLD_`` set outside has the say.
    """
    if not sys.platform.startswith("linux") or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)


_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_LARGE_BLOCK = 4 << 20


def recompute_layers(causal: Any, shelf: Shelf) -> None:
    """Let every decoder layer of a module recompute itself in the backward.

    Only what the layer is given is kept, on ``shelf``. Gradients are those of the plain module.
    """
    does_nothing = isinstance(shelf, MemoryShelf)
    # Nothing in a layer draws numbers, so there is no generator's state to restore.
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)

    def run(function: Callable[..., Any], *inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return function(*inputs)
        with nullcontext() if does_nothing else saved_tensors_hooks(shelf.put, lambda take: take()):
            return again(function, *inputs)

    for layer in causal.model.layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = run
        layer.train()
