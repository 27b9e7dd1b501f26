"""One arm of a benchmark: train by a recipe with overrides, evaluate, read the run's curves."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from educe.evaluation.records import EvalResult

CURVES = (
    "reward",
    "sampled_tokens",
    "entropy",
    "updates",
    "clip_low",
    "clip_high",
    "update_k3",
    "explained_variance",
    "screen_score",
    "learning_rate",
    "skipped",
    "max_advantage",
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How arms are evaluated: the same held-out tasks, sampled at one temperature."""

    tasks: int
    samples: int
    temperature: float = 1.0


def train_fresh(
    recipe: str,
    out: Path,
    name: str,
    overrides: Sequence[str],
    callbacks: Sequence[Callable[[Any], None]] = (),
) -> dict[str, Any]:
    """Train run OUT/NAME from its beginning; return what its row says of training.

    Arms are short: one that was cut in the middle starts again, so none needs checkpoints.
    """
    from educe.api import train
    from educe.core.errors import EduceError

    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    begin = time.monotonic()
    own = [f'run.out="{out}"', f'run.name="{name}"', *overrides]
    result = train(recipe, own, callbacks=callbacks)
    if result.status != "done":
        raise EduceError(f"arm {name} was stopped; run the command again to do it again")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return {"train_seconds": round(time.monotonic() - begin, 1), **history(folder)}


def train_sft(recipe: str, out: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Train the shared start, run OUT/sft; screen tasks belong to RL."""
    return train_fresh(recipe, out, "sft", [*overrides, "stages=['sft']", "guards.screen_every=0"])


def history(folder: Path) -> dict[str, Any]:
    """Return the last stage's curves (lists over its steps, None where a step has no value),
    its totals and what its guards said."""
    from educe.observability.run_reader import RunReader

    run = RunReader(folder)
    rows = run.metrics()
    stage = rows[-1].stage if rows else ""
    steps = [r.values for r in rows if r.stage == stage]
    curves = {name: [_known(v.get(f"{stage}/{name}")) for v in steps] for name in CURVES}
    kept = {n: c for n, c in curves.items() if any(x is not None for x in c)}
    events = {
        kind: [dict(e.payload) for e in run.events(kind)]
        for kind in ("alarm", "rollback", "back_off", "screen")
    }
    return {
        "steps": len(steps),
        "tokens": int(max((x or 0 for x in kept.get("sampled_tokens", [])), default=0)),
        "updates": int(sum(x or 0 for x in kept.get("updates", []))),
        "curves": kept,
        "alarms": sorted({str(e.get("kind")) for e in events["alarm"]}),
        "rollbacks": [
            {k: e.get(k) for k in ("step", "kind", "cause", "to", "rate_scale", "given_up")}
            for e in events["rollback"]
        ],
        "back_offs": len(events["back_off"]),
        "screens": [[e["step"], _known(e["score"])] for e in events["screen"]],
    }


def _known(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 6)


def evaluate(
    recipe: str, overrides: Sequence[str], model: Path | str, plan: Evaluation, out: Path, name: str
) -> dict[str, Any]:
    """Evaluate a model on held-out tasks into OUT/NAME.jsonl; return seconds and mean scores."""
    from educe.api import as_loaded, open_session
    from educe.evaluation.sessions import EvalPlan, run_eval
    from educe.evaluation.summary import summarise

    begin = time.monotonic()
    for left in out.glob(f"{name}.json*"):  # of an arm that was cut, and of other weights
        left.unlink()
    with open_session(str(model), as_loaded(recipe, overrides)) as session:
        session.label = name
        asked = EvalPlan(plan.tasks, plan.samples, plan.temperature)
        result = run_eval(session, asked, out=out, name=name)
    own = {
        d.domain: round(d.score.value, 5) for d in summarise(result).domains if d.score is not None
    }
    return {
        "eval_seconds": round(time.monotonic() - begin, 1),
        "score": round(fmean(own.values()), 5),
        "domains": own,
    }


def load_evaluation(out: Path, name: str) -> EvalResult:
    """Return the rows that :func:`evaluate` left."""
    from educe.evaluation.saved import load_saved

    return load_saved(out / f"{name}.json")


def forget_weights(folder: Path) -> None:
    """Delete an arm's model (half a gigabyte); its rows and metrics stay."""
    shutil.rmtree(folder / "models", ignore_errors=True)
