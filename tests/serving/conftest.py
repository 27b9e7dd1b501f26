"""The seeded tiny model behind a real server, once for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from served_client import Client

from educe.models.chat import ChatFormat
from educe.models.load import LoadedModel, chat_format, load
from educe.serving.build import ServeSettings, serve_model
from educe.serving.server import background_server


@dataclass(frozen=True)
class Served:
    client: Client
    model: LoadedModel
    chat: ChatFormat


@pytest.fixture(scope="session")
def served(tiny_folder: Path) -> Iterator[Served]:
    """In exact mode, so that what else runs changes no text."""
    model = load(str(tiny_folder))
    chat = chat_format(model)
    settings = ServeSettings("tiny", aliases=("tiny-alias",), max_rows=6, exact=True)
    with background_server(serve_model(model, chat, settings)) as url:
        yield Served(Client(url), model, chat)
