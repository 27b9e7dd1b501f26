"""Weights on their way from the trainer to a rollout worker: checked tensor by tensor on arrival.

A worker that samples with other weights than the trainer believes is seen by nothing but a slow
drift of log-probabilities; so it must not sample at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from educe.core.errors import InfrastructureError

if TYPE_CHECKING:
    from torch import Tensor

_SAMPLES = 64


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return one checksum a tensor: the sum of its bits, and a few values where they stand.

    Sums of integers do not depend on the order they are added in, so machines and thread counts
    agree.
    """
    import torch

    widths = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found = {}
    for name, tensor in tensors.items():
        bits = tensor.detach().contiguous().view(widths[tensor.element_size()]).reshape(-1)
        some = bits[:: bits.numel() // _SAMPLES + 1].to(torch.int64)
        places = torch.arange(1, some.numel() + 1, device=some.device)
        found[name] = f"{int(bits.sum(dtype=torch.int64))}:{int((some * places).sum())}"
    return found


def load_checked(
    own: Mapping[str, Tensor], arrived: Mapping[str, Tensor], expected: Mapping[str, str]
) -> None:
    """Copy tensors that arrived into a model's own, and compare what it then holds.

    Args:
        own: by name; types and sizes must be those that were sent.
        expected: the sender's :func:`checksums`.

    Raises:
        InfrastructureError: a tensor is missing, unknown or other than what was sent.
    """
    import torch

    odd = sorted((arrived.keys() ^ expected.keys()) | (arrived.keys() - own.keys()))
    if odd:
        raise InfrastructureError(
            f"published weights do not fit this worker's model: {odd[0]!r} is not on all sides "
            f"({len(odd)} such tensors). Trainer and workers must load the same model."
        )
    with torch.no_grad():
        for name, tensor in arrived.items():
            own[name].copy_(tensor)
    held = checksums({name: own[name] for name in arrived})
    wrong = [name for name in arrived if held[name] != expected[name]]
    if wrong:
        raise InfrastructureError(
            f"published weights changed on the way: {len(wrong)} of {len(held)} tensors differ "
            f"from the trainer's, {wrong[0]!r} first. This worker does not sample with them."
        )
