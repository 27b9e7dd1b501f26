"""The preference losses by name: formula, published defaults, what each needs. Torch-free.

The losses themselves are in ``losses.preference``. Letters: h is the log-ratio of policy to
reference, c and r the chosen and the rejected completion, mean the mean over a completion's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from educe.core.errors import RecipeError, did_you_mean


@dataclass(frozen=True, slots=True)
class Preference:
    """A resolved preference loss.

    Attributes:
        beta: strength; 0 where the loss has none (ORPO).
        needs_reference: whether log-ratios to the reference enter.
        is_paired: False: single completions with a label (KTO).
        takes: optional settings that mean something for it.
        sft_weight: adds this times the mean negative log-probability of what is preferred.
    """

    name: str
    text: str
    paper: str
    beta: float = 0.0
    needs_reference: bool = True
    is_paired: bool = True
    takes: tuple[str, ...] = ()
    label_smoothing: float = 0.0
    margin: float = 0.0
    odds_weight: float = 0.0
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    sft_weight: float = 0.0

    def formula(self) -> str:
        """Return the resolved objective as one line of text."""
        body = self.text.format(
            beta=_shown(self.beta),
            target=_shown(1.0 / (2.0 * self.beta)) if self.beta else "",
            margin=_shown(self.margin),
            odds_weight=_shown(self.odds_weight),
            wanted=_shown(self.desirable_weight),
            unwanted=_shown(self.undesirable_weight),
        )
        if self.label_smoothing:
            body = f"{_shown(1 - self.label_smoothing)} * ({body}), the rest with c and r swapped"
        sft = f" - {_shown(self.sft_weight)} * mean log p(c)" if self.sft_weight else ""
        unit = "pairs" if self.is_paired else "examples"
        return f"loss = mean over {unit}[ {body}{sft} ]"


PREFERENCES: dict[str, Preference] = {
    p.name: p
    for p in (
        Preference(
            "dpo",
            "-log sigmoid({beta} (h(c) - h(r)))",
            "Rafailov et al. 2023, arXiv 2305.18290",
            beta=0.1,
            takes=("beta", "label_smoothing"),
        ),
        Preference(
            "ipo",
            "(h(c) - h(r) - {target})^2",
            "Azar et al. 2023, arXiv 2310.12036 (sums over tokens)",
            beta=0.1,
            takes=("beta",),
        ),
        Preference(
            "ipo_mean",
            "(mean h(c) - mean h(r) - {target})^2",
            "Azar et al. 2023, arXiv 2310.12036, with means over tokens (as its authors' runs)",
            beta=0.1,
            takes=("beta",),
        ),
        Preference(
            "kto",
            "{wanted} (1 - sigmoid({beta} (h - z))) where wanted, "
            "{unwanted} (1 - sigmoid({beta} (z - h))) where not; "
            "z = max(0, mean h of completions under other prompts)",
            "Ethayarajh et al. 2024, arXiv 2402.01306",
            beta=0.1,
            is_paired=False,
            takes=("beta", "desirable_weight", "undesirable_weight"),
        ),
        Preference(
            "orpo",
            "-mean log p(c) - {odds_weight} log sigmoid(log odds(c) - log odds(r))",
            "Hong et al. 2024, arXiv 2403.07691",
            needs_reference=False,
            odds_weight=0.1,
            takes=("odds_weight",),
        ),
        Preference(
            "simpo",
            "-log sigmoid({beta} (mean log p(c) - mean log p(r)) - {margin})",
            "Meng et al. 2024, arXiv 2405.14734",
            beta=2.0,
            needs_reference=False,
            margin=1.0,
            takes=("beta", "margin"),
        ),
    )
}

_OPTIONAL = {
    "beta": None,
    "label_smoothing": 0.0,
    "margin": None,
    "odds_weight": None,
    "desirable_weight": 1.0,
    "undesirable_weight": 1.0,
}
"""Settings that only some losses take, with the value that means 'not given'."""


def resolve_preference(name: str, given: Mapping[str, float | None]) -> Preference:
    """Return the named loss with the given settings in place of its published ones.

    Raises:
        RecipeError: an unknown name, or a setting that the loss does not have.
    """
    if name not in PREFERENCES:
        raise RecipeError(
            f"preference.loss must be one of {', '.join(sorted(PREFERENCES))}; got {name!r}."
            + did_you_mean(name, PREFERENCES)
        )
    found = PREFERENCES[name]
    changed: dict[str, Any] = {
        k: v for k, v in given.items() if v is not None and v != _OPTIONAL.get(k)
    }
    for key in changed:
        if key in _OPTIONAL and key not in found.takes:
            takers = [p.name for p in PREFERENCES.values() if key in p.takes]
            raise RecipeError(
                f"preference.{key} does nothing in {name}; it belongs to {', '.join(takers)}. "
                f"Remove it, or choose another preference.loss."
            )
    return replace(found, **changed)


def _shown(value: float) -> str:
    return f"{value:.12g}"
