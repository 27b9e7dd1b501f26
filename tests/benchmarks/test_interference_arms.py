"""The interference benchmark: its domains conflict as they claim, its verdict follows from rows,
and the whole command runs on a tiny model."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import interference
import pytest
from interference_domains import KINDS, WORDS, Copying, terse, wordy

from educe.core.types import Split, assistant
from educe.models.tiny import save_tiny


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_domain_pays_for_its_own_format_only(kind):
    domain = Copying(kind)
    task = domain.task(Split.TRAIN, 5)
    number = task.metadata["number"]
    said = {"wordy": wordy(number), "terse": terse(number)}
    own = "wordy" if KINDS[kind].is_wordy else "terse"
    other = "terse" if own == "wordy" else "wordy"

    def score(text: str) -> float | None:
        return domain.score(task, None, (*task.messages, assistant(text)), None).value

    assert score(said[own]) == 1.0 and score(said[own].rstrip(".") + ".") == 1.0
    assert score(said[other]) == 0.0 and score("") == 0.0
    wrong = wordy((number + 1) % len(WORDS)) if own == "wordy" else terse(number + 1)
    assert score(wrong) == 0.5


def test_demonstrations_are_of_both_formats_and_splits_do_not_meet():
    domain = Copying("terse")
    golds = [domain.task(Split.TRAIN, i).gold for i in range(200)]
    assert 0.35 < sum(g.isdigit() for g in golds) / 200 < 0.65
    seen = [{domain.task(s, i).content_hash for i in range(200)} for s in Split]
    assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
    other = Copying("wordy").task(Split.TRAIN, 3)
    assert other.messages[0].content == domain.task(Split.TRAIN, 3).messages[0].content.replace(
        "way A", "way B"
    )


def rows(balanced: float = 0.9, cosine: float = -0.2) -> dict:
    names = [f"copying/{n}" for n in sorted(interference.ALL)]
    matrix = [[None] * 4 for _ in names]
    for one, other, value in (("terse", "wordy", cosine), ("birds", "boats", 0.3)):
        i, j = (names.index(f"copying/{n}") for n in (one, other))
        matrix[i][j] = matrix[j][i] = value
    measured = {
        "names": names,
        "cosines": matrix,
        "errors": [[0.02] * 4 for _ in names],
        "step": 35,
    }
    found = {}
    for seed in (1, 2):
        for kind, (own, _) in interference.ARMS.items():
            score = {"plain": 0.7, "balanced": balanced}.get(kind, 0.92)
            found[f"{kind}-{seed}"] = {
                "domains": {f"copying/{n}": score for n in interference.ALL},
                "interference": [measured] if len(own) > 1 else [],
            }
    return found


def test_the_verdict_is_the_statement_made_beforehand():
    told = interference.summarise(rows(), [1, 2])
    assert told["tells_them_apart"] and told["keeps_what_single_reach"]
    assert told["pairs"]["conflicting"] == {
        "cosine": pytest.approx(-0.2),
        "error": pytest.approx(0.02 / 2**0.5),
    }
    assert not interference.summarise(rows(cosine=-0.02), [1, 2])["tells_them_apart"]
    lost = interference.summarise(rows(balanced=0.86), [1, 2])
    assert not lost["keeps_what_single_reach"]
    lost["intervals"] = {"terse": {"plain": [-0.2, -0.3, -0.1]}}
    page = interference.page_of(interference.parse([]), lost)
    assert "single-domain score when balanced: **NO**" in page
    assert "-20.0 [-30.0, -10.0] | - |" in page
    assert "seeds 1, 2, 40 rollout batches" in page
    text = interference.report(lost)
    assert "plain - alone: -20.0 [-30.0, -10.0]" in text and "points of alone: NO" in text


def test_a_run_with_one_measurement_has_no_error_of_its_own():
    made = rows()
    once = copy.deepcopy(made["plain-2"]["interference"])
    once[0]["errors"] = [[None] * 4 for _ in once[0]["names"]]
    made["plain-2"]["interference"] = once
    told = interference.summarise(made, [1, 2])["pairs"]["conflicting"]
    assert told["error"] == pytest.approx(0.02 / 2**0.5)
    for row in once[0]["cosines"]:  # a seed far from the other
        row[:] = [value if value is None else value - 0.4 for value in row]
    told = interference.summarise(made, [1, 2])["pairs"]["conflicting"]
    assert told["error"] == pytest.approx(0.4 / 2**0.5 / 2**0.5)
    alone = interference.summarise(made, [2])
    assert math.isnan(alone["pairs"]["conflicting"]["error"]) and not alone["tells_them_apart"]


def test_nothing_measured_is_no_verdict_for_it():
    made = rows()
    for row in made.values():
        row["interference"] = []
    told = interference.summarise(made, [1, 2])
    assert not told["tells_them_apart"]
    assert "nan" in interference.report({**told, "intervals": {}})


@pytest.mark.slow
def test_the_whole_command_on_a_tiny_model(tmp_path, capsys):
    folder = save_tiny(tmp_path / "model", seed=3)
    out = tmp_path / "out"
    tiny = ['model.compute_dtype="float32"', 'engine.dtype="float32"', f'model.name="{folder}"']
    tiny += ["sft.num_tasks=8", "sft.batch_size=4", "balance.sketch=64"]
    page = tmp_path / "page.md"
    command = ["--seeds", "1", "--steps", "2", "--tasks", "2", "--out", str(out)]
    command += ["--docs", str(page), "--set"]
    arms = interference.parse([*command, *tiny])
    assert interference.run(arms) == 0
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [r["arm"] for r in lines] == ["sft", *(f"{n}-1" for n in interference.ARMS)]
    mixes = {r["arm"]: r for r in lines}
    assert all(mixes[n]["steps"] == 2 for n in ("plain-1", "balanced-1", "terse-alone-1"))
    assert len(mixes["balanced-1"]["domains"]) == 4
    told = json.loads((out / "summary.json").read_text())
    assert set(told["scores"]) == {"terse", "wordy"} and "told apart" in capsys.readouterr().out
    assert interference.run(interference.parse([*command, *tiny, "--report-only"])) == 0
    assert not (Path(out) / "plain-1" / "models").exists()
    assert "| terse | " in page.read_text() and "(one seed)" in page.read_text()
