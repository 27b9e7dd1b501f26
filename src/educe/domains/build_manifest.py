"""Write the manifest of reasoning-gym: ``python -m educe.domains.build_manifest [--only GLOB]``.

For each family and level it looks at the answers (lines, numbers, length), estimates how many tasks
there are, and measures the floor: the mean score of the best constant answer, or of a part of the
prompt given back where that pays more. A domain whose check fails is not written; the run ends with
the list of failures and exit code 1. With ``--only`` the other rows stay as they are.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from educe.core.protocols import DomainSpec, Services
from educe.core.types import Split
from educe.domains.check import CheckReport, check_domain, is_above_floor
from educe.domains.copies import paid_copies
from educe.domains.extraction import parse_number
from educe.domains.reasoning_gym import manifest
from educe.domains.reasoning_gym.domain import ReasoningGymDomain
from educe.domains.reasoning_gym.families import DESCRIPTIONS
from educe.domains.reasoning_gym.levels import FAMILIES
from educe.domains.reasoning_gym.scoring import OWN_RULES

NUM_TASKS = 160
NUM_SLOW_TASKS = 64
SLOW_MS = 15.0
_MAX_TOKENS = 512


def describe(family: str, level: str, *, floor: float = 0.0) -> dict[str, Any]:
    """Return the manifest row of a family at a level, without what only measuring can tell."""
    kind, levels = FAMILIES[family]
    domain = _domain(family, level, {"is_multiline": True, "is_numeric": False})
    golds = [domain.task(Split.TRAIN, index).gold or "" for index in range(24)]
    tags = ["generated", *(["own-scoring"] if family in OWN_RULES else [])]
    return {
        "name": f"rg/{family}/{level}",
        "family": f"rg/{family}",
        "kind": kind,
        "description": f"{DESCRIPTIONS[family].rstrip('.')} ({level}).",
        "is_multiline": any("\n" in gold.strip() for gold in golds),
        "is_numeric": all(parse_number(gold) is not None for gold in golds),
        "max_completion_tokens": _token_bound(max(map(len, golds))),
        "floor": floor,
        "num_tasks": None,
        "tags": tags,
        "configuration": {k: v if _is_json(v) else str(v) for k, v in levels[level].items()},
    }


def measure(row: dict[str, Any]) -> tuple[dict[str, Any], CheckReport]:
    """Return the row with its measured floor and number of tasks, and the check behind them."""
    _, family, level = row["name"].split("/")
    domain = _domain(family, level, row)
    probe = check_domain(domain, num_tasks=8)
    count = NUM_SLOW_TASKS if probe.task_ms + probe.score_ms > SLOW_MS else NUM_TASKS
    first = check_domain(domain, num_tasks=count)
    floor = max(first.constant or 0.0, first.empty or 0.0, first.other_gold or 0.0)
    copied = max(paid_copies(domain, count, Services()).values(), default=0.0)
    if is_above_floor(copied, count, floor):
        floor = copied
    row = {
        **row,
        "floor": round(floor, 3),
        "num_tasks": first.num_distinct_tasks,
        "max_completion_tokens": max(
            row["max_completion_tokens"], _token_bound(first.max_gold_chars)
        ),
    }
    # The first check had floor 0; what it says about the floor is exactly what was measured.
    problems = tuple(p for p in first.problems if "more than the declared floor" not in p)
    if first.num_distinct_tasks is not None and first.num_distinct_tasks < 40:
        problems += (f"only about {first.num_distinct_tasks} distinct tasks",)
    if floor > 0.9:
        problems += (f"a constant answer scores {floor:.2f}",)
    report = {f: getattr(first, f) for f in CheckReport.__slots__}
    return row, CheckReport(**{**report, "problems": problems, "floor": row["floor"]})


def _domain(family: str, level: str, row: dict[str, Any]) -> ReasoningGymDomain:
    kind, levels = FAMILIES[family]
    name = f"rg/{family}/{level}"
    spec = DomainSpec(name, f"rg/{family}", kind, DESCRIPTIONS[family])
    return ReasoningGymDomain(
        spec,
        family=family,
        configuration=levels[level],
        is_multiline=row["is_multiline"],
        is_numeric=row["is_numeric"],
    )


def _token_bound(characters: int) -> int:
    """Tokens that an answer of so many characters needs at most: one each, plus the end."""
    return min(_MAX_TOKENS, -(-(characters + 8) // 8) * 8)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m educe.domains.build_manifest")
    parser.add_argument("--only", default="*", help="glob of domain names to measure again")
    options = parser.parse_args(arguments)
    names = [f"rg/{family}/{level}" for family, (_, levels) in FAMILIES.items() for level in levels]
    rows = {name: row for name, row in manifest().items() if name in names}
    failures: dict[str, tuple[str, ...]] = {}
    for name in fnmatch.filter(names, options.only):
        _, family, level = name.split("/")
        row, report = measure(describe(family, level))
        rows.pop(name, None)
        if report.problems:
            failures[name] = report.problems
        else:
            rows[name] = row
        print(
            f"{name}: floor {row['floor']:.3f} ({report.constant_attempt[:30]!r}), "
            f"{report.task_ms:.1f} ms a task, {report.score_ms:.1f} ms a score, "
            f"{report.max_prompt_chars} characters"
            + "".join(f"\n    PROBLEM {problem[:300]}" for problem in report.problems[:3]),
            flush=True,
        )
    _write(rows)
    print(f"{len(rows)} domains written, {len(failures)} failed: {', '.join(failures)}")
    return 1 if failures else 0


def _write(rows: dict[str, dict[str, Any]]) -> None:
    from importlib.metadata import version

    path = Path(str(resources.files("educe.domains.reasoning_gym"))) / "manifest.json"
    lines = ",\n".join(json.dumps(rows[name], ensure_ascii=False) for name in sorted(rows))
    path.write_text(
        f'{{"reasoning_gym": "{version("reasoning-gym")}", "domains": [\n{lines}\n]}}\n', "utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
