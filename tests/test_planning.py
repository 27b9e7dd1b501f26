"""``educe plan``: what it predicts follows from what it was told, and is said plainly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from educe.calibration import CalibrationOrder, calibration_key, depths_of, measure, measured_costs
from educe.cli.main import main
from educe.config.loader import load_recipe
from educe.core.errors import EduceError
from educe.models.architectures import KNOWN_SHAPES, ModelShape
from educe.planning import duration, plan_run, render
from educe.preflight import make_plan
from educe.preflight.budget import propose_split
from educe.preflight.costs import Curve, StepCosts, Workspace, gpu_costs
from educe.preflight.hardware import GPUS, gpu_named
from educe.preflight.plan import Plan
from educe.preflight.predict import largest_pack, predict_memory, predict_rl_step
from educe.preflight.workload import DomainLoad, loads_of, read_probe
from tests.echo_module import ECHO

MODULE = ECHO.replace("LIMIT", "100")
RECIPE = """\
[domains.one]
function = "plan_echo:Echo"
weight = 3

[domains.two]
function = "plan_echo:Echo"

[rl]
steps = 10
prompts = 8
group_size = 4

[checkpoint]
every_minutes = 0
"""
TINY = ModelShape("llama", 3, 32, 4, 2, 8, 64, 260, 512, True, num_norms=64)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plan_echo.py").write_text(MODULE)
    (tmp_path / "r.toml").write_text(RECIPE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "r.toml"


def planned(recipe: Path, *overrides: str) -> Plan:
    plan, problems = make_plan(load_recipe(str(recipe), list(overrides)))
    assert not problems
    return plan


def probe_of(tmp_path: Path, **figures: Any) -> Path:
    row = {
        "mean_tokens": 20.0,
        "token_quantiles": [20.0, 20.0],
        "prompt_tokens": 30.0,
        "signal": 0.5,
        "pass_at_1": 0.2,
        "pass_at_k": 0.6,
        "score_s": 0.01,
        **figures,
    }
    file = tmp_path / "probe.json"
    file.write_text(json.dumps({"model": [{"domain": n, **row} for n in ("one", "two")]}))
    return file


FLAT = StepCosts(
    source="made up",
    decode_s=Curve(((1, 0.1), (32, 0.1))),
    cached_s=0.0,
    prefill_s=Curve(((100, 0.1), (1000, 1.0))),
    train_s=Curve(((100, 1.0), (1000, 10.0))),
    head_s=0.0,
    forward_s=Curve(((100, 0.3), (1000, 3.0))),
    optimizer_s=0.5,
    publish_s=0.25,
    start_bytes=1e9,
    train_bytes=Curve(((100, 1e8), (1000, 1e9))),
    sample_bytes=Curve(((1, 1e6), (32, 1e7))),
)


def test_curves_go_through_their_points_and_never_below_zero() -> None:
    curve = Curve(((10, 1.0), (20, 3.0), (40, 4.0)))
    assert [curve(x) for x in (0, 10, 15, 20, 30, 60)] == [0.0, 1.0, 2.0, 3.0, 3.5, 5.0]
    assert curve(5) == 0.5, "not the line through the first two points, which would be 0 here"
    assert Curve(((10, 1.0),))(25) == 2.5
    assert Curve.from_json(json.loads(json.dumps(curve.to_json()))) == curve
    assert StepCosts.from_json(json.loads(json.dumps(FLAT.to_json()))) == FLAT


def test_a_step_is_the_sum_of_its_parts(recipe: Path, tmp_path: Path) -> None:
    plan = planned(recipe, 'stages=["rl"]')
    loads = loads_of(plan, read_probe(probe_of(tmp_path)))
    step = predict_rl_step(plan, FLAT, loads)
    assert step.completions == 32 and step.completion_tokens == 32 * 20
    # 20 decode steps with every row; 8 prompts of 30 tokens; half of the groups are trained on,
    # each a prompt and four completions.
    assert step.parts["decode"] == pytest.approx(20 * 0.1)
    assert step.parts["prefill"] == pytest.approx(0.1 * 240 / 100)
    assert step.tokens == 0.5 * 8 * (30 + 4 * 20)
    assert step.parts["forward and backward"] == pytest.approx(4.4)
    assert (step.parts["optimizer"], step.parts["publish"]) == (0.5, 0.25)
    assert step.seconds == pytest.approx(sum(step.parts.values()))


def test_rows_that_do_not_fit_wait(recipe: Path, tmp_path: Path) -> None:
    loads = read_probe(probe_of(tmp_path))
    one = planned(recipe, 'stages=["rl"]', "engine.max_rows=32")
    half = planned(recipe, 'stages=["rl"]', "engine.max_rows=16")
    parts = [predict_rl_step(p, FLAT, loads_of(p, loads)).parts["decode"] for p in (one, half)]
    assert parts[1] == pytest.approx(2 * parts[0])


def test_updates_references_and_ranks_cost_what_they_do(recipe: Path, tmp_path: Path) -> None:
    probed = read_probe(probe_of(tmp_path))

    def parts(*overrides: str) -> dict[str, float]:
        plan = planned(recipe, 'stages=["rl"]', *overrides)
        return predict_rl_step(plan, FLAT, loads_of(plan, probed)).parts

    plain = parts()
    assert parts("rl.updates=2")["optimizer"] == 2 * plain["optimizer"]
    assert parts("rl.epochs=3")["forward and backward"] == pytest.approx(
        3 * plain["forward and backward"]
    )
    with_reference = parts("algorithm.kl_coefficient=0.01")
    # Every group has a gradient now, and the reference reads all of their tokens.
    assert with_reference["forward and backward"] == pytest.approx(
        2 * plain["forward and backward"]
    )
    assert with_reference["log-probabilities"] == pytest.approx(0.3 * 880 / 100)


def test_a_batch_by_tokens_has_as_many_prompts_as_fill_it(recipe: Path, tmp_path: Path) -> None:
    """A group is a prompt of 30 and four completions of 20 tokens: 110."""
    probed = read_probe(probe_of(tmp_path))

    def completions(*overrides: str) -> float:
        plan = planned(recipe, 'stages=["rl"]', *overrides)
        return predict_rl_step(plan, FLAT, loads_of(plan, probed)).completions

    assert completions() == 32
    assert completions("rl.batch_tokens=330", "rl.prompts=50") == pytest.approx(4 * 3.5)
    assert completions("rl.batch_tokens=330", "rl.prompts=2") == 8
    assert completions("rl.batch_tokens=1", "rl.updates=2") == 8


def test_lengths_are_read_from_quantiles() -> None:
    load = DomainLoad("d", 1.0, 4, 10.0, (0.0, 10.0, 40.0), 0.0, 1.0, 1.0, 0.0)
    assert load.mean_length == 15.0
    assert [load.length_at(p) for p in (0.0, 0.25, 0.5, 1.0)] == [0.0, 5.0, 10.0, 40.0]


def test_memory_adds_what_is_held_and_the_larger_of_what_comes_and_goes(
    recipe: Path, tmp_path: Path
) -> None:
    shape = KNOWN_SHAPES["smollm2-135m-instruct"]
    plan = planned(recipe, 'stages=["rl"]')
    loads = loads_of(plan, read_probe(probe_of(tmp_path)))
    memory = predict_memory(plan, shape, FLAT, loads)
    assert memory["weights"] == memory["gradients"] == 4 * shape.num_parameters
    assert memory["optimizer"] == 2 * memory["weights"]
    # The trainer's engine holds weights and cache while it samples, and only then.
    assert "engine weights" not in memory and "key/value cache" not in memory
    apart = predict_memory(planned(recipe, 'stages=["rl"]', "engine.workers=1"), shape, FLAT, loads)
    training = 1e9 * 440 * 1.3 / 1000
    assert apart["training or sampling"] == pytest.approx(training)
    sampling = apart["engine weights"] + apart["key/value cache"]
    assert sampling < memory["training or sampling"] < sampling + training
    assert "checkpoint copy" not in memory
    kept = planned(recipe, 'stages=["rl"]', "checkpoint.every_steps=5")
    assert predict_memory(kept, shape, FLAT, loads)["checkpoint copy"] == 3 * memory["weights"]


def test_the_largest_pack_fits_and_the_next_does_not(recipe: Path, tmp_path: Path) -> None:
    plan = planned(recipe, 'stages=["rl"]')
    memory = {"weights": 1e9, "training or sampling": 7e8}
    # 0.9 * 4e9 - 1e9 leaves 2.6e9; a token takes 1e6.
    assert largest_pack(plan, FLAT, memory, 4e9) == 2048
    assert largest_pack(plan, FLAT, memory, 1e9) == 0


@pytest.mark.parametrize("name", sorted(GPUS))
def test_every_gpu_profile_is_sane(name: str) -> None:
    gpu = gpu_named(name)
    assert gpu.source and 10 < gpu.memory_gb < 300 and 200 < gpu.bandwidth_gb_s < 10_000
    assert gpu.bf16_teraflops > gpu.fp32_teraflops > 5
    shape = KNOWN_SHAPES["smollm2-135m-instruct"]
    work = Workspace("bfloat16", "bfloat16", "float32")
    costs = gpu_costs(gpu, shape, work, shape.num_parameters)
    assert costs.decode_s(64) < costs.decode_s(1024) and costs.train_s(2048) < costs.train_s(65536)


def test_a_faster_gpu_is_faster_and_unknown_ones_are_refused(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hours = {}
    for name in ("l4", "H100"):
        assert main(["plan", str(recipe), "--hardware", name, "--price", "2", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        hours[name] = told["hours"]
        assert told["cost"] == pytest.approx(2 * told["hours"])
        assert [s["stage"] for s in told["stages"]] == ["sft", "rl", "eval"]
        assert "nothing was probed" in told["notes"][0]
    assert hours["H100"] < hours["l4"]
    assert main(["plan", str(recipe), "--hardware", "h10"]) == 2
    assert "no hardware profile 'h10'. Did you mean 'h100'" in capsys.readouterr().err
    assert main(["plan", str(recipe), "--price", "-1"]) == 2


def test_the_text_says_what_the_data_says(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["plan", str(recipe), "--hardware", "h100", "--probe", str(probe_of(tmp_path))]
    assert main([*given, "--budget", "2", "--price", "3"]) == 0
    text = capsys.readouterr().out
    assert "memory at the peak:" in text and "(the H100 SXM)" in text
    assert "proposed split: SFT 0 s" in text and "as settings: sft.minutes=0" in text
    assert "note:" not in text
    assert main([*given, "model.context_length=99999999"]) == 2


def test_what_does_not_fit_is_said_and_fails(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["optimizer.micro_batch_tokens=100000000", "rl.prompts=2000", 'stages=["rl"]']
    assert main(["plan", str(recipe), "--hardware", "t4", *options]) == 1
    assert "IT DOES NOT FIT" in capsys.readouterr().out


def test_a_probe_of_something_else_is_refused(recipe: Path, tmp_path: Path) -> None:
    loaded = load_recipe(str(recipe))
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(EduceError, match="is not what `educe probe RECIPE --json` prints"):
        plan_run(loaded, hardware="h100", probe=tmp_path / "bad.json")
    (tmp_path / "other.json").write_text('{"m": [{"domain": "three"}]}')
    with pytest.raises(EduceError, match="probed on other domains"):
        plan_run(loaded, hardware="h100", probe=tmp_path / "other.json")


def test_what_a_probe_could_not_measure_is_assumed(tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    file.write_text('{"m": [{"domain": "d", "signal": null, "mean_tokens": NaN, "pass_at_1": 0}]}')
    assert read_probe(file) == {"d": {"domain": "d", "pass_at_1": 0}}


def load(pass_1: float, pass_k: float, name: str = "d") -> DomainLoad:
    return DomainLoad(
        name, 0.25, 8, 10.0, (5.0, 9.0), 0.0, 1.0, 0.5, 0.0, pass_at_1=pass_1, pass_at_k=pass_k
    )


def test_the_split_follows_what_the_probe_saw() -> None:
    warm = [load(0.2, 0.7) for _ in range(4)]
    split = propose_split(7200, warm, 1.0, has_gold=True)
    assert split.sft_s == 0.0 and split.rl_s + split.eval_s == pytest.approx(7200)
    assert split.eval_s <= 0.25 * 7200 and split.tasks_per_domain == split.eval_s / 4
    mixed = [load(0.0, 0.0), *warm[:3]]
    found = propose_split(7200, mixed, 1.0, has_gold=True)
    assert found.sft_s == pytest.approx(0.25 * (7200 - found.eval_s))
    assert propose_split(7200, mixed, 1.0, has_gold=False).sft_s == 0.0
    cold = propose_split(7200, [load(0.0, 0.0)] * 4, 1.0, has_gold=True)
    assert cold.sft_s == pytest.approx(0.5 * (7200 - cold.eval_s))
    # Dear tasks leave room for few, and what those can show is told.
    dear = propose_split(7200, warm, 100.0, has_gold=True)
    assert dear.tasks_per_domain == 4 and dear.detectable > 0.1
    assert any(f"{100 * dear.detectable:.1f} points" in reason for reason in dear.reasons)


def test_durations_read_well() -> None:
    assert [duration(s) for s in (5, 700, 3900)] == ["5 s", "12 min", "1 h 05 min"]


def test_planning_for_a_gpu_loads_no_torch(recipe: Path) -> None:
    program = (
        "import sys; from educe.cli.main import main; "
        f"assert main(['plan', {str(recipe)!r}, '--hardware', 'h100']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=recipe.parent)


# This machine, on a tiny shape


def order(**changes: Any) -> CalibrationOrder:
    fields: dict[str, Any] = {
        "shape": TINY, "dtype": "float32", "compute_dtype": "float32", "sampling_dtype": "float32",
        "forward": "auto", "is_exact": False, "device": "cpu", "threads": 1, "max_rows": 8,
        "lora_rank": 0, "has_checkpointing": False,
    }  # fmt: skip
    return CalibrationOrder(**{**fields, **changes})


def test_a_calibration_measures_every_part() -> None:
    costs = measure(order(), num_layers=2)
    assert all(cost > 0 for curve in (costs.decode_s, costs.train_s) for _, cost in curve.points)
    assert costs.optimizer_s > 0 and costs.publish_s > 0 and costs.start_bytes > 1e8
    assert costs.num_cores > 0
    assert CalibrationOrder.from_json(json.loads(json.dumps(order().to_json()))) == order()


def test_what_is_cached_depends_on_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {calibration_key(order(**c)) for c in ({}, {"threads": 2}, {"dtype": "bfloat16"})}
    assert len(keys) == 3 and calibration_key(order()) in keys
    with monkeypatch.context() as other:  # torch's operators instead of compiled kernels
        other.setenv("EDUCE_NATIVE", "0")
        assert calibration_key(order()) not in keys
    with monkeypatch.context() as other:
        other.setattr("educe.calibration._source_digest", lambda: "other code")
        assert calibration_key(order()) not in keys
    monkeypatch.setattr("educe.calibration.machine_facts", lambda: {"cores": 99})
    assert calibration_key(order()) not in keys


def test_a_measurement_is_kept_and_found_again(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDUCE_CACHE", str(tmp_path / "cache"))
    calls: list[int] = []

    def fake(given: CalibrationOrder, num_layers: int) -> StepCosts:
        calls.append(num_layers)
        return FLAT

    monkeypatch.setattr("educe.calibration._measure_apart", fake)
    settings = load_recipe(str(recipe)).recipe
    told: list[str] = []
    for _ in range(2):
        assert measured_costs(settings, TINY, announce=told.append) == FLAT
    assert calls == [3] and len(told) == 1
    measured_costs(settings, TINY, refresh=True, announce=told.append)
    assert calls == [3, 3]


def test_large_models_are_extrapolated_from_two_depths() -> None:
    seven = ModelShape("llama", 32, 4096, 32, 32, 128, 11008, 32000, 4096, False)
    low, high = depths_of(seven)
    assert 1 <= low < high < 32
    assert depths_of(TINY) == (3,)


def test_the_rendering_lists_every_stage(recipe: Path) -> None:
    told = plan_run(load_recipe(str(recipe)), hardware="a100-80gb")
    text = render(told)
    assert all(f"\n{stage}" in text for stage in ("sft", "rl", "eval", "all"))
