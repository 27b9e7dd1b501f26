"""Users' rows: validation, splits, random access, and reward functions of TRL and verl."""

from __future__ import annotations

import asyncio
import json
import pickle
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, MissingExtraError, UnscoredError
from educe.core.protocols import Services
from educe.core.types import Fault, Score, Split, Task, Verdict, assistant
from educe.domains.check import check_domain
from educe.domains.datasets import RowsDomain, preflight_rows
from educe.domains.registry import load_domain

EXAMPLES = Path(__file__).parents[2] / "examples" / "domains"
LENGTH = f"{EXAMPLES / 'my_rewards.py'}:is_short"


def write(path: Path, rows: Sequence[Mapping[str, Any] | str]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def sums(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{i} + {i} =", "answer": 2 * i, "hint": f"h{i}"} for i in range(count)]


def domain_of(path: Path, **settings: Any) -> RowsDomain:
    return RowsDomain("mine", DomainSettings(path=str(path), **settings))


def score(domain: RowsDomain, text: str, index: int = 0) -> Score:
    task = domain.task(Split.TRAIN, index)
    return domain.score(task, None, [*task.messages, assistant(text)], Services())


def reward_file(folder: Path, body: str) -> str:
    path = folder / "rewards.py"
    path.write_text("import asyncio, math\n" + body)
    return str(path)


# Rows


def test_rows_become_tasks_of_disjoint_splits_in_a_shuffled_order(tmp_path: Path) -> None:
    domain = domain_of(write(tmp_path / "rows.jsonl", sums(400)), eval_fraction=0.2)
    tasks = {s: [domain.task(s, i) for i in range(domain.size(s) or 0)] for s in Split}
    assert sum(map(len, tasks.values())) == 400
    assert 50 <= len(tasks[Split.EVAL]) <= 110
    assert 10 <= len(tasks[Split.SCREEN]) <= 50
    prompts = [task.messages[0].content for found in tasks.values() for task in found]
    assert len(set(prompts)) == 400
    order = [int(task.gold or 0) for task in tasks[Split.TRAIN]]
    assert order != sorted(order)
    again = domain_of(tmp_path / "rows.jsonl", eval_fraction=0.2)
    assert [again.task(Split.TRAIN, i) for i in range(5)] == tasks[Split.TRAIN][:5]
    assert (
        Task.from_json(json.loads(json.dumps(tasks[Split.EVAL][0].to_json()))) == tasks["eval"][0]
    )
    with pytest.raises(IndexError, match="no task 400"):
        domain.task(Split.TRAIN, 400)


def test_a_row_keeps_its_split_when_the_file_grows(tmp_path: Path) -> None:
    small = domain_of(write(tmp_path / "a.jsonl", sums(60)))
    large = domain_of(write(tmp_path / "b.jsonl", sums(300)))
    held_out = {small.task(Split.EVAL, i).gold for i in range(small.size(Split.EVAL) or 0)}
    assert held_out
    assert held_out <= {large.task(Split.EVAL, i).gold for i in range(large.size(Split.EVAL) or 0)}


def test_duplicates_never_meet_across_splits(tmp_path: Path) -> None:
    domain = domain_of(write(tmp_path / "rows.jsonl", sums(60) * 4))
    contents = {
        s: {domain.task(s, i).content_hash for i in range(domain.size(s) or 0)} for s in Split
    }
    assert not contents[Split.TRAIN] & contents[Split.EVAL]
    assert sum(map(len, contents.values())) == 60


def test_the_example_passes_its_check() -> None:
    settings = DomainSettings(path=str(EXAMPLES / "capitals.jsonl"), eval_fraction=0.25)
    report = check_domain(load_domain("capitals", settings))
    assert report.is_ok, report.problems
    summary = preflight_rows("capitals", settings)
    assert (summary.num_rows, summary.is_complete, summary.has_gold) == (20, True, True)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"question": "x", "answer": 1}, "rows.jsonl:3: column 'prompt' is missing"),
        ({"prompt": "x", "anwser": 1}, "Did you mean 'anwser'"),
        ({"prompt": "x", "answer": None}, "rows.jsonl:3: column 'answer' is empty"),
        ({"prompt": "", "answer": 1}, "rows.jsonl:3: column 'prompt' is empty"),
        ({"prompt": 5, "answer": 1}, "must be text or a list of messages, got int"),
        ({"prompt": ["x"], "answer": 1}, "a message needs a role and a content"),
        ({"prompt": [{"role": "bot", "content": "x"}], "answer": 1}, "role must be one of"),
        (
            {"prompt": [{"role": "assistant", "content": "x"}], "answer": 1},
            "ends with an assistant message",
        ),
        ({"prompt": "x", "answer": {"a": 1}}, "must be text, a number or a list"),
        ("{not json", "rows.jsonl:3: not a JSON object"),
        ("[1, 2]", "rows.jsonl:3: expected a JSON object, got list"),
    ],
)
def test_a_bad_row_is_named_with_file_line_and_column(tmp_path: Path, bad: Any, told: str) -> None:
    path = write(tmp_path / "rows.jsonl", [*sums(2), bad, *sums(2)])
    with pytest.raises(DomainError) as caught:
        preflight_rows("mine", DomainSettings(path=str(path)))
    assert told in str(caught.value)


