"""Long context: exact sets at chosen depths and lengths, three controls, the effective length."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from educe.config.settings import DomainSettings
from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.evaluation.dimensions.options import checked_options
from educe.evaluation.dimensions.protocol import (
    Findings,
    ItemValue,
    Measure,
    MeasureContext,
    Part,
    PlanContext,
    Table,
    mean_score,
    mean_values,
    part_facts,
)
from educe.evaluation.long_context.domain import DEPTHS, LongContextDomain
from educe.evaluation.long_context.draft import CONTROLS, Control, messages_of
from educe.evaluation.long_context.fit import estimated_tokens
from educe.evaluation.long_context.kinds import load_kind
from educe.evaluation.long_context.summary import (
    Observation,
    curve,
    effective_length,
    observations_of,
    position_bias,
    suspicious_rises,
    worst_cell,
)
from educe.evaluation.records import EvalResult, EvalRow, Outcome
from educe.evaluation.statistics import Estimate

SMALL = ("needle-single-number", "needle-multivalue-number", "near-keys", "chat-state")
MEDIUM = (
    *SMALL, "needle-multiquery-word", "needle-multikey-uuid", "no-lexical-overlap", "variables",
    "count", "hops", "chat-ordinal", "code-chain", "paragraphs",
)  # fmt: skip
LARGE = (*MEDIUM, "total", "top", "update", "code-callers", "paragraphs-two-hops", "play-speaker")
LENGTHS = {
    "small": (512, 1024),
    "medium": (1024, 2048, 4096, 8192),
    "large": (4096, 8192, 16384, 32768, 65536, 131072),
}
_PROBES, _SLACK = 4, 1.05
OPTIONS = ("kinds", "lengths", "tasks", "depths", "controls", "control_length")


@dataclass(frozen=True, slots=True)
class LongContext:
    """Does the model find, join and count what stands far away?"""

    name: str = "long_context"
    title: str = "Long context"
    question: str = "How long may a prompt be before what stands in it is lost?"

    def plan(self, context: PlanContext) -> list[Part]:
        options = checked_options(self.name, context.options, OPTIONS)
        kinds = _names(options.get("kinds", context.choose(SMALL, MEDIUM, LARGE)))
        lengths = _lengths(options.get("lengths", LENGTHS[context.tier]), context)
        count = int(options.get("tasks", context.choose(5, 20, 200)))
        given = options.get("depths", DEPTHS)
        depths = tuple(float(d) for d in (given if isinstance(given, list | tuple) else [given]))
        controls = _controls(options.get("controls", CONTROLS))
        # Controls answer a yes-or-no question about the tasks, so one length is enough.
        control_length = int(options.get("control_length", lengths[0]))
        if context.count_tokens is None:
            context.announce("long context: no tokenizer, so lengths are estimated")
        parts = []
        for kind in kinds:
            limit = load_kind(kind).max_length or max(lengths)
            least = _least_length(context, kind, lengths)
            kept = [n for n in lengths if least <= n <= limit]
            parts += [_part(context, kind, n, "", depths, count) for n in kept]
            control_at = max(control_length, kept[0]) if kept else 0
            if not kept or control_at > limit:
                continue
            few = max(len(depths), count // 2)
            parts += [_part(context, kind, control_at, c, depths, few) for c in controls]
        if not parts:
            raise EduceError(
                f"long_context: none of the lengths {list(lengths)} has room for what {kinds} ask; "
                "give longer ones (long_context.lengths)"
            )
        return parts

    def measure(self, result: EvalResult, context: MeasureContext) -> Findings:
        facts = {name: part_facts(result, name) for name in result.domains}
        grid = observations_of(result.rows, facts)
        if not grid:
            return Findings((Measure("score", (), is_headline=True, note="nothing was scored"),))
        main = _rows(result, facts, "")
        controls: dict[str, list[EvalRow]] = {c: _rows(result, facts, c) for c in CONTROLS}
        measures = [Measure("score", mean_values(main, mean_score), is_headline=True,
                            note="exact sets; mean over kinds and lengths")]  # fmt: skip
        for length in sorted({int(f["length"]) for f in facts.values() if f}):
            rows = [r for r in main if facts[r.domain]["length"] == length]
            if rows:
                measures.append(Measure(f"score at {length}", mean_values(rows, mean_score)))
        measures.append(Measure("items found (recall)", _part_values(main, "recall")))
        for control, rows in controls.items():
            measures.append(
                Measure(f"control: {control}", mean_values(rows, mean_score), direction=0,
                        note=_CONTROL_NOTES[control])
            )  # fmt: skip
        measures += _document_measures(main)
        notes, tables = _read_grid(grid, main, facts, controls, context)
        return Findings(tuple(m for m in measures if m.values), tuple(tables), tuple(notes))


_CONTROL_NOTES = {
    "no-context": "guessed or remembered: should be near the floor",
    "shuffled": "words without facts: should be near the floor",
    "oracle": "evidence alone: what fails here is not a matter of length",
}


def _part(
    context: PlanContext, name: str, length: int, control: Control, depths: tuple[float, ...],
    count: int,
) -> Part:  # fmt: skip
    kind = load_kind(name)
    tokens = context.count_tokens or estimated_tokens
    return Part(
        name="/".join(p for p in (name, str(length), control) if p),
        settings=DomainSettings(
            function="educe.evaluation.long_context:scoring_domain",
            options={"kind": name, "control": control},
        ),
        num_tasks=count,
        domain=LongContextDomain(kind, length, tokens, control=control, depths=depths),
        max_completion_tokens=kind.reply_tokens,
        takes_strategy=False,
        facts={
            "kind": name,
            "length": length,
            "control": control,
            "depths": list(depths),
            "has_depth": kind.has_depth,
            "source": kind.source,
            "licence": kind.licence,
            "is_counted": context.count_tokens is not None,
        },
    )


def _names(value: JSON) -> list[str]:
    names = [value] if isinstance(value, str) else [str(v) for v in value]
    return [load_kind(n).name for n in dict.fromkeys(names)]


def _lengths(value: JSON, context: PlanContext) -> list[int]:
    """Return the lengths, shortest first, without those beyond the model's context."""
    asked = sorted({int(v) for v in ([value] if isinstance(value, int) else value)})
    limit = context.context_length
    kept = [n for n in asked if limit is None or n <= limit]
    if not kept:
        raise EduceError(
            f"long_context.lengths = {asked}, but the model's context is {limit} tokens"
        )
    if len(kept) < len(asked):
        context.announce(f"long context: lengths above {limit} tokens are left out")
    return kept


