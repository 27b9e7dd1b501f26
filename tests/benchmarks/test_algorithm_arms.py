"""The algorithms' report: right numbers from made-up rows; the whole command on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import algorithm_arms
import pytest
from arm_report import Study, explained, render, reward_curve, screen_curve, write_into

from educe.core.seeds import numpy_random
from educe.evaluation.records import EvalResult, EvalRow, Outcome
from educe.evaluation.saved import save_meaning

ROOT = Path(__file__).resolve().parents[2]
SEEDS, DOMAINS, TASKS = (1, 2, 3), ("d/one", "d/two"), 40
RATES = {"start": 0.2, "grpo": 0.5, "ppo": 0.5, "dapo": 0.2}


def save_rows(out: Path, name: str, rate: float, seed: int) -> None:
    """A saved evaluation; task i is right where its own number lies under the rate."""
    rows = []
    for d, domain in enumerate(DOMAINS):
        for index in range(TASKS):
            hard = numpy_random("hard", d, index).random()
            for sample in range(2):
                draw = (
                    0.8 * hard + 0.2 * numpy_random("draw", name, seed, d, index, sample).random()
                )
                value = float(draw < rate)
                outcome = Outcome.RIGHT if value else Outcome.WRONG
                rows.append(
                    EvalRow(domain, index, sample, f"{d}-{index}", value, outcome, False, 3, 1,
                            "", (), (), None)
                )  # fmt: skip
    settings = {"split": "eval", "samples": 2, "temperature": 1.0, "tasks_per_domain": TASKS}
    result = EvalResult(name, tuple(rows), dict.fromkeys(DOMAINS, 0.0), settings=settings)
    journal = out / "held-out" / f"{name}-{seed}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("w") as file:
        for domain in DOMAINS:
            for index in range(TASKS):
                own = [r.to_json() for r in rows if (r.domain, r.index) == (domain, index)]
                file.write(json.dumps({"domain": domain, "index": index, "rows": own}) + "\n")
    save_meaning(result, journal)


def arm_row(name: str, seed: int) -> dict:
    curves = {
        "reward": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
        "sampled_tokens": [100.0, 200.0, 300.0, 400.0, 500.0, 600.0],
        "clip_low": [0.01] * 6,
        "clip_high": [0.02] * 6,
    }
    if name == "ppo":
        curves["explained_variance"] = [0.0, None, 0.1, 0.2, 0.2, 0.3]
    return {
        "arm": f"{name}-{seed}", "algorithm": name, "seed": seed, "tokens": 600 + seed,
        "updates": 12, "train_seconds": 60.0, "alarms": ["mismatch"] if name == "dapo" else [],
        "curves": curves, "screens": [[0, 0.2], [5, 0.4]],
    }  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("arms")
    rows = {}
    for seed in SEEDS:
        for name, rate in RATES.items():
            save_rows(out, name, rate, seed)
            rows[f"{name}-{seed}"] = arm_row(name, seed)
    return Study.load(out, rows, ["grpo", "ppo", "dapo", "rloo"], SEEDS)


def test_only_algorithms_with_all_seeds_are_reported(study):
    assert study.algorithms == ("grpo", "ppo", "dapo")
    lacking = {n: r for n, r in study.rows.items() if n != "start-2"}
    assert Study.load(Path("nowhere"), lacking, ["grpo"], SEEDS).algorithms == ()


def test_what_differs_is_told_apart_and_what_does_not_is_not(study):
    gains = {n: s.pooled.macro_difference for n, s in study.against_start.items()}
    assert 0.2 < gains["grpo"].value < 0.45 and gains["grpo"].low > 0
    assert abs(gains["dapo"].value) < 0.05 and not gains["dapo"].excludes(0.0)
    found = {(p.before, p.after): p for p in study.pairs}
    assert len(found) == 3
    assert found["grpo", "ppo"].p > 0.05
    assert found["grpo", "dapo"].p < 0.001 and found["grpo", "dapo"].difference.value < -0.2
    assert all(s.between_seeds is not None for s in study.against_start.values())


def test_the_page_says_so_and_is_replaced_as_a_whole(study, tmp_path):
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("# Page\n\nBefore.\n")
    section = write_into(page, study, "Stated.", "python it")
    once = page.read_text()
    assert once.startswith("# Page\n\nBefore.\n\n") and section in once
    figure = page.parent / "figures" / "algorithm-arms.svg"
    drawn = figure.read_bytes()
    assert b"GRPO" in drawn
    page.write_text(once + "After.\n")
    write_into(page, study, "Stated.", "python it")
    assert page.read_text() == once + "After.\n"
    assert figure.read_bytes() == drawn
    assert "2 can be told apart" in section
    assert "Pooled interval above zero: GRPO, PPO." in section
    assert "| PPO | 1 | +0.00 | +0.30 |" in section
    assert "DAPO seed 1 (mismatch)" in section
    assert "| 601–603 | 12 | 1.0 | 3.0 |" in section


def test_nothing_between_algorithms_with_a_single_one(study):
    alone = Study(("grpo",), SEEDS, study.rows, study.against_start, ())
    assert "Between algorithms" not in render(alone, "", "it", "f.svg")


def test_curves_are_means_over_seeds(study):
    arms = study.arms("grpo")
    assert screen_curve(arms) == [(0, pytest.approx(0.2)), (500, pytest.approx(0.4))]
    assert reward_curve(arms, width=5) == [
        (500, pytest.approx(0.3)),
        (600, pytest.approx(0.4)),
    ]
    assert explained([0.0, 0.1, 0.2, 0.3, 0.4, 1.0]) == (0.0, 1.0)


def test_what_can_be_seen_is_stated_beforehand():
    text = algorithm_arms.stated_beforehand(60, 4, 3)
    assert "240 held-out tasks" in text and "pooled paired difference of 4.2 points" in text
    few = algorithm_arms.stated_beforehand(10, 1, 1)
    assert float(few.split("difference of ")[1].split()[0]) > 20


def test_arms_come_seed_after_seed():
    given = algorithm_arms.parse(["--algorithms", "ppo", "grpo", "--seeds", "1", "2"])
    first, rest = algorithm_arms.phases(given)
    assert [a.name for a in first] == ["sft"]
    assert [a.name for a in rest] == ["start-1", "start-2", "ppo-1", "grpo-1", "ppo-2", "grpo-2"]


@pytest.mark.slow
def test_the_whole_command_on_a_tiny_model(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    recipe = (ROOT / "benchmarks" / "algorithm_arms.toml").read_text()
    start, end = recipe.index("[domains."), recipe.index("[sft]")
    letters = '[domains."letters"]\nfunction = "tests.trainers.letters:DistinctLetters"\n\n'
    small = tmp_path / "small.toml"
    small.write_text(recipe[:start] + letters + recipe[end:])
    arguments = [
        "--recipe", str(small), "--algorithms", "ppo", "dapo", "--seeds", "1", "--tasks", "4",
        "--workers", "2", "--out", str(tmp_path / "out"), "--docs", str(tmp_path / "page.md"),
        "--set", f'model.name="{tiny_folder}"', 'model.compute_dtype="auto"', 'engine.dtype="auto"',
        "sft.num_tasks=32", "rl.tokens=400", "rl.max_completion_tokens=6", "rl.prompts=4",
        "guards.screen_every=2", "guards.screen_tasks=2",
    ]  # fmt: skip
    assert algorithm_arms.run(algorithm_arms.parse(arguments)) == 0
    lines = [json.loads(x) for x in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    rows = {r["arm"]: r for r in lines}
    assert set(rows) == {"sft", "start-1", "ppo-1", "dapo-1"}
    # A stage ends with the batch that reaches its tokens; DAPO draws many groups for one.
    assert 400 <= rows["ppo-1"]["tokens"] < 700 and rows["dapo-1"]["tokens"] >= 400
    assert rows["ppo-1"]["curves"]["explained_variance"]
    assert rows["ppo-1"]["screens"][0][0] == 0
    page = (tmp_path / "page.md").read_text()
    assert "PPO" in page and "DAPO" in page and "explained variance" in page
    assert not (tmp_path / "out" / "ppo-1" / "models").exists()
    assert algorithm_arms.run(algorithm_arms.parse([*arguments, "--report-only"])) == 0
