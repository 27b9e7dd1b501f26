"""Measures what a step's parts cost on this machine, once for each model shape and its types.

A model of the recipe's shape with random weights goes through the very engine and optimizer step
that a run uses: decode at several row counts and contexts, prefill, packs of several sizes, the
optimizer, a publish; each with its time and its peak memory. It runs in a process of its own and
takes one to two minutes for small models; of large ones a few layers are measured and extrapolated.
Results are kept by machine, versions, shape and types.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from educe.config.settings import Recipe
from educe.core.cache import cache_folder
from educe.core.errors import InfrastructureError
from educe.models.architectures import ModelShape
from educe.native.build import compilers, is_off
from educe.preflight.costs import Curve, StepCosts
from educe.preflight.devices import num_cores

FORMAT = 4
_TIMEOUT_S = 1200
# Layers beyond this many weights are extrapolated from two smaller depths.
_MEASURED_WEIGHTS = 400_000_000
_PACKAGES = ("educe", "torch", "transformers")
_COMPUTING = ("engines", "models", "native", "trainers")


@dataclass(frozen=True, slots=True)
class CalibrationOrder:
    """What is measured: everything that a cost depends on."""

    shape: ModelShape
    dtype: str
    compute_dtype: str
    sampling_dtype: str
    forward: str
    is_exact: bool
    device: str
    threads: int
    max_rows: int
    lora_rank: int
    has_checkpointing: bool
    is_offloaded: bool = False

    @staticmethod
    def of(recipe: Recipe, shape: ModelShape) -> CalibrationOrder:
        model, engine = recipe.model, recipe.engine
        return CalibrationOrder(
            shape=shape,
            dtype=model.dtype,
            compute_dtype=model.dtype if model.compute_dtype == "auto" else model.compute_dtype,
            sampling_dtype=model.dtype if engine.dtype == "auto" else engine.dtype,
            forward=engine.forward,
            is_exact=recipe.run.mode == "exact",
            device=model.device,
            threads=recipe.run.threads or num_cores(),
            max_rows=engine.max_rows,
            lora_rank=model.lora.rank,
            has_checkpointing=model.gradient_checkpointing,
            is_offloaded=model.gradient_checkpointing and model.activation_offload,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> CalibrationOrder:
        return CalibrationOrder(**{**raw, "shape": ModelShape(**raw["shape"])})


def measured_costs(
    recipe: Recipe,
    shape: ModelShape,
    *,
    refresh: bool = False,
    announce: Callable[[str], None] = print,
) -> StepCosts:
    """Return the costs of a recipe's model on this machine, from the cache where they are known.

    Raises:
        InfrastructureError: the measuring process failed (too little memory, most likely).
    """
    order = CalibrationOrder.of(recipe, shape)
    file = cache_folder() / "calibrations" / f"{calibration_key(order)}.json"
    if file.is_file() and not refresh:
        return StepCosts.from_json(json.loads(file.read_text(encoding="utf-8"))["costs"])
    announce("measuring this machine (once for this model shape; about a minute)")
    depths = depths_of(shape)
    found = [_measure_apart(order, depth) for depth in depths]
    costs = found[0] if len(found) == 1 else _extrapolated(found, depths, shape.num_layers)
    file.parent.mkdir(parents=True, exist_ok=True)
    told = {"format": FORMAT, "order": order.to_json(), "costs": costs.to_json()}
    part = file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    part.replace(file)
    return costs


def calibration_key(order: CalibrationOrder) -> str:
    """Return the name of what is measured: machine, versions, shape and types.

    Rates of other code are not this code's: what computes counts by its source, and whether its
    kernels are compiled here.
    """
    facts = [
        FORMAT,
        order.to_json(),
        machine_facts(),
        {package: version(package) for package in _PACKAGES},
        _source_digest(),
        [] if is_off() else compilers(),
    ]
    text = json.dumps(facts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


@cache
def _source_digest() -> str:
    """Return a digest of the source of what a step's time is spent in."""
    told = hashlib.blake2b(digest_size=10)
    for part in _COMPUTING:
        for path in sorted((Path(__file__).parent / part).rglob("*")):
            if path.suffix in (".py", ".c", ".h"):
                told.update(path.read_bytes())
    return told.hexdigest()


