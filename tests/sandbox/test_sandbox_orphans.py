"""Counting what a job left behind, while it is being left."""

from __future__ import annotations

import pytest

from educe.sandbox.inside import process_tree


def proc(monkeypatch: pytest.MonkeyPatch, lists: list[str], states: dict[str, str]) -> None:
    """Let the process have these lists of children, one after the other."""
    left = list(lists)

    def read(path: str) -> bytes:
        if path.endswith("/children"):
            return (left.pop(0) if len(left) > 1 else left[0]).encode()
        state = states.get(path.split("/")[2], "")
        return f"9 (a) b) {state} 1 1".encode() if state else b""

    monkeypatch.setattr(process_tree, "_read", read)


@pytest.mark.parametrize(
    ("lists", "states", "expected"),
    [
        ([""], {}, 0),
        (["4 5"], {"4": "S", "5": "R"}, 2),
        (["4 5"], {"4": "Z"}, 0),
        # It died after it was listed; its child was adopted then.
        (["4", "4 6"], {"4": "Z", "6": "S"}, 1),
        (["4", "6"], {"6": "S"}, 1),
        (["4", "5", "7", ""], {}, 0),
        # Each is dead when looked at, and there is always another.
        ([str(n) for n in range(20, 60)], {}, 1),
    ],
)
def test_the_living_are_counted(
    monkeypatch: pytest.MonkeyPatch, lists: list[str], states: dict[str, str], expected: int
) -> None:
    proc(monkeypatch, lists, states)
    assert process_tree.num_living_children(3) == expected
