"""The page of long contexts: growth against tokens, and peers that die are results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import long_context_step
import pytest

GIVEN = argparse.Namespace(threads=1, limit_s=20.0)


def arm(folder: Path, text: str) -> str:
    (folder / "arms").mkdir(exist_ok=True)
    (folder / "arms" / "arm.py").write_text(text)
    return "arm.py"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("print({'loss': 1}); print('{\"seconds\": 2.0}')", {"seconds": 2.0}),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            {"note": "killed by SIGKILL (out of memory?)"},
        ),
        ("raise MemoryError('no room')", {"note": "failed: MemoryError: no room"}),
    ],
)
def test_an_arm_tells_its_figures_or_how_it_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, want: dict[str, Any]
) -> None:
    monkeypatch.setattr(long_context_step, "HERE", tmp_path)
    assert long_context_step.run(arm(tmp_path, text), [], sys.executable, GIVEN) == want


def test_an_arm_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_context_step, "HERE", tmp_path)
    given = argparse.Namespace(threads=1, limit_s=0.5)
    script = arm(tmp_path, "import time; time.sleep(600)")
    found = long_context_step.run(script, [], sys.executable, given)
    assert found == {"note": "stopped after 0.5 s"}


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_context_step, "HERE", tmp_path)
    kept: list[int] = []
    given = argparse.Namespace(threads=1, limit_s=20.0, again=False, runs={})
    given.keep = lambda: kept.append(len(given.runs))

    def measured(text: str, words: list[str]) -> dict[str, Any]:
        return long_context_step.known_or_run(arm(tmp_path, text), words, sys.executable, given)

    first = "print('{\"seconds\": 2.0}')"
    assert measured(first, ["/a/model", "64"]) == {"seconds": 2.0}
    # The same words, whatever folder files lie in.
    assert measured("raise SystemExit(1)", ["/b/model", "64"]) == {"seconds": 2.0}
    assert measured("raise SystemExit('no')", ["/b/model", "65"]) == {"note": "failed: no"}
    assert measured(first, ["/b/model", "65"]) == {"seconds": 2.0}  # a failure is done again
    given.again = True
    assert "note" in measured("raise SystemExit('no')", ["/b/model", "65"])
    assert kept == [1, 2, 2, 2]


def test_the_page_compares_growth_with_tokens() -> None:
    rows = [
        {"tokens": 1000, "seconds": 2.0, "peak_gb": 2.0},
        {"tokens": 2000, "seconds": 5.0, "peak_gb": 2.1},
        {"tokens": 4000, "note": "stopped after 1 s"},
    ]
    groups = [
        {"group": 2, "seconds": 9.0, "rollout_s": 1.0, "train_s": 8.0, "computed_tokens": 1000},
        {"group": 4, "seconds": 12.0, "rollout_s": 2.0, "train_s": 10.0, "computed_tokens": 1250},
    ]
    w3 = [
        {"arm": "educe", "tokens": 8192, "seconds": 9.0, "peak_gb": 4.0},
        {"arm": "educe with checkpointing", "tokens": 8192, "seconds": 12.0, "peak_gb": 2.0},
        {"arm": "TRL", "tokens": 8192, "note": "killed by SIGKILL (out of memory?)"},
        {"arm": "transformers", "tokens": 8192, "seconds": 20.0, "peak_gb": 8.0},
    ]
    page = long_context_step.page(
        {
            "doubling": {"what": "bf16", "rows": rows},
            "group": {"what": "2 prompts", "rows": groups},
            "w3": {"what": "one sequence", "rows": w3},
        }
    )
    assert "| 2000 | 5.0 | 2.50 | 2.10 | 100,000 |" in page
    assert "| 4000 | stopped after 1 s | | | |" in page
    assert "| 4 | 12.0 | 2.0 | 10.0 | 1250 | 1.25 | 1.25 |" in page
    assert "| TRL | killed by SIGKILL (out of memory?) | | |" in page
    assert "| transformers | 20.0 | 8.00 | 0.25 |" in page


def test_lengths_beyond_the_models_own_are_scaled() -> None:
    assert long_context_step._rope(8192) == []
    assert long_context_step._rope(32768) == ["--rope-factor", "4"]
