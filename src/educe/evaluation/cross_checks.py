"""Checks of the measurement: do repeats agree, and is a zero the model's or the extractor's?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.evaluation.records import EvalResult, EvalRow
from educe.evaluation.statistics import Estimate, score_estimate
from educe.evaluation.summary import summarise


@dataclass(frozen=True, slots=True)
class RepeatAgreement:
    """How often repeated evaluations of one model say the same.

    Greedy decoding is not deterministic by itself: batch size and kernels move logits. ``text`` is
    the share of completions whose text is identical in all repeats, ``outcome`` the share whose
    outcome is; ``flips`` lists (domain, index, sample) whose outcome is not.
    """

    text: Estimate
    outcome: Estimate
    flips: tuple[tuple[str, int, int], ...]
    num_repeats: int

    def to_json(self) -> dict[str, JSON]:
        return {
            "text": self.text.to_json(),
            "outcome": self.outcome.to_json(),
            "flips": [list(f) for f in self.flips],
            "num_repeats": self.num_repeats,
        }


def repeat_agreement(results: Sequence[EvalResult], *, level: float = 0.95) -> RepeatAgreement:
    """Compare repeats of the same evaluation, e.g. at batch sizes 1, 8 and 32.

    Raises EduceError for fewer than two results or other tasks in some.
    """
    if len(results) < 2:
        raise EduceError(f"agreement needs at least two repeats, got {len(results)}")
    tables = [{r.key: r for r in result.rows} for result in results]
    keys = sorted(tables[0])
    if not keys or any(sorted(t) != keys for t in tables[1:]):
        raise EduceError("repeats must hold the same tasks and samples")
    same_text, same_outcome, hashes, flips = [], [], [], []
    for key in keys:
        rows = [t[key] for t in tables]
        same_text.append([float(len({_text(r) for r in rows}) == 1)])
        agrees = len({r.outcome for r in rows}) == 1
        same_outcome.append([float(agrees)])
        hashes.append(rows[0].content_hash)
        if not agrees:
            flips.append(key)
    return RepeatAgreement(
        score_estimate(same_text, hashes, level=level),
        score_estimate(same_outcome, hashes, level=level),
        tuple(flips),
        len(results),
    )


def _text(row: EvalRow) -> tuple[tuple[str, str], ...]:
    return tuple((m.role, m.content) for m in row.completion)


def suspicious_zeros(strict: EvalResult, lenient: EvalResult) -> list[str]:
    """Return a line for every domain that scores 0 although a lenient reading finds right answers.

    Whole benchmarks have been zero because an extractor or a template broke; that is no result.
    """
    soft = {d.domain: d for d in summarise(lenient).domains}
    lines = []
    for d in summarise(strict).domains:
        other = soft.get(d.domain)
        if d.score is None or other is None or other.score is None:
            continue
        if d.score.value == 0.0 and other.score.value > 0.0:
            lines.append(
                f"{d.domain}: 0 by the domain's own scorer, {100 * other.score.value:.1f} % by a "
                f"lenient reading of the same completions; check the prompt's format and the "
                f"extractor before believing the zero"
            )
    return lines