def test_rows_behind_the_preflight_limit_are_checked_when_they_are_indexed(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [*sums(50), {"prompt": "x"}])
    settings = DomainSettings(path=str(path))
    summary = preflight_rows("mine", settings, limit=50)
    assert (summary.num_rows, summary.is_complete) == (50, False)
    with pytest.raises(DomainError, match=r"rows\.jsonl:51: column 'answer' is missing"):
        RowsDomain("mine", settings).size(Split.TRAIN)


def test_unusable_paths(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="no file or folder"):
        domain_of(tmp_path / "absent.jsonl")
    with pytest.raises(DomainError, match="has no rows"):
        domain_of(write(tmp_path / "empty.jsonl", ["", ""]))
    (tmp_path / "folder").mkdir()
    with pytest.raises(DomainError, match=r"no \*\.jsonl or \*\.parquet"):
        domain_of(tmp_path / "folder")
    with pytest.raises(DomainError, match="reward_weights"):
        domain_of(write(tmp_path / "rows.jsonl", sums(3)), options={"wieghts": [1]})


def test_no_row_for_training_is_an_error_before_the_run(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", sums(2))
    with pytest.raises(DomainError, match="none of the 2 rows"):
        preflight_rows("mine", DomainSettings(path=str(path), eval_fraction=0.999))


def test_a_file_that_changes_while_in_use(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", sums(30))
    domain = domain_of(path)
    domain.task(Split.TRAIN, 0)
    write(path, sums(31))
    with pytest.raises(DomainError, match="changed while it was in use"):
        domain.task(Split.TRAIN, 0)


def test_a_folder_of_files_is_read_as_one(tmp_path: Path) -> None:
    rows = sums(90)
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "a.jsonl", rows[:40])
    write(tmp_path / "data" / "b.jsonl", ["", *rows[40:]])
    domain = domain_of(tmp_path / "data")
    golds = {domain.task(s, i).gold for s in Split for i in range(domain.size(s) or 0)}
    assert golds == {str(row["answer"]) for row in rows}


def test_nested_columns_and_conversational_prompts(tmp_path: Path) -> None:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    row = {"prompt": prompt, "reward_model": {"ground_truth": "4"}}
    domain = domain_of(
        write(tmp_path / "rows.jsonl", [row]), answer_field="reward_model.ground_truth"
    )
    split = next(s for s in Split if domain.size(s))
    task = domain.task(split, 0)
    assert [m.role for m in task.messages] == ["system", "user"]
    assert task.gold == "4"


def test_a_large_file_stays_in_flat_memory(tmp_path: Path) -> None:
    """40,000 rows of 1 kB: 40 MB of text, of which only the offsets are kept."""
    path = tmp_path / "rows.jsonl"
    with path.open("w") as stream:
        for i in range(40_000):
            stream.write(json.dumps({"prompt": f"{i}" + "x" * 1000, "answer": i}) + "\n")
    code = (
        "import resource; from educe.domains.datasets import RowsDomain;"
        "from educe.config.settings import DomainSettings; from educe.core.types import Split;"
        "import numpy; peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        f"domain = RowsDomain('mine', DomainSettings(path={str(path)!r})); before = peak();"
        "n = domain.size(Split.TRAIN); domain.task(Split.TRAIN, n - 1); print(peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) < 8_000  # kilobytes
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0


def test_dataset_folders_need_the_extra_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{}")
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"educe\[datasets\]"):
            domain_of(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_dataset_folders(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    try:
        data = datasets.Dataset.from_list(sums(80))
    except pickle.PicklingError as error:  # datasets 5.2 with dill 0.4.1 cannot write any
        pytest.skip(f"this release of datasets cannot make a data set: {error}")
    data.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "dict"))
    (tmp_path / "parquet").mkdir()
    data.to_parquet(str(tmp_path / "parquet" / "part-0.parquet"))
    found = []
    for name in ("saved", "dict", "parquet"):
        domain = domain_of(tmp_path / name)
        assert sum(domain.size(s) or 0 for s in Split) == 80
        found.append([domain.task(Split.TRAIN, i).gold for i in range(10)])
    assert found[0] == found[1] == found[2]
    with pytest.raises(DomainError, match="has the splits"):
        domain_of(tmp_path / "dict", options={"split": "dev"})
    data.remove_columns("answer").save_to_disk(str(tmp_path / "bare"))
    with pytest.raises(DomainError, match="row 0: column 'answer' is missing"):
        preflight_rows("mine", DomainSettings(path=str(tmp_path / "bare")))


# The default reward


@pytest.mark.parametrize(
    ("answer", "completion", "value"),
    [
        (11, "11", 1),
        (11, "The answer is 11.", 1),
        (11, "711", 0),
        (1200, "1,200", 1),
        (0.5, "0.50", 1),
        ("Paris", "paris.", 1),
        ("Paris", "Answer: Paris", 1),
        ("Paris", "London or Paris", 0),
        (["Paris", "City of Light"], "city of light", 1),
        ("Paris", "", 0),
        (11, "", 0),
    ],
)
def test_without_a_reward_the_answer_column_decides(
    tmp_path: Path, answer: Any, completion: str, value: float
) -> None:
    rows = [{"prompt": f"q{i}", "answer": answer} for i in range(12)]
    assert score(domain_of(write(tmp_path / "rows.jsonl", rows)), completion).value == value


# Reward functions


def test_the_examples_rewards() -> None:
    path, rewards = EXAMPLES / "capitals.jsonl", EXAMPLES / "my_rewards.py"
    trl = domain_of(path, reward=f"{rewards}:names_the_answer")
    gold = trl.task(Split.TRAIN, 0).gold or ""
    assert score(trl, f"It is {gold}, of course").value == 1
    both = domain_of(
        path,
        reward=(f"{rewards}:names_the_answer", f"{rewards}:is_short"),
        options={"reward_weights": [1.0, 0.25]},
    )
    result = score(both, f"It is really and truly the old {gold}")
    assert result.value == 1.0
    assert result.parts == {
        "names_the_answer": 1.0,
        "is_short": 0.0,
        "words": 7 + len(gold.split()),
    }
    assert score(both, gold).value == 1.25
    verl = domain_of(path, reward=f"{rewards}:compute_score")
    result = score(verl, gold + ".")
    assert result.value == 1
    assert result.parts == {"compute_score": 1.0, "length": float(len(gold) + 1)}
    assert check_domain(verl).is_ok


def test_trl_arguments_are_lists_of_one(tmp_path: Path) -> None:
    rewards = reward_file(
        tmp_path,
        "seen = []\n"
        "def f(prompts, completions, completion_ids, hint, trainer_state, log_extra, log_metric, "
        "**kwargs):\n"
        "    log_metric('hints', 2)\n"
        "    log_extra('seen', [[prompts, completions, hint, sorted(kwargs)]])\n"
        "    return [0.25]\n",
    )
    domain = domain_of(write(tmp_path / "rows.jsonl", sums(20)), reward=f"{rewards}:f")
    task = domain.task(Split.TRAIN, 0)
    result = score(domain, "hello")
    assert result.value == 0.25
    assert result.parts == {"f": 0.25, "hints": 2.0}
    number = int(task.gold or 0) // 2
    prompt = [f"{number} + {number} ="]
    assert result.proof["log_extra"]["seen"] == [prompt, ["hello"], [f"h{number}"], ["answer"]]


def test_conversational_rows_get_message_lists(tmp_path: Path) -> None:
    rewards = reward_file(
        tmp_path,
        "def f(prompts, completions, **kwargs):\n"
        "    assert prompts[0] == [{'role': 'user', 'content': 'hi'}], prompts\n"
        "    return [float(completions[0][0]['content'] == 'ho')]\n",
    )
    rows = [{"prompt": [{"role": "user", "content": "hi"}], "answer": str(i)} for i in range(20)]
    domain = domain_of(write(tmp_path / "rows.jsonl", rows), reward=f"{rewards}:f")
    assert score(domain, "ho").value == 1


def test_async_rewards_also_inside_a_running_loop(tmp_path: Path) -> None:
    rewards = reward_file(
        tmp_path,
        "async def f(completions, **kwargs):\n    await asyncio.sleep(0)\n    return [0.5]\n",
    )
    domain = domain_of(write(tmp_path / "rows.jsonl", sums(20)), reward=f"{rewards}:f")
    assert score(domain, "x").value == 0.5

    async def inside() -> Score:
        return score(domain, "x")

    assert asyncio.run(inside()).value == 0.5


def test_none_is_unscored_and_never_zero(tmp_path: Path) -> None:
    rewards = reward_file(
        tmp_path,
        "def silent(completions, **kwargs):\n    return [None]\n"
        "def one(completions, **kwargs):\n    return [1.0]\n",
    )
    path = write(tmp_path / "rows.jsonl", sums(20))
    alone = score(domain_of(path, reward=f"{rewards}:silent"), "x")
    assert (alone.value, alone.fault, alone.verdict) == (None, Fault.GRADER, None)
    assert "silent returned None" in alone.reason
    both = score(domain_of(path, reward=(f"{rewards}:silent", f"{rewards}:one")), "x")
    assert both.value == 1.0
    assert both.parts == {"silent": None, "one": 1.0}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return [math.nan]", "returned nan"),
        ("return [math.inf]", "returned inf"),
        ("return 1.0", "must return a list with one number"),
        ("return [1.0, 2.0]", "must return a list with one number"),
        ("return ['high']", "'high', not a number"),
        ("return [float(len(completion_ids[0]))]", "uses completion_ids"),
        ("return [trainer_state.global_step]", "uses trainer_state"),
    ],
)
def test_what_a_function_cannot_say_leaves_the_sample_unscored(
    tmp_path: Path, body: str, told: str
) -> None:
    rewards = reward_file(
        tmp_path, f"def f(completions, completion_ids, trainer_state, **kwargs):\n    {body}\n"
    )
    domain = domain_of(write(tmp_path / "rows.jsonl", sums(20)), reward=f"{rewards}:f")
    with pytest.raises(UnscoredError, match=told):
        score(domain, "x")


