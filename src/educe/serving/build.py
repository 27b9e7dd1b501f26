"""From a loaded model to an application: the few lines between ``load`` and ``build_app``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from educe.core.errors import EduceError
from educe.serving.app import build_app
from educe.serving.engine_thread import EngineThread
from educe.serving.gatekeeper import check_token
from educe.serving.metrics import ServeMetrics
from educe.serving.replies import Desk, ServedModel
from educe.serving.review_gate import ReviewGate
from educe.serving.token_text import TokenTexts

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from educe.models.chat import ChatFormat
    from educe.models.load import LoadedModel


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How a model is served.

    Attributes:
        name: the model's id for clients; ``aliases`` are taken for it.
        max_rows: completions decoded at once; ``max_waiting`` more may wait, then clients get 429.
        exact: the same request with a seed gives the same text whatever else runs (fp32, slower).
        context_length: 0 takes the model's.
        identity: what the fingerprint is made of, besides the template and the mode.
        token: see ``gatekeeper``.
    """

    name: str
    aliases: tuple[str, ...] = ()
    max_rows: int = 32
    max_waiting: int = 256
    exact: bool = False
    context_length: int = 0
    identity: str = ""
    token: str = ""


def serve_model(
    model: LoadedModel,
    chat: ChatFormat,
    settings: ServeSettings,
    *,
    gate: ReviewGate | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> ASGIApp:
    """Return an application that serves a loaded model; it owns the model's engine.

    Args:
        gate: reviews every answer before it leaves.
        prepare: called first in the engine's thread.

    Raises:
        EduceError: a context longer than the model's, or no row.
    """
    from educe.engines.embedded import EmbeddedEngine

    limit = model.context_length
    wanted = settings.context_length or limit
    if not 1 < wanted <= limit:
        raise EduceError(f"the context must be from 2 to the model's {limit} tokens, got {wanted}")
    if settings.max_rows < 1 or settings.max_waiting < 0:
        raise EduceError(
            f"at least one row and no negative queue, got {settings.max_rows} and "
            f"{settings.max_waiting}"
        )
    if settings.token:
        check_token("", settings.token)
    engine = EmbeddedEngine(
        model,
        stop_token_ids=chat.stop_token_ids,
        decode=chat.decode,
        max_rows=settings.max_rows,
        exact=settings.exact,
    )
    metrics = ServeMetrics()
    thread = EngineThread(
        engine,
        max_rows=settings.max_rows,
        max_waiting=settings.max_waiting,
        metrics=metrics,
        prepare=prepare,
    )
    mode = "exact" if settings.exact else "fast"
    told = repr((settings.identity, chat.template, chat.system_prompt, mode))
    served = ServedModel(
        settings.name,
        chat,
        wanted,
        fingerprint=f"educe-{hashlib.blake2b(told.encode(), digest_size=6).hexdigest()}",
        aliases=settings.aliases,
    )
    desk = Desk(served, thread, TokenTexts(chat.tokenizer), metrics, gate)
    return build_app(desk, token=settings.token)
