"""``educe safety``: reviewing texts and the queue, without any package."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from educe.cli.main import main
from educe.core.types import user
from educe.evaluation.safety import labelled
from educe.evaluation.safety.labelled import LabelledResponse
from educe.rewards.review.queue import QueueReason, ReviewQueue


def test_reviewing_a_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("My card is 4111 1111 1111 1111."))
    assert main(["safety", "review"]) == 1
    out = capsys.readouterr().out
    assert "rules/card_number" in out and "1111 1111" not in out
    monkeypatch.setattr("sys.stdin", io.StringIO("Good morning."))
    assert main(["safety", "review", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_unsafe"] is False


def test_the_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "queue.jsonl"
    item = ReviewQueue(file).add("some text", QueueReason.AUDIT, prompt=[user("q")])
    assert main(["safety", "pending", str(file), "--rater", "anna"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == item
    label = ["safety", "label", str(file), item, "1", "--rater", "anna", "--category", "insult"]
    assert main(label) == 0
    assert capsys.readouterr().out == f"{item}: harm 1 by anna\n"
    assert main([*label, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"item": item, "rater": "anna", "harm": 1.0}
    assert main(["safety", "pending", str(file), "--rater", "anna"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["safety", "export", str(file)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["harm"] == 1.0 and row["text"] == "some text"
    assert main(["safety", "label", str(file), "unknown", "1", "--rater", "anna"]) == 2


def test_training_a_classifier_and_using_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        LabelledResponse(
            "c", f"o{i // 4}", f"{'snarl sneer' if i % 2 else 'violin rose'} o{i}", (i % 2,)
        )
        for i in range(80)
    ]
    monkeypatch.setattr(labelled, "labelled_responses", lambda announce: rows)
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"text": "snarl again", "harm": 1.0, "prompt": []}) + "\n")
    out = tmp_path / "harm.npz"
    assert main(["safety", "train", "--out", str(out), "--rows", str(own), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["num_texts"] == 81 and facts["own_rows"] == 1
    text = tmp_path / "text.txt"
    text.write_text("a snarl and a sneer")
    assert main(["safety", "review", str(text), "--classifier", str(out)]) == 1
    assert "classifier/harmful" in capsys.readouterr().out
    own.write_text("{}\n")
    assert main(["safety", "train", "--out", str(out), "--rows", str(own)]) == 2
    assert "own.jsonl:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["review", "FILE"],
        ["pending", "FILE", "--rater", "a"],
        ["label", "FILE", "x", "0", "--rater", "a"],
        ["export", "FILE"],
        ["train", "--out", "x.npz", "--rows", "FILE"],
    ],
)
def test_a_missing_file_is_said(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "none.jsonl")
    assert main(["safety", *(missing if w == "FILE" else w for w in words)]) == 2
    assert missing in capsys.readouterr().err
    assert not (tmp_path / "none.jsonl").exists()


def test_wrong_input_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "x.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    assert main(["safety", "review", str(binary)]) == 2
    assert "not UTF-8 text" in capsys.readouterr().err
    assert main(["safety", "report", "--fpr", "2"]) == 2
    assert "--fpr is a share" in capsys.readouterr().err
