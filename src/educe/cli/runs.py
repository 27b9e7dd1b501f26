"""``educe runs``: list, show, samples, plot, diff and export what runs recorded."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.core.errors import EduceError, RecipeError, did_you_mean
from educe.core.strict_json import strict_json
from educe.core.types import JSON, Verdict
from educe.observability.history import History
from educe.observability.metric_names import HEADLINES
from educe.observability.recipe_diff import ABSENT, diff_recipes, read_recipe
from educe.observability.run_reader import RunInfo, RunReader, SampleFilter
from educe.observability.terminal_text import (
    describe_event,
    format_number,
    one_line,
    printable,
    sparkline,
)
from educe.observability.token_record import Decode

if TYPE_CHECKING:
    from rich.console import Console

_VERDICTS = (*(str(v) for v in Verdict), "unscored")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("runs", help="list runs; show, plot, diff and export them")
    verbs = parser.add_subparsers(dest="runs_verb", metavar="WHAT", required=True)

    def add(name: str, handler: Callable[..., int], help_text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = verbs.add_parser(
            name, help=help_text, description=help_text
        )
        added.add_argument("--json", action="store_true", help="print JSON")
        added.add_argument("--runs", default="runs", help="folder of run folders (default: runs)")
        added.set_defaults(handler=handler)
        return added

    add("list", list_runs, "list the runs, newest first")
    show = add("show", show_run, "show a run: progress, metrics, domains, alarms")
    _add_run(show)
    show.add_argument("--price", type=float, help="of the machine, an hour (default: the recipe's)")
    _add_samples(add("samples", show_samples, "print samples, down to tokens"))
    plot = add("plot", plot_run, "draw a run (PNG and HTML unless one is chosen)")
    _add_run(plot)
    plot.add_argument("--png", action="store_true", help="only the picture")
    plot.add_argument("--html", action="store_true", help="only the page (one file, no network)")
    plot.add_argument("--out", help="folder to write to (default: the run folder)")
    mixture = add("mixture", show_mixture, "show which domain got how much of a run, and why")
    _add_run(mixture)
    mixture.add_argument("--domain", default="", help="name or glob, e.g. 'rg/*'")
    mixture.add_argument("--stage", default="rl", help="stage with shares (default: rl)")
    mixture.add_argument("--png", action="store_true", help="draw mixture.png")
    mixture.add_argument("--out", help="folder of the picture (default: the run folder)")
    diff = add("diff", diff_runs, "compare the resolved recipes of two runs or recipe files")
    diff.add_argument("old", help="run or recipe file")
    diff.add_argument("new", help="run or recipe file")
    export = add("export", export_run, "write a run as CSV or TensorBoard event files")
    _add_run(export)
    export.add_argument("--format", choices=("csv", "tensorboard"), required=True)
    export.add_argument("--out", help="folder to write to (default: RUN/export/FORMAT)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run folder, or its name under --runs")


def _add_samples(parser: argparse.ArgumentParser) -> None:
    _add_run(parser)
    parser.add_argument("--domain", default="", help="name or glob, e.g. 'rg/*'")
    parser.add_argument("--verdict", default="", choices=_VERDICTS)
    parser.add_argument("--stage", default="")
    parser.add_argument("--split", default="", choices=("train", "eval", "screen"))
    parser.add_argument("--step", type=int)
    parser.add_argument("--min-reward", type=float)
    parser.add_argument("--max-reward", type=float)
    parser.add_argument("--limit", type=int, default=10, help="newest N samples (default: 10)")
    parser.add_argument("--tokens", action="store_true", help="tokens coloured by the mask")


def find_run(name: str, runs_folder: str | Path) -> Path:
    """Return the folder of a run given by path or by name.

    Raises RecipeError with the nearest names when there is none.
    """
    for folder in (Path(name), Path(runs_folder) / name):
        if (folder / "run.json").is_file():
            return folder
    known = [folder.name for folder in _run_folders(runs_folder)]
    listed = f" Known: {', '.join(known[:8])}." if known else f" {runs_folder} holds no runs."
    raise RecipeError(
        f"no run {name!r}: neither {name} nor {Path(runs_folder) / name} holds a run.json."
        f"{listed}{did_you_mean(name, known)}"
    )


def _run_folders(runs_folder: str | Path) -> list[Path]:
    return sorted(path.parent for path in Path(runs_folder).glob("*/run.json"))


def _print_json(value: JSON) -> None:
    print(strict_json(value, indent=1, default=str))


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000  # piped lines are not folded
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width)


def list_runs(arguments: argparse.Namespace) -> int:
    described = [_describe(folder) for folder in _run_folders(arguments.runs)]
    described.sort(key=lambda run: -float(run.get("created") or 0.0))
    if arguments.json:
        _print_json(described)
        return 0
    if not described:
        print(f"No runs in {arguments.runs}. `educe quickstart` makes one.")
        return 0
    width = max(len(run["name"]) for run in described)
    for run in described:
        if "error" in run:
            print(f"{run['name']:<{width}}  unreadable  {run['error']}")
            continue
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run["created"]))
        steps = ", ".join(f"{stage} {step}" for stage, step in run["last_steps"].items())
        headlines = "  ".join(f"{k} {format_number(v)}" for k, v in run["headline"].items())
        print(
            f"{run['name']:<{width}}  {run['status']:<8}  {started}  {steps}  {headlines}".rstrip()
        )
    return 0


def _describe(folder: Path) -> dict[str, JSON]:
    """Return a run's line; one that cannot be read does not hide the others."""
    try:
        store = RunReader(folder)
        info = store.info()
        headline = {}
        for stage, step in info.last_steps.items():
            (row,) = store.metrics(stage, after_step=step - 1)
            names = (f"{stage}/{name}" for name in ("score", "reward", "loss"))
            shown = next((name for name in names if name in row.values), None)
            if shown is not None:
                headline[shown] = row.values[shown]
    except EduceError as error:
        return {"name": folder.name, "folder": str(folder), "error": str(error)}
    return {**_info_json(info), "headline": headline}


