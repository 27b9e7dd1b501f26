"""``educe domains audit``, ``seal`` and ``looks``: graders, leaks and sealed sets."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from educe.cli.domain_settings import add_settings, check_tasks, chosen_names, settings_of
from educe.core.errors import EduceError
from educe.core.protocols import Services
from educe.core.strict_json import strict_json
from educe.domains import registry


def add_audit_actions(actions: Any) -> None:
    """Add the three actions to ``educe domains``."""
    audit = _parser(
        actions,
        "audit",
        _audit,
        "what verifiers wrongly accept and reject, and whether evaluation leaks into training",
    )
    audit.add_argument("names", nargs="*", metavar="NAME", help="names or globs; all by default")
    audit.add_argument("--tasks", type=int, default=16, help="tasks a domain (default 16)")
    audit.add_argument("--save", type=Path, metavar="FILE", help="write the rates as a baseline")
    audit.add_argument(
        "--against", type=Path, metavar="FILE", help="fail where rates moved from this baseline"
    )
    audit.add_argument(
        "--max-false-accept", type=float, default=0.0, metavar="SHARE",
        help="of certainly wrong attempts (default 0)",
    )  # fmt: skip
    audit.add_argument(
        "--max-false-reject", type=float, default=1.0, metavar="SHARE",
        help="of forms of the gold (default 1: reported, no failure)",
    )  # fmt: skip
    audit.add_argument("--no-leaks", action="store_true", help="leave the leakage checks out")
    add_settings(audit)
    sealing = _parser(
        actions, "seal", _seal, "seal evaluation tasks: a file that counts who opened them"
    )
    sealing.add_argument("names", nargs="+", metavar="NAME", help="names or globs")
    sealing.add_argument("--out", type=Path, required=True, metavar="FILE")
    sealing.add_argument("--tasks", type=int, default=100, help="tasks a domain (default 100)")
    sealing.add_argument("--first", type=int, default=0, help="index of the first one")
    add_settings(sealing)
    sealing.add_argument("--max-looks", type=int, default=0, help="openings allowed; 0 is no limit")
    looks = _parser(actions, "looks", _looks, "who opened a sealed set, when and why")
    looks.add_argument("file", type=Path)


def _parser(actions: Any, name: str, handler: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text + ".")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    parser.set_defaults(handler=handler)
    return parser


def _audit(arguments: argparse.Namespace) -> int:
    """Audit and print; 1 when a limit is broken or a rate moved."""
    from educe.evaluation.audit.graders import (
        AuditLimits,
        audit_grader,
        audit_problems,
        baseline_json,
        moved_rates,
    )
    from educe.evaluation.audit.leakage import leak_report

    check_tasks(arguments.tasks)
    # A baseline that cannot be read is said before the work, not after it.
    earlier = None if arguments.against is None else _read(arguments.against)
    limits = AuditLimits(arguments.max_false_accept, arguments.max_false_reject)
    settings = settings_of(arguments)
    domains = {n: registry.load_domain(n, settings) for n in chosen_names(arguments, settings)}
    services, close = _services(any(d.spec.executes_code for d in domains.values()))
    audits, leaks, problems = [], [], []
    try:
        for domain in domains.values():
            audits.append(audit_grader(domain, num_tasks=arguments.tasks, services=services))
            problems += audit_problems(audits[-1], limits)
            if not arguments.no_leaks:
                leaks.append(leak_report(domain, num_train=300, num_eval=60))
                problems += leaks[-1].problems
            if not arguments.json:
                print(_line(audits[-1]), flush=True)
    finally:
        close()
    if earlier is not None:
        problems += moved_rates(audits, earlier)
    if arguments.save is not None:
        arguments.save.parent.mkdir(parents=True, exist_ok=True)
        arguments.save.write_text(
            strict_json(baseline_json(audits), indent=1, ensure_ascii=False), encoding="utf-8"
        )
    if arguments.json:
        raw = {
            "audits": [a.to_json() for a in audits],
            "leaks": [leak.to_json() for leak in leaks],
            "problems": problems,
        }
        print(strict_json(raw, indent=2, ensure_ascii=False))
    else:
        for problem in problems:
            print(f"FAILED  {problem}")
        skipped = sum(bool(a.skipped) for a in audits)
        print(f"{len(audits)} audited, {skipped} skipped, {len(problems)} problems.")
    return 1 if problems else 0


def _line(audit: Any) -> str:
    if audit.skipped:
        return f"skipped {audit.domain}: {audit.skipped}"
    accepts, rejects = (
        "-" if e is None else f"{100 * e.value:.1f} % [{100 * e.low:.1f}, {100 * e.high:.1f}]"
        for e in (audit.false_accept, audit.false_reject)
    )
    rejected = [f.form for f in audit.forms if f.must == "accept" and f.mistakes]
    more = f" ({', '.join(rejected)})" if rejected else ""
    return (
        f"{audit.domain}: accepts wrong {accepts}, rejects right {rejects}{more}, "
        f"{audit.suspects} to look at"
    )


def _services(executes_code: bool) -> tuple[Services, Any]:
    if not executes_code:
        return Services(), lambda: None
    try:
        from educe.sandbox import open_sandbox

        sandbox = open_sandbox()
    except (ImportError, EduceError) as error:
        print(f"no sandbox, domains that run code are skipped: {error}", file=sys.stderr)
        return Services(), lambda: None
    return Services(sandbox=sandbox), sandbox.close


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EduceError(
            f"--against {path}: no baseline ({error}); write one with --save"
        ) from error


def _seal(arguments: argparse.Namespace) -> int:
    from educe.evaluation.audit.sealed import looks_json, seal

    check_tasks(arguments.tasks)
    settings = settings_of(arguments)
    sealed = seal(
        arguments.out,
        {n: registry.load_domain(n, settings) for n in chosen_names(arguments, settings)},
        num_tasks=arguments.tasks,
        first=arguments.first,
        max_looks=arguments.max_looks,
    )
    return _print(looks_json(sealed), arguments.json)


def _looks(arguments: argparse.Namespace) -> int:
    from educe.evaluation.audit.sealed import looks_json, read_sealed

    return _print(looks_json(read_sealed(arguments.file)), arguments.json)


def _print(raw: dict[str, Any], as_json: bool) -> int:
    import time

    if as_json:
        print(strict_json(raw, indent=2, ensure_ascii=False))
        return 0
    limit = f" of {raw['max_looks']}" if raw["max_looks"] else ""
    print(
        f"{raw['file']}: {raw['tasks']} {raw['split']} tasks of {raw['domains']} domains, "
        f"{raw['num_looks']}{limit} looks"
    )
    for look in raw["looks"]:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(look["at_s"]))
        print(f"  {when}  {look['subject']}: {look['reason']}")
    return 0
