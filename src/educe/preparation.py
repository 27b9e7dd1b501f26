"""What a process of [prefetch] makes: tasks with their prompts' tokens, examples as tokens.

The same functions as in the trainer's process (``domains``, ``models.chat``,
``trainers.rendering``) on the same recipe; a process loads no weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.config.settings import PrefetchSettings, Recipe
from educe.core.types import JSON, Split
from educe.rollout.prefetch import Prefetch

if TYPE_CHECKING:
    from educe.domains.formats import Written
    from educe.models.chat import ChatFormat

_MAKE = "educe.preparation:preparer"


def open_prefetch(
    recipe: Recipe, model_folder: Path, context_length: int, log_path: Path | None
) -> Prefetch | None:
    """Return the processes that a recipe asks for; None when it asks for none."""
    settings: PrefetchSettings = recipe.prefetch
    if not settings.workers:
        return None
    options = {
        "recipe": recipe.model_dump(mode="json"),
        "model_folder": str(model_folder),
        "context_length": context_length,
    }
    return Prefetch(
        _MAKE,
        options,
        num_workers=settings.workers,
        ahead=settings.ahead,
        log_path=log_path,
    )


def preparer(options: JSON) -> Callable[[JSON], JSON]:
    """Return the function that makes orders: ``task``, ``gold`` and ``row``.

    ``{"task": [domain, split, index]}`` gives the task and its prompt's tokens;
    ``{"gold": [domain, index]}`` a demonstration and ``{"row": [set, key]}`` a data set's row, both
    as rendered sequences, None where they do not fit.
    """
    kitchen = _Kitchen(
        Recipe.model_validate(options["recipe"]),
        Path(options["model_folder"]),
        options["context_length"],
    )

    def make(order: JSON) -> JSON:
        ((kind, what),) = order.items()
        made: JSON = getattr(kitchen, kind)(*what)
        return made

    return make


class _Kitchen:
    """Loads what orders need, once."""

    def __init__(self, recipe: Recipe, model_folder: Path, context_length: int) -> None:
        self._recipe = recipe
        self._folder = model_folder
        self._context_length = context_length

    def task(self, name: str, split: str, index: int) -> JSON:
        task = self._domain(name).task(Split(split), index)
        return {"task": task.to_json(), "tokens": self._chat.prompt_tokens(task.messages)}

    def gold(self, name: str, index: int) -> JSON:
        from educe.trainers.feeds import DemonstrationSource

        return self._rendered(DemonstrationSource(self._domain(name)).train(index))

    def row(self, name: str, key: int) -> JSON:
        return self._rendered(self._set(name).at(key))

    def _rendered(self, written: Written | Any) -> JSON:
        from educe.trainers.rendering import fit, render

        settings = self._recipe.sft
        side = fit(
            render(self._chat, written, settings.loss_on), self._context_length, settings.too_long
        )
        if side is None:
            return None
        return [[s.token_ids.tolist(), s.mask.nonzero()[0].tolist()] for s in side]

    @functools.cached_property
    def _chat(self) -> ChatFormat:
        from educe.models.chat import load_chat_format

        model = self._recipe.model
        return load_chat_format(self._folder, model.system_prompt, model.chat_template)

    @functools.cache  # noqa: B019 (as long as the process lives)
    def _domain(self, name: str) -> Any:
        from educe.domains.registry import load_domain

        return load_domain(name, self._settings[name])

    @functools.cached_property
    def _settings(self) -> dict[str, Any]:
        from educe.domains.registry import resolve

        return resolve(self._recipe.domains)

    @functools.cache  # noqa: B019 (as long as the process lives)
    def _set(self, name: str) -> Any:
        from educe.domains.example_sets import ExampleSet

        return ExampleSet(name, self._recipe.sft.data[name], "sft")
