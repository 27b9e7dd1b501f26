"""Finished rows by the content that they depend on, shared by all evaluations of a machine.

The key is everything that decides a row: the model's identity, the task as the model and the grader
see it, how it was sampled (the request's id included, for the draws follow from it), how it is
scored, and the version of educe. Rows that broke on our side are never kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from educe import __version__
from educe.core.protocols import Domain
from educe.core.types import JSON, TaskRequest
from educe.evaluation.records import FORMAT_VERSION, EvalRow, Outcome

_LOST = (Outcome.ERRORED, Outcome.UNSCORED)


@dataclass(frozen=True, slots=True)
class ContentCache:
    """A folder of JSON files named by their key; safe with several writers.

    Attributes:
        folder: made when the first rows are kept.
        identity: of the model (see ``Subject.identity``).
        domains: make the tasks of requests.
        scoring: per domain, what its scores depend on besides the task (settings, strategy).
    """

    folder: Path
    identity: JSON
    domains: Mapping[str, Domain]
    scoring: Mapping[str, JSON]

    def find(self, request: TaskRequest) -> list[EvalRow] | None:
        """Return the rows of a request that was finished before; None when there are none."""
        path = self._path(request)
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            return [EvalRow.from_json(r) for r in raw["rows"]]
        except (OSError, ValueError, KeyError, TypeError):
            # Absent, or half written by a machine that lost power: sampled again.
            return None

    def keep(self, request: TaskRequest, rows: Sequence[EvalRow]) -> None:
        """Keep the rows of a finished request."""
        if any(r.outcome in _LOST for r in rows):
            return
        path = self._path(request)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}.part")
        beside.write_text(
            json.dumps({"rows": [r.to_json() for r in rows]}, ensure_ascii=False), encoding="utf-8"
        )
        beside.replace(path)

    def _path(self, request: TaskRequest) -> Path:
        task = self.domains[request.domain].task(request.split, request.index)
        content = [
            FORMAT_VERSION,
            __version__,
            self.identity,
            request.to_json(),
            task.to_json(),
            self.scoring.get(request.domain),
        ]
        text = json.dumps(content, sort_keys=True, ensure_ascii=False, default=str)
        key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return self.folder / key[:2] / f"{key}.json"