def test_verl_arguments(tmp_path: Path) -> None:
    rewards = reward_file(
        tmp_path,
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert (data_source, ground_truth) == ('gsm', '4'), (data_source, ground_truth)\n"
        "    return extra_info['bonus'] + (solution_str == '4')\n",
    )
    row = {
        "prompt": [{"role": "user", "content": "2 + 2?"}],
        "data_source": "gsm",
        "reward_model": {"ground_truth": "4"},
        "extra_info": {"bonus": 0.5},
    }
    domain = domain_of(
        write(tmp_path / "rows.jsonl", [{**row, "id": i} for i in range(3)]),
        reward=f"{rewards}:compute_score",
        answer_field="reward_model.ground_truth",
        eval_fraction=0.001,
    )
    assert score(domain, "4").value == 1.5
    assert score(domain, "5").value == 0.5


def test_a_column_that_a_reward_needs_is_missed_before_the_run(tmp_path: Path) -> None:
    rewards = reward_file(tmp_path, "def f(completions, solution, **kwargs):\n    return [0.0]\n")
    path = write(tmp_path / "rows.jsonl", [{**row, "solution": 1} for row in sums(2)] + sums(2))
    with pytest.raises(DomainError) as caught:
        preflight_rows("mine", DomainSettings(path=str(path), reward=f"{rewards}:f"))
    assert "rows.jsonl:3: column 'solution' is missing, the reward function f needs it" in str(
        caught.value
    )


