"""A small trained classifier of harmful text: words and character pieces, one linear layer.

Weights of hashed word 1-2-grams and character 3-5-grams (TF-IDF, each block of length one), fitted
by logistic regression with L-BFGS in float64: the same data give the same file. The threshold is
chosen on out-of-fold scores, folds split by group (the objective, the prompt), never on the data
that the weights were fitted to. Nothing is pickled: a file is numbers and JSON.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from educe.core.errors import EduceError, UnscoredError
from educe.core.seeds import derive
from educe.core.types import JSON, Message
from educe.rewards.review.findings import ReviewFinding
from educe.rewards.review.folding import fold

FORMAT_VERSION = 1
_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_MAX_CHARACTERS = 20_000
BLOCK_SEVERITY = 0.7
"""Severity of a text at the threshold: what ``Reviewer.block_at`` is by default."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Features:
    """How a text becomes numbers: ``2 ** bits`` hashed pieces, half of them words."""

    bits: int = 18
    words: tuple[int, int] = (1, 2)
    characters: tuple[int, int] = (3, 5)

    def counts(self, text: str) -> tuple[Counter[int], Counter[int]]:
        """Return (word pieces, character pieces) by their place in the weights."""
        half = 2 ** (self.bits - 1)
        tokens = _WORD.findall(fold(text[:_MAX_CHARACTERS]).text)
        words: Counter[int] = Counter()
        for size in range(self.words[0], self.words[1] + 1):
            for i in range(len(tokens) - size + 1):
                words[zlib.crc32(" ".join(tokens[i : i + size]).encode()) % half] += 1
        pieces: Counter[int] = Counter()
        for token, times in Counter(tokens).items():
            padded = f" {token} "
            for size in range(self.characters[0], self.characters[1] + 1):
                for i in range(len(padded) - size + 1):
                    pieces[half + zlib.crc32(padded[i : i + size].encode()) % half] += times
        return words, pieces


