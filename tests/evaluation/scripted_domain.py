"""A small real domain and samplers whose rate of right answers is known, for the tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.types import (
    JSON,
    Group,
    Message,
    Score,
    Split,
    StopReason,
    Task,
    TaskRequest,
    Trajectory,
    Turn,
    assistant,
    user,
)


class Sums(DomainBase):
    """``a + b = ?``; every index is its own task, unless ``repeat`` makes contents repeat."""

    def __init__(
        self,
        name: str = "sums",
        *,
        size: int | None = None,
        repeat: int = 0,
        floor: float = 0.0,
        max_turns: int = 1,
    ) -> None:
        self.spec = DomainSpec(
            name=name, family=name, kind="arithmetic", description="Add two numbers.", floor=floor,
            max_completion_tokens=16,
            max_turns=max_turns,
        )  # fmt: skip
        self._size, self._repeat = size, repeat

    def size(self, split: Split) -> int | None:
        return self._size

    def task(self, split: Split, index: int) -> Task:
        if self._size is not None and index >= self._size:
            raise IndexError(index)
        a = index % self._repeat if self._repeat else index
        text = f"{self.spec.name}: {a} + 7 = ?"
        return Task(self.spec.name, split, index, (user(text),), gold=str(a + 7))

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        said = transcript[-1].content.strip()
        if not said.lstrip("-").isdigit():
            return Score.unparseable(f"no number in {said!r}")
        return Score.right() if said == task.gold else Score.wrong(f"{said} is not {task.gold}")


Answer = Callable[[Task, int], str | Score]


class Scripted:
    """Answers every request by a function of (task, sample); records what it was asked.

    A function that returns a :class:`Score` skips the domain's own scorer.
    """

    def __init__(self, domains: dict[str, Sums], answer: Answer) -> None:
        self.domains, self.answer = domains, answer
        self.requests: list[TaskRequest] = []

    def run_requests(self, requests: Sequence[TaskRequest]) -> Iterator[Group]:
        for request in requests:
            self.requests.append(request)
            domain = self.domains[request.domain]
            task = domain.task(request.split, request.index)
            yield Group(
                request, task,
                tuple(self._attempt(domain, request, task, k) for k in range(request.num_samples)),
            )  # fmt: skip

    def _attempt(self, domain: Sums, request: TaskRequest, task: Task, sample: int) -> Trajectory:
        said = self.answer(task, sample)
        text = said.reason if isinstance(said, Score) else said
        messages = (*task.messages, assistant(text))
        score = said if isinstance(said, Score) else domain.score(task, None, messages, Services())
        stop = StopReason.LENGTH if text.endswith("…") else StopReason.END
        tokens = tuple(range(len(text.split()) + 1))
        turn = Turn((1, 2), tokens, (0.0,) * len(tokens), (0,) * len(tokens), stop, 0.0)
        return Trajectory(request.request_id, sample, messages, (turn,), score)


def shuffled(groups: Iterable[Group]) -> list[Group]:
    """Return groups in another order than they were asked for."""
    found = list(groups)
    return found[::-2] + found[-2::-2]
