"""``educe domains``: list, search, show, check and audit domains."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from educe.cli.domain_audit import add_audit_actions
from educe.cli.domain_settings import add_settings, check_tasks, chosen_names, settings_of
from educe.core.errors import EduceError
from educe.core.protocols import DomainSpec, Services
from educe.core.strict_json import strict_json
from educe.core.types import JSON, Split
from educe.domains import registry

_LEVELS = ("tiny", "small", "easy", "medium", "large", "hard", "huge")


def add_parser(subparsers: Any) -> None:
    """Add ``educe domains`` and its actions."""
    parser = subparsers.add_parser(
        "domains",
        help="list, search, show and check domains",
        description="List, search, show and check domains. Without an action: list the families.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=_list, pattern=None)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = _action(actions, "list", _list, "families, or the domains that match a glob")
    listing.add_argument("pattern", nargs="?", help='a glob such as "rg/*/tiny"; "*" for all')
    search = _action(actions, "search", _search, "domains whose name, kind or text has all words")
    search.add_argument("words", nargs="+", metavar="WORD")
    show = _action(actions, "show", _show, "a domain and one of its tasks, as the model sees it")
    show.add_argument("name")
    show.add_argument("--index", type=int, default=0, help="which task (default 0)")
    show.add_argument("--split", choices=[str(s) for s in Split], default="train")
    add_settings(show)
    check = _action(
        actions,
        "check",
        _check,
        "prove domains: gold scores 1, guessing at most the floor, splits do not meet",
    )
    check.add_argument("names", nargs="*", metavar="NAME", help="names or globs; all by default")
    check.add_argument("--tasks", type=int, default=64, help="train tasks a domain (default 64)")
    check.add_argument(
        "--one-process",
        action="store_true",
        help="do not compare with the tasks that a second Python process makes",
    )
    add_settings(check)
    add_audit_actions(actions)
    _action(actions, "excluded", _excluded, "families that are known but not offered, and why")


def _action(actions: Any, name: str, handler: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text + ".")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    parser.set_defaults(handler=handler)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    if arguments.pattern is not None:
        names = set(registry.expand(arguments.pattern))
        return _print_specs([s for s in registry.list_specs() if s.name in names], arguments)
    specs = registry.list_specs()
    if arguments.json:
        return _print_specs(specs, arguments)
    families: dict[str, list[DomainSpec]] = {}
    for spec in specs:
        families.setdefault(spec.family, []).append(spec)
    rows = [
        (
            family,
            members[0].kind,
            " ".join(sorted(map(_level, members), key=_rank)),
            _span([spec.floor for spec in members]),
            "yes" if all(spec.has_gold for spec in members) else "no",
        )
        for family, members in families.items()
    ]
    _table(("family", "kind", "levels", "floor", "gold"), rows)
    print(
        f"{len(specs)} domains in {len(families)} families. `educe domains show NAME` prints a "
        f"task; `educe domains excluded` tells what is left out."
    )
    return 0


def _search(arguments: argparse.Namespace) -> int:
    words = [word.casefold() for word in arguments.words]
    found = [
        spec for spec in registry.list_specs() if all(word in _haystack(spec) for word in words)
    ]
    _print_specs(found, arguments)
    return 0 if found else 1


def _show(arguments: argparse.Namespace) -> int:
    from educe.domains.check import play_demonstration

    settings = settings_of(arguments)
    domain = registry.load_domain(arguments.name, settings)
    try:
        task = domain.task(Split(arguments.split), arguments.index)
    except IndexError as error:
        raise EduceError(str(error)) from error
    score: JSON = None
    if domain.spec.has_gold and not domain.spec.executes_code:
        score = play_demonstration(domain, task, Services())[0].to_json()
    sizes = {str(split): domain.size(split) for split in Split}
    report = {
        "spec": dataclasses.asdict(domain.spec),
        "sizes": sizes,
        "judged": _judged(domain.spec),
        "task": task.to_json(),
        "demonstration": [m.to_json() for m in domain.demonstration(task)]
        if domain.spec.has_gold
        else None,
        "demonstration_score": score,
    }
    if arguments.json:
        print(strict_json(report, indent=2, ensure_ascii=False))
        return 0
    for name, value in report["spec"].items():
        print(f"{name:22} {' '.join(value) if isinstance(value, tuple) else value}")
    told = ", ".join(f"{s} {'without end' if n is None else n}" for s, n in sizes.items())
    print(f"{'tasks':22} {told}")
    if report["judged"]:
        print(f"{'judged':22} {report['judged']}")
    print(f"\n--- {task.task_id}")
    for message in task.messages:
        print(f"[{message.role}]\n{message.content}")
    for tool in task.tools:
        print(f"[tool] {tool.name}: {tool.description}")
    for shown in report["demonstration"] or ():
        print(f"[gold {shown['role']}]\n{shown['content']}{shown.get('tool_calls', '')}")
    if score is not None:
        print(f"[score of the gold] {score['value']}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from educe.domains.check import check_domain
    from educe.domains.fingerprint import differing_domains

    check_tasks(arguments.tasks)
    settings = settings_of(arguments)
    chosen = dict.fromkeys(chosen_names(arguments, settings), settings)
    services, close = _services()
    reports = []
    try:
        for name in chosen:
            domain = registry.load_domain(name, settings)
            reports.append(check_domain(domain, num_tasks=arguments.tasks, services=services))
            if not arguments.json:
                _print_report(reports[-1])
    finally:
        close()
    differing = [] if arguments.one_process else differing_domains(chosen)
    failed = [r.name for r in reports if r.problems]
    if arguments.json:
        rows = [
            {**r.to_json(), "is_same_in_other_process": r.name not in differing} for r in reports
        ]
        print(strict_json(rows, indent=2, ensure_ascii=False))
    else:
        for name in differing:
            print(f"FAILED  {name}: another Python process makes other tasks of the same index")
        skipped = sum(bool(r.skipped) for r in reports)
        print(
            f"{len(reports)} domains checked, {len(set(failed) | set(differing))} failed, "
            f"{skipped} skipped."
        )
    return 1 if failed or differing else 0


def _excluded(arguments: argparse.Namespace) -> int:
    rows = registry.excluded()
    if arguments.json:
        print(strict_json(rows, indent=2))
    else:
        _table(("family", "why it is not offered"), rows.items())
    return 0


def _services() -> tuple[Services, Any]:
    """Return services with a sandbox where this machine offers one, and how to close them."""
    try:
        from educe.sandbox import open_sandbox

        sandbox = open_sandbox()
    except (ImportError, EduceError) as error:
        print(f"no sandbox, domains that run code are skipped: {error}", file=sys.stderr)
        return Services(), lambda: None
    return Services(sandbox=sandbox), sandbox.close


def _print_report(report: Any) -> None:
    if report.skipped:
        print(f"skipped {report.name}: {report.skipped}")
        return
    shown = "FAILED " if report.problems else "ok     "
    print(
        f"{shown} {report.name}: gold {_number(report.gold)}, constant "
        f"{_number(report.constant)} of floor {report.floor:.3f}, {report.task_ms:.1f} ms a task"
    )
    for problem in report.problems[:5]:
        print(f"        {problem}")
    if len(report.problems) > 5:
        print(f"        and {len(report.problems) - 5} more")


def _print_specs(specs: Sequence[DomainSpec], arguments: argparse.Namespace) -> int:
    if arguments.json:
        rows = [dataclasses.asdict(spec) for spec in specs]
        print(strict_json(rows, indent=2, ensure_ascii=False))
        return 0
    _table(
        ("domain", "kind", "floor", "tokens", "description"),
        [
            (s.name, s.kind, f"{s.floor:.2f}", str(s.max_completion_tokens), s.description)
            for s in specs
        ],
    )
    print(f"{len(specs)} domains.")
    return 0


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # A pipe has no width of its own; 80 columns would fold what a script wants to read.
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def _judged(spec: DomainSpec) -> str:
    from educe.domains.reasoning_gym.scoring import OWN_RULES

    if not spec.name.startswith("rg/"):
        return ""
    own = OWN_RULES.get(spec.family.removeprefix("rg/"))
    return own or "1 when the family's own scorer gives full marks, else 0"


def _level(spec: DomainSpec) -> str:
    return spec.name.removeprefix(spec.family).strip("/") or spec.name


def _rank(level: str) -> tuple[int, int, str]:
    """Order levels by difficulty where they have the usual names, lengths by their number."""
    length = level.removesuffix("k")
    if length.isdecimal():
        return len(_LEVELS), int(length) * (1 if length == level else 1024), level
    return (_LEVELS.index(level) if level in _LEVELS else len(_LEVELS)), 0, level


def _haystack(spec: DomainSpec) -> str:
    return " ".join((spec.name, spec.kind, spec.description, *spec.tags)).casefold()


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}-{high}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
