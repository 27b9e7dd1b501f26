"""Every refusal of the preflight, by its text; and that none of it loads torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from educe.config.loader import load_recipe
from educe.core.errors import EduceError, MissingExtraError, UnsupportedModelError
from educe.preflight import machine, make_plan, preflight

DOMAIN_MODULE = """\
from educe.core.protocols import DomainBase, DomainSpec
from educe.core.splits import draw_task
from educe.core.types import Score, Task, user

class Sums(DomainBase):
    def __init__(self, words=4, gold=True):
        self.words, self.gold = words, gold
        self.spec = DomainSpec("sums", "sums", "arithmetic", "Add.", has_gold=gold,
                               max_completion_tokens=16)

    def task(self, split, index):
        def make(rng):
            text = "word " * self.words + f"{rng.randrange(10**6)} + 1?"
            return Task("sums", split, index, (user(text),), "2" if self.gold else None)
        return draw_task(make, "sums", split, index)

    def score(self, task, state, transcript, services):
        return Score.wrong()
"""

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a domain module and a model folder (sizes only, no real weights)."""
    (tmp_path / "preflight_sums.py").write_text(DOMAIN_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    (model / "model.safetensors").write_bytes(b"")
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    _tokenizer().save(str(model / "tokenizer.json"))
    return tmp_path


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"word": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


BASE = """\
[model]
name = "model"
[domains.sums]
function = "preflight_sums:Sums"
"""


def check(folder: Path, text: str = "", *overrides: str) -> Any:
    (folder / "r.toml").write_text(BASE + text)
    return preflight(load_recipe(folder / "r.toml", overrides))


def refusal(folder: Path, text: str = "", *overrides: str) -> str:
    with pytest.raises(EduceError) as caught:
        check(folder, text, *overrides)
    return str(caught.value).replace(str(folder) + "/", "")


def test_a_sound_recipe_gives_a_plan(folder: Path) -> None:
    plan = check(folder)
    domain = plan.domains["sums"]
    assert (domain.share, domain.completion_tokens, domain.max_turns) == (1.0, 16, 1)
    assert domain.bundle.name == "grpo"
    assert domain.prompt_tokens is not None
    assert 50 <= domain.prompt_tokens < 70
    assert plan.shape.num_layers == 2
    assert plan.context_length == 512


def test_no_domain(folder: Path) -> None:
    (folder / "r.toml").write_text('[model]\nname = "model"\n')
    with pytest.raises(EduceError, match="the recipe names no domain"):
        preflight(load_recipe(folder / "r.toml"))


def test_all_weights_zero(folder: Path) -> None:
    assert "every weight is 0" in refusal(folder, "weight = 0\n")


def test_unknown_domain_names_the_line(folder: Path) -> None:
    text = refusal(folder, '[domains."no/such/domain"]\nweight = 1\n')
    assert text.startswith("r.toml:5: there is no domain 'no/such/domain'")


def test_glob_without_a_match(folder: Path) -> None:
    text = refusal(folder, '[domains."zzz/*"]\n')
    assert text.startswith("r.toml:5: no domain matches 'zzz/*'")


def test_function_that_does_not_exist(folder: Path) -> None:
    text = refusal(folder, "", "domains.sums.function=preflight_sums:Nothing")
    assert "Nothing" in text
    assert "preflight_sums" in text


def test_options_that_the_domain_does_not_take(folder: Path) -> None:
    text = refusal(folder, "options = { wrods = 5 }\n")
    assert "r.toml:3: sums: preflight_sums:Sums did not accept the options {'wrods': 5}" in text


def rows(folder: Path, *lines: object, name: str = "rows.jsonl") -> str:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f'[domains.mine]\npath = "{name}"\n'


GOOD = [{"prompt": f"word {i}", "answer": str(i)} for i in range(50)]


def test_rows_of_ones_own(folder: Path) -> None:
    plan = check(folder, rows(folder, *GOOD))
    assert plan.domains["mine"].share == 0.5
    assert plan.domains["mine"].prompt_tokens == 48 + 2


def test_empty_dataset(folder: Path) -> None:
    text = refusal(folder, rows(folder))
    assert text.startswith("r.toml:5: mine: ")
    assert text.endswith("rows.jsonl has no rows")


def test_path_that_is_not_there(folder: Path) -> None:
    text = refusal(folder, "[domains.mine]\npath = 'absent.jsonl'\n")
    assert text.startswith("r.toml:5: there is no file or folder absent.jsonl")


def test_row_without_its_field_names_row_and_field(folder: Path) -> None:
    text = refusal(folder, rows(folder, *GOOD[:7], {"prompt": "x", "anwser": "1"}))
    assert "rows.jsonl:8: column 'answer' is missing. Did you mean 'anwser'?" in text


def test_row_without_the_field_its_reward_needs(folder: Path) -> None:
    (folder / "preflight_rewards.py").write_text(
        "def close(prompts, completions, tolerance, **kwargs):\n    return [1.0]\n"
    )
    good = [{**row, "tolerance": 1} for row in GOOD]
    text = rows(folder, *good, {"prompt": "x", "answer": "1"})
    told = refusal(folder, text + "reward = 'preflight_rewards:close'\n")
    assert "rows.jsonl:51: column 'tolerance' is missing" in told
    assert "close" in told


def test_dataset_folder_names_its_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "saved").mkdir()
    (folder / "saved/state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"educe\[datasets\]"):
        check(folder, "[domains.mine]\npath = 'saved'\n")


def test_one_prompt_over_the_context(folder: Path) -> None:
    long = {"prompt": "word " * 300, "answer": "1"}
    text = refusal(folder, rows(folder, *GOOD, long))
    assert "mine: its longest prompt of about 348 tokens plus a completion of 256 tokens" in text


def test_nothing_to_imitate(folder: Path) -> None:
    text = refusal(folder, "options = { gold = false }\n")
    assert "the stage 'sft' imitates gold answers, and no domain of this recipe has any" in text
    check(folder, "options = { gold = false }\n", 'stages=["rl"]')


def test_unknown_algorithm(folder: Path) -> None:
    text = refusal(folder, '[algorithm]\nname = "gpro"\n')
    assert text.startswith("r.toml:6: algorithm.name must be one of")
    assert "got 'gpro'. Did you mean" in text
    assert "'grpo'" in text


def test_unknown_algorithm_of_a_domain(folder: Path) -> None:
    assert refusal(folder, 'algorithm = "dapoo"\n').startswith("r.toml:5: ")


def test_group_of_one(folder: Path) -> None:
    text = refusal(folder, "[rl]\ngroup_size = 1\n")
    assert text == (
        "r.toml:6: rl.group_size: a group of one has no baseline: grpo compares a prompt's "
        "completions with each other. Expected at least 2, got 1."
    )


def test_mini_batch_over_the_batch(folder: Path) -> None:
    text = refusal(folder, "[rl]\nprompts = 2\nupdates = 4\n")
    assert text.startswith(
        "r.toml:7: rl.updates: 4 optimizer steps cannot share a rollout batch of 2 prompts"
    )
    text = refusal(folder, "[sft]\nnum_tasks = 8\nbatch_size = 16\n")
    assert text.startswith("r.toml:7: sft.batch_size: a batch of 16 examples is larger than")
    text = refusal(folder, "[run]\nranks = 4\n", "rl.prompts=2")
    assert "r.toml:6: run.ranks: 4 trainer processes cannot share 2 prompts" in text


def test_micro_batch_over_the_update_is_noted(folder: Path) -> None:
    notes = check(folder).notes
    assert any("a micro-batch of 4096 tokens holds the whole update" in n for n in notes)
    assert not check(folder, "", "optimizer.micro_batch_tokens=64").notes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[run]\nmode = 'exact'\n[rl]\nmax_staleness = 2\n", 'run.mode = "exact" trains on-policy'),
        ("[run]\nmode = 'exact'\n[engine]\ndtype = 'int8'\n", 'Set run.mode = "fast"'),
        ("[engine]\ndtype = 'int8'\nforward = 'module'\n", 'Set engine.forward = "auto"'),
        ("[eval]\nsamples = 4\n", "4 greedy samples of a task are all the same"),
        (
            "[algorithm]\nkl_estimator = 'k1'\nkl_coefficient = 0\n",
            "algorithm.kl_coefficient is 0, so no KL is estimated",
        ),
        ("[run]\nsinks = ['wandbb']\n", "there is no sink 'wandbb'. Did you mean 'wandb'?"),
        ("path = 'x.jsonl'\n", "give either 'path' or 'function', not both"),
        ("reward = 'a:b'\n", "'reward' scores the rows of a 'path'; this domain has none"),
        ("stages = []\n", "the list is empty"),
        ("[goal.targets]\nsmus = 0.5\n", "not part of the run. Did you mean 'sums'?"),
        (
            "[guards]\naction = 'off'\ngrad_norm = 3\n",
            'guards.grad_norm: guards.action is "off", so nothing is limited',
        ),
    ],
)
def test_options_that_exclude_each_other(folder: Path, text: str, expected: str) -> None:
    overrides = ["stages=[]"] if text.startswith("stages") else []
    assert expected in refusal(folder, "" if overrides else text, *overrides)


