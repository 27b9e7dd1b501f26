"""``educe doctor``: what this machine offers, and what is missing for what."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from educe.core.strict_json import strict_json
from educe.core.types import JSON

# What each extra brings, and what it is for.
EXTRAS: Mapping[str, tuple[str, str]] = {
    "8bit": ("bitsandbytes", "optimizer.name = adamw_8bit"),
    "lora": ("peft", "LoRA adapters"),
    "native": ("ziglang", "a C compiler for the fused kernels, where the system has none"),
    "quality": ("ruff", "style of code, in rewards and evaluations"),
    "datasets": ("datasets", "Hugging Face dataset folders"),
    "serve": ("starlette", "educe serve"),
    "inspect": ("inspect_ai", "suites as Inspect tasks"),
    "tensorboard": ("tensorboard", "live sink"),
    "wandb": ("wandb", "live sink"),
    "mlflow": ("mlflow", "live sink"),
    "trackio": ("trackio", "live sink"),
}
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "reasoning-gym")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="what this machine offers",
        description="Tell what this machine offers: cores, memory, disk, device, packages, extras "
        "and the level of isolation for model-written code.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    """Print the report; 1 when something that educe cannot do without is missing."""
    report = examine()
    if arguments.json:
        print(strict_json(report, indent=2))
    else:
        print("\n".join(_lines(report)))
    return 1 if report["missing"] else 0


def examine() -> dict[str, JSON]:
    """Return the machine's offer as JSON-able data."""
    from educe.models.packaged_weights import PACKAGED, is_ready, packaged_folder
    from educe.preflight.devices import num_cores
    from educe.preflight.machine import memory_of

    total, free, _ = memory_of("cpu")
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": num_cores(),
        "memory": {"total": total, "free": free},
        "disk_free": shutil.disk_usage(Path.cwd()).free,
        "packages": {name: _version(name) for name in _PACKAGES},
        "missing": [name for name in _PACKAGES if _version(name) is None],
        "extras": {name: _is_installed(package) for name, (package, _) in EXTRAS.items()},
        "device": _device(),
        "kernels": _kernels(),
        "sandbox": _sandbox(),
        "models": {name: is_ready(packaged_folder(name)) for name in PACKAGED},
    }


def _device() -> str:
    """What torch would train on; torch is loaded here and nowhere else in this command."""
    if not _is_installed("torch"):
        return "unknown: torch is not installed"
    import torch

    if torch.cuda.is_available():
        return f"cuda: {torch.cuda.get_device_name()} (torch {torch.__version__})"
    return f"cpu: {torch.get_num_threads()} threads (torch {torch.__version__})"


def _kernels() -> str:
    """Whether sampling has its compiled kernels; they are compiled here if they never were."""
    from educe.native.build import open_library

    opened = open_library()
    if opened.library is None or not opened.library.educe_has_blocks():
        return opened.told
    how = "on matrix tiles (AMX)" if opened.library.educe_has_tiles() else "by bf16 vectors"
    return f"{opened.told}, with products of our own {how}"


def _sandbox() -> str:
    """The strongest isolation that works here, found by opening a sandbox."""
    from educe.sandbox import Level, SandboxError, open_sandbox

    try:
        with open_sandbox(minimum=Level.PLAIN) as sandbox:
            level = sandbox.level
    except SandboxError as error:
        return f"none: {error}"
    told = {
        Level.PLAIN: "limits and a deadline only; keeps accidents in, not attackers",
        Level.CONFINED: "files and system calls are confined; no namespaces",
        Level.NAMESPACES: "own namespaces, no network, confined files and system calls",
        Level.CGROUPS: "as namespaces, with memory and processes limited by the kernel",
    }
    return f"level {level.value}, {level.name.lower()}: {told[level]}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _lines(report: Mapping[str, Any]) -> list[str]:
    from educe.preflight.estimate import gigabytes

    memory = report["memory"]
    lines = [
        f"system    {report['system']}, Python {report['python']}",
        f"cores     {report['cores']}",
        f"memory    {gigabytes(memory['total'])}, {gigabytes(memory['free'])} free",
        f"disk      {gigabytes(report['disk_free'])} free here",
        f"device    {report['device']}",
        f"kernels   {report['kernels']}",
        f"sandbox   {report['sandbox']}",
    ]
    lines += [
        f"package   {name} {found or 'MISSING'}" for name, found in report["packages"].items()
    ]
    for name, is_there in report["extras"].items():
        purpose = EXTRAS[name][1]
        state = "installed" if is_there else f"not installed: pip install 'educe[{name}]'"
        lines.append(f"extra     {name} ({purpose}): {state}")
    for name, is_there in report["models"].items():
        lines.append(f"model     {name}: {'ready' if is_there else 'fetched on first use'}")
    if report["missing"]:
        lines.append(f"educe cannot run without: {', '.join(report['missing'])}")
    return lines