def machine_facts() -> dict[str, Any]:
    """Return what tells machines apart that compute at different speeds."""
    names = {"model name", "cpu MHz", "cache size"} - {"cpu MHz"}
    found = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in names:
                found[name.strip()] = value.strip()
    except OSError:
        found["processor"] = platform.processor()
    return {**found, "cores": num_cores(), "system": platform.system()}


def depths_of(shape: ModelShape) -> tuple[int, ...]:
    """Return the depths to measure: the model's own, or two smaller ones of a large model."""
    if shape.num_parameters <= _MEASURED_WEIGHTS:
        return (shape.num_layers,)
    layer = shape.num_linear_weights[1]
    deep = max(2, min(shape.num_layers, _MEASURED_WEIGHTS // layer))
    return (max(1, deep // 2), deep)


def _measure_apart(order: CalibrationOrder, num_layers: int) -> StepCosts:
    command = [sys.executable, "-m", "educe.calibration", str(num_layers)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(order.threads)}
    done = subprocess.run(
        command,
        input=json.dumps(order.to_json()),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env=environment,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise InfrastructureError(f"measuring this machine failed: {last[0]}")
    return StepCosts.from_json(json.loads(done.stdout.splitlines()[-1]))


def _extrapolated(found: Sequence[StepCosts], depths: Sequence[int], wanted: int) -> StepCosts:
    """Return the costs at a depth on the line through two measured ones."""
    low, high = found
    part = (wanted - depths[0]) / (depths[1] - depths[0])

    def number(a: float, b: float) -> float:
        return max(a + part * (b - a), 0.0)

    told: dict[str, Any] = {}
    for name in StepCosts.__slots__:
        one, two = getattr(low, name), getattr(high, name)
        if isinstance(one, Curve):
            pairs = zip(one.points, two.points, strict=True)
            told[name] = Curve(tuple((a[0], number(a[1], b[1])) for a, b in pairs))
        elif isinstance(one, float):
            told[name] = number(one, two)
        else:
            told[name] = one
    return StepCosts(**told)


# In the measuring process

_PROMPT, _GROUP, _COMPLETION = 64, 8, 48
_LONG_PROMPT = 1024
_PACK_GROUPS = (1, 2, 5)
_HEAD_GROUPS = 2
_DECODE_STEPS = 10
_MORE_STEPS = 2


def measure(order: CalibrationOrder, num_layers: int) -> StepCosts:
    """Measure in this process; see the module."""
    import torch

    from educe.models.blank import blank_model

    torch.set_num_threads(order.threads)
    torch.manual_seed(0)
    bench = _Bench(order)
    start = bench.memory()
    lora = {"rank": order.lora_rank, "alpha": 32.0, "targets": "all-linear"}
    model = blank_model(
        order.shape,
        num_layers=num_layers,
        dtype=order.dtype,
        device=order.device,
        lora=lora,
        checkpointing=order.has_checkpointing,
        offload=order.is_offloaded,
    )
    on_device = model.device.type != "cpu"
    sampled = bench.sample(model)
    trained = bench.train(model)
    return StepCosts(
        source=f"measured on this machine ({num_cores()} cores)",
        start_bytes=float(start),
        num_cores=0 if on_device else num_cores(),
        **sampled,
        **trained,
    )


class _Bench:
    """Times and weighs the engine and the optimizer step."""

    def __init__(self, order: CalibrationOrder) -> None:
        from educe.trainers import step as _step  # its imports are part of every process

        assert _step
        self.order = order

    def memory(self) -> int:
        """Return the bytes in use now: resident ones, or on the device."""
        import torch

        if torch.cuda.is_available() and self.order.device != "cpu":
            return int(torch.cuda.memory_allocated())
        return _status("VmRSS")

    def peak_of(self, work: Callable[[], Any]) -> tuple[Any, int]:
        """Return what ``work`` returns and the bytes that it added at its peak."""
        import torch

        _trim()  # or what earlier work left in the heap would be taken for memory in use
        before = self.memory()
        if torch.cuda.is_available() and self.order.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
            result = work()
            torch.cuda.synchronize()
            return result, int(torch.cuda.max_memory_allocated()) - before
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the high mark
        result = work()
        return result, max(0, _status("VmHWM") - before)

    def sample(self, model: Any) -> dict[str, Any]:
        import torch

        from educe.engines.embedded import EmbeddedEngine
        from educe.observability.timing import Timeline

        order = self.order
        dtype = getattr(torch, order.sampling_dtype)
        engine = EmbeddedEngine(
            model,
            stop_token_ids=(),
            decode=lambda ids: "",
            max_rows=order.max_rows,
            exact=order.is_exact,
            dtype=None if order.sampling_dtype == order.dtype else dtype,
            forward=order.forward,  # type: ignore[arg-type]
        )
        decode, memory = [], []
        rows = sorted({1, 4, 16, 48, order.max_rows})
        self._decode(engine, 4, _PROMPT)  # warm
        for count in [r for r in rows if r <= order.max_rows]:
            (seconds, _), grown = self.peak_of(partial(self._decode, engine, count, _PROMPT))
            decode.append((count, seconds))
            memory.append((count, float(grown)))
        many = min(16, order.max_rows)
        longer, _ = self._decode(engine, many, _LONG_PROMPT)
        shorter, _ = self._decode(engine, many, _PROMPT)
        cached = max(0.0, (longer - shorter) / (many * (_LONG_PROMPT - _PROMPT)))
        prefill = [
            (tokens, self._decode(engine, tokens // 128, 128, group=1)[1])
            for tokens in (128, 512, 1024)
            if tokens // 128 <= order.max_rows
        ]
        timeline = Timeline()
        engine.timeline = timeline
        engine.publish(1)
        engine.publish(2)
        publish = min(p.end - p.begin for p in timeline.phases if p.name == "publish")
        return {
            "decode_s": Curve(tuple(decode)),
            "cached_s": cached,
            "prefill_s": Curve(tuple(prefill)),
            "publish_s": publish,
            "sample_bytes": Curve(tuple(memory)),
        }

    def _decode(
        self, engine: Any, rows: int, prompt: int, group: int = _GROUP
    ) -> tuple[float, float]:
        """Return the seconds of one decode step of so many rows, and of their prefill."""
        import torch

        from educe.core.protocols import GenerateRequest, SamplingParameters

        engine.publish(engine.version + 1)  # nothing of an earlier call is in the prefix cache
        vocabulary = self.order.shape.vocabulary
        for row in range(rows):
            number = row // group
            draw = torch.Generator().manual_seed(number)
            prompt_ids = torch.randint(0, vocabulary, (prompt,), generator=draw).tolist()
            engine.submit(
                GenerateRequest(
                    f"{engine.version}-{row}",
                    tuple(prompt_ids),
                    SamplingParameters(max_tokens=_DECODE_STEPS + 2, seed_key=row, ignore_end=True),
                    group_key=f"{engine.version}-{number}" if group > 1 else "",
                )
            )
        first = self._seconds(engine.step)
        times = [self._seconds(engine.step) for _ in range(_DECODE_STEPS)]
        while engine.num_unfinished:
            engine.step()
        return statistics.median(times), first

    def _seconds(self, work: Callable[[], Any]) -> float:
        import time

        import torch

        on_device = torch.cuda.is_available() and self.order.device != "cpu"
        begin = time.perf_counter()
        work()
        if on_device:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def train(self, model: Any) -> dict[str, Any]:
        import torch

        from educe.algorithms.catalogue import BUNDLES
        from educe.algorithms.losses import build_loss
        from educe.config.settings import OptimizerSettings
        from educe.observability.timing import Timeline
        from educe.trainers.step import TrainerState, fill_logprobs, optimizer_step

        bundle = BUNDLES["grpo"]
        losses = {bundle.formula(): build_loss(bundle)}
        settings = OptimizerSettings(micro_batch_tokens=1_000_000)
        dtype = getattr(torch, self.order.compute_dtype)
        state = TrainerState.create(model, settings, 1e-6, compute_dtype=dtype)
        optimizer_step(state, self._samples(bundle, 1), losses, 1e-6)  # warm, makes the moments
        # Gradients are part of what is added here and of the run's state: counted once.
        gradients = sum(p.numel() * p.element_size() for _, p in model.trainable())
        seconds, memory, forward, optimizer = [], [], [], []

        def step(samples: list[Any]) -> tuple[float, float]:
            """Return the seconds of a step, without and of the optimizer."""
            state.timeline = timeline = Timeline()
            optimizer_step(state, samples, losses, 1e-6)
            spent = {p.name: p.end - p.begin for p in timeline.phases}
            own = spent.pop("optimizer")
            return sum(spent.values()), own

        def settled(first: tuple[float, float], samples: list[Any]) -> tuple[float, float]:
            """Return the least seconds of this step and some more of its size.

            The first one touches memory for the first time, which a run does once.
            """
            found = [first, *(step(samples) for _ in range(_MORE_STEPS))]
            return min(s for s, _ in found), min(o for _, o in found)

        for groups in _PACK_GROUPS:
            samples = self._samples(bundle, groups)
            tokens = groups * (_PROMPT + _GROUP * _COMPLETION)
            first, grown = self.peak_of(partial(step, samples))
            passes, own = settled(first, samples)
            optimizer.append(own)
            seconds.append((tokens, passes))
            memory.append((tokens, float(max(0, grown - gradients))))
            if groups < _PACK_GROUPS[-1]:
                fill = partial(fill_logprobs, model, samples, "start_logprobs", 1_000_000, dtype)
                forward.append((tokens, min(self._seconds(fill) for _ in range(2))))
        few = self._samples(bundle, _HEAD_GROUPS, trained=_COMPLETION // 8)
        lighter, _ = settled(step(few), few)
        fewer = _HEAD_GROUPS * _GROUP * (_COMPLETION - _COMPLETION // 8)
        heavier = Curve(tuple(seconds))(_HEAD_GROUPS * (_PROMPT + _GROUP * _COMPLETION))
        return {
            "train_s": Curve(tuple(seconds)),
            "head_s": max(0.0, (heavier - lighter) / fewer),
            "forward_s": Curve(tuple(forward)),
            "optimizer_s": min(optimizer),
            "train_bytes": Curve(tuple(memory)),
        }

    def _samples(self, bundle: Any, num_groups: int, trained: int = _COMPLETION) -> list[Any]:
        """Return groups that share a prompt, the last tokens of each completion trained."""
        import numpy as np

        from educe.core.seeds import numpy_random
        from educe.rollout.packing import TrainingSample

        draw = numpy_random("calibration", num_groups)
        length = _PROMPT + _COMPLETION
        samples: list[TrainingSample] = []
        for group in range(num_groups):
            prompt = draw.integers(0, self.order.shape.vocabulary, _PROMPT)
            for _ in range(_GROUP):
                own = draw.integers(0, self.order.shape.vocabulary, _COMPLETION)
                behaviour = np.full(length, -float(np.log(self.order.shape.vocabulary)))
                streams = {
                    "advantage": np.full(length, draw.normal()),
                    "weight": np.full(length, 1.0 / (num_groups * _GROUP * _COMPLETION)),
                    "behaviour_logprobs": behaviour,
                    "temperature": np.ones(length),
                }
                samples.append(
                    TrainingSample(
                        np.concatenate([prompt, own]).astype(np.int64),
                        np.arange(length) >= length - trained,
                        streams,
                        group,
                        len(samples),
                        bundle.formula(),
                        "calibration",
                    )
                )
        return samples


def _trim() -> None:
    """Give free memory of the heap back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status(name: str) -> int:
    """Return a size of this process in bytes, 0 where the system does not tell."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    _order = CalibrationOrder.from_json(json.loads(sys.stdin.read()))
    print(json.dumps(measure(_order, int(sys.argv[1])).to_json()))