def test_prompt_plus_completion_over_the_context(folder: Path) -> None:
    text = refusal(folder, "max_completion_tokens = 500\n")
    assert text.startswith("r.toml:5: domains.sums.max_completion_tokens: its longest prompt of")
    assert "a completion of 500 tokens are more than the context of 512" in text
    text = refusal(folder, "options = { words = 600 }\n")
    assert text.startswith("r.toml:3: domains.sums: its longest prompt of about 65")
    text = refusal(folder, "", "rl.max_completion_tokens=511")
    assert ": rl.max_completion_tokens: sums: its longest" in text
    text = refusal(folder, "", "model.context_length=1024")
    assert "1024 tokens are more than the model was made for. Expected at most 512" in text


def test_turns_that_can_reach_the_context_are_noted(folder: Path) -> None:
    notes = check(folder, "max_turns = 40\n").notes
    assert any("40 turns of 16 tokens" in note for note in notes)


def test_unsupported_architecture(folder: Path) -> None:
    config = {**LLAMA, "model_type": "mistral"}
    (folder / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"r\.toml:2: .*a sliding window"):
        check(folder)


def test_model_that_is_not_there(folder: Path) -> None:
    text = refusal(folder, "", "model.name=smollm2-135m-instrct")
    assert "is neither a known model nor a folder. Did you mean 'smollm2-135m-instruct'?" in text
    assert "set model.allow_hub = true" in refusal(folder, "", "model.name=org/name")
    plan = check(folder, "", "model.name=org/name", "model.allow_hub=true")
    assert plan.shape is None
    assert "comes from the hub" in plan.notes[0]


