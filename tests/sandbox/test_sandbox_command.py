from __future__ import annotations

import json
from pathlib import Path

import pytest

from educe.cli.main import main
from educe.sandbox import Level, Sandbox, doctor


def test_run_prints_the_output_and_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "p.py"
    program.write_text("import sys\nprint(sys.argv[1], input())")
    (tmp_path / "in").write_text("world\n")
    arguments = ["sandbox", "run", str(program), "hello", "--stdin", str(tmp_path / "in")]
    assert main([*arguments, "--level", "plain"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "hello world\n" and "level plain" in shown.err
    program.write_text("raise ValueError('no')")
    assert main(["sandbox", "run", str(program), "--level", "plain", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "RE" and "ValueError: no" in told["stderr"]
    assert "runner.py" not in told["stderr"]


def test_run_names_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "run", "absent.py"]) == 2
    assert "absent.py" in capsys.readouterr().err


def test_everything_holds_at_the_best_level(sandbox: Sandbox) -> None:
    if sandbox.level < 3:
        pytest.skip("this host has no namespaces")
    held = doctor.attack(sandbox)
    assert held and all(held.values()), held


@pytest.mark.slow
def test_doctor_tells_all_levels(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["sandbox", "doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert [row["level"] for row in told["levels"]] == [
        "cgroups",
        "namespaces",
        "confined",
        "plain",
    ]
    assert status == (0 if told["default"] else 1)
    plain = told["levels"][-1]
    assert plain["available"] and not plain["held"]["files of the host stay hidden"]


def test_doctor_says_which_runtimes_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {"node": "runtime 'node' needs the program 'node', which is in none of /usr/bin"}
    found = doctor.Diagnosis((), Level.CGROUPS, 7, 1, "root", (), missing)
    monkeypatch.setattr(doctor, "diagnose", lambda: found)
    assert main(["sandbox", "doctor"]) == 0
    shown = capsys.readouterr().out
    assert "runtimes    python, python-numpy, python-pytest, bash, c, c++, executable\n" in shown
    assert "not here: runtime 'node' needs the program 'node'" in shown
    assert main(["sandbox", "doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["missing_runtimes"] == missing and "bash" in told["runtimes"]


def test_advice_is_true_for_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    assert "only level plain" in doctor._advice(None)[0]
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(doctor, "_read", lambda path: "1" if "apparmor" in path else "")
    assert "AppArmor" in doctor._advice(None)[0]
    monkeypatch.setattr(doctor, "_read", lambda path: "")
    monkeypatch.setattr(doctor, "_in_container", lambda: True)
    assert "docker run" in doctor._advice(None)[0]
    monkeypatch.setattr(doctor.platform, "release", lambda: "5.15-microsoft-standard-WSL2")
    assert any("WSL" in sentence for sentence in doctor._advice(None))
