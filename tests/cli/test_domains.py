"""``educe domains`` from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from educe.cli.domains import _rank, _span
from educe.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "domains"
OWN = [
    "--function",
    f"{EXAMPLES / 'vowels.py'}:create",
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["domains", *arguments])
    return status, capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    status, out = run(capsys, *arguments, "--json")
    assert status == 0
    return json.loads(out)


def test_the_plain_list_has_a_row_for_each_family(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys)
    assert status == 0
    row = next(line for line in out.splitlines() if line.strip().startswith("rg/gcd "))
    assert "tiny easy medium hard" in row and "arithmetic" in row
    assert "domains in" in out


def test_levels_stand_in_their_order() -> None:
    given = ["16k", "large", "512", "tiny", "2k", "huge", "medium", "words", "hard"]
    assert sorted(given, key=_rank) == [
        "tiny", "medium", "large", "hard", "huge", "words", "512", "2k", "16k",
    ]  # fmt: skip
    assert (_span([0.021, 0.024]), _span([0.1, 0.2])) == ("0.02", "0.10-0.20")


def test_json_lists_every_domain(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_json(capsys)
    names = {row["name"] for row in rows}
    assert len(names) >= 300 and "rg/gcd/tiny" in names
    assert {"floor", "kind", "has_gold", "max_completion_tokens"} <= set(rows[0])
    assert run_json(capsys, "list") == rows


def test_a_glob_lists_its_matches(capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["name"] for row in run_json(capsys, "list", "rg/gcd/*y")] == [
        "rg/gcd/easy",
        "rg/gcd/tiny",
    ]
    _, out = run(capsys, "list", "rg/gcd/*")
    assert "rg/gcd/hard" in out and "4 domains." in out


def test_search_wants_all_words(capsys: pytest.CaptureFixture[str]) -> None:
    names = {row["name"] for row in run_json(capsys, "search", "Greatest", "divisor")}
    assert "rg/gcd/tiny" in names and "rg/lcm/tiny" not in names
    assert run(capsys, "search", "qqqqq")[0] == 1


def test_show_prints_the_prompt_and_the_gold(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "show", "rg/gcd/tiny", "--index", "2", "--split", "eval")
    assert status == 0
    assert "rg/gcd/tiny:eval:2" in out
    assert "Greatest Common Divisor" in out
    assert "[score of the gold] 1.0" in out
    report = run_json(capsys, "show", "rg/countdown/tiny")
    assert report["demonstration_score"]["value"] == 1
    assert "exact fractions" in report["judged"]


def test_show_of_own_rows_and_functions(capsys: pytest.CaptureFixture[str]) -> None:
    rows = str(EXAMPLES / "capitals.jsonl")
    _, out = run(capsys, "show", "capitals", "--path", rows)
    assert re.search(r"tasks +train \d+, eval \d+, screen \d+\n", out), out
    assert "What is the capital of" in out
    _, out = run(capsys, "show", "vowels", *OWN, "--option", "length=3")
    assert "How many vowels" in out


def test_check_says_yes_and_no(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out = run(capsys, "check", "rg/gcd/tiny", "rg/lcm/e*", "--tasks", "16")
    assert status == 0
    assert "ok      rg/gcd/tiny: gold 1.000" in out
    assert "2 domains checked, 0 failed, 0 skipped." in out

    rows = [{"prompt": f"Is {i} a number?", "answer": "yes"} for i in range(80)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, out = run(capsys, "check", "--path", str(path), "--one-process")
    assert status == 1
    assert "FAILED  my-domain" in out
    assert "a constant attempt scores 1.000" in out


def test_check_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = run_json(capsys, "check", "rg/gcd/tiny", "--tasks", "8")
    assert row["is_ok"] and row["is_same_in_other_process"]
    assert row["gold"] == 1


def test_excluded_families_have_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_json(capsys, "excluded")
    assert "no gold answer" in rows["rg/rubiks_cube"]
    assert "rg/composite" in run(capsys, "excluded")[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "rg/gdc/tiny"], "Did you mean"),
        (["list", "nothing/*"], "no domain matches"),
        (
            ["show", "capitals", "--path", str(EXAMPLES / "capitals.jsonl"), "--index", "99"],
            "task 99",
        ),
    ],
)
def test_errors_are_one_message(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["domains", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_own_rows_are_audited_and_sealed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"What is {n} + 1?", "answer": n + 1}) + "\n"
                for n in range(60))
    )  # fmt: skip
    told = run_json(capsys, "audit", "sums", "--path", str(rows), "--tasks", "4")
    assert told["audits"][0]["domain"] == "sums" and told["leaks"]
    file = str(tmp_path / "sealed.jsonl")
    status, out = run(capsys, "seal", "sums", "--path", str(rows), "--tasks", "2", "--out", file)
    assert status == 0 and "2 eval tasks of 1 domains" in out
    for action in (["check"], ["audit"], ["seal", "--out", file]):
        assert main(["domains", *action, "sums", "--path", str(rows), "--tasks", "0"]) == 2
        assert "--tasks must be at least 1" in capsys.readouterr().err
    assert main(["domains", "audit", "sums", "--path", str(rows), "--option", "floor"]) == 2
    assert "--option expects KEY=JSON" in capsys.readouterr().err
