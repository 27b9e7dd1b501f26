"""What preflight refuses of the stages that learn from examples, by its text and place."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from educe.config.loader import load_recipe
from educe.core.errors import EduceError
from educe.core.stages import stage_kind, stage_names
from educe.explain import explain, render
from educe.preflight import make_plan, preflight
from educe.preflight.estimate import estimate_run
from educe.preflight.stages import tokenizer_difference

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "max_position_embeddings": 512,
}
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
LABELLED = {"prompt": "a", "completion": "b", "label": True}


def write(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def model(folder: Path, words: dict[str, int]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "model", {"word": 0, "[UNK]": 1})
    write(tmp_path / "texts.jsonl", [{"text": f"word {i}"} for i in range(40)])
    write(tmp_path / "more.jsonl", [{"text": f"word {i}"} for i in range(10)])
    write(tmp_path / "pairs.jsonl", [PAIR | {"prompt": f"{i}"} for i in range(20)])
    write(tmp_path / "labels.jsonl", [LABELLED] * 20)
    return tmp_path


def head(*stages: str) -> str:
    return f'stages = {json.dumps(stages)}\n[model]\nname = "model"\n'


SFT = head("sft") + '[sft.data.mine]\npath = "texts.jsonl"\n'
PREFERENCE = head("preference") + '[preference.data.pairs]\npath = "pairs.jsonl"\n'
DOMAIN = '[domains."arithmetic/add/tiny"]\n'


def plan_of(folder: Path, text: str) -> Any:
    (folder / "r.toml").write_text(text)
    return preflight(load_recipe(folder / "r.toml"))


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(EduceError) as caught:
        plan_of(folder, text)
    return str(caught.value).replace(str(folder) + "/", "")


def told(folder: Path, text: str) -> str:
    (folder / "r.toml").write_text(text)
    found, problems = explain(load_recipe(folder / "r.toml"))
    assert not problems
    return render(found)


def test_names_of_stages() -> None:
    assert stage_names(["sft", "rl", "sft", "eval", "sft"]) == (
        "sft", "rl", "sft-2", "eval", "sft-3",
    )  # fmt: skip
    assert [stage_kind(n) for n in ("sft-2", "sft-31", "rl", "eval")] == [
        "sft",
        "sft",
        "rl",
        "eval",
    ]


def test_data_alone_is_enough_for_sft_and_preference(folder: Path) -> None:
    plan = plan_of(folder, SFT)
    assert plan.example_sets["sft", "mine"].num_rows == 40
    assert not plan.domains
    plan_of(folder, PREFERENCE)


@pytest.mark.parametrize("stage", ["rl", "eval", "rejection", "distillation"])
def test_what_samples_needs_domains(folder: Path, stage: str) -> None:
    text = SFT.replace('["sft"]', json.dumps(["sft", stage]))
    assert "the recipe names no domain" in refusal(folder, text)


def test_mining_needs_domains(folder: Path) -> None:
    text = PREFERENCE + "[preference.mine]\nprompts = 4\n"
    assert "the recipe names no domain" in refusal(folder, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SFT.replace("texts", "nothing"), "r.toml:5: there is no file or folder"),
        (
            SFT + "eval_path = 'texts.jsonl'\neval_fraction = 0.1\n",
            "r.toml:5: sft.data.mine: giv",
        ),
        (SFT + "streaming = true\n", "r.toml:6: sft.data.mine.streaming: a stream has no end"),
        (
            SFT + "streaming = true\n[sft.data.b]\npath = 'more.jsonl'\n[sft]\nsteps = 3\n",
            "sft.data.mine.weight: a stream that is mixed with other sources needs a weight",
        ),
        (SFT + "[sft]\nbatch_size = 64\n", "sft.batch_size: a batch of 64 examples is larger"),
        (SFT + "[sft.watch]\nevery = 2\n", "r.toml:7: sft.watch.every: nothing is held out"),
        (SFT + "[sft.watch]\npatience = 2\n", "r.toml:7: sft.watch.patience: nothing is evaluated"),
        (
            SFT + "[sft.watch]\nkeep_best = false\n",
            "r.toml:7: sft.watch.keep_best: nothing is evaluated",
        ),
        (
            SFT + "shuffle_buffer = 5\n",
            "r.toml:6: sft.data.mine.shuffle_buffer: a set that is no stream is shuffled",
        ),
        (
            SFT + "columns = { txt = 'body' }\n",
            "sft.data.mine.columns.txt: there is no such column to be called otherwise. Did you "
            "mean 'text'",
        ),
        (
            PREFERENCE + "[preference.mine]\ngroup_size = 4\n",
            "r.toml:7: preference.mine.group_size: preference.mine.prompts is 0",
        ),
        (
            SFT.replace(".mine", '."arithmetic/add/tiny"') + DOMAIN,
            "a domain has the name 'arithmetic/add/tiny', too",
        ),
        (
            head("preference") + DOMAIN,
            "r.toml: preference: there is nothing to compare",
        ),
        (PREFERENCE + "[preference]\nloss = 'dop'\n", "r.toml:7: preference.loss must be one of"),
        (
            PREFERENCE + "[preference]\nmargin = 0.5\n",
            "r.toml:7: preference.margin does nothing in dpo",
        ),
        (
            PREFERENCE.replace("pairs.jsonl", "labels.jsonl"),
            "r.toml:5: preference.data.pairs.path: the rows have labels and no pairs",
        ),
        (
            PREFERENCE + "[preference]\nloss = 'kto'\nbatch_size = 1\n",
            "preference.batch_size: kto estimates",
        ),
        (
            PREFERENCE + "[preference]\nreference = 'adapter_off'\n",
            'preference.reference: "adapter_off" needs an adapter',
        ),
        (
            PREFERENCE + "[preference]\nloss = 'simpo'\nreference = 'copy'\n",
            "preference.reference: simpo has no reference",
        ),
        (PREFERENCE + "streaming = true\n", "only [sft.data] can be a stream"),
        (
            head("rejection") + DOMAIN + "[rejection]\nkeep = 9\n",
            "r.toml:6: rejection.keep: 9 of 8 completions cannot be kept",
        ),
        (head("distillation") + DOMAIN, "distillation.teacher: name the teacher"),
        (
            head("distillation") + DOMAIN + "[distillation]\nteacher = 'no/where'\n",
            "r.toml:6: distillation.teacher: 'no/where' is neither a known model nor a folder",
        ),
    ],
)
def test_refusals(folder: Path, text: str, expected: str) -> None:
    assert expected in refusal(folder, text)


def test_rows_that_are_held_out_for_nobody_are_noted(folder: Path) -> None:
    (folder / "r.toml").write_text(SFT + "eval_fraction = 0.3\n")
    plan, _ = make_plan(load_recipe(folder / "r.toml"))
    assert any("sft.data.mine: its held-out rows are not looked at" in n for n in plan.notes)
    (folder / "r.toml").write_text(SFT + "eval_fraction = 0.3\n[sft.watch]\nevery = 2\n")
    plan, _ = make_plan(load_recipe(folder / "r.toml"))
    assert not any("not looked at" in n for n in plan.notes)


def test_a_bad_row_is_named_before_the_model_is_loaded(folder: Path) -> None:
    write(folder / "texts.jsonl", [{"text": "word"}] * 3 + [{"txt": "word"}])
    text = refusal(folder, SFT)
    assert text.startswith("r.toml:5: texts.jsonl:4: expected the columns 'messages'")


def test_the_teacher_s_tokenizer_must_be_the_policy_s(folder: Path) -> None:
    model(folder / "other", {"word": 1, "[UNK]": 0})
    shutil.copytree(folder / "model", folder / "same")
    text = head("distillation") + DOMAIN + "[distillation]\nteacher = '{}'\n"
    found = refusal(folder, text.format("other"))
    assert "the teacher's tokenizer is not the policy's: it has other vocabulary, e.g." in found
    assert "'[UNK]' = 0" in found
    plan = plan_of(folder, text.format("same"))
    estimate = estimate_run(plan)
    assert estimate is not None
    assert estimate.memory["teacher"] == estimate.memory["weights"]
    lacking = tokenizer_difference(folder / "model", folder)
    assert lacking == f"no tokenizer.json that can be read in {folder}"


def test_a_tokenizer_with_an_added_token_is_another_one(folder: Path) -> None:
    shutil.copytree(folder / "model", folder / "more")
    file = folder / "more" / "tokenizer.json"
    raw = json.loads(file.read_text())
    raw["added_tokens"].append({"id": 7, "content": "<tool>", "special": True})
    file.write_text(json.dumps(raw))
    assert "other added tokens" in tokenizer_difference(folder / "model", folder / "more")


def test_explain_tells_losses_batches_and_shares(folder: Path) -> None:
    text = SFT + (
        "eval_fraction = 0.3\n[sft.data.b]\npath = 'more.jsonl'\n"
        "[sft]\nbatch_size = 5\nlabel_smoothing = 0.1\nneftune_alpha = 5\nepochs = 2\n"
    )
    shown = told(folder, text)
    assert "Loss of sft: cross_entropy" in shown
    assert "-0.9 log policy - 0.1 mean over tokens of log policy" in shown
    assert "U(+-5 / sqrt(L D))" in shown
    assert "b: 10 rows, " in shown
    assert "mine: 40 rows, " in shown


def test_explain_tells_the_preference_loss(folder: Path) -> None:
    shown = told(folder, PREFERENCE + "[preference]\nbeta = 0.2\nbatch_size = 4\n")
    assert "loss = mean over pairs[ -log sigmoid(0.2 (h(c) - h(r))) ]" in shown
    assert "arXiv 2305.18290" in shown
    assert "20 examples: at most 5 optimizer steps x 4" in shown
    kto = told(folder, PREFERENCE + "[preference]\nloss = 'kto'\nbatch_size = 4\n")
    assert "40 examples: at most 10 optimizer steps x 4" in kto


def test_explain_tells_rejection_and_distillation(folder: Path) -> None:
    shutil.copytree(folder / "model", folder / "same")
    text = head("rejection", "distillation") + DOMAIN
    shown = told(folder, text + "[distillation]\nteacher = 'same'\n[rejection]\nprompts = 32\n")
    assert "over the 1 best of 8 completions a prompt with a score >= 0.5" in shown
    assert "32 prompts x 8 completions, at most 32 kept: at most 2 optimizer steps x 16" in shown
    assert "100 optimizer steps x 8 completions, teacher " in shown


def test_explain_keeps_the_order_of_the_recipe(folder: Path) -> None:
    shutil.copytree(folder / "model", folder / "same")
    text = head("distillation", "rl", "rejection") + DOMAIN
    shown = told(folder, text + "[distillation]\nteacher = 'same'\n")
    losses, batches = shown[shown.index("Loss of") :].split("Batches\n")
    for part, mark in ((losses, "Loss of {}:"), (batches, "  {}  ")):
        places = [part.index(mark.format(s)) for s in ("distillation", "rl", "rejection")]
        assert places == sorted(places)


@pytest.mark.parametrize("text", [SFT, PREFERENCE])
def test_none_of_it_loads_torch(folder: Path, text: str) -> None:
    (folder / "r.toml").write_text(text)
    program = (
        "import sys; from educe.config.loader import load_recipe; from educe.preflight import "
        "make_plan; plan, problems = make_plan(load_recipe('r.toml')); assert not problems; "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=folder)


@pytest.mark.parametrize("make", [lambda f: f / "texts.jsonl"])
def test_a_plan_is_made_even_with_problems(folder: Path, make: Callable[[Path], Path]) -> None:
    make(folder).write_text("no json\n")
    (folder / "r.toml").write_text(SFT)
    plan, problems = make_plan(load_recipe(folder / "r.toml"))
    assert "texts.jsonl:1: not a JSON object" in str(problems[0])
    assert plan.shape is not None


def test_explain_tells_the_names_of_repeated_stages(folder: Path) -> None:
    text = SFT.replace('["sft"]', '["sft", "sft"]')
    assert "r.toml: sft -> sft-2, into" in told(folder, text)
