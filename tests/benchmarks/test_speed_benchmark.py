"""The speed benchmark: what rows make of the arms' runs, resuming, deaths, the page."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import speed
import speed_page
import speed_works

ROWS = {row.name: row for row in speed_works.ROWS}


def rates(*values: float, **more: float) -> dict[str, Any]:
    """A run whose calls had these rates."""
    return {
        "lines": [{"rate": v, "since_start": 10.0 * (i + 1)} | more for i, v in enumerate(values)]
    }


def test_every_row_reads_arms_that_exist() -> None:
    scripts = Path(speed.__file__).parent / "arms"
    for row in speed_works.ROWS:
        assert set(row.arms) <= set(speed_works.ARMS)
    for arm in speed_works.ARMS.values():
        assert (scripts / arm.script).is_file()
        assert arm.work in speed.WORKS and arm.python in ("educe", "trl", "vllm")


def test_rates_and_seconds_compare_the_right_way_and_calls_are_the_right_ones() -> None:
    runs = {
        "educe bf16": [rates(90, 100), rates(110, 120), rates(400, 500)],
        "vLLM bf16": [{"lines": [{"rate": 50.0, "since_start": 60.0}, {"rate": 60.0}]}],
        "transformers fp32": [rates(10)],
        "transformers bf16": [rates(11)],
    }
    second = speed_page.compared(ROWS["rollouts-vllm"], runs)
    assert (second.ours, second.peer, second.ratio, second.repeats) == (120, 60, 2.0, 3)
    first = speed_page.compared(ROWS["rollouts-bf16"], runs)
    assert (first.ours, first.peer, first.peer_name) == (110, 11, "transformers bf16")
    assert first.is_met
    cold = speed_page.compared(ROWS["cold-warm"], runs)
    assert (cold.ours, cold.peer, cold.ratio) == (10, 60, 6.0)


def test_the_faster_peer_counts_and_memory_without_a_peer_has_a_limit() -> None:
    runs = {
        "educe step bf16": [{"lines": [{"seconds": 40.0}, {"peak_gb": 3.0}]}],
        "TRL fp32": [{"lines": [{"seconds": 300.0, "peak_gb": 11.0}]}],
        "TRL bf16": [{"lines": [{"seconds": 230.0, "peak_gb": 12.0}]}],
        "educe long prompts, bf16": [{"lines": [{"seconds": 60.0}, {"peak_gb": 9.0}]}],
    }
    step = speed_page.compared(ROWS["step-bf16"], runs)
    assert step.ratio == 5.75 and step.is_met
    memory = speed_page.compared(ROWS["step-bf16-memory"], runs)
    assert memory.peer == 11.0 and memory.is_met
    assert speed_page.compared(ROWS["step-long-memory"], runs).is_met is False
    missing = speed_page.compared(ROWS["step-long"], runs)
    assert missing.ratio is None and missing.notes == ("TRL long prompts, one row: not run",)


def test_the_page_says_why_a_figure_is_missing() -> None:
    runs = {
        "educe step LoRA": [{"lines": [{"seconds": 40.0}]}],
        "TRL + peft": [{"lines": [], "note": "killed by SIGKILL (out of memory?)"}],
    }
    page = speed_page.page({"intel-amx": runs, "amd": {"educe step LoRA": [{"lines": []}]}})
    assert page.index("### intel-amx") < page.index("| step-lora") < page.index("### amd")
    assert "| step-lora | educe step LoRA: 40.0 s | TRL + peft: - s | - | 5x | - | 1 |" in page
    assert "- step-lora: TRL + peft: killed by SIGKILL (out of memory?)" in page
    assert "rollouts-vllm" not in page


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two arms that print a rate; arguments of a run over them."""
    (tmp_path / "arms").mkdir()
    noise = "print('noise'); print({'loss': 1}); "
    (tmp_path / "arms" / "good.py").write_text(noise + "print('{\"rate\": 5.0}')")
    (tmp_path / "arms" / "slow.py").write_text("print('{\"rate\": 1.0}')")
    arms = {"a": speed.Arm("good.py"), "b": speed.Arm("slow.py", limit_s=30)}
    row = speed_works.Row("row", "a", ("b",), 2.0)
    for module in (speed, speed_works):
        monkeypatch.setattr(module, "ARMS", arms)
    for module in (speed, speed_works, speed_page):
        monkeypatch.setattr(module, "ROWS", (row,))
    monkeypatch.setattr(speed, "HERE", tmp_path)
    monkeypatch.setattr(speed, "quiet_machine", contextlib.nullcontext)
    monkeypatch.setattr(speed, "write_all_prompts", lambda *_: {"W1": tmp_path / "p", "W2": ""})
    monkeypatch.setattr("educe.models.load.find_folder", lambda name: tmp_path)
    return ["--out", str(tmp_path / "speed.json"), "--page", str(tmp_path / "speed.md")]


