"""Predicts a run's memory, tokens a second, step time and cost from what its parts cost.

The rollout is played through: completions of the probed lengths take and free the engine's rows,
each decode step costs what so many rows cost, prompts are read in forwards of their own, reward
workers share the processor. Training is packs of tokens. Torch-free.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from educe.core.types import JSON
from educe.models.architectures import ModelShape
from educe.preflight.activations import BYTES
from educe.preflight.costs import StepCosts, Workspace
from educe.preflight.estimate import estimate_run
from educe.preflight.plan import Plan, reinforce_algebra
from educe.preflight.stages import samples
from educe.preflight.workload import DomainLoad

# Contexts at which decode steps are measured (see ``calibration``).
_MEASURED_CONTEXT = 72
# Of an RL step: parsing, records and the way through the workers, of one completion; what a step
# takes besides; a reward worker's memory. `python benchmarks/plan_check.py --fit` printed them, of
# the quickstart's domains: some of these wait for tools and programs, which may be most of it.
_HANDLING_S = 0.0
_STEP_S = 2.07
# The same of an evaluation's completion and of an SFT step: guesses, which no fit looks at.
_EVAL_HANDLING_S = 0.004
_SFT_STEP_S = 0.05
# Part of a worker's second that the model's threads lose where they share the cores.
_CROWDING = 0.6
_WORKER_BYTES = 40 * 1024**2
_PLAYED_BATCHES = 4
# The largest step of a run over the mean one.
_LARGEST_STEP = 1.3
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """One optimizer step (rl: one rollout batch), seconds by part.

    ``completion_tokens`` and ``trained_tokens`` a step; ``tokens`` counts every token of the packs.
    """

    parts: dict[str, float]
    completion_tokens: float
    trained_tokens: float
    completions: float
    tokens: float

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens (without rollouts: trained tokens) a second of the step."""
        return (self.completion_tokens or self.tokens) / max(self.seconds, 1e-9)

    def to_json(self) -> dict[str, JSON]:
        return {
            "seconds": self.seconds,
            "parts": dict(self.parts),
            "completion_tokens": self.completion_tokens,
            "trained_tokens": self.trained_tokens,
            "completions": self.completions,
            "tokens_per_s": self.tokens_per_s,
        }


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """A stage: its step, how many of them, and seconds in all."""

    name: str
    step: StepPrediction
    num_steps: int
    seconds: float

    def to_json(self) -> dict[str, JSON]:
        return {
            "stage": self.name,
            "steps": self.num_steps,
            "seconds": self.seconds,
            "step": self.step.to_json(),
        }


def predict_rl_step(plan: Plan, costs: StepCosts, loads: Sequence[DomainLoad]) -> StepPrediction:
    """Return one rollout batch with its updates."""
    rl, engine = plan.recipe.rl, plan.recipe.engine
    algebra = reinforce_algebra(plan)
    prompts = prompts_of_batch(plan, loads)
    decode = _played_decode(costs, loads, round(prompts), engine.max_rows)
    completions = sum(d.share * prompts * d.group_size for d in loads)
    sampled = sum(d.share * prompts * d.group_size * d.mean_length for d in loads)
    parts = {"decode": decode, "prefill": _prefill_s(plan, costs, loads)}
    worked = sum(d.share * prompts * d.group_size * d.score_s for d in loads)
    parts["scoring"] = _scoring_s(costs, loads, worked, rl.score_workers)
    tokens, trained, referenced = _trained(loads, prompts)
    updates = algebra.updates * algebra.epochs
    micro = plan.recipe.optimizer.micro_batch_tokens
    passes = _packs_s(costs, tokens / algebra.updates, trained / algebra.updates, micro) * updates
    extra = referenced
    if rl.epochs > 1 or rl.updates > 1:
        extra += tokens * (1.0 if rl.epochs > 1 else 1.0 - 1.0 / rl.updates)
    parts["forward and backward"] = passes / plan.recipe.run.ranks
    if extra:
        parts["log-probabilities"] = costs.forward_s(extra)
    parts["optimizer"] = updates * costs.optimizer_s
    parts["publish"] = costs.publish_s
    parts["handling"] = _STEP_S + _HANDLING_S * completions
    return StepPrediction(parts, sampled, trained * algebra.epochs, completions, tokens)


