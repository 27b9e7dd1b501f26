"""What an evaluation leaves behind: one row a completion, and counts that keep kinds apart.

A row is keyed by (domain, index, sample). Nothing here knows an engine.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from educe.core.types import JSON, Fault, Group, Message, Score, Trajectory, Verdict

FORMAT_VERSION = 1


class Outcome(StrEnum):
    """What became of one completion; exactly one of these.

    ``errored`` (our infrastructure broke) and ``unscored`` (the grader could not judge) are out of
    every mean. ``timed_out`` and ``truncated`` are the candidate's: they keep their value, usually
    0, but are told apart from wrong answers, because a limit may be to blame.
    """

    RIGHT = "right"
    PARTIAL = "partial"
    WRONG = "wrong"
    UNPARSEABLE = "unparseable"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    TIMED_OUT = "timed_out"
    ERRORED = "errored"
    UNSCORED = "unscored"


def outcome_of(score: Score, is_truncated: bool = False) -> Outcome:
    """Return the outcome of one scored trajectory.

    A right answer stays right even when the text was cut after it; a cut text that is not right
    is ``truncated`` whatever else it is, unless it earned partial credit.
    """
    if score.value is None:
        is_ours = score.fault is Fault.INFRASTRUCTURE
        return Outcome.ERRORED if is_ours else Outcome.UNSCORED
    if score.verdict is Verdict.RIGHT or (score.verdict is None and score.value >= 1):
        return Outcome.RIGHT
    if is_timed_out(score):
        return Outcome.TIMED_OUT
    if score.verdict is Verdict.PARTIAL or (score.verdict is None and score.value > 0):
        return Outcome.PARTIAL
    if is_truncated:
        return Outcome.TRUNCATED
    if score.verdict is Verdict.REFUSED:
        return Outcome.REFUSED
    return Outcome.UNPARSEABLE if score.verdict is Verdict.UNPARSEABLE else Outcome.WRONG


def is_timed_out(score: Score) -> bool:
    """Whether the candidate's own program or tool ran out of time, by the scorer's proof."""
    if score.proof.get("timed_out") or str(score.proof.get("verdict")).startswith("TLE"):
        return True
    return "timeout" in (score.proof.get("outcomes") or ())


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One completion of one task.

    Attributes:
        content_hash: of the task; rows that share it are one cluster in the statistics.
        value: the score, None when unscored.
        is_truncated: whether the last turn met the token limit, whatever the outcome.
        prompt, completion: what the model saw first, and everything after it (all turns).
        gold: reference answer, None where there is none.
        proof: what the scorer recorded (attempts, tests passed …).
    """

    domain: str
    index: int
    sample: int
    content_hash: str
    value: float | None
    outcome: Outcome
    is_truncated: bool
    num_tokens: int
    num_turns: int
    reason: str
    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]
    gold: str | None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    proof: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.domain, self.index, self.sample)

    def to_json(self) -> dict[str, JSON]:
        raw = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        raw["outcome"] = str(self.outcome)
        raw["prompt"] = [m.to_json() for m in self.prompt]
        raw["completion"] = [m.to_json() for m in self.completion]
        raw["parts"], raw["proof"] = dict(self.parts), dict(self.proof)
        return raw

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> EvalRow:
        return EvalRow(
            **{
                **raw,
                "outcome": Outcome(raw["outcome"]),
                "prompt": tuple(Message.from_json(m) for m in raw["prompt"]),
                "completion": tuple(Message.from_json(m) for m in raw["completion"]),
            }
        )


def rows_of(group: Group) -> list[EvalRow]:
    """Return one row for every trajectory of a finished group."""
    return [_row(group, trajectory) for trajectory in group.trajectories]