def test_model_folder_with_missing_parts(folder: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / "model" / name).unlink()
    text = refusal(folder)
    assert text.startswith("3 problems in the recipe:")
    assert "reads no pickled weights" in text
    assert "holds no tokenizer.json" in text
    assert "has no chat template. Name a Jinja file with model.chat_template" in text


def test_chat_template_file(folder: Path) -> None:
    assert "cannot read the file 'absent.jinja'" in refusal(
        folder, "", "model.chat_template=absent.jinja"
    )
    (folder / "bad.jinja").write_text("{% if %}")
    assert "bad.jinja:1: this is not Jinja" in refusal(folder, "", "model.chat_template=bad.jinja")


def test_missing_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs the package 'peft'.*'educe\[lora\]'"):
        check(folder, "", "model.lora.rank=8")
    text = refusal(folder, "", 'run.sinks=["trackio"]')
    assert 'the sink "trackio" of run.sinks needs the package' in text


def test_run_folder_that_cannot_be_made(folder: Path) -> None:
    (folder / "taken").write_text("")
    text = refusal(folder, "[run]\nout = 'taken/runs'\n")
    assert text.startswith("r.toml:6: run.out: the run folder 'taken/runs/run' cannot be made: ")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system nobody can write")
def test_run_folder_that_cannot_be_written(folder: Path) -> None:
    assert "the run folder '/proc/self/run' cannot be written" in refusal(
        folder, "", "run.out=/proc/self"
    )


def test_no_cuda_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_cuda_device", lambda: False)
    assert "this machine shows no NVIDIA device" in refusal(folder, "", "model.device=cuda")


def test_too_little_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gigabyte = 1024**3
    monkeypatch.setattr(machine, "memory_of", lambda _: (2 * gigabyte, gigabyte, "this machine"))
    check(folder)
    big = ("optimizer.micro_batch_tokens=4000000", "rl.prompts=8000", "engine.max_rows=4")
    text = refusal(folder, "", *big)
    assert "too little memory: this run needs about" in text
    assert "activations" in text
    assert "this machine has 2.0 GB, 1.0 GB of it free. Lower optimizer.micro_batch_tokens" in text


def test_too_little_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1024**2})
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
    text = refusal(folder)
    assert "run.out: too little disk: this run writes about" in text
    assert "1 MB are free. Lower checkpoint.keep, or choose another run.out." in text


def test_all_problems_are_told_together(folder: Path) -> None:
    (folder / "r.toml").write_text(BASE + "[rl]\ngroup_size = 1\nupdates = 99\n")
    _, problems = make_plan(load_recipe(folder / "r.toml"))
    assert len(problems) == 2


def test_no_torch(folder: Path) -> None:
    (folder / "r.toml").write_text(BASE)
    program = """
        import sys
        from educe.config.loader import load_recipe
        from educe.preflight import preflight
        preflight(load_recipe("r.toml"))
        heavy = {"torch", "transformers", "reasoning_gym", "scipy", "matplotlib"} & set(sys.modules)
        assert not heavy, heavy
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True, cwd=folder)


def test_a_context_that_is_too_small_is_told_once_and_where_it_is_set(folder: Path) -> None:
    many = "".join(f'[domains.s{i}]\nfunction = "preflight_sums:Sums"\n' for i in range(5))
    text = refusal(folder, many, "model.context_length=60", "rl.max_completion_tokens=20")
    assert text.startswith("override model.context_length=60: model.context_length: 6 of 6 domains")
    assert "do not fit into the context of 60 (s0, s1, s2, …)" in text
    needed = re.search(r"Raise it to (\d+), or lower max_completion_tokens", text)
    assert needed and 70 < int(needed[1]) < 90
    assert "problems" not in text
    check(folder, many, f"model.context_length={needed[1]}", "rl.max_completion_tokens=20")


def test_a_model_that_is_too_small_for_many_domains_is_told_once(folder: Path) -> None:
    (folder / "model/config.json").write_text(json.dumps({**LLAMA, "max_position_embeddings": 64}))
    many = "".join(f'[domains.s{i}]\nfunction = "preflight_sums:Sums"\n' for i in range(2))
    text = refusal(folder, many)
    assert text.startswith("r.toml:2: model.name: 3 of 3 domains do not fit into the context of 64")
    assert "Take a model of a longer context" in text