def prompts_of_batch(plan: Plan, loads: Sequence[DomainLoad]) -> float:
    """Return the prompts of a rollout batch: those of the recipe, or fewer where their groups
    reach ``rl.batch_tokens``."""
    rl = plan.recipe.rl
    group = sum(d.share * (d.prompt_tokens + d.group_size * d.mean_length) for d in loads)
    if not rl.batch_tokens or group <= 0:
        return rl.prompts
    # The prompt that reaches the tokens is the last: half a group beyond them, on average.
    return min(float(rl.prompts), max(float(rl.updates), rl.batch_tokens / group + 0.5))


def _played_decode(
    costs: StepCosts, loads: Sequence[DomainLoad], prompts: int, max_rows: int
) -> float:
    """Return the seconds of decoding a batch, the mean over a few batches of drawn lengths."""
    total = 0.0
    for number in range(_PLAYED_BATCHES):
        order = _domains_of_batch(loads, prompts, number)
        rows: list[tuple[float, float]] = []  # length, context at its start
        for place, load in enumerate(order):
            for sample in range(load.group_size):
                part = ((number * 1009 + place * 101 + sample + 1) * _GOLDEN) % 1.0
                rows.append((max(1.0, load.length_at(part)), load.prompt_tokens))
        total += _decode_s(costs, rows, max_rows)
    return total / _PLAYED_BATCHES


def _domains_of_batch(loads: Sequence[DomainLoad], prompts: int, number: int) -> list[DomainLoad]:
    """Return the domains of a batch's prompts, as the static mixture orders them."""
    issued = [0] * len(loads)
    batch: list[DomainLoad] = []
    for turn in range((number + 1) * prompts):
        owed = [d.share * (turn + 1) - n for d, n in zip(loads, issued, strict=True)]
        chosen = max(range(len(loads)), key=owed.__getitem__)
        issued[chosen] += 1
        if turn >= number * prompts:
            batch.append(loads[chosen])
    return batch


def _decode_s(costs: StepCosts, rows: Sequence[tuple[float, float]], max_rows: int) -> float:
    """Return the seconds until all rows have ended, as many at once as the engine has room for."""
    seconds = sum(
        costs.cached_s * length * max(0.0, context + length / 2 - _MEASURED_CONTEXT)
        for length, context in rows
    )
    running: list[float] = []
    now = 0.0
    for length, _ in rows:
        if len(running) == max_rows:
            seconds, now = _run_until(costs, running, running[0], seconds, now)
        heapq.heappush(running, now + length)
    while running:
        seconds, now = _run_until(costs, running, running[0], seconds, now)
    return seconds


def _run_until(
    costs: StepCosts, running: list[float], end: float, seconds: float, now: float
) -> tuple[float, float]:
    """Decode the running rows up to a step and take out those that end there."""
    seconds += (end - now) * costs.decode_s(len(running))
    while running and running[0] <= end:
        heapq.heappop(running)
    return seconds, end


def _prefill_s(plan: Plan, costs: StepCosts, loads: Sequence[DomainLoad]) -> float:
    """Return the seconds of reading prompts, once a group, and of replies, once a trajectory."""
    batch = prompts_of_batch(plan, loads)
    shared = 1 if plan.recipe.run.mode != "exact" else 0
    chunk = plan.recipe.engine.prefill_tokens
    prompts = sum(
        d.share * batch * d.prompt_tokens * (1 if shared else d.group_size) for d in loads
    )
    seconds = math.floor(prompts / chunk) * costs.prefill_s(chunk)
    seconds += costs.prefill_s(prompts % chunk)
    for load in loads:
        count = load.share * batch * load.group_size
        turns = max(0.0, load.turns - 1.0)
        if turns and load.reply_tokens:
            # Replies come back a few at a time and ride along with the rows that decode.
            each = costs.prefill_s(load.reply_tokens / turns * _REPLIES_TOGETHER)
            seconds += count * turns * each / _REPLIES_TOGETHER
    return seconds


