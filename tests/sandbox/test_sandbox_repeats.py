"""The same fingerprint and input give the same bytes: on the corpus, across sandboxes and load."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext

import corpus
import pytest
import soak

from educe.sandbox import Result, SandboxError, open_sandbox


def _bytes_of(result: Result) -> tuple[object, ...]:
    return (
        str(result.verdict), result.reason, result.exit_code, result.stdout, result.stderr,
        repr(result.calls and [(c.status, c.value, c.error) for c in result.calls]),
        result.truncated, result.flags,
    )  # fmt: skip


def check_repeats(num_sandboxes: int, repeats: int, *, loads: tuple[bool, ...]) -> list[str]:
    """Run the corpus in some sandboxes, idle and busy; return what came out in two ways."""
    jobs = corpus.jobs()
    seen: dict[tuple[str, str], set[tuple[object, ...]]] = defaultdict(set)
    for is_loaded in loads:
        for _ in range(num_sandboxes):
            with (
                soak.loaded_machine() if is_loaded else nullcontext(),
                open_sandbox(minimum="confined", num_parallel=2) as sandbox,
            ):
                order = [*jobs.items()] * repeats
                results = sandbox.run_batch([job for _, job in order])
                for (name, _), result in zip(order, results, strict=True):
                    seen[name, result.fingerprint].add(_bytes_of(result))
    told = [f"{name}: {list(found)[:2]}" for (name, _), found in seen.items() if len(found) > 1]
    prints = {name: {key for known, key in seen if known == name} for name in jobs}
    return told + [
        f"{name}: {len(keys)} fingerprints" for name, keys in prints.items() if len(keys) > 1
    ]


@pytest.fixture(autouse=True)
def needs_a_box() -> None:
    try:
        open_sandbox(minimum="confined").close()
    except SandboxError as error:
        pytest.skip(str(error))


def test_the_corpus_repeats_byte_for_byte() -> None:
    assert check_repeats(2, 1, loads=(False, True)) == []


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_PROGRAMS", {"time": "import os\nprint(os.urandom(4))"})
    told = check_repeats(1, 3, loads=(False,))
    assert [line for line in told if line.startswith("time: ")]


@pytest.mark.soak
def test_a_hundred_repeats_in_four_sandboxes_idle_and_busy() -> None:
    assert check_repeats(4, soak.size(100), loads=(False, True)) == []
