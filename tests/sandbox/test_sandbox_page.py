"""What the page says works: its Python runs as it stands, its recipes are read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from educe.config.settings import Recipe
from educe.core.types import ToolCall
from educe.sandbox import BoxVerdict, Limits, Sandbox
from educe.sandbox.contract import RUNTIMES, Result
from educe.sandbox.graders import StdioGrade

PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_first_example_runs(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    if sandbox.level < 3:
        pytest.skip("this host has no namespaces")
    first, *_ = blocks("python")
    space: dict[str, Any] = {}
    exec(compile(first, "sandbox.md", "exec"), space)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("OK b'ecude\\n' ")
    assert shown[1] == "1.0 ['right', 'right']"
    assert isinstance(space["grade"], StdioGrade) and space["grade"].all_right


def test_the_sessions_example_runs(sandbox: Sandbox) -> None:
    if sandbox.level < 2:
        pytest.skip("sessions need a box")
    _, sessions, *_ = blocks("python")
    call = ToolCall("python", '{"code": "sum(numbers)"}')
    space: dict[str, Any] = {"sandbox": sandbox, "tool_call": call}
    exec(compile(sessions, "sandbox.md", "exec"), space)
    assert [tool["function"]["name"] for tool in space["tools"]][:2] == ["python", "shell"]


@pytest.mark.parametrize("text", blocks("toml"))
def test_recipes_of_the_page_are_read(text: str) -> None:
    raw = tomllib.loads(text)
    recipe = Recipe.model_validate({"model": {"name": "absent"}, "domains": {"a": {}}, **raw})
    assert recipe != Recipe.model_validate({"model": {"name": "absent"}, "domains": {"a": {}}})


def test_the_page_names_what_there_is() -> None:
    for name in (*Limits.__slots__, *Result.__slots__, *map(str, BoxVerdict), *RUNTIMES):
        is_told = f"`{name}`" in PAGE or f"{name}," in PAGE or f"{name})" in PAGE
        assert is_told or name in ("calls", "tests"), name  # those two are what graders read
