"""Do tasks depend on the process they are made in? Compare with a process of another hash seed.

Sets of strings are iterated in an order that differs between Python processes, so a generator that
draws from one gives other tasks to every worker and after every resume.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from educe.config.settings import DomainSettings
from educe.core.errors import InfrastructureError
from educe.core.types import Split


def fingerprint(
    name: str, settings: DomainSettings | None = None, *, num_tasks: int = 8
) -> list[str]:
    """Return the content hashes of the first train tasks of a domain, last task made first."""
    from educe.domains.registry import load_domain

    domain = load_domain(name, settings)
    size = domain.size(Split.TRAIN)
    count = num_tasks if size is None else min(num_tasks, size)
    return [domain.task(Split.TRAIN, index).content_hash for index in reversed(range(count))][::-1]


def differing_domains(
    domains: Mapping[str, DomainSettings], *, num_tasks: int = 8, timeout_s: float = 600.0
) -> list[str]:
    """Return the domains whose tasks differ between this process and one with other hash seeds.

    Raises:
        InfrastructureError: the other process failed.
    """
    names = list(domains)
    here = {name: fingerprint(name, domains[name], num_tasks=num_tasks) for name in names}
    request = json.dumps(
        {
            "num_tasks": num_tasks,
            "domains": {name: domains[name].model_dump(mode="json") for name in names},
        }
    )
    current = os.environ.get("PYTHONHASHSEED", "random")
    other = subprocess.run(
        [sys.executable, "-m", "educe.domains.fingerprint"],
        input=request,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "1" if current != "1" else "2"},
    )
    if other.returncode != 0:
        raise InfrastructureError(f"the second process failed: {other.stderr.strip()[-500:]}")
    there: dict[str, list[str]] = json.loads(other.stdout)
    return [name for name in names if here[name] != there[name]]


def _main(arguments: Sequence[str]) -> int:
    request = json.load(sys.stdin)
    found = {
        name: fingerprint(
            name, DomainSettings.model_validate(settings), num_tasks=request["num_tasks"]
        )
        for name, settings in request["domains"].items()
    }
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(_main(sys.argv[1:]))
