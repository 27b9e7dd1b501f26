"""What a dimension of evaluation is: tasks with a sampling plan, and numbers read from the rows.

A dimension never samples and never loops over a model. It says which tasks to ask and how often
(:meth:`Dimension.plan`); the suite asks them all through one bounded, resumable, cached stream; and
the dimension reads its numbers from the rows that came back (:meth:`Dimension.measure`). Scoring is
the domains' own, in killable workers. So a dimension is two functions and works with any engine.

``measure`` sees rows and settings only, so a report can be built again from a finished folder:
whatever it must know about a part belongs into ``Part.facts``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from educe.config.settings import DomainSettings
from educe.core.protocols import Domain, Services
from educe.core.types import JSON, Message, Split
from educe.evaluation.records import EvalResult, EvalRow

TierName = Literal["small", "medium", "large"]
TIERS: tuple[TierName, ...] = ("small", "medium", "large")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What a plan may depend on.

    Attributes:
        tier: how much is asked: ``small`` fits a minute or two on two cores, ``large`` is what a
            claim needs.
        seed: root of the choices that a plan makes.
        context_length: longest prompt plus completion of the model in tokens; None when unknown.
        count_tokens: length of a prompt in the model's own tokens, chat template included; None
            for a model whose tokenizer is out of reach.
        domains: the recipe's domains, for dimensions that look at what was trained.
        options: this dimension's own options (``--option stability.samples=16``).
        announce: told before anything slow, such as fetching a package.
    """

    tier: TierName = "medium"
    seed: int = 0
    context_length: int | None = None
    count_tokens: Callable[[Sequence[Message]], int] | None = None
    domains: Mapping[str, DomainSettings] = field(default_factory=dict)
    options: Mapping[str, JSON] = field(default_factory=dict)
    announce: Callable[[str], None] = lambda _: None

    def choose(self, small: _T, medium: _T, large: _T) -> _T:
        """Return the argument of the tier."""
        return (small, medium, large)[TIERS.index(self.tier)]


@dataclass(frozen=True, slots=True)
class Part:
    """One source of tasks within a dimension, and how it is sampled.

    Attributes:
        name: unique within the dimension; rows carry ``DIMENSION/NAME`` as their domain.
        settings: what a scoring worker loads the domain by (see ``domains.registry.load_domain``).
        source: registered name of the domain; empty where ``settings`` has a path or function.
        num_tasks: the first tasks of the split; fewer where the domain has fewer.
        samples: completions a task; more than one wants a temperature above 0.
        domain: makes the tasks here instead of ``settings``, for tasks that depend on something a
            worker does not have (a tokenizer). It must score like the one that ``settings`` give.
        max_completion_tokens, max_turns: replace the domain's own; None keeps them.
        takes_strategy: whether ``--strategy`` may reword it. False for what measures a fixed
            protocol (refusals, long prompts without room to think).
        facts: what ``measure`` must know: kept in the result's settings by part.
    """

    name: str
    settings: DomainSettings = field(default_factory=DomainSettings)
    source: str = ""
    num_tasks: int = 50
    samples: int = 1
    temperature: float = 0.0
    split: Split = Split.EVAL
    domain: Domain | None = None
    max_completion_tokens: int | None = None
    max_turns: int | None = None
    takes_strategy: bool = True
    facts: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ItemValue:
    """One item's value of a measure: items are what is paired with another model's.

    Attributes:
        item: identifies it in any evaluation of the same suite, e.g. ``sets/asdiv#12``.
        group: groups weigh the same in the measure's mean, whatever their number of items.
        cluster: items that are not independent share one (the task's content hash as a rule).
        num_samples: completions behind the value.
    """

    item: str
    group: str
    cluster: str
    value: float
    num_samples: int = 1


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a dimension: a mean over groups of the mean over items, with its items.

    Attributes:
        name: short and stable (``accuracy``, ``pass^8``); the key in comparisons and gates.
        values: what it is the mean of. Empty: nothing could be measured, and ``note`` says why.
        direction: 1 higher is better, -1 lower is better, 0 neither (a description).
        unit: ``share`` is printed in percent; anything else is printed as it is.
        is_headline: at most one of a dimension; withheld where too much is neither right nor wrong.
        note: what a reader must know about it, in a few words.
        floors: by group; given, the measure is (value - floor) / (1 - floor), its interval with it.
    """

    name: str
    values: tuple[ItemValue, ...]
    direction: Literal[-1, 0, 1] = 1
    unit: str = "share"
    is_headline: bool = False
    note: str = ""
    floors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A table for the report; cells are ready to print, the first ``left`` columns are text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    note: str = ""

    def to_json(self) -> dict[str, JSON]:
        return {
            "title": self.title,
            "header": list(self.header),
            "rows": [list(r) for r in self.rows],
            "left": self.left,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Findings:
    """What a dimension read from its rows.

    ``withheld`` is a reason of its own to print no headline (the suite adds the general ones).
    """

    measures: tuple[Measure, ...]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    withheld: str = ""


@dataclass(frozen=True, slots=True)
class MeasureContext:
    """What ``measure`` may use besides the rows: the coverage of intervals, and services for what
    is measured on shipped data rather than on the model (a sandbox, a judge)."""

    level: float = 0.95
    services: Services = field(default_factory=Services)


class Dimension(Protocol):
    """One dimension. Implementations are frozen dataclasses without state.

    Attributes:
        name: of the module; prefix of its rows' domains.
        title: for people.
        question: what it asks about a model, in one sentence.
    """

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def question(self) -> str: ...

    def plan(self, context: PlanContext) -> Sequence[Part]:
        """Return the parts to ask; deterministic in its argument.

        Raises:
            EduceError: a package that is needed cannot be had (naming it), or a wrong option.
        """
        ...

    def measure(self, result: EvalResult, context: MeasureContext) -> Findings:
        """Return the numbers of this dimension's rows (other dimensions' are not in ``result``).

        ``result.settings["parts"][domain]`` holds each part's facts.
        """
        ...


def part_facts(result: EvalResult, domain: str) -> Mapping[str, JSON]:
    """Return ``Part.facts`` of a domain of the result; empty for rows of another kind of run."""
    found: Mapping[str, JSON] = (result.settings.get("parts") or {}).get(domain) or {}
    return found


def item_of(row: EvalRow) -> str:
    """Return the item id of a row's task."""
    return f"{row.domain}#{row.index}"


def by_task(rows: Sequence[EvalRow]) -> dict[tuple[str, int], list[EvalRow]]:
    """Return the rows by (domain, index), samples in order."""
    found: dict[tuple[str, int], list[EvalRow]] = {}
    for row in sorted(rows, key=lambda r: r.key):
        found.setdefault((row.domain, row.index), []).append(row)
    return found


def mean_values(
    rows: Sequence[EvalRow], value: Callable[[Sequence[EvalRow]], float | None]
) -> tuple[ItemValue, ...]:
    """Return one item a task: ``value`` of its scored rows; None leaves the task out.

    Rows without a score are never passed: a task that has no other is left out.
    """
    found = []
    for (domain, _), group in by_task(rows).items():
        scored = [r for r in group if r.value is not None]
        if not scored:
            continue
        number = value(scored)
        if number is not None:
            first = scored[0]
            found.append(
                ItemValue(item_of(first), domain, first.content_hash, float(number), len(scored))
            )
    return tuple(found)


def mean_score(rows: Sequence[EvalRow]) -> float:
    """Return the mean score of one task's scored rows."""
    return sum(r.value for r in rows if r.value is not None) / len(rows)
