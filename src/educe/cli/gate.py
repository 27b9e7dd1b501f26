"""``educe gate``: promote, hold or roll back a checkpoint, by a policy, with exit codes for CI."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EXIT_CODES = {"promote": 0, "hold": 1, "roll back": 3}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "gate",
        help="promote, hold or roll back: superiority on targets, non-inferiority on guardrails",
        description="Decide whether B replaces A from their finished evaluations. Exit status: 0 "
        "promote, 1 hold, 3 roll back, 2 an error. With --ledger the decision is recorded and "
        "latched, and each further look at growing data pays for itself.",
    )
    parser.add_argument("before", metavar="A", type=Path, help="`educe eval` folder of the old one")
    parser.add_argument("after", metavar="B", type=Path, help="`educe eval` folder of the new one")
    parser.add_argument("--policy", type=Path, required=True, metavar="TOML",
                        help="targets = [...], [guardrails] name = margin, alpha")  # fmt: skip
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="append-only record")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    """Print the decision and its reasons."""
    from educe.evaluation.gate import GateLedger, decide, read_policy
    from educe.evaluation.report.files import to_json_text
    from educe.evaluation.saved import load_saved

    policy = read_policy(arguments.policy)
    ledger = None if arguments.ledger is None else GateLedger(arguments.ledger)
    made = decide(load_saved(arguments.before), load_saved(arguments.after), policy, ledger)
    if arguments.json:
        print(to_json_text(made.to_json()), end="")
    else:
        latched = ", recorded before" if made.is_latched else ""
        print(f"{made.decision} (look {made.look} at level {made.level:.3g}{latched})")
        for reason in made.reasons:
            print(f"- {reason}")
    return EXIT_CODES[str(made.decision)]
