"""The arms of the mixture: claims from made-up rows; the whole command on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import mixture_arms
import pytest
from mixture_arms_report import Design, Study, render, write_into

from educe.core.seeds import numpy_random
from educe.evaluation.records import EvalResult, EvalRow, Outcome
from educe.evaluation.saved import save_meaning

ROOT = Path(__file__).resolve().parents[2]
SEEDS, TASKS = (1, 2), 60
TRAINED = tuple(f"{kind}/{i}/tiny" for kind in ("a", "b") for i in range(4))
HELD_OUT = ("c/0/tiny", "c/1/tiny")
LOW = TRAINED[:2]
DESIGN = Design(TRAINED, HELD_OUT, TASKS, 2, SEEDS)


def rate(kind: str, domain: str) -> float:
    """The start is at 50 %, the lowest two at 15; adaptive lifts those, and loses one domain."""
    if domain in HELD_OUT:
        return 0.5
    base = 0.15 if domain in LOW else 0.5
    if kind == "start":
        return base
    if kind == "adaptive" and domain in LOW:
        return 0.6
    if kind == "adaptive" and domain == TRAINED[-1]:
        return 0.2
    return base + 0.1


def save_rows(out: Path, kind: str, seed: int) -> None:
    rows = []
    for domain in (*TRAINED, *HELD_OUT):
        for index in range(TASKS):
            for sample in range(2):
                draw = numpy_random("draw", domain, seed, index, sample).random()
                value = float(draw < rate(kind, domain))
                outcome = Outcome.RIGHT if value else Outcome.WRONG
                rows.append(
                    EvalRow(domain, index, sample, f"{domain}-{index}", value, outcome, False, 3, 1,
                            "", (), (), None)
                )  # fmt: skip
    settings = {"split": "eval", "samples": 2, "temperature": 1.0, "tasks_per_domain": TASKS}
    floors = dict.fromkeys((*TRAINED, *HELD_OUT), 0.0)
    result = EvalResult(kind, tuple(rows), floors, settings=settings)
    journal = out / "held-out" / f"{kind}-{seed}.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("w") as file:
        for domain in (*TRAINED, *HELD_OUT):
            for index in range(TASKS):
                own = [r.to_json() for r in rows if (r.domain, r.index) == (domain, index)]
                file.write(json.dumps({"domain": domain, "index": index, "rows": own}) + "\n")
    save_meaning(result, journal)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("mixture-arms")
    rows = {}
    for seed in SEEDS:
        for kind in ("start", "static", "adaptive"):
            save_rows(out, kind, seed)
            rows[f"{kind}-{seed}"] = {
                "tokens": 1000 + seed, "train_seconds": 60.0, "alarms": [], "seed": seed,
                "shares": dict.fromkeys(TRAINED, 1 / 8) | {LOW[0]: 0.25},
            }  # fmt: skip
    save_rows(out, "regret", 1)
    rows["regret-1"] = rows["static-1"]
    assert Study.load(out, {k: v for k, v in rows.items() if k != "start-2"}, DESIGN, []) is None
    return Study.load(out, rows, DESIGN, ["regret", "projection"])


def test_the_worst_quartile_is_the_starts(study):
    assert set(study.lowest) == set(LOW)
    assert study.quartile.value > 0.25 and study.quartile.low > 0


def test_a_domain_that_lost_is_named_and_the_others_are_kept_or_open(study):
    lost = {f.domain for f in study.falls["adaptive"] if f.p_fallen <= 0.05}
    assert lost == {TRAINED[-1]}
    assert not [f for f in study.falls["static"] if f.p_fallen <= 0.05]
    assert all(f.p_kept > 0.05 or f.p_fallen > 0.05 for f in study.falls["adaptive"])
    assert sum(f.p_kept <= 0.05 for f in study.falls["adaptive"]) >= 2


def test_families_that_were_never_seen_are_told_apart(study):
    gain = study.carried["adaptive"]
    assert gain.num_untrained_families == 2
    assert gain.untrained.value == pytest.approx(0.0, abs=1e-12)
    assert gain.trained.value > 0.05


def test_only_single_arms_that_are_done_are_reported(study):
    assert set(study.ablations) == {"regret"}
    assert study.ablations["regret"].value < 0


def test_the_page_says_what_was_claimed_and_what_held(study, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    section = write_into(page, study, "python it")
    once = page.read_text()
    write_into(page, study, "python it")
    assert page.read_text() == once and section in once
    assert f"| (3) no domain lost over 5 points of the start | {TRAINED[-1]} | **no** |" in section
    assert "| (2) better on the worst quartile |" in section
    row = next(line for line in section.splitlines() if line.startswith("| (2)"))
    assert row.endswith("| yes |")
    assert f"| {LOW[0]} (worst quartile) |" in section and "| c/0/tiny (never seen) |" in section
    assert f"{2.0:.2f} |" in next(x for x in section.splitlines() if x.startswith(f"| {LOW[0]}"))
    assert "**One seed only** (seed 1)" in section


def test_without_held_out_families_and_single_arms_nothing_is_said_of_them(study, tmp_path):
    from dataclasses import replace

    bare = render(replace(study, ablations={}, carried={"static": None}), "it")
    assert "One seed only" not in bare and "Zero-shot" not in bare


def test_what_can_be_seen_is_stated_beforehand():
    given = mixture_arms.parse([])
    trained, held_out = mixture_arms.domains_of(given)
    assert len(trained) >= 24 and len({n.partition("/")[0] for n in trained}) >= 6
    assert len(held_out) == 3
    design = Design(trained, held_out, given.tasks, given.samples, tuple(given.seeds))
    text = design.stated_beforehand()
    assert "27 domains trained, 3 never seen" in text
    power = float(text.split("(power ")[1].split("%")[0])
    assert power >= 80, "the numbers of tasks and samples are enough for the first claim"
    few = Design(trained, held_out, 8, 1, (1,)).stated_beforehand()
    assert float(few.split("(power ")[1].split("%")[0]) < 60


def test_held_out_families_were_drawn():
    from educe.core.seeds import derive

    trained, held_out = mixture_arms.domains_of(mixture_arms.parse([]))
    drawn = sorted((*trained, *held_out), key=lambda n: derive("held-out", n))[:3]
    assert sorted(drawn) == list(held_out)


def test_every_arm_is_a_recipe_that_preflight_takes():
    from educe.api import as_loaded
    from educe.preflight.balance import check_balance
    from educe.preflight.batch import check_batch
    from educe.preflight.data import resolve_domains
    from educe.preflight.mixing import check_mixture
    from educe.preflight.plan import Plan

    given = mixture_arms.parse([])
    known = json.dumps(mixture_arms.domains_of(given)[0])
    kinds = {**mixture_arms.MAIN} | {
        k: (*mixture_arms.ADAPTIVE, *v) for k, v in mixture_arms.ABLATIONS.items()
    }
    for kind, words in kinds.items():
        plan = Plan(as_loaded(given.recipe, [w.replace("TRAINED", known) for w in words]))
        problems = [
            *check_batch(plan), *resolve_domains(plan), *check_mixture(plan), *check_balance(plan)
        ]  # fmt: skip
        assert not problems, (kind, problems)


def test_arms_come_seed_after_seed():
    given = mixture_arms.parse(["--seeds", "4", "5", "--ablations", "regret"])
    first, main, single = mixture_arms.phases(given)
    assert [a.name for a in first] == ["sft"]
    assert [a.name for a in main] == [
        "start-4", "start-5", "static-4", "adaptive-4", "static-5", "adaptive-5"
    ]  # fmt: skip
    assert [a.name for a in single] == ["regret-4"]
    assert mixture_arms.phases(mixture_arms.parse(["--ablations", "none"]))[2] == []


@pytest.mark.slow
def test_the_whole_command_on_a_tiny_model(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    recipe = (ROOT / "benchmarks" / "mixture_arms.toml").read_text()
    start, end = recipe.index("[domains."), recipe.index("# A tenth of")
    edge, letters = "tests.trainers.edge_domains:", "tests.trainers.letters:"
    domains = [
        f'[domains."letters"]\nfunction = "{letters}DistinctLetters"\n',
        f'[domains."other-letters"]\nfunction = "{edge}OtherLetters"\n',
        f'[domains."solved"]\nfunction = "{edge}Solved"\n',
        f'[domains."no-letters"]\nfunction = "{edge}NoLetters"\nweight = 0\n',
    ]
    small = tmp_path / "small.toml"
    small.write_text(recipe[:start] + "\n".join(domains) + recipe[end:])
    arguments = [
        "--recipe", str(small), "--seeds", "1", "--tasks", "4", "--samples", "2",
        "--ablations", "forgetting-guard", "--workers", "2",
        "--out", str(tmp_path / "out"), "--docs", str(tmp_path / "page.md"),
        "--set", f'model.name="{tiny_folder}"', 'model.compute_dtype="auto"', 'engine.dtype="auto"',
        "sft.num_tasks=32", "rl.tokens=300", "rl.max_completion_tokens=6", "rl.prompts=6",
    ]  # fmt: skip
    assert mixture_arms.run(mixture_arms.parse(arguments)) == 0
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    rows = {r["arm"]: r for r in map(json.loads, lines)}
    assert set(rows) == {"sft", "start-1", "static-1", "adaptive-1", "forgetting-guard-1"}
    assert rows["static-1"]["shares"]["letters"] == pytest.approx(1 / 3, abs=1e-4)
    assert "no-letters" not in rows["static-1"]["shares"], "it is never sampled"
    assert rows["static-1"]["tokens"] >= 300 and "no-letters" in rows["static-1"]["domains"]
    page = (tmp_path / "page.md").read_text()
    assert "| no-letters (never seen) |" in page and "One seed only" in page
    assert not (tmp_path / "out" / "adaptive-1" / "models").exists()
    assert mixture_arms.run(mixture_arms.parse([*arguments, "--report-only"])) == 0