def _info_json(info: RunInfo) -> dict[str, JSON]:
    return {
        "name": info.name,
        "run_id": info.run_id,
        "folder": str(info.folder),
        "status": info.status,
        "created": info.created,
        "num_attempts": info.num_attempts,
        "educe_version": info.educe_version,
        "last_steps": dict(info.last_steps),
    }


def show_run(arguments: argparse.Namespace) -> int:
    from educe.observability.comparisons import compare_domains
    from educe.observability.efficiency import efficiency_of, efficiency_text, spending_of

    store = RunReader(find_run(arguments.run, arguments.runs))
    info, history = store.info(), History(store.metrics())
    events = store.events()
    evaluated = compare_domains([e for e in events if e.kind == "eval"])
    gained = efficiency_of(evaluated, spending_of(store, arguments.price))
    if arguments.json:
        rows = {stage: history.last(stage) for stage in history.stages()}
        _print_json(
            {
                **_info_json(info),
                "counts": store.counts(),
                "last_metrics": {s: dict(r.values) for s, r in rows.items() if r is not None},
                "evaluation": {
                    e.domain: {
                        "before": e.before.score if e.before else None,
                        "after": e.after.score,
                    }
                    for e in evaluated
                },
                "efficiency": None if gained is None else gained.to_json(),
                "events": [
                    {"kind": e.kind, "attempt": e.attempt, "time": e.time, "payload": e.payload}
                    for e in events
                ],
            }
        )
        return 0
    counts = store.counts()
    print(f"{info.name}: {info.status}, {info.num_attempts} attempt(s), {info.folder}")
    print(
        f"{counts['metrics']} metric rows, {counts['samples']} samples, {counts['events']} events"
    )
    for stage in history.stages():
        _print_stage(history, stage)
    if evaluated:
        width = max([26, *(len(e.domain) for e in evaluated)])
        print(f"\n{'held-out evaluation':<{width + 2}}  before   after")
        for e in evaluated:
            before = format_number(e.before.score if e.before else None)
            after = format_number(e.after.score)
            print(f"  {printable(e.domain):<{width}} {before:>7} {after:>7}")
    if gained is not None:
        print(f"  {efficiency_text(gained)}")
    shown = [e for e in events if e.kind not in ("process_end", "eval")][-12:]
    if shown:
        print("\nlast events")
    for event in shown:
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        print(f"  {at}  {one_line(describe_event(event.kind, event.payload), 200)}")
    return 0


def _print_stage(history: History, stage: str) -> None:
    last = history.last(stage)
    print(f"\n{stage}: step {last.step if last else 0}")
    is_ascii = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    for name in HEADLINES:
        series = history.overall(stage, name)
        if series:
            line = sparkline([v for _, v in series], 40, ascii_only=is_ascii)
            print(f"  {name:<26} {format_number(series[-1][1]):>7}  {line}")
    domains = history.domains(stage)
    width = max([26, *map(len, domains)])
    for domain in domains:
        scores = [v for _, v in history.domain(stage, domain, "score")]
        if scores:
            line = sparkline(scores, 40, ascii_only=is_ascii)
            print(f"  {printable(domain):<{width}} {format_number(scores[-1]):>7}  {line}")