_REPLIES_TOGETHER = 4


def _scoring_s(costs: StepCosts, loads: Sequence[DomainLoad], worked: float, workers: int) -> float:
    """Return what scoring adds: the cores that workers take, and the wait for the last score."""
    last = max((d.score_s for d in loads), default=0.0)
    crowding = _CROWDING * worked / min(workers, costs.num_cores) if costs.num_cores else 0.0
    return crowding + last


def _trained(loads: Sequence[DomainLoad], prompts: float) -> tuple[float, float, float]:
    """Return tokens of the packs, trained ones of them, and tokens that need a reference."""
    tokens = trained = referenced = 0.0
    for load in loads:
        groups = load.share * prompts * load.signal
        completions = groups * load.group_size * load.mean_length
        # Replies are each trajectory's own; the prompt is shared.
        own = groups * (load.prompt_tokens + load.group_size * load.reply_tokens) + completions
        tokens += own
        trained += completions
        referenced += own if load.needs_reference else 0.0
    return tokens, trained, referenced


def _packs_s(costs: StepCosts, tokens: float, trained: float, micro: int) -> float:
    """Return the seconds of so many tokens in packs of at most ``micro``."""
    if tokens <= 0:
        return 0.0
    packs = max(1, math.ceil(tokens / micro))
    return packs * costs.pack_s(tokens / packs, trained / packs)


def predict_sft_step(plan: Plan, costs: StepCosts, loads: Sequence[DomainLoad]) -> StepPrediction:
    """Return one optimizer step on demonstrations."""
    size = plan.recipe.sft.batch_size
    prompt = sum(d.share * d.prompt_tokens for d in loads)
    answer = sum(d.share * d.shown_tokens for d in loads)
    tokens, trained = size * (prompt + answer), size * answer
    micro = plan.recipe.optimizer.micro_batch_tokens
    parts = {
        "forward and backward": _packs_s(costs, tokens, trained, micro) / plan.recipe.run.ranks,
        "optimizer": costs.optimizer_s,
        "handling": _SFT_STEP_S,
    }
    return StepPrediction(parts, 0.0, trained, 0.0, tokens)


def predict_eval(plan: Plan, costs: StepCosts, loads: Sequence[DomainLoad]) -> StepPrediction:
    """Return the evaluation of one model: all its tasks, as one step."""
    settings = plan.recipe.eval
    equal = [
        DomainLoad(
            load.name, 1.0 / max(1, len(loads)), settings.samples, load.prompt_tokens,
            load.lengths, load.reply_tokens, load.turns, load.signal, load.score_s,
        )
        for load in loads
    ]  # fmt: skip
    tasks = settings.tasks_per_domain * len(loads)
    decode = _played_decode(costs, equal, tasks, plan.recipe.engine.max_rows) if loads else 0.0
    completions = tasks * settings.samples
    tokens = sum(d.mean_length for d in equal) / max(1, len(equal)) * completions
    prompts = sum(d.prompt_tokens for d in equal) / max(1, len(equal)) * tasks
    chunk = plan.recipe.engine.prefill_tokens
    worked = sum(d.share * completions * d.score_s for d in equal)
    parts = {
        "decode": decode,
        "prefill": prompts / chunk * costs.prefill_s(chunk),
        "scoring": _scoring_s(costs, equal, worked, plan.recipe.rl.score_workers),
        "handling": _EVAL_HANDLING_S * completions,
    }
    return StepPrediction(parts, tokens, 0.0, completions, 0.0)


# Memory