def test_a_second_command_only_does_what_is_missing(
    bench: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "speed.md").write_text("# Speed\n\nBefore.\n")
    assert speed.main([*bench, "--repeats", "1"]) == 0
    assert "ratio" in (tmp_path / "speed.md").read_text()
    assert "Before." in (tmp_path / "speed.md").read_text()
    # A failure is done again, a death is a result.
    runs = json.loads((tmp_path / "speed.json").read_text())
    runs["b"] = [{"lines": [], "note": "failed: ModuleNotFoundError"}]
    (tmp_path / "speed.json").write_text(json.dumps(runs))
    (tmp_path / "arms" / "good.py").write_text("raise SystemExit('must not run again')")
    assert speed.main([*bench, "--repeats", "1"]) == 0
    runs = json.loads((tmp_path / "speed.json").read_text())
    assert runs == {"a": [{"lines": [{"rate": 5.0}]}], "b": [{"lines": [{"rate": 1.0}]}]}
    assert "5.00x (2 wanted)" in capsys.readouterr().out
    assert speed.main([*bench, "--repeats", "1", "--again"]) == 0
    (a,) = json.loads((tmp_path / "speed.json").read_text())["a"]
    assert a == {"lines": [], "note": "failed: must not run again"}


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("import time; time.sleep(600)", "stopped after 1 s"),
        ("raise MemoryError('no room')", "failed: MemoryError: no room"),
    ],
)
def test_an_arm_that_dies_keeps_what_it_said(
    bench: list[str], tmp_path: Path, text: str, note: str
) -> None:
    begin = "print('{\"rate\": 2.0}', flush=True)\n"
    (tmp_path / "arms" / "bad.py").write_text(begin + text)
    limit = 1.0 if "sleep" in text else 60.0
    found = speed.run_arm(speed.Arm("bad.py", limit_s=limit), [], sys.executable)
    assert found["lines"] == [{"rate": 2.0}]
    assert found["note"].startswith(note)


def test_peers_without_an_interpreter_are_left_out_and_small_writes_no_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert speed.main(["--list", "--only", "rollouts-vllm", "step-fp32"]) == 0
    listed = capsys.readouterr().out
    assert "educe bf16" in listed and "vLLM" not in listed and "TRL" not in listed
    assert speed.main(["--list", "--only", "rollouts-vllm", "--vllm", "python"]) == 0
    assert "vLLM bf16" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        speed.main(["--small"])
    assert "of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("vendor_id: GenuineIntel\nflags: avx2 avx512f avx512_bf16 amx_tile", "intel-amx"),
        ("vendor_id: AuthenticAMD\nflags: avx2 avx512f avx512_bf16", "amd-avx512-bf16"),
        ("processor: 0\nFeatures: asimd", "riscv"),
    ],
)
def test_results_are_kept_by_kind_of_processor(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, name: str
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: cpuinfo)
    monkeypatch.setattr("platform.machine", lambda: "riscv")
    assert speed.kind() == name


@pytest.mark.slow
def test_our_own_arms_on_a_tiny_model(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "quiet_machine", contextlib.nullcontext)
    out = tmp_path / "speed.json"
    options = ["--small", "--repeats", "1", "--model", str(tiny_folder), "--out", str(out)]
    assert speed.main([*options, "--page", str(tmp_path / "speed.md")]) == 0
    runs = json.loads(out.read_text())
    assert {n for n, r in runs.items() if r} == {
        n for n, arm in speed_works.ARMS.items() if arm.python == "educe"
    }
    assert not [r for run in runs.values() for r in run if "note" in r]
    assert runs["educe bf16, ends ignored"][0]["lines"][0]["tokens"] == 32


def test_a_peer_that_was_stopped_gives_a_lower_bound() -> None:
    runs = {
        "educe long prompts, bf16": [{"lines": [{"seconds": 60.0}, {"peak_gb": 5.0}]}],
        "TRL long prompts, one row": [
            {"lines": [], "note": "stopped after 1300 s", "stopped_after_s": 1300.0}
        ],
    }
    step = speed_page.compared(ROWS["step-long"], runs)
    assert step.peer == 1300 and step.is_met
    assert "- step-long: TRL long prompts, one row: stopped after 1300 s" in speed_page.page(
        {"any": runs}
    )
    ours = {"educe long prompts, bf16": runs["TRL long prompts, one row"]}
    assert speed_page.compared(ROWS["step-long"], ours).ours is None
