"""Where the reference's log-probabilities of a batch come from: computed once, a copy, no adapter.

The reference of a preference stage is the model as it was when the stage began.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from educe.core.errors import CheckpointError
from educe.models.load import LoadedModel
from educe.rollout.packing import FloatArray
from educe.trainers.preference import Case, side_logprobs
from educe.trainers.step import TrainerState

_CHUNK_CASES = 32


class Reference(Protocol):
    """Gives log-probabilities of cases' sides, [C, 2]."""

    def logprobs(self, cases: Sequence[Case]) -> FloatArray: ...


class FrozenCopy:
    """A second model, loaded and never trained."""

    def __init__(self, model: LoadedModel, state: TrainerState) -> None:
        self._model, self._state = model, state

    def logprobs(self, cases: Sequence[Case]) -> FloatArray:
        return side_logprobs(self._model, cases, self._state)


class AdapterOff:
    """The trained model without its adapter: the base, in the same memory."""

    def __init__(self, state: TrainerState) -> None:
        self._state = state

    def logprobs(self, cases: Sequence[Case]) -> FloatArray:
        adapter: Any = self._state.model.adapter
        without: AbstractContextManager[None] = adapter.disable_adapter()
        with without:
            return side_logprobs(self._state.model, cases, self._state)


class Precomputed:
    """Values computed with the policy itself before its first step, kept in a file.

    The file has a line for each chunk of cases, so an interrupted computation goes on where it was;
    chunks are fixed by position, so the values do not depend on interruptions. A case is known by
    its tokens.

    Args:
        file: RUN/reference/STAGE.jsonl.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._values: dict[str, tuple[float, float]] = {}
        self._num_chunks = self._size = 0
        for line in _whole_lines(file):
            self._size += len(line) + 1
            raw = json.loads(line)
            self._values.update({k: (v[0], v[1]) for k, v in raw["values"].items()})
            self._num_chunks += 1

    def compute(
        self,
        state: TrainerState,
        cases: Iterator[Case],
        *,
        check: Callable[[], None] = lambda: None,
        progress: Callable[[int], None] = lambda number: None,
    ) -> None:
        """Compute what the file lacks. ``cases`` must come in the same order at every attempt."""
        done = 0
        for number, chunk in enumerate(_chunks(cases)):
            done += len(chunk)
            if number < self._num_chunks:
                continue
            check()
            values = side_logprobs(state.model, chunk, state)
            keyed = {case_key(c): row for c, row in zip(chunk, values.tolist(), strict=True)}
            self._values.update({k: (v[0], v[1]) for k, v in keyed.items()})
            if state.collectives.rank == 0:
                self._append({"chunk": number, "values": keyed})
            progress(done)

    def _append(self, record: dict[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        line = (json.dumps(record) + "\n").encode()
        with self.file.open("ab") as stream:
            stream.truncate(self._size)  # a torn line of an attempt that was killed
            stream.write(line)
        self._size += len(line)

    def logprobs(self, cases: Sequence[Case]) -> FloatArray:
        """Return the kept values.

        Raises:
            CheckpointError: the file lacks one: it is gone, or the data have changed since.
        """
        rows = []
        for case in cases:
            value = self._values.get(case_key(case))
            if value is None:
                raise CheckpointError(
                    f"{self.file} has no reference value for an example of {case.origin}: the file "
                    "is gone or the data have changed since the stage began. Start the run again, "
                    'or set preference.reference = "copy"'
                )
            rows.append(value)
        return np.array(rows, np.float64).reshape(len(cases), 2)


def case_key(case: Case) -> str:
    """Return a digest of a case's tokens and masks."""
    digest = hashlib.blake2b(digest_size=12)
    for side in case.sides:
        for sequence in side:
            digest.update(sequence.token_ids.tobytes())
            digest.update(sequence.mask.tobytes())
        digest.update(b"|")
    return digest.hexdigest()


def _chunks(cases: Iterator[Case]) -> Iterator[list[Case]]:
    chunk: list[Case] = []
    for case in cases:
        chunk.append(case)
        if len(chunk) == _CHUNK_CASES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _whole_lines(file: Path) -> list[bytes]:
    """Return the lines of a file without a torn last one."""
    if not file.exists():
        return []
    return file.read_bytes().split(b"\n")[:-1]
