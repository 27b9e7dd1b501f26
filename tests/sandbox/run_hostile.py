"""Run all hostile programs at one level and print complaints as JSON (for other users' rows)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from host_state import listener
from hostile import ROWS

from educe.sandbox import BoxVerdict, Job, Level, Sandbox, open_sandbox


def run_all(sandbox: Sandbox) -> list[str]:
    """Return what went wrong, over all rows that promise something at the sandbox's level."""
    sandbox.run(Job("secret = 'NEEDLE' '-IN-AN-EARLIER-JOB'\nprint(secret * 3)"))
    names = sys.argv[2].split(",") if len(sys.argv) > 2 else [row.name for row in ROWS]
    rows = [row for row in ROWS if sandbox.level in row.levels and row.name in names]
    with listener():
        results = sandbox.run_batch([row.job() for row in rows])
    complaints = [row.complaint(result) for row, result in zip(rows, results, strict=True)]
    after = sandbox.run(Job("print('fine')"))
    if after.verdict is not BoxVerdict.OK:
        complaints.append(f"the next job ended with {after.verdict}: {after.reason}")
    return [complaint for complaint in complaints if complaint]


def main() -> None:
    os.environ["EDUCE_TEST_SECRET"] = "EDUCE_TEST_SECRET"
    level = Level.parse(sys.argv[1])
    # Without namespaces all jobs share one user's limit of processes: one job at a time.
    with open_sandbox(level, num_parallel=1 if level is Level.CONFINED else 4) as sandbox:
        print(json.dumps({"complaints": run_all(sandbox), "uid": os.getuid()}))


if __name__ == "__main__":
    main()
