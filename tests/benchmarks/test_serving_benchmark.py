"""The serving benchmark: right figures, and the whole measurement on a tiny model."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

import serving


def test_quantiles_are_values_that_were_measured() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [serving.quantile(values, q) for q in (50, 95, 99)] == [50.0, 95.0, 99.0]
    assert serving.quantile([3.0], 99) == 3.0


def test_figures() -> None:
    readings = [serving.Reading(0.5, 2.5, 5), serving.Reading(1.0, 5.0, 5)]
    row = serving.figures("educe", 2, readings, 5.0)
    assert row["tokens_per_s"] == 2.0
    assert row["first_token_s"] == {"p50": 0.5, "p95": 1.0, "p99": 1.0}
    assert row["between_tokens_s"] == pytest.approx(0.75)
    assert "2 clients" in serving.line_of(row)


def test_prompts_share_no_beginning() -> None:
    prompts = {serving.prompt_of(c, t, 12) for c in range(8) for t in range(4)}
    assert len({p[:40] for p in prompts}) == 32


def test_a_whole_measurement(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "quiet_machine", contextlib.nullcontext)
    out = tmp_path / "serving.json"
    options = ["--clients", "2", "--rounds", "2", "--max-tokens", "5", "--prompt-words", "8"]
    assert serving.main([str(tiny_folder), *options, "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["server"], row["requests"], row["tokens"]) == ("educe", 4, 20)
    assert row["tokens_per_s"] > 0
    # The same command again finds its row and starts no server.
    monkeypatch.setattr(serving, "running", None)
    assert serving.main([str(tiny_folder), *options, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["rows"] == [row]