def _row(group: Group, trajectory: Trajectory) -> EvalRow:
    task, score = group.task, trajectory.score
    # Prompts may hold assistant messages of their own (few-shot): the generated ones come last.
    spoken = [i for i, m in enumerate(trajectory.messages) if m.role == "assistant"]
    count = len(trajectory.turns)
    start = spoken[-count] if 0 < count <= len(spoken) else len(trajectory.messages)
    return EvalRow(
        domain=task.domain,
        index=task.index,
        sample=trajectory.sample_index,
        content_hash=task.content_hash,
        value=score.value,
        outcome=outcome_of(score, trajectory.is_truncated),
        is_truncated=trajectory.is_truncated,
        num_tokens=trajectory.num_completion_tokens,
        num_turns=count,
        reason=score.reason,
        prompt=trajectory.messages[:start] or task.messages,
        completion=trajectory.messages[start:],
        gold=task.gold,
        parts=dict(score.parts),
        proof=dict(score.proof),
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """How many completions ended how; ``total`` is their sum."""

    by_outcome: Mapping[Outcome, int]
    num_truncated: int

    @property
    def total(self) -> int:
        return sum(self.by_outcome.values())

    def share(self, *outcomes: Outcome) -> float:
        """Return the share of completions with one of these outcomes (0 of none is 0)."""
        return sum(self.by_outcome.get(o, 0) for o in outcomes) / max(self.total, 1)

    @property
    def truncated_share(self) -> float:
        return self.num_truncated / max(self.total, 1)

    @property
    def lost_share(self) -> float:
        """Share that has no score at all: errored or unscored."""
        return self.share(Outcome.ERRORED, Outcome.UNSCORED)

    def to_json(self) -> dict[str, JSON]:
        counts: dict[str, JSON] = {str(o): self.by_outcome.get(o, 0) for o in Outcome}
        return {**counts, "total": self.total, "met_token_limit": self.num_truncated}


def count_outcomes(rows: Iterable[EvalRow]) -> Counts:
    """Return the counts of some rows."""
    rows = list(rows)
    return Counts(Counter(r.outcome for r in rows), sum(r.is_truncated for r in rows))


@dataclass(frozen=True, slots=True)
class EvalResult:
    """All rows of one evaluation, in (domain, index, sample) order.

    Attributes:
        label: what was evaluated ("base", a run's name …).
        rows: one a completion.
        floors: chance level of every domain.
        kinds: what each domain asks for (``code``, ``tools`` …).
        settings: what the rows depend on (split, samples, temperature …).
        notes: what a reader must know, e.g. a domain with fewer tasks than asked for.
    """

    label: str
    rows: tuple[EvalRow, ...]
    floors: Mapping[str, float]
    kinds: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, JSON] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    wall_time_s: float = 0.0
    _by_domain: Mapping[str, list[EvalRow]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_domain: dict[str, list[EvalRow]] = {}
        for row in self.rows:
            by_domain.setdefault(row.domain, []).append(row)
        object.__setattr__(self, "_by_domain", by_domain)

    @property
    def domains(self) -> list[str]:
        return sorted(self._by_domain)

    def rows_in(self, domain: str) -> list[EvalRow]:
        return list(self._by_domain.get(domain, ()))

    def counts(self, domain: str | None = None) -> Counts:
        return count_outcomes(self.rows if domain is None else self.rows_in(domain))

    def to_json(self) -> dict[str, JSON]:
        return {
            "format_version": FORMAT_VERSION,
            "label": self.label,
            "rows": [r.to_json() for r in self.rows],
            "floors": dict(self.floors),
            "kinds": dict(self.kinds),
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "wall_time_s": self.wall_time_s,
        }

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> EvalResult:
        if raw.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"evaluation results of format {raw.get('format_version')} cannot be read; "
                f"this version reads format {FORMAT_VERSION}"
            )
        return EvalResult(
            label=raw["label"],
            rows=tuple(EvalRow.from_json(r) for r in raw["rows"]),
            floors=raw["floors"],
            kinds=raw["kinds"],
            settings=raw["settings"],
            notes=tuple(raw["notes"]),
            wall_time_s=raw["wall_time_s"],
        )


@dataclass(frozen=True, slots=True)
class ItemScores:
    """The scored samples of every task of one domain: what the statistics work on.

    ``samples[i]`` are the values of item ``indices[i]``; items without any scored sample are left
    out and counted in ``num_lost_items``.
    """

    indices: tuple[int, ...]
    clusters: tuple[str, ...]
    samples: tuple[tuple[float, ...], ...]
    num_lost_items: int


def item_scores(rows: Iterable[EvalRow]) -> ItemScores:
    """Gather the rows of one domain by task."""
    gathered: dict[int, list[float]] = {}
    hashes: dict[int, str] = {}
    for row in sorted(rows, key=lambda r: r.key):
        values = gathered.setdefault(row.index, [])
        hashes[row.index] = row.content_hash
        if row.value is not None:
            values.append(row.value)
    kept = [i for i, values in gathered.items() if values]
    return ItemScores(
        tuple(kept),
        tuple(hashes[i] for i in kept),
        tuple(tuple(gathered[i]) for i in kept),
        len(gathered) - len(kept),
    )
