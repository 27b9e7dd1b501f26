"""Long context: tasks of an exact length in the model's own tokens, at any depth, with controls."""

from __future__ import annotations

from educe.evaluation.long_context.domain import LongContextDomain, scoring_domain
from educe.evaluation.long_context.kinds import KINDS, load_kind

__all__ = ["KINDS", "LongContextDomain", "load_kind", "scoring_domain"]