def predict_memory(
    plan: Plan, shape: ModelShape, costs: StepCosts, loads: Sequence[DomainLoad]
) -> dict[str, float]:
    """Return bytes by purpose at the run's peak, over its processes on this machine.

    What is held all the time is counted as preflight does; what comes and goes is the larger of
    what training and what sampling adds, as measured. The trainer's own engine gives its weights
    and cache back while an optimizer works, engines in processes of their own keep them.
    """
    recipe, counted = plan.recipe, estimate_run(plan)
    assert counted is not None
    held = ["weights", "gradients", "optimizer", "reference", "teacher"]
    if recipe.engine.workers:
        held.append("engine weights")
    found = {name: float(counted.memory[name]) for name in held if counted.memory.get(name)}
    found["runtime"] = recipe.run.ranks * costs.start_bytes
    adds = [0.0]
    if any(stage != "eval" for stage in recipe.stages):
        adds.append(recipe.run.ranks * costs.train_bytes(_largest_pack(plan, loads)))
        if recipe.checkpoint.every_steps or recipe.checkpoint.every_minutes:
            # Written by a thread from a copy, while training goes on.
            trained = BYTES[recipe.model.dtype] * counted.num_trained
            found["checkpoint copy"] = float(trained + counted.memory.get("optimizer", 0))
    if samples(recipe):
        rows = recipe.engine.max_rows
        if recipe.stages == ("rl",):
            rows = min(rows, reinforce_algebra(plan).completions)
        size = shape.cache_values_per_token * BYTES[workspace_of(plan).sampling]
        longest = max((d.lengths[-1] + d.reply_tokens for d in loads), default=0.0)
        prompts = sum(d.share * d.prompt_tokens / d.group_size for d in loads)
        cache = rows * (longest + prompts) * size
        sampling = costs.sample_bytes(rows)
        if recipe.engine.workers:
            found["key/value cache"] = cache
        else:
            sampling += cache + counted.memory.get("engine weights", 0)
        adds.append(sampling)
        found["workers"] = float(recipe.rl.score_workers * _WORKER_BYTES)
    found["training or sampling"] = max(adds)
    return found


def largest_pack(
    plan: Plan, costs: StepCosts, memory: Mapping[str, float], available: float
) -> int:
    """Return the largest ``optimizer.micro_batch_tokens`` (a power of two) whose activations fit
    beside what is held, a tenth of the memory left free; 0 when none does.

    Args:
        memory: of :func:`predict_memory`.
    """
    held = sum(memory.values()) - memory["training or sampling"]
    room = _FILLED * available - held
    fits = [t for t in _PACK_SIZES if plan.recipe.run.ranks * costs.train_bytes(t) <= room]
    return max(fits, default=0)


_FILLED = 0.9
_PACK_SIZES = tuple(2**power for power in range(8, 18))


def workspace_of(plan: Plan) -> Workspace:
    """Return the types that a recipe computes in."""
    model, engine = plan.recipe.model, plan.recipe.engine
    return Workspace(
        compute=model.dtype if model.compute_dtype == "auto" else model.compute_dtype,
        sampling=model.dtype if engine.dtype == "auto" else engine.dtype,
        master=model.dtype,
        has_checkpointing=model.gradient_checkpointing,
    )


def _largest_pack(plan: Plan, loads: Sequence[DomainLoad]) -> float:
    """Return the tokens of the largest pack: a full one where an update can fill it."""
    recipe, sizes = plan.recipe, [0.0]
    if "rl" in recipe.stages:
        prompts = prompts_of_batch(plan, loads)
        sizes.append(_trained(loads, prompts)[0] / recipe.rl.updates)
    if "sft" in recipe.stages:
        longest = max((d.prompt_tokens + d.shown_tokens for d in loads), default=0.0)
        sizes.append(recipe.sft.batch_size * longest)
    wanted = max(sizes) * _LARGEST_STEP or float(recipe.optimizer.micro_batch_tokens)
    return min(float(recipe.optimizer.micro_batch_tokens), wanted)
