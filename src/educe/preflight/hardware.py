"""Known GPUs, as data: what their makers publish. The host at hand is measured instead.

Rates are dense (no sparsity), the full card, at the power limit of the data sheet. What a program
reaches of them is the business of ``costs``. Data sheets as published by the maker; the page of
each is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from educe.core.errors import EduceError, did_you_mean

HERE = "here"


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """One GPU.

    Attributes:
        memory_gb: of the card, 2**30 bytes each, as the driver shows them (rounded down).
        bandwidth_gb_s: 10**9 bytes a second.
        bf16_teraflops: dense bfloat16 on tensor cores; float16 where a card has no bfloat16.
        fp32_teraflops: plain float32, without TF32: what torch computes by default.
    """

    name: str
    memory_gb: float
    bandwidth_gb_s: float
    bf16_teraflops: float
    fp32_teraflops: float
    source: str

    def teraflops(self, kind: str) -> float:
        """Return the peak of a type; float64 as half of float32, an upper bound on most cards."""
        if kind == "bfloat16":
            return self.bf16_teraflops
        return self.fp32_teraflops if kind == "float32" else self.fp32_teraflops / 2


_ADA = "NVIDIA Ada GPU architecture white paper"

GPUS: Mapping[str, GpuProfile] = {
    key: GpuProfile(name, memory, bandwidth, bf16, fp32, source)
    for key, name, memory, bandwidth, bf16, fp32, source in (
        ("t4", "T4", 15.0, 320, 65, 8.1, "NVIDIA T4 data sheet"),
        ("a10", "A10", 22.5, 600, 125, 31.2, "NVIDIA A10 data sheet"),
        ("l4", "L4", 22.5, 300, 121, 30.3, "NVIDIA L4 data sheet"),
        ("l40s", "L40S", 45.0, 864, 362, 91.6, "NVIDIA L40S data sheet"),
        ("rtx-4090", "GeForce RTX 4090", 23.5, 1008, 165, 82.6, _ADA),
        ("a100-40gb", "A100 40GB", 39.5, 1555, 312, 19.5, "NVIDIA A100 40GB data sheet"),
        ("a100-80gb", "A100 80GB", 79.0, 2039, 312, 19.5, "NVIDIA A100 80GB data sheet"),
        ("h100", "H100 SXM", 79.0, 3350, 989, 67, "NVIDIA H100 SXM data sheet"),
        ("h200", "H200 SXM", 140.0, 4800, 989, 67, "NVIDIA H200 SXM data sheet"),
    )
}


def gpu_named(name: str) -> GpuProfile:
    """Return a known GPU.

    Raises:
        EduceError: no GPU of that name is known.
    """
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key in GPUS:
        return GPUS[key]
    raise EduceError(
        f"no hardware profile {name!r}.{did_you_mean(key, GPUS)} Known: {HERE} (this machine, "
        f"measured), {', '.join(GPUS)}"
    )
