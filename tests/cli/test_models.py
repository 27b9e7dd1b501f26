"""``educe models``: the list is quick, and a folder is judged before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from educe.cli.main import main
from educe.models.architectures import KNOWN_SHAPES
from educe.models.packaged_weights import PACKAGED


def test_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDUCE_CACHE", str(tmp_path))
    assert main(["models"]) == 0
    text = capsys.readouterr().out
    assert "smollm2-135m-instruct  Apache-2.0" in text
    assert "93 MB to fetch" in text
    assert "llama, mistral, qwen2, qwen3" in text
    assert main(["models", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["packaged"][0]["cached"] is None


def test_every_packaged_model_has_its_sizes() -> None:
    assert set(PACKAGED) == set(KNOWN_SHAPES)


def test_check(tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "check", str(tiny_folder)]) == 0
    assert "supported" in (text := capsys.readouterr().out) and "context_length=1024" in text
    assert main(["models", "check", str(tiny_folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["supported"] is True
    assert main(["models", "fetch", str(tiny_folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == str(tiny_folder)
    assert main(["models", "check", str(tmp_path)]) == 2
    assert "is not a Hugging Face model folder" in capsys.readouterr().err


def test_fetch_of_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fetch", "smollm2"]) == 2
    assert "known: smollm2-135m-instruct" in capsys.readouterr().err


def test_a_misspelt_folder_is_hinted_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "quickstart").mkdir()
    assert main(["models", "check", str(tmp_path / "quickstrat")]) == 2
    assert "Did you mean 'quickstart'?" in capsys.readouterr().err


def test_converting_into_a_file_or_a_full_folder(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.write_text("")
    assert main(["convert", str(tiny_folder), str(out)]) == 2
    assert "is a file" in capsys.readouterr().err
    assert main(["convert", str(tiny_folder), str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
