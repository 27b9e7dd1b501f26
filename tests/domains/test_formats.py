"""TRL's formats are read as they are, and a bad row is named by file and line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from educe.config.settings import DataSettings
from educe.core.errors import DomainError
from educe.core.types import Message, assistant, system, user
from educe.domains.example_sets import (
    ExampleSet,
    ExampleStream,
    epoch_size,
    source_weights,
)
from educe.domains.formats import Labelled, Pair, Written, read_preference, read_supervised
from educe.domains.sampled_pairs import best_against_worst

ASKED = {"role": "user", "content": "What is the sky?"}
SAID = {"role": "assistant", "content": "Blue."}
WRONG = {"role": "assistant", "content": "Green."}


def sft(row: dict[str, Any], **settings: Any) -> Written:
    return read_supervised(row, "f.jsonl:3", DataSettings(path="f.jsonl", **settings))


def preference(row: dict[str, Any], **settings: Any) -> Pair | Labelled:
    return read_preference(row, "f.jsonl:3", DataSettings(path="f.jsonl", **settings))


def refused(read: Any, row: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(DomainError) as caught:
        read(row, **settings)
    text = str(caught.value)
    assert text.startswith("f.jsonl:3")
    return text


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Supervised


def test_a_conversation_is_split_before_the_first_assistant_turn() -> None:
    rows = [{"role": "system", "content": "Be brief."}, ASKED, SAID, ASKED, WRONG]
    written = sft({"messages": rows})
    assert written.prompt == (system("Be brief."), user("What is the sky?"))
    assert [m.role for m in written.completion] == ["assistant", "user", "assistant"]


def test_what_follows_the_last_assistant_turn_is_left_out() -> None:
    assert sft({"messages": [ASKED, SAID, ASKED]}).completion == (assistant("Blue."),)


def test_prompt_and_completion_of_text() -> None:
    row = {"prompt": "The sky is", "completion": " blue."}
    assert sft(row) == Written((user("The sky is"),), (assistant("blue."),))
    assert sft(row, template="none") == Written("The sky is", " blue.")


def test_prompt_and_completion_of_messages() -> None:
    written = sft({"prompt": [ASKED], "completion": [SAID]})
    assert written == Written((user("What is the sky?"),), (assistant("Blue."),))


def test_plain_text() -> None:
    assert sft({"text": "The sky is blue."}) == Written("", "The sky is blue.")


def test_share_gpt_and_other_column_names() -> None:
    talk = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    assert sft({"conversations": talk}) == Written((user("Hi"),), (assistant("Hello"),))
    row = {"question": "1 + 1", "reply": {"text": "2"}}
    columns = {"prompt": "question", "completion": "reply.text"}
    assert sft(row, columns=columns) == Written((user("1 + 1"),), (assistant("2"),))


def test_a_tool_call_becomes_what_the_model_writes() -> None:
    from educe.models.chat import parse_tool_calls

    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    told = {"role": "assistant", "content": None, "tool_calls": [call]}
    reply = {"role": "tool", "content": "2", "name": "add"}
    written = sft({"messages": [ASKED, told, reply, SAID]})
    first = written.completion[0]
    assert isinstance(first, Message)
    (parsed,) = parse_tool_calls(first.content)
    assert (parsed.name, json.loads(parsed.arguments)) == ("add", {"a": 1})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"query": "a"}, "expected the columns 'messages'"),
        ({"messages": [ASKED]}, "no assistant message to learn from"),
        ({"messages": [SAID]}, "begins with the assistant"),
        ({"messages": "text"}, "must be text or a list of messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "role must be one of"),
        ({"messages": [{"role": "user", "content": 3}]}, "needs a content of text"),
        ({"messages": [ASKED, SAID], "tools": [{}]}, "column 'tools'"),
        ({"prompt": [ASKED, SAID], "completion": [SAID]}, "ends with an assistant message"),
        ({"prompt": [ASKED], "completion": [ASKED]}, "must begin with an assistant message"),
        ({"prompt": "x", "completion": ""}, "'completion' is empty"),
        ({"text": 3}, "'text' must be text"),
        ({"chosen": "x", "rejected": "y"}, "a row of preferences"),
    ],
)
def test_bad_supervised_rows(row: dict[str, Any], expected: str) -> None:
    assert expected in refused(sft, row)


def test_a_renamed_column_that_is_missing_is_told_with_the_nearest_one() -> None:
    text = refused(sft, {"anwser": "x", "prompt": "y"}, columns={"completion": "answer"})
    assert "Did you mean 'anwser'" in text


# Preferences


def test_an_explicit_prompt() -> None:
    pair = preference({"prompt": "Sky?", "chosen": "Blue.", "rejected": "Green."})
    assert isinstance(pair, Pair)
    assert pair.chosen == Written((user("Sky?"),), (assistant("Blue."),))
    assert pair.rejected == Written((user("Sky?"),), (assistant("Green."),))


def test_an_implicit_prompt_of_messages() -> None:
    pair = preference({"chosen": [ASKED, SAID], "rejected": [ASKED, WRONG]})
    assert pair == preference({"prompt": [ASKED], "chosen": [SAID], "rejected": [WRONG]})


def test_an_implicit_prompt_does_not_end_inside_an_assistant_turn() -> None:
    more = [ASKED, SAID, ASKED]
    pair = preference({"chosen": [*more, SAID], "rejected": [*more, WRONG]})
    assert isinstance(pair, Pair)
    assert len(pair.chosen.prompt) == 3
    same_turn = preference({"chosen": [ASKED, SAID], "rejected": [ASKED, SAID, ASKED, WRONG]})
    assert isinstance(same_turn, Pair)
    assert len(same_turn.chosen.prompt) == len(same_turn.rejected.prompt) == 1


def test_an_implicit_prompt_of_text_ends_at_a_word() -> None:
    row = {"chosen": "The sky is blue.", "rejected": "The sky is blurred."}
    pair = preference(row, template="none")
    assert pair == Pair(Written("The sky is", " blue."), Written("The sky is", " blurred."))
    said = preference(row)
    assert isinstance(said, Pair)
    assert said.chosen == Written((user("The sky is"),), (assistant("blue."),))
    lines = {"chosen": "Sky?\nBlue.", "rejected": "Sky?\nRed."}
    pair = preference(lines, template="none")
    assert pair == Pair(Written("Sky?\n", "Blue."), Written("Sky?\n", "Red."))


def test_labelled_messages_and_text() -> None:
    """TRL's unpaired rows, with columns that mean nothing here."""
    extra = {"score": 3.5, "source": "x"}
    spoken = preference({"prompt": [ASKED], "completion": [WRONG], "label": False, **extra})
    assert spoken == Labelled(Written((user("What is the sky?"),), (assistant("Green."),)), False)
    row = {"prompt": "The sky is", "completion": " blue.", "label": True, **extra}
    assert preference(row, template="none") == Labelled(Written("The sky is", " blue."), True)


