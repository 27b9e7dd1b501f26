"""How much memory and disk a run takes, from sizes alone; meant to be right within 30 %."""

from __future__ import annotations

from dataclasses import dataclass

from educe.config.settings import ModelSettings
from educe.models.architectures import ModelShape
from educe.preflight.activations import BYTES, layer_bytes, shelved_layer_bytes
from educe.preflight.devices import takes_cuda
from educe.preflight.plan import Plan
from educe.preflight.stages import CHARACTERS_PER_TOKEN, keeps_preference_copy, samples

GIB = 1024**3
# Python, torch and transformers, loaded and idle; then one reward worker; then a process of
# [prefetch], which loads a tokenizer of transformers and with it torch.
_RUNTIME_BYTES = 600 * 1024**2
_WORKER_BYTES = 150 * 1024**2
_PREFETCH_BYTES = 350 * 1024**2
# Rows of logits that exist at once (models.logprobs.CHUNK_ROWS), as logits and their gradient.
_LOGIT_ROWS = 512
# Taken for a prompt that nobody measured.
_UNMEASURED_PROMPT = 1024
_STORE_BYTES = 100 * 1024**2


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by purpose, over all processes of the run on this machine.

    ``state`` (what cannot be made smaller by smaller batches) is weights, gradients, optimizer and
    reference together. ``put_aside`` is in a temporary file, which need not be on the run's disk.
    """

    num_parameters: int
    num_trained: int
    memory: dict[str, int]
    disk: dict[str, int]
    put_aside: int = 0

    @property
    def memory_total(self) -> int:
        return sum(self.memory.values())

    @property
    def disk_total(self) -> int:
        return sum(self.disk.values())

    @property
    def state(self) -> int:
        kept = ("weights", "gradients", "optimizer", "reference", "teacher")
        return sum(self.memory.get(k, 0) for k in kept)


def estimate_run(plan: Plan) -> Estimate | None:
    """Return the estimate of a plan, None while the model's sizes are unknown."""
    shape = plan.shape
    if shape is None:
        return None
    recipe = plan.recipe
    trained = num_trained(shape, recipe.model.lora.rank)
    memory = _memory(plan, shape, trained)
    width = BYTES[recipe.model.dtype]
    total = shape.num_parameters
    # Checkpoints hold what is trained: weights (or adapters) and their moments.
    saved = trained * width + moment_bytes(plan, shape, trained)
    trains = any(s != "eval" for s in recipe.stages)
    disk = {"final model": total * width, "run store": _STORE_BYTES}
    if recipe.checkpoint.every_steps or recipe.checkpoint.every_minutes:
        # The kept ones, the best one, and the one being written beside them.
        disk["checkpoints"] = (recipe.checkpoint.keep + 2) * saved
    if recipe.guards.action == "rollback" and trains:
        # The last good one and its candidate.
        disk["guards"] = 2 * saved
    if any(w.every and w.keep_best for w in (recipe.sft.watch, recipe.preference.watch)):
        disk["best weights"] = 2 * trained * width
    aside = trains and is_put_into_file(plan.recipe.model)
    put_aside = recipe.run.ranks * shelved_bytes(plan, shape) if aside else 0
    return Estimate(total, trained, memory, disk, put_aside)


def moment_bytes(plan: Plan, shape: ModelShape, trained: int) -> int:
    """Return what the optimizer keeps of ``trained`` weights, in bytes."""
    settings, width = plan.recipe.optimizer, BYTES[plan.recipe.model.dtype]
    if settings.name == "adamw_8bit":
        # Two numbers of a byte each, and for each block of 256 of them a scale in fp32.
        return round(2 * trained * (1 + 4 / 256))
    if settings.name == "sgd":
        return trained * width if settings.beta1 else 0
    if settings.name == "muon":
        # One buffer of the layers' matrices, two of the tables of words.
        tables = shape.vocabulary * shape.width * (1 if shape.is_tied else 2)
        own = 0 if plan.recipe.model.lora.rank else tables
        return (trained + own) * width
    return 2 * trained * width


def num_trained(shape: ModelShape, lora_rank: int) -> int:
    """Return the weights that get gradients; LoRA is counted on every linear module."""
    if not lora_rank:
        return shape.num_parameters
    return shape.num_layers * lora_rank * shape.num_linear_weights[0]


