"""From preference data to cases: tokens of both sides, and the KTO partner of a labelled one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from educe.core.errors import DomainError
from educe.domains.formats import Labelled, Pair, Written
from educe.trainers.feeds import Entry, Source
from educe.trainers.preference import Case
from educe.trainers.references import case_key
from educe.trainers.rendering import Rendered, Side

RenderSide = Callable[[Written], Side | None]

_PARTNERS_TRIED = 16


@dataclass(slots=True)
class CaseMaker:
    """Makes the case of an entry.

    Attributes:
        render: a written example as it fits into the context, None when it does not.
        is_paired: whether the loss compares two completions; else each case gets a partner.
        limit: tokens of a sequence at most.
    """

    sources: Mapping[str, Source]
    render: RenderSide
    is_paired: bool
    limit: int

    def case(self, entry: Entry) -> Case | None:
        """Return the case of an entry, None when it does not fit."""
        name, index = entry
        own = self._own(name, self.sources[name].train(index))
        if own is None or self.is_paired:
            return own
        others = (self.sources[name].train(index + i) for i in range(1, _PARTNERS_TRIED))
        return self._with_partner(own, (self._own(name, other) for other in others))

    def held_out(self, count: int) -> list[Case]:
        """Return the cases that are held out, at most ``count`` examples of each source."""
        found = []
        for name, source in self.sources.items():
            made = [self._own(name, example) for example in source.held_out(count)]
            cases = [case for case in made if case is not None]
            if not self.is_paired:
                turned = [cases[i + 1 :] + cases[:i] for i in range(len(cases))]
                with_partners = map(self._with_partner, cases, map(iter, turned))
                cases = [case for case in with_partners if case is not None]
            found += cases
        return found

    def distinct(self, entries: Iterator[Entry]) -> Iterator[Case]:
        """Yield each different case of the entries once, in the order of first use."""
        seen: set[str] = set()
        for entry in entries:
            case = self.case(entry)
            if case is not None and (key := case_key(case)) not in seen:
                seen.add(key)
                yield case

    def _own(self, name: str, example: Any) -> Case | None:
        if isinstance(example, Case):
            return example
        if isinstance(example, Pair) and self.is_paired:
            sides = self.render(example.chosen), self.render(example.rejected)
            return (
                None if sides[0] is None or sides[1] is None else Case(name, (sides[0], sides[1]))
            )
        if isinstance(example, Labelled) and not self.is_paired:
            side = self.render(example.written)
            return None if side is None else Case(name, (side, ()), example.is_wanted)
        expected = "pairs (chosen, rejected)" if self.is_paired else "labelled completions"
        raise DomainError(
            f"{name}: this loss learns from {expected}, the data set has a "
            f"{type(example).__name__.lower()}; choose another preference.loss"
        )

    def _with_partner(self, own: Case, others: Iterator[Case | None]) -> Case | None:
        """Return the case with another prompt's completion under its own prompt as second side."""
        prompt = _prompt(own.sides[0])
        partner = None
        for other in others:
            if other is None:
                continue
            partner = other
            if not np.array_equal(_prompt(other.sides[0]), prompt):
                break
        if partner is None:
            return None
        return replace(own, sides=(own.sides[0], self._moved(prompt, partner.sides[0])))

    def _moved(self, prompt: Any, side: Side) -> Side:
        first = side[0]
        start = int(np.argmax(first.mask))
        tokens = np.concatenate([prompt, first.token_ids[start:]])[: self.limit]
        mask = np.concatenate([np.zeros(len(prompt), np.bool_), first.mask[start:]])[: self.limit]
        return (Rendered(tokens, mask),)


def _prompt(side: Side) -> Any:
    """Return the tokens before the first trained one."""
    first = side[0]
    return first.token_ids[: int(np.argmax(first.mask))]