def test_a_prompt_that_is_repeated_in_the_completions_is_taken_off() -> None:
    row = {"prompt": "Sky?", "chosen": [user("Sky?").to_json(), SAID], "rejected": [WRONG]}
    pair = preference(row)
    assert isinstance(pair, Pair)
    assert pair.chosen == Written((user("Sky?"),), (assistant("Blue."),))


@pytest.mark.parametrize("label", [True, False, 1, 0])
def test_labels(label: Any) -> None:
    found = preference({"prompt": "Sky?", "completion": "Blue.", "label": label})
    assert isinstance(found, Labelled)
    assert found.is_wanted is bool(label)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "a", "chosen": "b"}, "expected the columns"),
        ({"prompt": "a", "completion": "b"}, "'label' (true or false)"),
        ({"prompt": "a", "completion": "b", "label": "yes"}, "must be true or false"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are the same"),
        ({"chosen": "no", "rejected": "yes"}, "there is no prompt"),
    ],
)
def test_bad_preference_rows(row: dict[str, Any], expected: str) -> None:
    assert expected in refused(preference, row)


# Sets


def rows(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{i} + 1", "completion": str(i + 1)} for i in range(count)]


def example_set(path: Path, **settings: Any) -> ExampleSet:
    return ExampleSet("mine", DataSettings(path=str(path), **settings), "sft")


def prompt_of(example: Any) -> str:
    return str(example.prompt[0].content)


def test_a_set_is_shuffled_once_and_holds_out_by_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows(200) + rows(200))
    found = example_set(path, eval_fraction=0.2)
    train = [prompt_of(found.train(i)) for i in range(found.num_train)]
    held = [prompt_of(e) for e in found.held_out(1000)]
    assert len(train) + len(held) == 400
    assert 40 <= len(held) <= 130
    assert not set(train) & set(held)
    assert train != sorted(train)
    again = example_set(path, eval_fraction=0.2)
    assert [prompt_of(again.train(i)) for i in range(20)] == train[:20]
    assert found.train(found.num_train) == found.train(0)  # a second pass


