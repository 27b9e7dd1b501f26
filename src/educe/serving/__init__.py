"""A model behind OpenAI's HTTP interface, on the embedded engine's continuous batching.

One thread owns the engine (:mod:`engine_thread`); any number of clients talk to an ASGI application
(:mod:`app`) that turns their requests into engine requests and tokens into answers. Nothing here
needs more than the extra ``serve`` (starlette and uvicorn).
"""

from __future__ import annotations
