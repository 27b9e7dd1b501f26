"""``educe probe RECIPE``: which domains have signal, before any training."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from educe.core.errors import EduceError
from educe.core.strict_json import strict_json


@dataclass(frozen=True, slots=True)
class Probe:
    """One domain of one model.

    ``signal`` is the share of groups whose siblings differ; ``headroom`` is pass@k - pass@1, what
    sharpening alone could bring. The rest is what ``educe plan`` reckons with: ``token_quantiles``
    are 11 evenly spaced ones of completions over all turns, ``reply_tokens`` those of the
    environment, ``score_s`` worker seconds of a trajectory (None where nobody measured),
    ``shown_tokens`` those of a demonstration (0 without one).
    """

    domain: str
    pass_at_1: float
    pass_at_k: float
    signal: float
    headroom: float
    mean_tokens: float
    truncated: float
    unscored: int
    token_quantiles: tuple[float, ...] = ()
    prompt_tokens: float = 0.0
    reply_tokens: float = 0.0
    mean_turns: float = 1.0
    score_s: float | None = None
    shown_tokens: float = 0.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "probe",
        help="sample the untrained model: which domains have signal",
        description="Sample tasks of each domain and report pass@1, pass@k and the share of "
        "groups with signal. With several --model, rank them by headroom.",
    )
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--model", action="append", help="model or run; may be given several times")
    parser.add_argument("--tasks", type=int, default=8, help="tasks a domain (default 8)")
    parser.add_argument("--samples", type=int, default=8, help="completions a task, k (default 8)")
    parser.add_argument("--split", default="screen", choices=["train", "screen", "eval"])
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    from educe.api import as_loaded
    from educe.preflight import preflight

    if arguments.tasks < 1 or arguments.samples < 1:
        raise EduceError(
            f"--tasks and --samples must be at least 1, got {arguments.tasks} and "
            f"{arguments.samples}"
        )
    loaded = as_loaded(arguments.recipe, arguments.overrides)
    preflight(loaded)
    models = arguments.model or [loaded.recipe.model.name]
    found = {model: probe_model(loaded, model, arguments) for model in models}
    ranked = sorted(found, key=lambda m: -_known_mean([p.headroom for p in found[m]], 0.0))
    if arguments.json:
        print(strict_json({m: [asdict(p) for p in found[m]] for m in ranked}))
    else:
        for model in ranked:
            _show(model, found[model], arguments.samples)
    return 0


def probe_model(loaded: Any, model: str, arguments: argparse.Namespace) -> list[Probe]:
    from educe.api import open_session
    from educe.core.types import Split
    from educe.evaluation.runner import evaluate

    quiet = (lambda line: None) if arguments.json else print
    pools: list[Any] = []

    def seen(scoring: Any) -> Any:
        pools.append(getattr(scoring, "inner", scoring))  # under a review, where there is one
        return scoring

    with open_session(model, loaded, announce=quiet, wrap_scoring=seen) as session:
        result = evaluate(
            session,
            session.domains,
            tasks_per_domain=arguments.tasks,
            samples=arguments.samples,
            temperature=loaded.recipe.rl.temperature,
            split=Split(arguments.split),
            limits=session.limits,
            label=model,
        )
        timed: dict[str, float] = getattr(pools[0], "seconds_a_job", dict)()
        return [
            _probe(
                result,
                name,
                session.chat,
                job_s=timed.get(name),
                shown_tokens=_shown_tokens(session, name, arguments.split),
            )
            for name in result.domains
        ]


def _shown_tokens(session: Any, name: str, split: str, count: int = 4) -> float:
    """Return the mean tokens of a few demonstrations, 0 where the domain has none."""
    from educe.core.types import Split

    domain = session.domains[name]
    if not domain.spec.has_gold:
        return 0.0
    size = domain.size(Split(split))
    lengths = []
    for index in range(count if size is None else min(count, size)):
        task = domain.task(Split(split), index)
        prompt = len(session.chat.prompt_tokens(task.messages))
        whole = [*task.messages, *domain.demonstration(task)]
        lengths.append(len(session.chat.prompt_tokens(whole)) - prompt)
    return _mean(lengths)


def _probe(result: Any, name: str, chat: Any, *, job_s: float | None, shown_tokens: float) -> Probe:
    rows = result.rows_in(name)
    turns = _mean([r.num_turns for r in rows])
    prompts = [len(chat.prompt_tokens(r.prompt)) for r in rows]
    wholes = [len(chat.prompt_tokens([*r.prompt, *r.completion])) for r in rows]
    groups: dict[int, list[float]] = {}
    for row in rows:
        if row.value is not None:
            groups.setdefault(row.index, []).append(row.value)
    scores = list(groups.values())
    pass_1 = _mean([_mean([float(v >= 1) for v in g]) for g in scores])
    pass_k = _mean([float(max(g) >= 1) for g in scores])
    return Probe(
        domain=name,
        pass_at_1=pass_1,
        pass_at_k=pass_k,
        signal=_mean([float(max(g) > min(g)) for g in scores]),
        headroom=pass_k - pass_1,
        mean_tokens=_mean([r.num_tokens for r in rows]),
        truncated=_mean([float(r.is_truncated) for r in rows]),
        unscored=sum(r.value is None for r in rows),
        token_quantiles=_quantiles([r.num_tokens for r in rows]),
        prompt_tokens=_mean(prompts),
        # The template's own marks around what was said are counted here: a few tokens a turn.
        reply_tokens=max(
            0.0,
            _mean([w - p - r.num_tokens for w, p, r in zip(wholes, prompts, rows, strict=True)]),
        )
        if turns > 1
        else 0.0,
        mean_turns=turns,
        score_s=None if job_s is None else job_s * turns,
        shown_tokens=shown_tokens,
    )


def _quantiles(values: list[int], count: int = 11) -> tuple[float, ...]:
    """Return evenly spaced quantiles, straight between neighbours."""
    if not values:
        return ()
    ranked = sorted(values)
    places = [i * (len(ranked) - 1) / (count - 1) for i in range(count)]
    return tuple(
        ranked[int(p)] + (ranked[min(int(p) + 1, len(ranked) - 1)] - ranked[int(p)]) * (p - int(p))
        for p in places
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _known_mean(values: Sequence[float], otherwise: float = math.nan) -> float:
    """Return the mean of what was measured; domains without any scored sample are NaN."""
    known = [v for v in values if not math.isnan(v)]
    return _mean(known) if known else otherwise


def _share(value: float, form: str = ".0%") -> str:
    return "-" if math.isnan(value) else format(value, form)


def _show(model: str, probes: list[Probe], samples: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{model}: before training, by signal")
    table.add_column("domain", overflow="fold")
    for name in ("pass@1", f"pass@{samples}", "signal", "tokens", "cut", "unscored"):
        table.add_column(name, justify="right")
    for p in sorted(probes, key=lambda p: 1.0 if math.isnan(p.signal) else -p.signal):
        table.add_row(
            p.domain,
            _share(p.pass_at_1),
            _share(p.pass_at_k),
            _share(p.signal),
            f"{p.mean_tokens:.0f}",
            f"{p.truncated:.0%}",
            str(p.unscored),
        )
    # A pipe has no width of its own; 80 columns would cut the names.
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(
        f"mean pass@1 {_share(_known_mean([p.pass_at_1 for p in probes]), '.1%')}, "
        f"pass@{samples} {_share(_known_mean([p.pass_at_k for p in probes]), '.1%')}, groups with "
        f"signal {_share(_known_mean([p.signal for p in probes]), '.1%')}. Domains between 10 and "
        "80 % teach most."
    )