def test_a_file_of_its_own_for_evaluation(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows(5))
    other = write(tmp_path / "e.jsonl", rows(3))
    found = example_set(path, eval_path=str(other))
    assert (found.num_train, len(found.held_out(10))) == (5, 3)
    summary = found.check()
    assert (summary.num_train, summary.num_held_out, summary.is_complete) == (5, 3, True)


def test_check_names_the_line_of_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*rows(4), {"prompt": "x"}])
    with pytest.raises(DomainError, match=r"a\.jsonl:5: expected the columns"):
        example_set(path).check()


def test_a_set_that_is_only_looked_at_in_part(tmp_path: Path) -> None:
    summary = example_set(write(tmp_path / "a.jsonl", rows(30))).check(limit=10)
    assert (summary.num_rows, summary.is_complete) == (30, False)


@pytest.mark.parametrize("stop", [0, 1, 7, 40, 61])
def test_a_stream_that_is_restored_goes_on_as_it_would_have(tmp_path: Path, stop: int) -> None:
    path = write(tmp_path / "a.jsonl", rows(30))
    settings: dict[str, Any] = {"streaming": True, "shuffle_buffer": 8, "eval_fraction": 0.1}
    whole = example_set(path, **settings).stream()
    expected = [prompt_of(whole.next()) for _ in range(90)]
    first = example_set(path, **settings).stream()
    for _ in range(stop):
        first.next()
    state = json.loads(json.dumps(first.progress()))
    second = ExampleStream(example_set(path, **settings), state)
    assert [prompt_of(second.next()) for _ in range(90 - stop)] == expected[stop:]


def test_a_stream_shows_each_row_once_a_pass(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows(30))
    stream = example_set(path, streaming=True, shuffle_buffer=8).stream()
    first = [prompt_of(stream.next()) for _ in range(30)]
    second = [prompt_of(stream.next()) for _ in range(30)]
    assert sorted(first) == sorted(second) == sorted(r["prompt"] for r in rows(30))
    assert first != [r["prompt"] for r in rows(30)]


# Weights


def test_sets_without_weights_are_concatenated() -> None:
    weights = source_weights({}, {"a": (None, 300), "b": (None, 100)})
    assert weights == {"a": 1.5, "b": 0.5}
    assert epoch_size(0, weights, {"a": 300, "b": 100}) == 400


def test_weights_beside_domains() -> None:
    weights = source_weights({"d": 1.0, "off": 0.0}, {"a": (None, 50), "b": (3.0, 10)})
    assert weights == {"d": 1.0, "a": 1.0, "b": 3.0}
    assert epoch_size(0, weights, {"a": 50, "b": 10}) == 75  # 60 rows are four fifths
    assert epoch_size(7, weights, {"a": 50, "b": 10}) == 7
    assert epoch_size(0, {"d": 1.0}, {}) == 512


# Pairs from samples


def test_the_best_goes_against_the_worst() -> None:
    scored = [(0.0, "a", 1), (1.0, "b", 2), (0.5, "c", 3), (1.0, "d", 4), (0.0, "a", 5)]
    assert best_against_worst(scored, min_gap=0.5, limit=1) == [(2, 1, 1.0)]
    assert best_against_worst(scored, min_gap=0.5, limit=9) == [(2, 1, 1.0), (4, 3, 0.5)]
    assert best_against_worst(scored, min_gap=0.6, limit=9) == [(2, 1, 1.0)]
    assert best_against_worst([(0.5, "a", 1), (0.5, "b", 2)], min_gap=0.1, limit=1) == []


# Folders of the package datasets


def test_saved_data_sets_and_parquet(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    try:
        made = datasets.Dataset.from_list(rows(20))
    except pickle.PicklingError as error:  # datasets 5.2 with dill 0.4.1 cannot write any
        pytest.skip(f"this release of datasets cannot make a data set: {error}")
    made.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "parquet").mkdir()
    made.to_parquet(str(tmp_path / "parquet" / "a.parquet"))
    window: dict[str, Any] = {"streaming": True, "shuffle_buffer": 3}
    for folder in ("saved", "parquet"):
        found = example_set(tmp_path / folder)
        assert found.num_train == 20
        assert {prompt_of(found.train(i)) for i in range(20)} == {r["prompt"] for r in rows(20)}
        stream = example_set(tmp_path / folder, **window).stream()
        first = [prompt_of(stream.next()) for _ in range(8)]
        state = json.loads(json.dumps(stream.progress()))
        assert len(set(first)) == 8
        again = ExampleStream(example_set(tmp_path / folder, **window), state)
        rest = [prompt_of(again.next()) for _ in range(12)]
        assert sorted(first + rest) == sorted(r["prompt"] for r in rows(20))
