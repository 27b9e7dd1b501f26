"""The engine inside the trainer's process: continuous batching over the very module it trains."""

from educe.engines.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
