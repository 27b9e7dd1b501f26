"""The domains: write a function, write it with feedback, correct a broken one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from educe.core.errors import DomainError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import draw_task, split_of
from educe.core.types import JSON, Message, Reply, Score, Split, Task, user
from educe.domains.builtin.python_functions import bugs, prompts
from educe.domains.builtin.python_functions.attempts import (
    Attempt,
    cases_of,
    last_reply,
    run_attempt,
    score_attempts,
)
from educe.domains.builtin.python_functions.problem import Instance, instantiate
from educe.domains.builtin.python_functions.registry import Generator

NUM_SHOWN = {"tiny": 2, "easy": 3, "medium": 3, "hard": 3}
_NUM_HIDDEN = {"tiny": 8, "easy": 9, "medium": 10, "hard": 10}
_MAX_DRAWS = 20_000
_MAX_WORDINGS = 24


class PythonFunctions(DomainBase):
    """Write a function that passes hidden tests; single turn.

    Train, eval and screen are split by the reference solution's body as well as by the content, so
    a function of the eval split is in no training task under other names or wording either.

    Args:
        spec: the domain's spec; its name ends in the level.
        generator: draws problems.
        partial: pay the share of hidden tests passed (chance-corrected) instead of all or nothing.
    """

    def __init__(self, spec: DomainSpec, generator: Generator, *, partial: bool = False) -> None:
        self.spec = spec
        self.level = spec.name.rpartition("/")[2]
        self._generator = generator
        self._is_partial = partial

    def task(self, split: Split, index: int) -> Task:
        return draw_task(lambda rng: self._make(rng, split), self.spec.name, split, index)

    def _make(self, rng: random.Random, split: Split) -> Task:
        for _ in range(_MAX_DRAWS):
            problem = self._generator(rng)
            if split_of(problem.key) is not split:
                continue
            instance = instantiate(problem, rng, NUM_SHOWN[self.level], _NUM_HIDDEN[self.level])
            task = self._word(instance, rng, split) if instance else None
            if task is not None:
                return task
        raise DomainError(
            f"{self.spec.name}: no {split} function found in {_MAX_DRAWS} draws; the generator "
            "makes too few distinct functions"
        )

    def _word(self, instance: Instance, rng: random.Random, split: Split) -> Task | None:
        """Word the task so that its content falls into the split too; None when it never does."""
        request = self._request_maker(instance, rng)
        if request is None:
            return None
        task = Task(
            self.spec.name,
            split,
            0,
            (),
            gold=prompts.code_reply(instance.solution),
            metadata={
                "entry_point": instance.entry_point,
                "key": instance.key,
                "shown": [[list(c.args), c.expected] for c in instance.shown],
                "hidden": [[list(c.args), c.expected] for c in instance.hidden],
            },
        )
        for _ in range(_MAX_WORDINGS):
            task = replace(task, messages=(user(request(rng)),))
            if split_of(task.content_hash) is split:
                return task
        return None

    def _request_maker(self, instance: Instance, rng: random.Random) -> prompts.RequestMaker | None:
        return lambda r: prompts.write_request(instance, r)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        attempt = run_attempt(task, last_reply(transcript), services)
        return score_attempts(task, [attempt], is_partial=self._is_partial)


class PythonDebugging(PythonFunctions):
    """Correct a function, given its source and the real outcome of its failing tests."""

    def _request_maker(self, instance: Instance, rng: random.Random) -> prompts.RequestMaker | None:
        bug = bugs.plant_bug(
            instance.solution, instance.entry_point, instance.shown, instance.hidden, rng
        )
        if bug is None:
            return None
        source, outcomes = bug
        return lambda r: prompts.debug_request(instance, source, outcomes, r)


class PythonRepair(PythonFunctions):
    """Write a function over several turns: failing shown tests come back with their real output.

    The state is the list of attempts. The trajectory ends when all shown tests pass, or with the
    last turn; only the last attempt counts, and ``Score.proof`` keeps all of them.
    """

    def initial_state(self, task: Task) -> JSON:
        return {"attempts": []}

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        attempt = run_attempt(task, last_reply(transcript), services)
        state = {"attempts": [*_attempts(state), attempt.to_json()]}
        if attempt.compiles and attempt.shown_fraction == 1.0:
            return Reply(done=True, state=state)
        if attempt.compiles:
            text = prompts.feedback(attempt.failures, len(cases_of(task, "shown")))
        else:
            text = prompts.no_code_feedback(task.metadata["entry_point"], attempt.reason)
        return Reply((user(text),), done=False, state=state)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        attempts = [Attempt.from_json(raw) for raw in _attempts(state)]
        num_replies = sum(m.role == "assistant" for m in transcript[len(task.messages) :])
        if len(attempts) < max(num_replies, 1):  # the last turn gets no reply, so it is run here
            attempts.append(run_attempt(task, last_reply(transcript), services))
        return score_attempts(task, attempts, is_partial=self._is_partial)


def _attempts(state: JSON) -> list[dict[str, JSON]]:
    return list(state["attempts"]) if state else []
