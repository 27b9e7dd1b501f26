"""Whole runs of the stages that learn from examples: they learn, and they resume bitwise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from educe.api import train
from educe.config.loader import LoadedRecipe
from educe.core.errors import EduceError
from educe.core.stopping import StopSignal
from educe.models.tiny import save_tiny
from educe.observability.run_store import RunStore
from tests.trainers.recipes import tiny_recipe

DOMAIN = {"letters": {"function": "tests.trainers.letters:domain"}}


def quiet(_: str) -> None:
    pass


def weights(folder: Path, stage: str) -> dict[str, torch.Tensor]:
    return load_file(folder / "models" / stage / "model.safetensors")


def same_bits(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


WORDS = ("red", "blue", "green", "pink", "gold", "grey", "teal", "rose")


def pairs(count: int = 16) -> list[dict[str, str]]:
    return [
        {"prompt": f"colour {i}", "chosen": WORDS[i % 8], "rejected": WORDS[(i + 3) % 8].upper()}
        for i in range(count)
    ]


def completions(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{i}", "completion": WORDS[i % 8]} for i in range(count)]


def labelled(count: int = 16) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"colour {i}",
            "completion": WORDS[i % 8] if i % 2 else WORDS[i % 8].upper(),
            "label": bool(i % 2),
        }
        for i in range(count)
    ]


def recipe(folder: Path, out: Path, stage: str, /, **sections: Any) -> LoadedRecipe:
    sections.setdefault("domains", {})
    return tiny_recipe(folder, out, stages=[stage], **sections)


def check_resume(make: Any, tmp_path: Path, stage: str, stop_after: int) -> Path:
    """Run whole; run, stop after a step and resume: the weights are bitwise the same."""
    whole = train(make(tmp_path / "whole"), announce=quiet)
    assert whole.status == "done"
    stop = StopSignal()

    def halt(info: Any) -> None:
        if (info.stage, info.step) == (stage, stop_after):
            stop.request("test")

    cut = make(tmp_path / "cut")
    assert train(cut, announce=quiet, callbacks=[halt], stop=stop).status == "stopped"
    again = train(make(tmp_path / "cut"), announce=quiet, resume=True)
    assert again.status == "done"
    assert same_bits(weights(again.folder, stage), weights(whole.folder, stage))
    steps = [row.step for row in RunStore.open(again.folder).metrics(stage)]
    assert steps == [row.step for row in RunStore.open(whole.folder).metrics(stage)]
    return whole.folder


# SFT


def test_data_sets_alone_need_no_domain(tiny_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": f"{w} is a colour"} for w in WORDS])
    talk = [
        {"messages": [{"role": "user", "content": w}, {"role": "assistant", "content": w.upper()}]}
        for w in WORDS
    ]
    other = write(tmp_path / "b.jsonl", talk)
    made = recipe(
        tiny_folder,
        tmp_path,
        "sft",
        sft={
            "steps": 0,
            "num_tasks": 0,
            "epochs": 30,
            "batch_size": 8,
            "learning_rate": 1e-2,
            "data": {"texts": {"path": path}, "talks": {"path": other, "weight": 1.0}},
        },
        checkpoint={"every_steps": 0},
    )
    losses: list[Mapping[str, float]] = []
    result = train(made, announce=quiet, callbacks=[lambda i: losses.append(i.metrics)])
    assert len(losses) == 60  # 16 rows, 8 a step, 30 epochs
    assert losses[-1]["sft/loss"] < 0.5 * losses[0]["sft/loss"]
    assert {"domain/texts/token_loss", "domain/talks/token_loss"} <= losses[0].keys()
    assert result.status == "done"


def sft_recipe(folder: Path, out: Path, data: str, **sft: Any) -> LoadedRecipe:
    return recipe(
        folder,
        out,
        "sft",
        domains={"arithmetic/add/tiny": {}},
        sft={
            "steps": 6,
            "num_tasks": 20,
            "batch_size": 4,
            "learning_rate": 1e-2,
            "data": {"mine": {"path": data, "eval_fraction": 0.3, **sft.pop("mine", {})}},
            **sft,
        },
    )


@pytest.mark.parametrize("stop_after", [1, 4])  # 4: an epoch ends there
def test_sft_with_everything_resumes_bitwise(
    tiny_folder: Path, tmp_path: Path, stop_after: int
) -> None:
    data = write(tmp_path / "a.jsonl", completions(40))

    def make(out: Path) -> LoadedRecipe:
        return sft_recipe(
            tiny_folder,
            out,
            data,
            label_smoothing=0.1,
            neftune_alpha=5.0,
            watch={"every": 2, "examples": 6},
        )

    folder = check_resume(make, tmp_path, "sft", stop_after)
    rows = RunStore.open(folder).metrics("sft")
    evaluated = [r.step for r in rows if "sft/eval_loss" in r.values]
    assert evaluated == [1, 3, 5]
    assert "domain/mine/eval_loss" in rows[1].values
    assert "domain/arithmetic/add/tiny/eval_loss" in rows[1].values


def test_a_stream_resumes_bitwise(tiny_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", completions(30))

    def make(out: Path) -> LoadedRecipe:
        own = {"streaming": True, "shuffle_buffer": 5, "weight": 2.0}
        return sft_recipe(tiny_folder, out, data, mine=own)

    check_resume(make, tmp_path, "sft", 2)


def test_the_stage_ends_with_its_best_weights_and_early(tiny_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", [{"prompt": "x", "completion": "y"}] * 8)
    unlike = write(tmp_path / "e.jsonl", [{"prompt": "q", "completion": "0123456789"}])
    made = recipe(
        tiny_folder,
        tmp_path,
        "sft",
        sft={
            "steps": 30,
            "batch_size": 4,
            "learning_rate": 5e-2,
            "data": {"mine": {"path": data, "eval_path": unlike}},
            "watch": {"every": 1, "patience": 3},
        },
        checkpoint={"every_steps": 0},
    )
    result = train(made, announce=quiet)
    store = RunStore.open(result.folder)
    rows = store.metrics("sft")
    losses = [row.values["sft/eval_loss"] for row in rows]
    best = losses.index(min(losses))
    assert len(losses) == best + 4  # three worse looks in a row end it
    (event,) = store.events("best")
    assert event.payload["step"] == best + 1
    # The saved model is the best one: its loss is the best look's.
    again = recipe(
        result.folder / "models" / "sft",
        tmp_path / "again",
        "sft",
        sft={
            "steps": 1,
            "batch_size": 4,
            "learning_rate": 1e-30,
            "data": {"mine": {"path": data, "eval_path": unlike}},
            "watch": {"every": 1},
        },
    )
    seen: list[float] = []
    train(again, announce=quiet, callbacks=[lambda i: seen.append(i.metrics["sft/eval_loss"])])
    assert seen[0] == pytest.approx(min(losses), rel=1e-5)


def test_too_long_examples_are_counted(tiny_folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "x", "completion": "y" * (900 if i % 2 else 3)} for i in range(8)]
    data = write(tmp_path / "a.jsonl", rows)
    sft = {"steps": 1, "batch_size": 8, "num_tasks": 0, "data": {"mine": {"path": data}}}
    seen: list[Mapping[str, float]] = []
    for number, how in enumerate(("skip", "cut")):
        made = recipe(
            tiny_folder,
            tmp_path / str(number),
            "sft",
            model={"context_length": 100},
            sft={**sft, "too_long": how},
        )
        train(made, announce=quiet, callbacks=[lambda i: seen.append(i.metrics)])
    assert [v["sft/skipped_examples"] for v in seen] == [4.0, 0.0]
    assert seen[1]["sft/trained_tokens"] > seen[0]["sft/trained_tokens"]


# Preference


def preference_recipe(folder: Path, out: Path, data: str, /, **preference: Any) -> LoadedRecipe:
    own = preference.pop("mine_data", {})
    return recipe(
        folder,
        out,
        "preference",
        model=preference.pop("model", {}),
        preference={
            "steps": 5,
            "batch_size": 4,
            "learning_rate": 1e-2,
            "data": {"pairs": {"path": data, **own}},
            **preference,
        },
    )


@pytest.mark.parametrize(
    ("loss", "rows", "reference"),
    [
        ("dpo", pairs(), "precomputed"),
        ("ipo", pairs(), "copy"),
        ("kto", labelled(), "precomputed"),
        pytest.param("kto", pairs(), "copy", marks=pytest.mark.slow),
        pytest.param("orpo", pairs(), "auto", marks=pytest.mark.slow),
        ("simpo", pairs(), "auto"),
    ],
)
def test_preference_resumes_bitwise(
    tiny_folder: Path, tmp_path: Path, loss: str, rows: Any, reference: str
) -> None:
    data = write(tmp_path / "p.jsonl", rows)

    def make(out: Path) -> LoadedRecipe:
        return preference_recipe(tiny_folder, out, data, loss=loss, reference=reference)

    folder = check_resume(make, tmp_path, "preference", 2)
    values = RunStore.open(folder).metrics("preference")[-1].values
    for name in ("loss", "accuracy", "margin", "reward_chosen", "logprob_chosen", "entropy"):
        assert f"preference/{name}" in values
    assert "domain/pairs/accuracy" in values
    assert (folder / "reference").exists() is (reference == "precomputed")


_SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("ipo", "ipo_mean", "orpo", "simpo")]


@pytest.mark.parametrize("loss", ["dpo", "kto", *_SLOW])
def test_preference_learns_what_is_preferred(tiny_folder: Path, tmp_path: Path, loss: str) -> None:
    data = write(tmp_path / "p.jsonl", pairs())
    seen: list[Mapping[str, float]] = []
    made = preference_recipe(
        tiny_folder,
        tmp_path,
        data,
        loss=loss,
        steps=25,
        batch_size=8,
        mine_data={"eval_fraction": 0.3},
        watch={"every": 25},
    )
    train(made, announce=quiet, callbacks=[lambda i: seen.append(i.metrics)])
    if loss != "kto":  # whose accuracy is against the reference point
        assert seen[-1]["preference/accuracy"] == 1.0
    assert seen[-1]["preference/margin"] > seen[0]["preference/margin"]
    assert seen[-1]["preference/eval_accuracy"] > 0.5
    if loss not in ("orpo", "simpo"):  # at the reference no side has a reward yet
        assert abs(seen[0]["preference/reward_chosen"]) < 1e-4


def test_the_base_under_an_adapter_is_the_reference(tiny_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", pairs())

    def make(out: Path) -> LoadedRecipe:
        return preference_recipe(tiny_folder, out, data, model={"lora": {"rank": 4}})

    folder = check_resume(make, tmp_path, "preference", 2)
    assert not (folder / "reference").exists()
    values = RunStore.open(folder).metrics("preference")
    assert abs(values[0].values["preference/reward_chosen"]) < 1e-5
    assert values[-1].values["preference/reward_chosen"] != 0


def test_after_another_stage_the_adapter_is_no_reference(tiny_folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "p.jsonl", pairs())
    text = write(tmp_path / "t.jsonl", [{"text": w} for w in WORDS])
    made = tiny_recipe(
        tiny_folder,
        tmp_path,
        stages=["sft", "preference"],
        domains={},
        model={"lora": {"rank": 4}},
        sft={"data": {"texts": {"path": text}}, "learning_rate": 1e-2},
        preference={"steps": 2, "batch_size": 4, "data": {"pairs": {"path": data}}},
    )
    result = train(made, announce=quiet)
    values = RunStore.open(result.folder).metrics("preference")[0].values
    assert abs(values["preference/reward_chosen"]) < 1e-4  # of the model after sft, not the base
    assert (result.folder / "reference" / "preference.jsonl").exists()


def test_pairs_are_mined_from_scored_samples(tiny_folder: Path, tmp_path: Path) -> None:
    def make(out: Path) -> LoadedRecipe:
        return recipe(
            tiny_folder,
            out,
            "preference",
            domains=DOMAIN,
            preference={
                "steps": 4,
                "batch_size": 4,
                "learning_rate": 1e-2,
                "mine": {
                    "prompts": 6,
                    "group_size": 6,
                    "min_gap": 0.05,
                    "pairs": 2,
                    "max_completion_tokens": 8,
                },
            },
        )

    folder = check_resume(make, tmp_path, "preference", 1)
    (event,) = RunStore.open(folder).events("harvest")
    assert event.payload["prompts"] == 6
    assert event.payload["kept"] > 0
    assert len((folder / "harvest" / "preference.jsonl").read_text().splitlines()) == 6
    samples = list(RunStore.open(folder).samples())
    assert len(samples) == 36
    # A finished run's samples are preference data, too.
    made = preference_recipe(tiny_folder, tmp_path / "next", str(folder), steps=1)
    with pytest.raises(EduceError, match=r"differ by 0\.5"):
        train(made, announce=quiet)


# Rejection


def rejection_recipe(folder: Path, out: Path, **rejection: Any) -> LoadedRecipe:
    return recipe(
        folder,
        out,
        "rejection",
        domains=DOMAIN,
        rejection={
            "prompts": 8,
            "group_size": 4,
            "min_score": 0.01,
            "max_completion_tokens": 6,
            "epochs": 2,
            "batch_size": 4,
            "learning_rate": 1e-2,
            **rejection,
        },
    )


def test_rejection_resumes_bitwise(taught: Path, tmp_path: Path) -> None:
    folder = check_resume(lambda out: rejection_recipe(taught, out), tmp_path, "rejection", 1)
    store = RunStore.open(folder)
    (event,) = store.events("harvest")
    assert 0 < event.payload["kept"] <= 8
    assert event.payload["kept_by_domain"] == {"letters": event.payload["kept"]}
    assert len(list(store.samples())) == 32


def test_rejection_that_is_interrupted_while_it_samples(taught: Path, tmp_path: Path) -> None:
    whole = train(rejection_recipe(taught, tmp_path / "a"), announce=quiet)

    class Later(StopSignal):
        """Asks to stop at the n-th safe point: in the middle of the harvest."""

        left = 12

        def check(self) -> None:
            self.left -= 1
            if self.left == 0:
                self.request("test")
            super().check()

    stopped = train(rejection_recipe(taught, tmp_path / "b"), announce=quiet, stop=Later())
    assert stopped.status == "stopped"
    kept = (stopped.folder / "harvest" / "rejection.jsonl").read_text().splitlines()
    assert len(kept) < 8
    again = train(rejection_recipe(taught, tmp_path / "b"), announce=quiet, resume=True)
    assert same_bits(weights(again.folder, "rejection"), weights(whole.folder, "rejection"))


def test_rejection_imitates_what_it_kept(taught: Path, tmp_path: Path) -> None:
    made = rejection_recipe(taught, tmp_path, prompts=12, group_size=8, epochs=6)
    seen: list[Mapping[str, float]] = []
    train(made, announce=quiet, callbacks=[lambda i: seen.append(i.metrics)])
    assert seen[-1]["rejection/loss"] < seen[0]["rejection/loss"]
    assert "domain/letters/token_loss" in seen[0]


def test_nothing_good_enough_is_an_error(tiny_folder: Path, tmp_path: Path) -> None:
    made = rejection_recipe(tiny_folder, tmp_path, min_score=2.0)
    with pytest.raises(EduceError, match="keeps nothing: of 8 x 4 completions 0 reach"):
        train(made, announce=quiet)


# Distillation


def distillation_recipe(folder: Path, out: Path, teacher: Path, **own: Any) -> LoadedRecipe:
    return recipe(
        folder,
        out,
        "distillation",
        domains=DOMAIN,
        distillation={
            "teacher": str(teacher),
            "steps": 4,
            "prompts": 4,
            "learning_rate": 1e-2,
            "max_completion_tokens": 6,
            **own,
        },
    )


def teach(folder: Path, root: Path, *completions: str) -> Path:
    """Return the tiny model after SFT on completions of equal weight: it writes them and ends."""
    root.mkdir(exist_ok=True)
    rows = [{"prompt": f"{i}", "completion": c} for i in range(8) for c in completions]
    data = write(root / "t.jsonl", rows)
    made = recipe(
        folder,
        root,
        "sft",
        sft={
            "steps": 40,
            "batch_size": 8,
            "num_tasks": 0,
            "learning_rate": 1e-2,
            "data": {"d": {"path": data}},
        },
        checkpoint={"every_steps": 0},
    )
    return train(made, announce=quiet).folder / "models" / "sft"


@pytest.fixture(scope="module")
def taught(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return teach(tiny_folder, tmp_path_factory.mktemp("taught"), "ab")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("teacher"), seed=11, hidden_size=48)


def test_distillation_resumes_bitwise(tiny_folder: Path, teacher: Path, tmp_path: Path) -> None:
    folder = check_resume(
        lambda out: distillation_recipe(tiny_folder, out, teacher), tmp_path, "distillation", 1
    )
    values = RunStore.open(folder).metrics("distillation")[-1].values
    for name in ("teacher_kl", "reward", "score", "entropy", "grad_norm", "completion_tokens"):
        assert f"distillation/{name}" in values
    assert "domain/letters/teacher_kl" in values


def test_distillation_comes_nearer_to_its_teacher(
    tiny_folder: Path, taught: Path, tmp_path: Path
) -> None:
    """The student knows two answers, its teacher one of them."""
    student = teach(tiny_folder, tmp_path / "student", "ab", "cd")
    made = distillation_recipe(student, tmp_path, taught, steps=12, prompts=16, learning_rate=3e-3)
    gaps: list[float] = []
    train(
        made,
        announce=quiet,
        callbacks=[lambda i: gaps.append(i.metrics["distillation/teacher_kl"])],
    )
    assert sum(gaps[-3:]) < 0.5 * sum(gaps[:3])


# Repeated stages


def test_repeated_stages_have_names_of_their_own(taught: Path, tmp_path: Path) -> None:
    made = tiny_recipe(
        taught,
        tmp_path,
        stages=["rejection", "sft", "rejection", "sft"],
        domains={**DOMAIN, "arithmetic/add/tiny": {}},
        sft={"steps": 2},
        rejection={
            "prompts": 4,
            "group_size": 4,
            "min_score": 0.01,
            "max_completion_tokens": 6,
            "batch_size": 4,
        },
    )
    stop = StopSignal()

    def halt(info: Any) -> None:
        if (info.stage, info.step) == ("sft-2", 0):
            stop.request("test")

    result = train(made, announce=quiet, callbacks=[halt], stop=stop)
    assert result.status == "stopped"
    result = train(made, announce=quiet, resume=True)
    assert result.stages == ("rejection", "sft", "rejection-2", "sft-2")
    store = RunStore.open(result.folder)
    for name in ("sft", "sft-2"):
        rows = store.metrics(name)
        assert [row.step for row in rows] == [0, 1]
        assert f"{name}/loss" in rows[0].values
        assert (result.folder / "models" / name / "config.json").exists()
    # The second harvest takes the tasks behind those of the first.
    first, second = (
        {
            json.loads(line)["task"]["index"]
            for line in (result.folder / "harvest" / f"{name}.jsonl").read_text().splitlines()
        }
        for name in ("rejection", "rejection-2")
    )
    assert not first & second


def test_a_repeated_rl_stage_has_its_own_metrics_and_tasks(
    tiny_folder: Path, tmp_path: Path
) -> None:
    made = tiny_recipe(
        tiny_folder, tmp_path, stages=["rl", "rl"], domains=DOMAIN, rl={"steps": 2, "updates": 1}
    )
    result = train(made, announce=quiet)
    assert result.stages == ("rl", "rl-2")
    store = RunStore.open(result.folder)
    tasks: dict[str, set[str]] = {"rl": set(), "rl-2": set()}
    for sample in store.samples():
        tasks[sample.stage].add(str(sample.body["task_id"]))
    assert len(tasks["rl"]) == len(tasks["rl-2"]) == 4
    assert not tasks["rl"] & tasks["rl-2"]
    rows = store.metrics("rl-2")
    assert [row.step for row in rows] == [0, 1]
    assert "rl-2/reward" in rows[0].values