@dataclass(frozen=True, slots=True)
class TextClassifier:
    """A fitted classifier.

    Attributes:
        weights, idf: of ``2 ** features.bits`` places.
        bias: of the linear layer.
        threshold: score from which a text is called harmful.
        facts: what it was trained on, its licence, and what was measured out of fold.
    """

    features: Features
    weights: NDArray[np.float32]
    idf: NDArray[np.float32]
    bias: float
    threshold: float
    facts: Mapping[str, JSON]

    def scores(self, texts: Sequence[str]) -> Floats:
        """Return log-odds of harm, one a text."""
        matrix = tfidf([self.features.counts(t) for t in texts], self.idf.astype(np.float64))
        return np.asarray(matrix @ self.weights.astype(np.float64) + self.bias)

    def save(self, path: Path) -> None:
        """Write one ``.npz`` file: the non-zero weights and the facts."""
        places = np.flatnonzero(self.weights).astype(np.int32)
        meta = {
            "format_version": FORMAT_VERSION,
            "bits": self.features.bits,
            "words": list(self.features.words),
            "characters": list(self.features.characters),
            "bias": self.bias,
            "threshold": self.threshold,
            "facts": dict(self.facts),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.savez_compressed(
                file,
                places=places,
                weights=self.weights[places],
                idf=self.idf.astype(np.float32),
                meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8),
            )

    @staticmethod
    def load(path: Path) -> TextClassifier:
        """Read what ``save`` wrote; raises EduceError for anything else."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                meta: dict[str, Any] = json.loads(data["meta"].tobytes())
                places, values, idf = data["places"], data["weights"], data["idf"]
        except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
            raise EduceError(
                f"{path} is not a review classifier ({error}); train one with "
                f"`educe safety train --out FILE`"
            ) from error
        if meta["format_version"] != FORMAT_VERSION:
            raise EduceError(
                f"{path}: format {meta['format_version']}, this version reads {FORMAT_VERSION}"
            )
        features = Features(meta["bits"], tuple(meta["words"]), tuple(meta["characters"]))
        weights = np.zeros(2**features.bits, np.float32)
        weights[places] = values
        return TextClassifier(
            features, weights, idf, meta["bias"], meta["threshold"], meta["facts"]
        )


def tfidf(counted: Sequence[tuple[Counter[int], Counter[int]]], idf: Floats) -> Any:
    """Return a sparse matrix, one row a text: (1 + log tf) idf, each block of length one."""
    from scipy.sparse import csr_matrix

    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for number, blocks in enumerate(counted):
        for block in blocks:
            places = np.fromiter(block.keys(), np.int64, len(block))
            weights = (1 + np.log(np.fromiter(block.values(), np.float64, len(block)))) * idf[
                places
            ]
            length = float(np.sqrt(np.square(weights).sum()))
            if length > 0:
                rows += [number] * len(places)
                columns += places.tolist()
                values += (weights / length).tolist()
    return csr_matrix((values, (rows, columns)), shape=(len(counted), len(idf)))


def _idf(counted: Sequence[tuple[Counter[int], Counter[int]]], size: int) -> Floats:
    seen = np.zeros(size)
    for blocks in counted:
        for block in blocks:
            seen[np.fromiter(block.keys(), np.int64, len(block))] += 1
    return np.asarray(np.log((1 + len(counted)) / (1 + seen)) + 1)


def fit_linear(matrix: Any, labels: Floats, *, strength: float) -> tuple[Floats, float]:
    """Return (weights, bias) that minimise strength · Σ log-loss + ½ ‖w‖², classes balanced.

    Raises ValueError where only one class is there.
    """
    from scipy.optimize import minimize

    positives = float(labels.sum())
    if not 0 < positives < len(labels):
        raise ValueError("a classifier needs texts of both kinds")
    negatives = len(labels) - positives
    cost = len(labels) / 2 / np.where(labels == 1, positives, negatives)
    signs = np.where(labels == 1, 1.0, -1.0)
    # Most hashed places are never touched; their weights are 0 at the minimum.
    used = np.unique(matrix.indices)
    small = matrix[:, used]
    transposed = small.T.tocsr()

    def objective(theta: Floats) -> tuple[float, Floats]:
        margin = signs * (small @ theta[:-1] + theta[-1])
        loss = strength * float((cost * np.logaddexp(0, -margin)).sum())
        pull = -strength * cost * signs / (1 + np.exp(np.clip(margin, -500, 500)))
        gradient = np.append(transposed @ pull + theta[:-1], pull.sum())
        return loss + 0.5 * float(theta[:-1] @ theta[:-1]), gradient

    start = np.zeros(len(used) + 1)
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    weights = np.zeros(matrix.shape[1])
    weights[used] = found.x[:-1]
    return weights, float(found.x[-1])


def group_folds(groups: Sequence[Hashable], num_folds: int, seed: int = 0) -> NDArray[np.intp]:
    """Return the fold of every item: whole groups, dealt largest first to the emptiest fold."""
    sizes = Counter(groups)
    order = sorted(sizes, key=lambda g: (-sizes[g], derive("fold", seed, g)))
    load = [0] * num_folds
    fold_of: dict[Hashable, int] = {}
    for group in order:
        fold_of[group] = load.index(min(load))
        load[fold_of[group]] += sizes[group]
    return np.array([fold_of[g] for g in groups], dtype=np.intp)


def out_of_fold_scores(
    texts: Sequence[str],
    labels: Sequence[int],
    groups: Sequence[Hashable],
    *,
    features: Features | None = None,
    strength: float = 4.0,
    num_folds: int = 5,
    seed: int = 0,
) -> Floats:
    """Return a score for every text from weights fitted without any text of its group."""
    features = features or Features()
    counted = [features.counts(t) for t in texts]
    target = np.asarray(labels, np.float64)
    folds = group_folds(groups, num_folds, seed)
    scores = np.zeros(len(texts))
    for number in range(num_folds):
        inside, outside = np.flatnonzero(folds != number), np.flatnonzero(folds == number)
        if not len(outside):
            continue
        train = [counted[i] for i in inside]
        idf = _idf(train, 2**features.bits)
        weights, bias = fit_linear(tfidf(train, idf), target[inside], strength=strength)
        scores[outside] = tfidf([counted[i] for i in outside], idf) @ weights + bias
    return scores


def threshold_at(scores: Floats, labels: Sequence[int], false_positive_rate: float) -> float:
    """Return the lowest threshold that calls at most this share of the harmless texts harmful."""
    negatives = np.sort(scores[np.asarray(labels) != 1])[::-1]
    allowed = int(np.floor(false_positive_rate * len(negatives) + 1e-9))
    if allowed >= len(negatives):
        return float(scores.min())
    return float(np.nextafter(negatives[allowed], np.inf))


def fit_classifier(
    texts: Sequence[str],
    labels: Sequence[int],
    groups: Sequence[Hashable],
    *,
    false_positive_rate: float = 0.01,
    features: Features | None = None,
    strength: float = 4.0,
    num_folds: int = 5,
    facts: Mapping[str, JSON] | None = None,
) -> TextClassifier:
    """Fit on all texts, with the threshold of their out-of-fold scores.

    Args:
        labels: 1 for harmful.
        groups: texts of one group (prompt, objective) share a fold.
        false_positive_rate: share of harmless texts that may be called harmful.
    """
    features = features or Features()
    held_out = out_of_fold_scores(
        texts, labels, groups, features=features, strength=strength, num_folds=num_folds
    )
    counted = [features.counts(t) for t in texts]
    idf = _idf(counted, 2**features.bits)
    weights, bias = fit_linear(
        tfidf(counted, idf), np.asarray(labels, np.float64), strength=strength
    )
    # Places that no text touched keep a weight of exactly 0 and are not stored.
    return TextClassifier(
        features,
        weights.astype(np.float32),
        idf.astype(np.float32),
        bias,
        threshold_at(held_out, labels, false_positive_rate),
        {**(facts or {}), "num_texts": len(texts), "num_harmful": int(sum(labels))},
    )


class ClassifierLayer:
    """One finding about the whole text: its score, scaled so that the threshold is 0.7."""

    name = "classifier"

    def __init__(self, classifier: TextClassifier) -> None:
        self.classifier = classifier

    def inspect(self, text: str, prompt: Sequence[Message]) -> Sequence[ReviewFinding]:
        if not text.strip():
            return []
        score = float(self.classifier.scores([text])[0])
        if not np.isfinite(score):
            raise UnscoredError(f"the review classifier gave {score}")
        severity = severity_of(score - self.classifier.threshold)
        return [ReviewFinding(self.name, "harmful", severity, detail=f"log-odds {score:+.2f}")]


def severity_of(margin: float) -> float:
    """Return a severity that grows with the margin and is 0.7 at the threshold."""
    odds = BLOCK_SEVERITY / (1 - BLOCK_SEVERITY) * float(np.exp(np.clip(margin, -50, 50)))
    return odds / (1 + odds)