def _least_length(context: PlanContext, name: str, lengths: Sequence[int]) -> int:
    """Return what a kind's evidence, question and reply take in the model's tokens.

    A vocabulary of bytes, or of another language, may need four times the usual tokens. Kinds from
    packages are not asked here: planning fetches nothing, and they are for longer prompts.
    """
    kind = load_kind(name)
    if kind.source:
        return 0
    tokens = context.count_tokens or estimated_tokens
    bare = [messages_of(kind.write(random.Random(seed), 0, 0.5)) for seed in range(_PROBES)]
    least = int(_SLACK * max(map(tokens, bare))) + kind.reply_tokens
    if least > lengths[0]:
        context.announce(f"long context: {name} needs {least} tokens; shorter lengths are left out")
    return least


def _controls(value: JSON) -> list[Control]:
    names = [value] if isinstance(value, str) else [str(v) for v in value]
    unknown = [n for n in names if n and n not in CONTROLS]
    if unknown:
        raise EduceError(f"long_context.controls: unknown {unknown}; known: {', '.join(CONTROLS)}")
    return [cast(Control, n) for n in names if n]


def _rows(
    result: EvalResult, facts: Mapping[str, Mapping[str, JSON]], control: str
) -> list[EvalRow]:
    return [r for r in result.rows if facts[r.domain].get("control", "") == control]


def _part_values(rows: Sequence[EvalRow], part: str) -> tuple[ItemValue, ...]:
    def mean(group: Sequence[EvalRow]) -> float | None:
        found = [v for r in group if (v := r.parts.get(part)) is not None]
        return sum(found) / len(found) if found else None

    return mean_values([r for r in rows if part in r.parts], mean)


