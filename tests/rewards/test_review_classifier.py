"""The review's classifier learns, keeps its threshold, and refuses a file that is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from educe.core.errors import EduceError
from educe.rewards.review import (
    Reviewer,
)
from educe.rewards.review.classifier import (
    ClassifierLayer,
    TextClassifier,
    fit_classifier,
    group_folds,
    out_of_fold_scores,
    severity_of,
    threshold_at,
)

# --- the classifier -----------------------------------------------------------------------------


def corpus(num_groups: int = 40, seed: int = 0) -> tuple[list[str], list[int], list[int]]:
    """Texts whose kind shows in a few words; the words of a group are its own."""
    rng = np.random.default_rng(seed)
    texts, labels, groups = [], [], []
    good = ["garden", "kettle", "harbour", "violin", "orchard"]
    bad = ["grumble", "snarl", "sneer", "taunt"]
    for group in range(num_groups):
        own = [f"topic{group}a", f"topic{group}b"]
        for _ in range(4):
            label = int(rng.integers(2))
            words = list(rng.choice(bad if label else good, 3)) + own + ["the", "and", "of"]
            rng.shuffle(words)
            texts.append(" ".join(words))
            labels.append(label)
            groups.append(group)
    return texts, labels, groups


def test_the_classifier_learns_saves_and_gives_the_same_again(tmp_path: Path) -> None:
    texts, labels, groups = corpus()
    fitted = fit_classifier(texts, labels, groups, facts={"data": "made here"})
    again = fit_classifier(texts, labels, groups, facts={"data": "made here"})
    assert np.array_equal(fitted.weights, again.weights) and fitted.bias == again.bias
    new, truth, _ = corpus(10, seed=9)
    flagged = fitted.scores(new) >= fitted.threshold
    assert (flagged == np.array(truth, bool)).mean() > 0.95
    file = tmp_path / "harm.npz"
    fitted.save(file)
    loaded = TextClassifier.load(file)
    assert np.allclose(loaded.scores(new), fitted.scores(new))
    assert loaded.facts["data"] == "made here" and loaded.facts["num_texts"] == len(texts)
    layer = ClassifierLayer(loaded)
    assert Reviewer([layer]).review("snarl sneer taunt").is_unsafe
    assert not Reviewer([layer]).review("violin garden").is_unsafe
    assert Reviewer([layer]).review("   ").severity == 0
    assert severity_of(0.0) == pytest.approx(0.7) and 0 < severity_of(-60) < severity_of(60) <= 1


def test_out_of_fold_scores_cannot_be_learned_from_the_group() -> None:
    """A label that only the group's own words carry is out of reach when folds hold groups."""
    texts = [f"alpha{g} beta{g} gamma" for g in range(30) for _ in range(4)]
    labels = [g % 2 for g in range(30) for _ in range(4)]
    groups = [g for g in range(30) for _ in range(4)]
    scores = out_of_fold_scores(texts, labels, groups)
    y = np.array(labels)
    wins = (scores[y == 1][:, None] > scores[y == 0][None, :]).mean()
    assert wins < 0.75
    folds = group_folds(groups, 5)
    assert all(len(set(folds[np.array(groups) == g])) == 1 for g in range(30))
    assert np.bincount(folds).tolist() == [24] * 5


def test_the_threshold_keeps_its_false_positive_rate() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=1000), [0] * 900 + [1] * 100
    cut = threshold_at(scores, labels, 0.01)
    assert (scores[:900] >= cut).sum() == 9
    assert (scores[:900] >= threshold_at(scores, labels, 0.0)).sum() == 0
    assert (scores >= threshold_at(scores, labels, 1.0)).all()


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    for content in (b"not numbers", b"", b"PK\x03\x04 cut off"):
        file.write_bytes(content)
        with pytest.raises(EduceError, match="not a review classifier"):
            TextClassifier.load(file)
