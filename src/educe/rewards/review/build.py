"""A reviewer from the recipe's ``[review]`` section."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from educe.config.settings import ReviewSettings
from educe.core.errors import EduceError
from educe.rewards.review.classifier import ClassifierLayer, TextClassifier
from educe.rewards.review.code import CodeLayer
from educe.rewards.review.findings import Layer, Reviewer
from educe.rewards.review.injection import InjectionLayer
from educe.rewards.review.judge import AskModel, JudgeLayer
from educe.rewards.review.rules import RuleLayer
from educe.rewards.review.words import WordLayer, WordList


def build_reviewer(settings: ReviewSettings, *, ask: AskModel | None = None) -> Reviewer:
    """Return the reviewer that the settings describe.

    Args:
        ask: the judge model, needed by the layer ``judge``.

    Raises:
        EduceError: a layer without what it needs, or a file that cannot be read.
    """
    makers: dict[str, Callable[[], Layer]] = {
        "rules": RuleLayer,
        "injection": InjectionLayer,
        "code": CodeLayer,
        "words": lambda: WordLayer(WordList.from_file(_file(settings.words, "words"))),
        "classifier": lambda: ClassifierLayer(
            TextClassifier.load(_file(settings.classifier, "classifier"))
        ),
    }
    layers: list[Layer] = [makers[name]() for name in settings.layers if name != "judge"]
    if "judge" in settings.layers:
        if ask is None:
            raise EduceError(
                "review.layers names 'judge', but there is no judge model here; leave it out of "
                "training rollouts, or build the reviewer with one"
            )
        layers.append(JudgeLayer(ask))
    return Reviewer(layers, block_at=settings.block_at, ask_all=settings.mode == "observe")


def _file(text: str, layer: str) -> Path:
    if not text:
        raise EduceError(
            f"review.layers names {layer!r}, which needs review.{layer} = a file; "
            f"docs/safety.md tells how to make one"
        )
    path = Path(text)
    if not path.is_file():
        raise EduceError(f"review.{layer}: there is no file {path.absolute()}")
    return path