def _document_measures(rows: Sequence[EvalRow]) -> list[Measure]:
    """Return what only questions with sources have: F1, citations, abstention of both kinds."""
    asked = [r for r in rows if "citation_f1" in r.parts]
    unanswerable = [r for r in asked if (r.gold or "").startswith("Answer: not stated")]
    answerable = [r for r in asked if r not in unanswerable]
    abstained = [r for r in asked if r.parts.get("abstained") == 1.0]

    def is_unanswerable(group: Sequence[EvalRow]) -> float:
        return float((group[0].gold or "").startswith("Answer: not stated"))

    return [
        Measure("answer F1", _part_values(asked, "f1")),
        Measure("citation F1", _part_values(asked, "citation_f1")),
        Measure("abstention recall", _part_values(unanswerable, "abstained"),
                note="of questions without an answer, the share declared so"),
        Measure("abstention precision", mean_values(abstained, is_unanswerable),
                note="of declarations, the share where there was no answer"),
        Measure("wrong abstention", _part_values(answerable, "abstained"), direction=-1),
    ]  # fmt: skip


def _read_grid(
    grid: Sequence[Observation],
    main: Sequence[EvalRow],
    facts: Mapping[str, Mapping[str, JSON]],
    controls: Mapping[str, Sequence[EvalRow]],
    context: MeasureContext,
) -> tuple[list[str], list[Table]]:
    level = context.level
    by_length = curve(grid, level=level)
    guessed = _mean(controls["no-context"])
    found = effective_length(grid, guessed=guessed, level=level)
    notes = []
    if found.value is None:
        notes.append(f"Effective length: none; {found.reason}.")
    else:
        end = ", the longest one asked" if found.is_at_end else ""
        notes.append(
            f"Effective length: {found.value} tokens [{found.low}, {found.high}]{end}: the score "
            f"stays at 85 % of the model's own at {found.base_length} tokens."
        )
    worst = worst_cell(grid, level=level)
    if worst is not None:
        notes.append(f"Worst depth: {worst[1]:.0%} at {worst[0]} tokens, {_shown(worst[2])} %.")
    bias = position_bias(grid, level=level)
    if bias is not None:
        notes.append(
            f"Position: end against start {_shown(bias.slope)} points, ends against middle "
            f"{_shown(bias.bend)} points (both at once: p = {bias.p_value:.2g})."
        )
    cut = sum(r.outcome is Outcome.TRUNCATED for r in main)
    notes.append(f"{cut} of {len(main)} replies met the token limit; no prompt was cut.")
    if any(f.get("is_counted") is False for f in facts.values()):
        notes.append("Lengths are estimates: the model's tokenizer was out of reach.")
    notes += suspicious_rises(by_length)
    return notes, [_length_table(grid, by_length, level), *_depth_tables(grid)]


def _mean(rows: Sequence[EvalRow]) -> float:
    values = [r.value for r in rows if r.value is not None]
    return sum(values) / len(values) if values else 0.0


def _length_table(
    grid: Sequence[Observation], by_length: Mapping[int, Estimate], level: float
) -> Table:
    lengths = sorted(by_length)
    kinds = sorted({o.kind for o in grid})
    rows = [("all kinds", *[_shown(by_length[n]) for n in lengths])]
    for kind in kinds:
        own = curve([o for o in grid if o.kind == kind], level=level)
        rows.append((kind, *[_shown(own[n]) if n in own else "–" for n in lengths]))
    header = ("kind", *[f"{n} tokens" for n in lengths])
    return Table("Score by length, percent", header, tuple(rows))


def _depth_tables(grid: Sequence[Observation]) -> list[Table]:
    cells: dict[tuple[int, float], list[float]] = {}
    for o in grid:
        if o.depth is not None:
            cells.setdefault((o.length, o.depth), []).append(o.value)
    if not cells:
        return []
    depths = sorted({d for _, d in cells})
    rows = []
    for length in sorted({n for n, _ in cells}):
        shown = [
            f"{100 * sum(v) / len(v):.0f}" if (v := cells.get((length, d))) else "–" for d in depths
        ]
        rows.append((str(length), *shown))
    header = ("tokens", *[f"{d:.0%}" for d in depths])
    note = "0 % is the start of the document. Kinds whose evidence has one place only."
    return [Table("Score by depth, percent", header, tuple(rows), note=note)]


def _shown(e: Estimate) -> str:
    return f"{100 * e.value:.0f} [{100 * e.low:.0f}, {100 * e.high:.0f}]"


LONG_CONTEXT = LongContext()