def show_samples(arguments: argparse.Namespace) -> int:
    store = RunReader(find_run(arguments.run, arguments.runs))
    wanted = SampleFilter(
        domain=arguments.domain,
        verdict=arguments.verdict,
        split=arguments.split,
        stage=arguments.stage,
        step=arguments.step,
        min_reward=arguments.min_reward,
        max_reward=arguments.max_reward,
        limit=arguments.limit,
        newest_first=True,
    )
    found = list(store.samples(wanted))
    if arguments.json:
        _print_json(
            [{"stage": s.stage, "step": s.step, "attempt": s.attempt, **s.body} for s in found]
        )
        return 0
    if not found:
        known = store.sample_domains()
        near = did_you_mean(arguments.domain, known) if arguments.domain else ""
        print(f"No samples match; the run has {store.counts()['samples']}.{near}")
        return 0
    from educe.observability.sample_text import sample_text

    console = _console()
    has_colour = console.color_system is not None
    decode = token_decoder(store) if arguments.tokens else None
    for sample in found:
        text = sample_text(sample, by_token=arguments.tokens, has_colour=has_colour, decode=decode)
        console.print(text, soft_wrap=True, end="")
    return 0


def token_decoder(store: RunReader) -> Decode | None:
    """Return the text of a token id by the run's own tokenizer; None when none is at hand."""
    from educe.models.packaged_weights import PACKAGED, packaged_folder

    name = str(store.recipe.get("model", {}).get("name", ""))
    folders = [path.parent for path in sorted(store.folder.glob("models/*/tokenizer.json"))]
    folders += [Path(name)] if name else []
    folders += [packaged_folder(name)] if name in PACKAGED else []
    for folder in folders:
        if (folder / "tokenizer.json").is_file():
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            return lambda token_id: str(tokenizer.decode([token_id], skip_special_tokens=False))
    return None


def plot_run(arguments: argparse.Namespace) -> int:
    store = RunReader(find_run(arguments.run, arguments.runs))
    folder = Path(arguments.out) if arguments.out else store.folder
    is_both = arguments.png == arguments.html
    written = {}
    if arguments.png or is_both:
        from educe.observability.interference_view import newest_interference, plot_interference
        from educe.observability.plots import plot_png

        written["png"] = str(plot_png(store, folder / "run.png"))
        if (view := newest_interference(store)) is not None:
            picture = plot_interference(view, folder / "interference.png", store.name)
            written["interference"] = str(picture)
    if arguments.html or is_both:
        from educe.observability.run_page import write_page

        page = write_page(store, folder / "run.html", decode=token_decoder(store))
        written["html"] = str(page)
    return _report_files(arguments, written)


def show_mixture(arguments: argparse.Namespace) -> int:
    from educe.cli.mixture_text import rows_json, rows_text, select_rows, write_plot
    from educe.observability.efficiency import saving_text
    from educe.observability.interference_view import (
        interference_text,
        newest_interference,
        plot_interference,
    )

    store = RunReader(find_run(arguments.run, arguments.runs))
    rows = select_rows(store, arguments.domain, arguments.stage)
    folder = Path(arguments.out) if arguments.out else store.folder
    pictures = [write_plot(store, rows, folder)] if arguments.png else []
    view = newest_interference(store, arguments.stage)
    if view is not None and arguments.png:
        pictures.append(plot_interference(view, folder / "interference.png", store.name))
    if arguments.json:
        told: dict[str, JSON] = {
            "domains": rows_json(rows),
            "png": str(pictures[0]) if pictures else None,
        }
        told["saved"] = saving_text(store) or None
        told["interference"] = None if view is None else view.to_json()
        told["interference_png"] = str(pictures[1]) if pictures[1:] else None
        _print_json(told)
        return 0
    print(rows_text(rows))
    if saving_text(store):
        print(saving_text(store))
    if view is not None:
        print(interference_text(view))
    for picture in pictures:
        print(picture)
    return 0


def _report_files(arguments: argparse.Namespace, written: Mapping[str, str]) -> int:
    if arguments.json:
        _print_json(written)
    else:
        for path in written.values():
            print(path)
    return 0


def diff_runs(arguments: argparse.Namespace) -> int:
    sides = []
    for given in (arguments.old, arguments.new):
        is_recipe = given.endswith(".toml") or Path(given).is_file()
        sides.append(read_recipe(given if is_recipe else find_run(given, arguments.runs)))
    changes = diff_recipes(*sides)
    if arguments.json:
        _print_json(
            [
                {
                    "key": c.key,
                    **({} if c.old is ABSENT else {"old": c.old}),
                    **({} if c.new is ABSENT else {"new": c.new}),
                }
                for c in changes
            ]
        )
    elif changes:
        print("\n".join(printable(str(change)) for change in changes))
    else:
        print("No difference.")
    return 0


def export_run(arguments: argparse.Namespace) -> int:
    from educe.observability.exporters import export_csv, export_tensorboard

    store = RunReader(find_run(arguments.run, arguments.runs))
    default = store.folder / "export" / arguments.format
    folder = Path(arguments.out) if arguments.out else default
    export = export_csv if arguments.format == "csv" else export_tensorboard
    return _report_files(arguments, {path.stem: str(path) for path in export(store, folder)})
