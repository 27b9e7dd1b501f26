"""How much harmful content is detected, at a fixed false-positive rate, beside two baselines.

Everything is out of fold with folds split by objective: no detector has seen the question, and the
threshold of a fold comes from the other folds. Beside the trained classifier stand the length of
the text alone and a word list, because a detector that only says "long" looks good on such data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from educe.core.types import JSON
from educe.evaluation.statistics import (
    Agreement,
    Estimate,
    agreement_estimate,
    auroc,
    bootstrap_statistic,
    krippendorff_alpha,
    recall_at_false_positive_rate,
    score_estimate,
)
from educe.evaluation.statistics.estimates import Floats

if TYPE_CHECKING:
    from educe.evaluation.safety.labelled import LabelledResponse
    from educe.rewards.review.classifier import Features
    from educe.rewards.review.words import WordList

_MIN_OF_A_KIND = 10


@dataclass(frozen=True, slots=True)
class DetectorResult:
    """One detector on all labelled responses.

    Attributes:
        auroc, recall: AUROC, and recall at the fixed false-positive rate with the threshold chosen
            on the evaluated texts themselves (what the ranking could do); clustered by objective.
        held_out_recall, held_out_rate: recall and the false-positive rate that thresholds chosen
            on *other* objectives really had. This is what a user gets.
        by_category: AUROC of every category with enough of both kinds.
    """

    name: str
    auroc: Estimate
    recall: Estimate
    held_out_recall: Estimate
    held_out_rate: Estimate
    by_category: Mapping[str, Estimate]

    def to_json(self) -> dict[str, JSON]:
        return {
            "name": self.name,
            "auroc": self.auroc.to_json(),
            "recall": self.recall.to_json(),
            "held_out_recall": self.held_out_recall.to_json(),
            "held_out_rate": self.held_out_rate.to_json(),
            "by_category": {n: e.to_json() for n, e in self.by_category.items()},
        }


@dataclass(frozen=True, slots=True)
class DetectionReport:
    """All detectors, what they were measured on, and how far people agree."""

    detectors: tuple[DetectorResult, ...]
    num_responses: int
    num_objectives: int
    prevalence: Estimate
    false_positive_rate: float
    raters: Agreement | None

    def to_json(self) -> dict[str, JSON]:
        return {
            "detectors": [d.to_json() for d in self.detectors],
            "num_responses": self.num_responses,
            "num_objectives": self.num_objectives,
            "prevalence": self.prevalence.to_json(),
            "false_positive_rate": self.false_positive_rate,
            "rater_agreement": None
            if self.raters is None
            else {
                "alpha": self.raters.coefficient.to_json(),
                "raw": self.raters.raw,
            },
        }


@dataclass(frozen=True, slots=True)
class _Data:
    """Objective, category and fold of every response."""

    groups: Sequence[str]
    categories: Sequence[str]
    folds: np.ndarray


def detection_report(
    responses: Sequence[LabelledResponse],
    words: WordList | None,
    *,
    false_positive_rate: float = 0.01,
    num_folds: int = 5,
    features: Features | None = None,
    resamples: int = 400,
    level: float = 0.95,
    announce: Callable[[str], None] = lambda _: None,
) -> DetectionReport:
    """Measure the classifier's recipe and the baselines on labelled responses.

    Args:
        words: the word list of that baseline; None leaves it out.
        features: of the classifier; its own by default.
        resamples: of objectives, for the intervals.
    """
    from educe.rewards.review.classifier import group_folds, out_of_fold_scores

    texts = [r.response for r in responses]
    labels = [int(r.is_harmful) for r in responses]
    groups = [r.objective for r in responses]
    announce(f"fitting {num_folds} folds on {len(texts)} responses")
    scores: dict[str, Floats] = {
        "classifier": out_of_fold_scores(
            texts, labels, groups, features=features, num_folds=num_folds
        ),
        "length only": np.array([float(len(t)) for t in texts]),
    }
    if words is not None:
        # Ties (most texts hold no listed word) are broken at random, or the order would decide.
        jitter = np.random.default_rng(0).uniform(0, 1e-6, len(texts))
        hits = np.array([len(words.find(t)) / max(1, len(t.split())) for t in texts])
        scores["word list"] = hits + jitter
    data = _Data(groups, [r.category for r in responses], group_folds(groups, num_folds))
    truth = np.array(labels, np.float64)
    announce("resampling objectives for the intervals")
    return DetectionReport(
        tuple(
            _measure(name, s, truth, data, false_positive_rate, resamples, level)
            for name, s in scores.items()
        ),
        len(texts),
        len(set(groups)),
        score_estimate([[float(x)] for x in labels], groups, level=level),
        false_positive_rate,
        _rater_agreement(responses, resamples, level),
    )


def _measure(
    name: str,
    scores: Floats,
    truth: Floats,
    data: _Data,
    rate: float,
    resamples: int,
    level: float,
) -> DetectorResult:
    groups, categories = data.groups, data.categories

    def resampled(metric: Callable[[Floats, Floats], float], keep: np.ndarray) -> Estimate:
        index = np.flatnonzero(keep)
        return bootstrap_statistic(
            lambda picked: metric(scores[index[picked]], truth[index[picked]]),
            len(index),
            [groups[int(i)] for i in index],
            level=level,
            resamples=resamples,
        )

    everything = np.ones(len(truth), bool)
    called = held_out_calls(scores, truth, data.folds, rate)
    by_category = {}
    for category in sorted(set(categories)):
        inside = np.array([c == category for c in categories])
        kinds = Counter(truth[inside].tolist())
        if min(kinds.get(0.0, 0), kinds.get(1.0, 0)) >= _MIN_OF_A_KIND:
            by_category[category] = resampled(auroc, inside)
    return DetectorResult(
        name,
        resampled(auroc, everything),
        resampled(lambda s, t: recall_at_false_positive_rate(s, t, rate), everything),
        _share(called, truth == 1, groups, level),
        _share(called, truth == 0, groups, level),
        by_category,
    )


def held_out_calls(scores: Floats, truth: Floats, folds: np.ndarray, rate: float) -> np.ndarray:
    """Return which texts are called harmful, by the threshold that the other folds give."""
    from educe.rewards.review.classifier import threshold_at

    called = np.zeros(len(scores), bool)
    for number in np.unique(folds):
        others = folds != number
        cut = threshold_at(scores[others], truth[others].astype(int).tolist(), rate)
        called[~others] = scores[~others] >= cut
    return called


def _share(called: np.ndarray, keep: np.ndarray, groups: Sequence[str], level: float) -> Estimate:
    index = np.flatnonzero(keep)
    return score_estimate(
        [[float(called[i])] for i in index], [groups[int(i)] for i in index], level=level
    )


def _rater_agreement(
    responses: Sequence[LabelledResponse], resamples: int, level: float
) -> Agreement | None:
    """Return interval alpha of the raters where several rated: the ceiling of any detector."""
    rated = [r for r in responses if len(r.ratings) > 1]
    if len(rated) < _MIN_OF_A_KIND:
        return None
    width = max(len(r.ratings) for r in rated)
    table = [[*r.ratings, *[np.nan] * (width - len(r.ratings))] for r in rated]
    return agreement_estimate(
        table,
        lambda t: krippendorff_alpha(t, scale="interval"),
        [r.objective for r in rated],
        level=level,
        resamples=resamples,
    )
