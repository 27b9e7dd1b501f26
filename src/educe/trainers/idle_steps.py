"""Words for steps that train nothing, so that a line without a loss does not pass in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol


class CreditedGroup(Protocol):
    """A group's rewards, in sample order (``credit.GroupCredit``)."""

    @property
    def rewards_G(self) -> tuple[float | None, ...]: ...


def reason_without_update(credits: Sequence[CreditedGroup], dropped: Sequence[str]) -> str:
    """Return why a rollout batch gave no optimizer step.

    Args:
        credits: the groups of the batch.
        dropped: why each group that was sampled besides them was left out.
    """
    left_out = ", ".join(f"{n} {reason}" for reason, n in sorted(Counter(dropped).items()))
    if not credits:
        if not dropped:
            return "no group was sampled"
        return (
            f"all {len(dropped)} sampled groups were left out ({left_out}; trivial: equal scores, "
            "so no advantage)"
        )
    kinds = Counter(_kind(c.rewards_G) for c in credits)
    told = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    tail = f"; left out besides: {left_out}" if left_out else ""
    return f"no group has an advantage: of {len(credits)}, {told}{tail}"


def _kind(rewards_G: Sequence[float | None]) -> str:
    scored = [r for r in rewards_G if r is not None]
    if not scored:
        return "unscored"
    if len(scored) == 1:
        return "with one scored sample"
    if min(scored) < max(scored):
        return "masked"
    return "all right" if scored[0] >= 1 else "all wrong" if scored[0] <= 0 else "all equal"
