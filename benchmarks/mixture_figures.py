"""The figures of the mixture's simulation: arms beside uniform shares, with intervals, as a page.

Shapes: W worlds, D domains.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from educe.core.seeds import numpy_random

Floats = NDArray[np.float64]

FORGOTTEN = 0.05


@dataclass(slots=True)
class Outcome:
    """Per world (W,): gain of the mean score, worst tenth, share forgotten; at one budget."""

    gain: Floats
    worst: Floats
    forgotten: Floats

    @staticmethod
    def of(start: Floats, end: Floats) -> Outcome:
        worst = np.empty(len(end))
        for row, scores in enumerate(end):
            real = np.sort(scores[~np.isnan(scores)])
            worst[row] = real[: max(1, len(real) // 10)].mean()
        return Outcome(
            gain=np.nanmean(end - start, axis=1),
            worst=worst,
            forgotten=np.nansum(end < start - FORGOTTEN, axis=1) / np.sum(~np.isnan(end), axis=1),
        )


def gather(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        *(np.concatenate([getattr(o, f.name) for o in outcomes]) for f in fields(Outcome))
    )


def interval(values: Floats, statistic: Callable[[Floats], Any], seed: int = 0) -> list[float]:
    """Return a 95 % bootstrap interval over worlds (first axis)."""
    rng = numpy_random("bootstrap", seed)
    draws = [statistic(values[rng.integers(0, len(values), len(values))]) for _ in range(2000)]
    return [round(float(x), 4) for x in np.quantile(draws, [0.025, 0.975])]


def compare(arm: Outcome, uniform: Outcome, kinds: NDArray[np.str_]) -> dict[str, Any]:
    """Return the figures of an arm beside the uniform one."""
    pairs = np.stack([arm.gain, uniform.gain], axis=1)
    is_alike = kinds == "alike"
    told: dict[str, Any] = {
        "gain": round(float(arm.gain.mean()), 4),
        "gain_ratio": [round(_ratio(pairs), 3), *interval(pairs, _ratio)],
        "better": _mean((arm.gain > uniform.gain).astype(float)),
        "worst_tenth": _mean(arm.worst),
        "worst_tenth_change": _mean(arm.worst - uniform.worst),
        "worst_tenth_kept": _mean((arm.worst >= uniform.worst - 0.01).astype(float)),
        "forgotten": _mean(arm.forgotten),
        "forgotten_change": _mean(arm.forgotten - uniform.forgotten),
        "by_kind": {
            str(k): round(_ratio(pairs[kinds == k]), 3) for k in sorted(set(kinds.tolist()))
        },
    }
    if not is_alike.all():
        told["better_but_alike"] = round(float((arm.gain > uniform.gain)[~is_alike].mean()), 3)
    if is_alike.any():
        low, high = interval(pairs[is_alike], _ratio)
        told["alike_loss"] = [
            round(1.0 - _ratio(pairs[is_alike]), 4), round(1.0 - high, 4), round(1.0 - low, 4),
        ]  # fmt: skip
    return told


def _ratio(pairs: Floats) -> float:
    return float(pairs[:, 0].sum() / pairs[:, 1].sum())


def _mean(values: Floats) -> list[float]:
    """Return the mean with its interval."""
    return [round(float(values.mean()), 4), *interval(values, np.mean)]


def summarise(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all arms over the worlds of some parts, beside the uniform one.

    Parts may hold different arms of the same worlds.
    """
    parts = sorted(parts, key=lambda p: p["numbers"][0])
    keys = list(dict.fromkeys(key for p in parts for key in p["outcomes"]))
    holding = {key: [p for p in parts if key in p["outcomes"]] for key in keys}
    whole = holding[next(key for key in keys if key.endswith("/uniform"))]
    kinds = np.concatenate([np.array(p["kinds"]) for p in whole])
    numbers = [n for p in whole for n in p["numbers"]]
    for key, own in holding.items():
        if [n for p in own for n in p["numbers"]] != numbers:
            sys.exit(f"{key} was run in other worlds than the uniform arm")
    told: dict[str, Any] = {
        "split": parts[0]["split"],
        "worlds": len(numbers),
        "first": numbers[0],
        "last": numbers[-1],
    }
    outcomes = {
        key: gather(
            [Outcome(**{k: np.array(v) for k, v in p["outcomes"][key].items()}) for p in own]
        )
        for key, own in holding.items()
    }
    for key, outcome in outcomes.items():
        unit, _, name = key.partition("/")
        told[key] = compare(outcome, outcomes[f"{unit}/uniform"], kinds)
        best = outcomes.get(f"{unit}/best_static")
        if best is not None:
            pairs = np.stack([outcome.gain, best.gain], axis=1)
            told[key]["of_best_static"] = [round(_ratio(pairs), 3), *interval(pairs, _ratio)]
        print(f"{unit:<8} {name:<18} {json.dumps(told[key])}", flush=True)
    for name in dict.fromkeys(name for p in parts for name in p["seconds"]):
        seconds = sum(p["seconds"].get(name, 0.0) for p in parts)
        told[f"runs a minute/{name}"] = round(60 * len(numbers) / max(seconds, 1e-9))
    return told


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "gain over uniform's": lambda a: _told(a["gain_ratio"], "{:.2f}"),
    "gains more, % of worlds": lambda a: _told(a["better"], "{:.1%}"),
    "worst tenth kept within 1 point, % of worlds": lambda a: _told(
        a["worst_tenth_kept"], "{:.1%}"
    ),
    "its mean change, points": lambda a: _told(a["worst_tenth_change"], "{:+.1f}", 100.0),
    "forgotten more than uniform, points": lambda a: _told(a["forgotten_change"], "{:+.1f}", 100.0),
}


def page_of(told: dict[str, Any]) -> str:
    """Return the figures of all arms as a section in Markdown."""
    lines = [
        f"Worlds {told['first']} to {told['last']} of `{told['split']}` ({told['worlds']} worlds); "
        f"written by the benchmark. {_words_of(told)}",
        "",
        f"| budget | arm | {' | '.join(_COLUMNS)} | gain over the best static's |",
        "|---|---|---|" + "---|" * len(_COLUMNS),
    ]
    for key, arm in told.items():
        unit, _, name = key.partition("/")
        if name and name != "uniform" and isinstance(arm, dict):
            cells = " | ".join(column(arm) for column in _COLUMNS.values())
            best = arm.get("of_best_static")
            cells += f" | {_told(best, '{:.2f}')}" if best else " | –"
            lines.append(f"| {unit} | {name} | {cells} |")
    return "\n".join(lines)


_WORDS = {
    "uniform_again": "`uniform_again`: uniform shares with other luck, what noise alone does.",
    "best_static": "`best_static`: the best of some forty tables, found in each world by its own "
    "true final scores.",
}


def _words_of(told: dict[str, Any]) -> str:
    return " ".join(w for arm, w in _WORDS.items() if any(k.endswith(f"/{arm}") for k in told))


def _told(values: Sequence[float], form: str, scale: float = 1.0) -> str:
    value, low, high = (form.format(scale * v) for v in values)
    return f"{value} [{low}, {high}]".replace("%", "")
