from __future__ import annotations

from collections.abc import Iterator

import pytest

from educe.sandbox import Sandbox, SandboxError, open_sandbox


def opened(level: str, **options: int) -> Sandbox:
    """Return a sandbox of a level, or skip where this host has none."""
    try:
        return open_sandbox(level, **options)
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """The best this host has, with a few jobs side by side."""
    with open_sandbox(minimum="plain", num_parallel=4) as best:
        yield best


@pytest.fixture(scope="session", params=["plain", "confined", "namespaces", "cgroups"])
def each_level(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with opened(request.param, num_parallel=4) as one:
        yield one
