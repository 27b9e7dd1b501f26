"""References to user code: a file's neighbours, and what cannot be found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from educe.core.errors import DomainError
from educe.domains.references import load_reference


def test_a_file_may_import_its_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_rewards.py").write_text("def value():\n    return 0.25\n")
    (tmp_path / "rewards.py").write_text(
        "from neighbour_of_rewards import value\ndef f():\n    return value()\n"
    )
    assert load_reference(f"{tmp_path}/rewards.py:f", purpose="here")() == 0.25
    monkeypatch.delitem(sys.modules, "neighbour_of_rewards")


def test_what_cannot_be_found_is_said(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("def exact():\n    pass\nnumber = 3\n")
    for reference, message in (
        ("rewards", "expected 'module:function'"),
        (f"{tmp_path}/none.py:f", "here: there is no file"),
        (f"{tmp_path}/rewards.py:exat", "Did you mean 'exact'"),
        (f"{tmp_path}/rewards.py:number", "is a int, not a function"),
        ("no_such_module_anywhere:f", "was not found on the Python path"),
    ):
        with pytest.raises(DomainError, match=message):
            load_reference(reference, purpose="here")
