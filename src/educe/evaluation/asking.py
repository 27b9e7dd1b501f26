"""From a dimension's part to requests: the domain behind it, reworded where a strategy says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from educe.config.settings import DomainSettings
from educe.core.errors import EduceError
from educe.core.protocols import Domain
from educe.core.seeds import derive
from educe.core.types import JSON, TaskRequest
from educe.domains.registry import load_domain
from educe.domains.renamed import RenamedDomain
from educe.evaluation.dimensions.protocol import Part
from educe.evaluation.strategies import Strategy, strategy_named
from educe.evaluation.wordings import (
    WORDINGS,
    RewordedDomain,
    Wording,
    applies_to,
    reworded_settings,
    wording_named,
    worker_settings,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A part with the name of its rows' domain, the domain itself and its requests."""

    name: str
    part: Part
    strategy: Strategy
    settings: DomainSettings
    domain: Domain
    requests: tuple[TaskRequest, ...]


def ask(dimension: str, part: Part, strategy: Strategy, notes: list[str]) -> Asked:
    """Return the requests of a part under a strategy; what a reader must know goes to ``notes``.

    Raises:
        EduceError: the part has no tasks. DomainError: its domain does not load.
    """
    name = f"{dimension}/{part.name}"
    settings = worker_settings(part.source, part.settings)
    domain = part.domain or load_domain(name, settings)
    if not part.takes_strategy:
        strategy = strategy_named("direct")
    if strategy.wording:
        wording = wording_named(strategy.wording)
        if not applies_to(wording, domain.spec):
            notes.append(f"{name}: {strategy.name} does not apply here; asked directly")
            strategy = strategy_named("direct")
        else:
            domain = RewordedDomain(domain, wording)
            settings = reworded_settings(wording.name, settings, name)
    if domain.spec.name != name:
        domain = RenamedDomain(domain, name)
    size = domain.size(part.split)
    count = part.num_tasks if size is None else min(size, part.num_tasks)
    if count < 1:
        raise EduceError(f"{name} has no {part.split} tasks; leave it out of the plan")
    if count < part.num_tasks:
        notes.append(f"{name}: only {size} tasks exist, {part.num_tasks} were asked")
    return Asked(
        name,
        part,
        strategy,
        settings,
        domain,
        tuple(_request(name, part, strategy, domain, index) for index in range(count)),
    )


def _request(name: str, part: Part, strategy: Strategy, domain: Domain, index: int) -> TaskRequest:
    temperature = part.temperature if strategy.temperature is None else strategy.temperature
    wording = WORDINGS.get(strategy.wording, Wording(""))
    tokens, turns = part.max_completion_tokens, part.max_turns
    return TaskRequest(
        # Any stable number: the draws follow from it, and journals and caches from the draws.
        request_id=derive("suite", name, strategy.name, str(part.split), index) >> 1,
        domain=name,
        split=part.split,
        index=index,
        num_samples=part.samples * strategy.draws,
        temperature=temperature,
        max_completion_tokens=(tokens + wording.extra_tokens)
        if tokens
        else domain.spec.max_completion_tokens,
        max_turns=(turns + wording.extra_turns) if turns else domain.spec.max_turns,
    )


def scoring_of(asked: Sequence[Asked]) -> dict[str, JSON]:
    """Return what each part's scores depend on besides the task, for the cache."""
    return {a.name: [a.settings.model_dump(mode="json"), a.strategy.name] for a in asked}


def cost_of(request: TaskRequest) -> float:
    """Tokens that a request may take: what time goes with."""
    return float(request.num_samples * request.max_completion_tokens * request.max_turns)