def _memory(plan: Plan, shape: ModelShape, trained: int) -> dict[str, int]:
    recipe = plan.recipe
    master = BYTES[recipe.model.dtype]
    compute = BYTES.get(recipe.model.compute_dtype, master)
    sampling = BYTES.get(recipe.engine.dtype, master)
    total, ranks = shape.num_parameters, recipe.run.ranks
    trains = any(s != "eval" for s in recipe.stages)
    extra = trained if recipe.model.lora.rank else 0
    found = {"weights": ranks * (total + extra) * master}
    if trains:
        found["gradients"] = ranks * trained * master
        found["optimizer"] = ranks * moment_bytes(plan, shape, trained)
        found["activations"] = ranks * _activations(plan, shape, compute)
        if plan.keeps_reference_copy or keeps_preference_copy(plan):
            found["reference"] = ranks * total * master
        if plan.teacher_shape is not None:
            found["teacher"] = ranks * plan.teacher_shape.num_parameters * master
    if compute != master:
        found["compute copy"] = ranks * total * compute
    if samples(recipe):
        found["key/value cache"] = _cache(plan, shape, sampling)
        # The fused forward packs copies, and the head apart from the embedding it is tied to.
        packs = recipe.engine.forward != "module" and recipe.run.mode != "exact"
        copies = recipe.engine.workers or int(packs or sampling != master)
        if copies:
            head = shape.vocabulary * shape.width if packs and shape.is_tied else 0
            found["engine weights"] = copies * (total + head) * sampling
    processes = ranks + recipe.engine.workers
    found["runtime"] = processes * _RUNTIME_BYTES + recipe.rl.score_workers * _WORKER_BYTES
    found["runtime"] += ranks * recipe.prefetch.workers * _PREFETCH_BYTES
    return found


def _activations(plan: Plan, shape: ModelShape, width: int) -> int:
    tokens = min(plan.recipe.optimizer.micro_batch_tokens, _largest_update(plan))
    model = plan.recipe.model
    layer = layer_bytes(shape, master=BYTES[model.dtype], compute=width)
    logits = 2 * min(tokens, _LOGIT_ROWS) * shape.vocabulary * max(width, 4)
    if not model.gradient_checkpointing:
        return tokens * shape.num_layers * layer + logits
    kept = 0 if is_put_into_file(model) else 1
    return tokens * layer + kept * shelved_bytes(plan, shape) + logits


def shelved_bytes(plan: Plan, shape: ModelShape) -> int:
    """Return what checkpointing keeps of a micro-batch: inputs, attention and its log-sum-exp."""
    master = BYTES[plan.recipe.model.dtype]
    compute = BYTES.get(plan.recipe.model.compute_dtype, master)
    tokens = min(plan.recipe.optimizer.micro_batch_tokens, _largest_update(plan))
    layer = shelved_layer_bytes(shape, master=master, compute=compute)
    return tokens * shape.num_layers * layer


def is_put_into_file(model: ModelSettings) -> bool:
    """Whether what checkpointing keeps goes into a file."""
    return model.activation_offload and model.gradient_checkpointing and not takes_cuda(model)


def _largest_update(plan: Plan) -> int:
    """Return the most tokens that one optimizer step can bring, prompts not shared."""
    recipe = plan.recipe
    sequence = (
        max(
            ((d.prompt_tokens or _UNMEASURED_PROMPT) + d.max_turns * d.completion_tokens)
            for d in plan.domains.values()
        )
        if plan.domains
        else recipe.optimizer.micro_batch_tokens
    )
    longest = max((s.longest for s in plan.example_sets.values()), default=0)
    sequence = max(sequence if plan.domains else 0, round(longest / CHARACTERS_PER_TOKEN))
    sequence = min(sequence, plan.context_length or sequence) or recipe.optimizer.micro_batch_tokens
    sequences = [1]
    if "sft" in recipe.stages:
        sequences.append(recipe.sft.batch_size)
    if "preference" in recipe.stages:
        sequences.append(2 * recipe.preference.batch_size)
    if "rejection" in recipe.stages:
        sequences.append(recipe.rejection.batch_size)
    if "distillation" in recipe.stages:
        sequences.append(recipe.distillation.prompts * recipe.distillation.group_size)
    if "rl" in recipe.stages:
        sequences.append(-(-recipe.rl.prompts // recipe.rl.updates) * recipe.rl.group_size)
    return sequence * max(sequences)


def _cache(plan: Plan, shape: ModelShape, width: int) -> int:
    rl, rows = plan.recipe.rl, plan.recipe.engine.max_rows
    if plan.recipe.stages == ("rl",):
        rows = min(rows, rl.prompts * rl.group_size)
    return rows * plan.longest_sequence * shape.cache_values_per_token * width


def gigabytes(amount: float) -> str:
    """Return bytes as ``1.5 GB`` (2**30) or ``20 MB``."""
    if amount < GIB / 10:
        return f"{amount / 1024**2:.0f} MB"
    return f"{amount / GIB:.1f} GB"
