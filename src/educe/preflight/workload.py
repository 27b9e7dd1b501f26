"""What a recipe asks of a machine, domain by domain: from ``educe probe``'s figures, or assumed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from educe.core.errors import EduceError
from educe.core.strict_json import finite
from educe.preflight.plan import DomainPlan, Plan

# Where nothing was probed: completions take this part of their limit, evenly spread up to it, and
# this share of groups carries signal. Both are told as notes.
ASSUMED_PART, ASSUMED_SIGNAL = 0.6, 0.5
_ASSUMED_PROMPT = 128
_ASSUMED_SCORE_S = 0.002
_ASSUMED_CODE_S = 0.05


@dataclass(frozen=True, slots=True)
class DomainLoad:
    """What one trajectory of a domain costs, and what it is good for.

    Attributes:
        share: of the prompts.
        group_size: completions a prompt.
        prompt_tokens: mean.
        lengths: quantiles of the completion's tokens over all turns, evenly spaced, ascending.
        reply_tokens: mean tokens of the environment's replies in a trajectory.
        turns: mean.
        signal: share of groups that are trained on.
        score_s: worker seconds of a trajectory's score and replies.
        shown_tokens: of a demonstration; half of a completion where nobody counted.
        pass_at_1, pass_at_k: of the probed model, None where it was not probed.
    """

    name: str
    share: float
    group_size: int
    prompt_tokens: float
    lengths: tuple[float, ...]
    reply_tokens: float
    turns: float
    signal: float
    score_s: float
    shown_tokens: float = 0.0
    needs_reference: bool = False
    pass_at_1: float | None = None
    pass_at_k: float | None = None

    @property
    def mean_length(self) -> float:
        """Mean tokens of a completion: the quantiles joined by straight lines."""
        inner = sum(self.lengths[1:-1])
        return (inner + (self.lengths[0] + self.lengths[-1]) / 2) / max(1, len(self.lengths) - 1)

    def length_at(self, part: float) -> float:
        """Return the quantile at ``part`` in [0, 1]."""
        place = part * (len(self.lengths) - 1)
        low = min(int(place), len(self.lengths) - 2) if len(self.lengths) > 1 else 0
        high = min(low + 1, len(self.lengths) - 1)
        return self.lengths[low] + (self.lengths[high] - self.lengths[low]) * (place - low)


def loads_of(plan: Plan, probed: Mapping[str, Mapping[str, Any]]) -> list[DomainLoad]:
    """Return the loads of a plan's domains.

    Args:
        probed: figures of :func:`read_probe` by domain; what they lack is assumed.
    """
    return [_load(plan, domain, probed.get(name, {})) for name, domain in plan.domains.items()]


def _load(plan: Plan, domain: DomainPlan, probed: Mapping[str, Any]) -> DomainLoad:
    limit = domain.completion_tokens * domain.max_turns
    lengths = probed.get("token_quantiles") or _assumed_lengths(limit, probed.get("mean_tokens"))
    code_s = _ASSUMED_CODE_S if domain.spec.executes_code else _ASSUMED_SCORE_S
    trains_all = domain.bundle.trains_without_advantage
    turns = probed.get("mean_turns") or float(domain.max_turns)
    longest = tuple(min(float(n), float(limit)) for n in lengths)
    return DomainLoad(
        name=domain.name,
        share=domain.share,
        group_size=plan.recipe.rl.group_size + domain.bundle.needs_greedy,
        prompt_tokens=probed.get("prompt_tokens") or domain.prompt_tokens or _ASSUMED_PROMPT,
        lengths=longest,
        reply_tokens=probed.get("reply_tokens") or 0.0,
        turns=turns,
        signal=1.0 if trains_all else probed.get("signal", ASSUMED_SIGNAL),
        score_s=probed.get("score_s") or code_s * turns,
        shown_tokens=probed.get("shown_tokens") or sum(longest) / len(longest) / 2,
        needs_reference=domain.bundle.needs_reference,
        pass_at_1=probed.get("pass_at_1"),
        pass_at_k=probed.get("pass_at_k"),
    )


def _assumed_lengths(limit: int, mean: float | None) -> Sequence[float]:
    """Return quantiles of lengths that spread evenly around a mean, up to the limit."""
    centre = min(mean if mean else ASSUMED_PART * limit, limit)
    reach = min(centre - min(1.0, centre), limit - centre)
    return (centre - reach, centre + reach)


def read_probe(file: Path, model: str = "") -> dict[str, dict[str, Any]]:
    """Return what ``educe probe --json`` printed, by domain.

    Args:
        model: which of several probed models; the first by default.

    Raises:
        EduceError: the file is not a probe's.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        probes = raw[model] if model else next(iter(raw.values()))
        # What could not be measured (a domain without a scored sample) is null, and assumed.
        return {
            probe["domain"]: {k: v for k, v in finite(probe).items() if v is not None}
            for probe in probes
        }
    except (OSError, ValueError, KeyError, TypeError, StopIteration, AttributeError) as error:
        known = f" with {model!r}" if model else ""
        raise EduceError(
            f"{file} is not what `educe probe RECIPE --json` prints{known} ({error}); "
            f"write it with `educe probe RECIPE --json > {file}`"
        ) from error
