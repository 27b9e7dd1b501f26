"""``educe serve``: what it tells, what it refuses before a model is loaded, a whole process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from educe.cli.main import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", "no-such-model", *arguments]) == 2
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDUCE_SERVE_TOKEN", raising=False)


def test_refusals_come_before_the_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "a token is needed" in refusal(capsys, "--host", "0.0.0.0", "--port", "0")
    empty = tmp_path / "token"
    empty.write_text("\n")
    assert "is empty" in refusal(capsys, "--token-file", str(empty))
    assert "--token-file" in refusal(capsys, "--token-file", str(tmp_path / "none"))
    assert "add --review" in refusal(capsys, "--review-words", "w.txt")
    assert "there is no file" in refusal(capsys, "--review", "--review-words", "none.txt")
    monkeypatch.setenv("EDUCE_SERVE_TOKEN", "short")
    assert "16 characters" in refusal(capsys)
    monkeypatch.delenv("EDUCE_SERVE_TOKEN")
    assert "choose another --port" in refusal(capsys, "--port", "70000")
    assert "threads must be 0" in refusal(capsys, "--port", "0", "--threads", "-1")


def test_an_unknown_model_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no local folder and no packaged model" in refusal(capsys, "--port", "0")


def test_wrong_engine_settings(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["serve", str(tiny_folder), "--port", "0"]
    assert main([*base, "--context", "5000"]) == 2
    assert "the model's 1024 tokens, got 5000" in capsys.readouterr().err
    assert main([*base, "--rows", "0"]) == 2
    assert "at least one row" in capsys.readouterr().err
    assert main([*base, "--exact", "--dtype", "bfloat16"]) == 2
    assert "--exact needs" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_the_extra_names_itself(
    package: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'educe[serve]'" in refusal(capsys)


@pytest.mark.parametrize("is_json", [True, False])
def test_a_process_serves_until_it_is_told_to_stop(tiny_folder: Path, is_json: bool) -> None:
    command = [sys.executable, "-m", "educe", "serve", str(tiny_folder), "--port", "0",
               "--name", "mine", "--review", "--threads", "1"]  # fmt: skip
    process = subprocess.Popen(
        [*command, *(["--json"] if is_json else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "EDUCE_SERVE_TOKEN": ""},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if is_json:
            told = json.loads(line)
            url = told["url"]
            assert told["model"] == "mine"
            assert told["review"] == ["rules", "injection", "code"]
        else:
            assert line.startswith("mine: http://127.0.0.1:")
            assert "no token" in line
            url = line.split()[1]
        body = json.dumps({"model": str(tiny_folder), "prompt": "hi", "max_tokens": 3})
        request = urllib.request.Request(f"{url}/completions", body.encode())
        model = ""
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as answer:
            model = json.load(answer)["model"]
        process.send_signal(signal.SIGTERM if is_json else signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert model == "mine", errors
        assert "Traceback" not in errors
        assert process.returncode in (0, 130, -signal.SIGTERM)
    finally:
        process.kill()
        process.communicate()
