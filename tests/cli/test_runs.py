"""``educe runs`` through the command line's own entry, on a recorded run."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from educe.cli.main import main
from educe.core.protocols import MetricRow
from educe.core.types import Fault, Message, Score, StopReason, Turn
from educe.observability.run_store import RunStore

NASTY = "4 \x1b[2J[bold]"


def sample(domain: str, score: Score, *, with_tokens: bool) -> dict[str, Any]:
    turn = Turn((1, 2, 3), (6, 7), (-0.5, -0.25), (0, 0), StopReason.END, 1.0)
    tokens = {"tokens": ["2+2", "?", "\n", "4", "<end>"], "mask": [0, 0, 0, 1, 1]}
    return {
        "request_id": 3,
        "sample_index": 0,
        "domain": domain,
        "task_id": f"{domain}:train:0",
        "split": "train",
        "messages": [Message("user", "2+2?").to_json(), Message("assistant", NASTY).to_json()],
        "turns": [turn.to_json()],
        "score": score.to_json(),
        "reward": score.value,
        "advantage": None,
        **(tokens if with_tokens else {}),
    }


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for name, steps in (("first", 3), ("second", 2)):
        recipe = {"run": {"name": name}, "rl": {"steps": steps}}
        with RunStore.create(folder / name, recipe) as store:
            for step in range(1, steps + 1):
                values = {"rl/score": step / 4, "domain/rg/gcd/score": step / 8}
                store.record_metrics(MetricRow("rl", step, values))
            store.record_sample("rl", 1, sample("rg/gcd", Score.right(), with_tokens=True))
            wrong = Score.wrong("got 5", format=1.0)
            store.record_sample("rl", 2, sample("code/x", wrong, with_tokens=False))
            lost = Score.unscored(Fault.GRADER, "hung")
            store.record_sample("rl", 2, sample("code/x", lost, with_tokens=True))
            store.record_event("eval", {"step": steps, "domains": {"rg/gcd": {"score": 0.5}}})
            store.record_event("alarm", {"kind": "unscored", "step": 2, "cause": "grader died"})
    return folder


@pytest.fixture
def educe(runs: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str, status: int = 0) -> str:
        assert main(["runs", *words, "--runs", str(runs)]) == status
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    return call


def test_list_shows_newest_first_and_survives_a_broken_one(educe: Any, runs: Path) -> None:
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{half")
    lines = educe("list").splitlines()
    assert lines[0].startswith("second  finished  ") and "rl 2  rl/score 0.500" in lines[0]
    assert lines[1].startswith("first") and "rl 3  rl/score 0.750" in lines[1]
    assert lines[2].startswith("broken  unreadable  ")
    listed = json.loads(educe("list", "--json"))
    assert [r["name"] for r in listed] == ["second", "first", "broken"]
    assert listed[1]["last_steps"] == {"rl": 3} and listed[1]["headline"] == {"rl/score": 0.75}
    assert "error" in listed[2]


def test_list_of_nothing_says_what_to_do(tmp_path: Path, capsys: Any) -> None:
    assert main(["runs", "list", "--runs", str(tmp_path / "none")]) == 0
    assert "educe quickstart" in capsys.readouterr().out


def test_show_by_name_and_by_folder(educe: Any, runs: Path) -> None:
    text = educe("show", "first")
    assert text == educe("show", str(runs / "first"))
    for expected in ("first: finished, 1 attempt", "rl: step 3", "rg/gcd", "ALARM unscored"):
        assert expected in text
    shown = json.loads(educe("show", "first", "--json"))
    assert shown["last_metrics"]["rl"]["rl/score"] == 0.75
    assert shown["counts"] == {"metrics": 3, "samples": 3, "events": 3, "damaged": 0}
    assert shown["evaluation"] == {"rg/gcd": {"before": None, "after": 0.5}}
    assert [e["kind"] for e in shown["events"]] == ["eval", "alarm", "process_end"]


def test_json_stays_json_with_numbers_that_are_none(educe: Any, runs: Path) -> None:
    store = RunStore.open(runs / "first")
    store.record_metrics(MetricRow("rl", 4, {"rl/score": float("nan")}))
    shown = json.loads(educe("show", "first", "--json"), parse_constant=pytest.fail)
    assert shown["last_metrics"]["rl"] == {"rl/score": None}


def test_an_unknown_run_gets_the_nearest_name(educe: Any) -> None:
    error = educe("show", "frist", status=2)
    assert "no run 'frist'" in error and "Did you mean 'first'?" in error


def test_samples_are_harmless_text_newest_first(educe: Any) -> None:
    text = educe("samples", "first")
    assert "\x1b" not in text and "4 \\x1b[2J[bold]" in text
    heads = [line for line in text.splitlines() if line.startswith("rl ")]
    assert len(heads) == 3 and heads[-1].startswith("rl 1  rg/gcd:train:0")
    assert "reason: got 5" in text and "parts: format 1.000" in text
    assert "unscored  score -  reward -" in text and "reason: grader hung" in text


@pytest.mark.parametrize(
    ("words", "verdicts"),
    [
        (["--domain", "rg/*"], ["right"]),
        (["--verdict", "unscored"], [None]),
        (["--min-reward", "0.5"], ["right"]),
        (["--max-reward", "0.5"], ["wrong"]),
        (["--step", "2", "--verdict", "wrong"], ["wrong"]),
        (["--limit", "0"], []),
    ],
)
def test_samples_are_filtered(educe: Any, words: list[str], verdicts: list[str | None]) -> None:
    found = json.loads(educe("samples", "first", *words, "--json"))
    assert [s["score"]["verdict"] for s in found] == verdicts


def test_samples_show_trained_tokens_without_colours(educe: Any) -> None:
    text = educe("samples", "first", "--tokens", "--domain", "rg/gcd")
    assert "  2+2?\\n\n    ⟦4<end>⟧\n  5 tokens, 2 trained\n" in text


def test_samples_without_token_texts_show_their_ids(educe: Any) -> None:
    text = educe("samples", "first", "--tokens", "--verdict", "wrong")
    assert "turn 1: 3 context tokens, 2 sampled, stopped by end" in text
    assert "6:-0.50 7:-0.25" in text


def test_ids_are_decoded_by_the_tokenizer_that_the_run_saved(educe: Any, runs: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    folder = runs / "first" / "models" / "rl"
    folder.mkdir(parents=True)
    words = {"what": 1, "is": 2, "this": 3, "[it]": 6, "yes": 7, "<end>": 8, "and": 9, "?": 0}
    Tokenizer(WordLevel(words, unk_token="?")).save(str(folder / "tokenizer.json"))
    text = educe("samples", "first", "--tokens", "--verdict", "wrong")
    assert "  whatisthis⟦[it]yes⟧\n  5 tokens, 2 trained\n" in text


def test_turns_are_one_sequence_unless_the_past_was_rewritten() -> None:
    from educe.observability.token_record import id_sequences

    def turn(context: list[int], completion: list[int]) -> dict[str, list[int]]:
        return {"context_token_ids": context, "completion_token_ids": completion}

    grown = id_sequences({"turns": [turn([1], [2]), turn([1, 2, 3], [4])]})
    assert grown == [[(1, False), (2, True), (3, False), (4, True)]]
    cut = id_sequences({"turns": [turn([1], [2, 9]), turn([1, 2, 3], [4])]})
    assert [len(sequence) for sequence in cut] == [3, 4]


def test_tokens_are_coloured_by_the_mask_on_a_terminal() -> None:
    from rich.console import Console

    from educe.observability.run_reader import StoredSample
    from educe.observability.sample_text import sample_text

    body = sample("d", Score.right(), with_tokens=True)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=80)
    console.print(sample_text(StoredSample("rl", 1, 1, body), by_token=True, has_colour=True))
    assert "\x1b[30;42m4\x1b[0m" in out.getvalue() and "\x1b[2m2+2\x1b[0m" in out.getvalue()
    assert "⟦" not in out.getvalue()


def test_no_match_names_the_nearest_domain(educe: Any) -> None:
    text = educe("samples", "first", "--domain", "rg/gdc")
    assert text == "No samples match; the run has 3. Did you mean 'rg/gcd'?\n"


def test_plot_writes_what_was_asked_for(educe: Any, runs: Path, tmp_path: Path) -> None:
    written = json.loads(educe("plot", "first", "--html", "--json"))
    assert list(written) == ["html"] and (runs / "first" / "run.html").is_file()
    paths = educe("plot", "first", "--out", str(tmp_path / "out")).splitlines()
    assert [Path(p).name for p in paths] == ["run.png", "run.html"]
    assert all(Path(p).stat().st_size > 1000 for p in paths)


def test_diff_of_runs_and_files(educe: Any, tmp_path: Path) -> None:
    text = educe("diff", "first", "second")
    assert text == 'run.name: "first" -> "second"\nrl.steps: 3 -> 2\n'
    changes = json.loads(educe("diff", "first", "second", "--json"))
    assert {"key": "rl.steps", "old": 3, "new": 2} in changes
    assert educe("diff", "first", "first") == "No difference.\n"
    files = [tmp_path / "a.toml", tmp_path / "b.toml"]
    files[0].write_text("[rl]\nsteps = 7\n")
    files[1].write_text("[rl]\nprompts = 8\nsteps = 9\n")
    assert educe("diff", *map(str, files)) == "rl.steps: 7 -> 9\n"


def test_export_csv(educe: Any, runs: Path) -> None:
    paths = [Path(p) for p in educe("export", "first", "--format", "csv").splitlines()]
    assert paths[0] == runs / "first" / "export" / "csv" / "metrics.csv"
    rows = list(csv.DictReader(io.StringIO(paths[0].read_text())))
    assert [r["domain/rg/gcd/score"] for r in rows] == ["0.125", "0.25", "0.375"]


def test_export_tensorboard_names_its_extra(educe: Any) -> None:
    if importlib.util.find_spec("tensorboard") is not None:
        pytest.skip("tensorboard is installed")
    error = educe("export", "first", "--format", "tensorboard", status=2)
    assert "pip install 'educe[tensorboard]'" in error


def test_looking_at_runs_needs_no_torch(runs: Path) -> None:
    program = (
        "import sys; from educe.cli.main import main; "
        f"main(['runs', 'samples', 'first', '--runs', {str(runs)!r}]); "
        "import educe.observability.live, educe.observability.sinks; "
        "heavy = {'torch', 'transformers', 'matplotlib', 'scipy'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