def test_without_gold_a_reward_is_enough_but_sft_is_not_offered(tmp_path: Path) -> None:
    rewards = reward_file(tmp_path, "def f(completions, **kwargs):\n    return [0.0]\n")
    path = write(tmp_path / "rows.jsonl", [{"prompt": f"write poem {i}"} for i in range(20)])
    domain = domain_of(path, reward=f"{rewards}:f")
    assert not domain.spec.has_gold
    assert domain.task(Split.TRAIN, 0).gold is None
    with pytest.raises(DomainError, match="answer"):
        preflight_rows("mine", DomainSettings(path=str(path)))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"reward": "json:dumps"}, "parameters of TRL"),
        ({"reward": "no_such_module:f"}, "was not found"),
        ({"reward": "just_a_name"}, "expected 'module:function'"),
        (
            {
                "reward": (f"{EXAMPLES / 'my_rewards.py'}:is_short",),
                "options": {"reward_weights": [1, 2]},
            },
            "1 rewards but 2 reward_weights",
        ),
        ({"reward": (LENGTH,) * 2, "options": {"combine": "gated"}}, "Did you mean 'gate'"),
        ({"reward": (LENGTH,), "options": {"combine": "gate"}}, "needs several rewards"),
        (
            {"reward": (LENGTH,) * 2, "options": {"combine": "first", "reward_weights": [1, 1]}},
            "reward_weights are of a sum",
        ),
        ({"reward": (LENGTH,) * 2, "options": {"gate_threshold": 1}}, "unless combine is 'gate'"),
        ({"options": {"combine": "gate"}}, "combine is about rewards, and none is named"),
    ],
)
def test_wrong_rewards_are_told_at_start(
    tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    path = write(tmp_path / "rows.jsonl", sums(3))
    with pytest.raises(DomainError, match=told):
        preflight_rows("mine", DomainSettings(path=str(path), **settings))


def test_verdicts_of_the_default_reward(tmp_path: Path) -> None:
    domain = domain_of(write(tmp_path / "rows.jsonl", sums(20)))
    gold = domain.task(Split.TRAIN, 0).gold or ""
    assert score(domain, gold).verdict is Verdict.RIGHT
    assert score(domain, "-1").verdict is Verdict.WRONG
    assert score(domain, "").verdict is Verdict.UNPARSEABLE
