"""A proposal how to spend hours on SFT, RL and evaluation, from what a probe saw.

Rules of thumb with their reasons, not a law. Evaluation first: what cannot be told apart need not
be trained. Then SFT for domains where the model never succeeds (RL has nothing to sharpen there),
RL for domains where some of several tries succeed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from educe.core.types import JSON
from educe.preflight.workload import DomainLoad

# Below this pass@k a domain needs demonstrations; above this pass@1 it is solved.
COLD, SOLVED = 0.10, 0.90
# A difference of the mean score that evaluation should be able to see, with 80 % power at 95 %.
DETECTED = 0.03
_POWER = (1.96 + 0.84) ** 2
# Scores of one task before and after are alike: this part of their variance is shared.
_SHARED = 0.5
_MOST_EVAL, _MOST_SFT, _LEAST_SFT = 0.25, 0.5, 0.1


@dataclass(frozen=True, slots=True)
class BudgetSplit:
    """Seconds of each stage, the evaluation's size, and why."""

    sft_s: float
    rl_s: float
    eval_s: float
    tasks_per_domain: int
    detectable: float
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, JSON]:
        return {
            "sft_minutes": self.sft_s / 60,
            "rl_minutes": self.rl_s / 60,
            "eval_minutes": self.eval_s / 60,
            "tasks_per_domain": self.tasks_per_domain,
            "detectable_difference": self.detectable,
            "reasons": list(self.reasons),
        }


def propose_split(
    budget_s: float, loads: Sequence[DomainLoad], task_s: float, *, has_gold: bool
) -> BudgetSplit:
    """Return a proposal.

    Args:
        budget_s: seconds for everything.
        loads: at least one was probed.
        task_s: seconds of one held-out task, before and after together.
        has_gold: whether any domain has demonstrations.
    """
    probed = [d for d in loads if d.pass_at_1 is not None and d.pass_at_k is not None]
    reasons: list[str] = []
    tasks, found = _evaluation(budget_s, probed, len(loads), task_s, reasons)
    eval_s = tasks * len(loads) * task_s
    left = budget_s - eval_s
    sft_s = left * _sft_part(probed, has_gold, reasons)
    return BudgetSplit(sft_s, left - sft_s, eval_s, tasks, found, tuple(reasons))


def _evaluation(
    budget_s: float,
    probed: Sequence[DomainLoad],
    num_domains: int,
    task_s: float,
    reasons: list[str],
) -> tuple[int, float]:
    """Return tasks a domain, and the difference of the mean that they can show."""
    rates = [min(max(d.pass_at_1 or 0.0, 0.1), 0.9) for d in probed]
    variance = sum(2 * (1 - _SHARED) * p * (1 - p) for p in rates) / max(1, len(rates))
    wanted = math.ceil(_POWER * variance / DETECTED**2 / num_domains)
    most = max(1, int(_MOST_EVAL * budget_s / max(task_s, 1e-9) / num_domains))
    tasks = min(wanted, most)
    found = math.sqrt(_POWER * variance / (tasks * num_domains))
    reasons.append(
        f"evaluation: {tasks} tasks a domain show a difference of {100 * found:.1f} points of the "
        f"mean ({wanted} would show {100 * DETECTED:.0f})"
    )
    return tasks, found


def _sft_part(probed: Sequence[DomainLoad], has_gold: bool, reasons: list[str]) -> float:
    total = sum(d.share for d in probed) or 1.0
    cold = [d for d in probed if (d.pass_at_k or 0.0) < COLD]
    solved = [d for d in probed if (d.pass_at_1 or 0.0) > SOLVED]
    warm = len(probed) - len(cold) - len(solved)
    part = sum(d.share for d in cold) / total
    if not has_gold:
        reasons.append("SFT: none, no domain has demonstrations")
        return 0.0
    if not cold:
        reasons.append(f"SFT: none, every domain succeeds in over {COLD:.0%} of its tasks")
        return 0.0
    share = min(_MOST_SFT, max(_LEAST_SFT, part))
    reasons.append(
        f"SFT: {len(cold)} of {len(probed)} domains succeed in under {COLD:.0%} of their tasks, "
        "so RL has nothing to sharpen there"
    )
    reasons.append(f"RL: {warm} domains succeed sometimes, {len(solved)} nearly always")
    return share
