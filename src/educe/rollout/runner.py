"""Task requests in, scored groups out: drives the engine, the environments and the scorers.

One loop owns everything in flight. An engine step adds a token to every running completion; what
ended goes to its environment or its scorer (in killable workers), and what comes back becomes the
next turn or the score. Groups leave in submission order, however they finished; a domain whose
sandbox or judge is slow holds up its own requests, not those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from educe.core.protocols import (
    Completion,
    Domain,
    Engine,
    GenerateRequest,
    SamplingParameters,
    group_state,
)
from educe.core.seeds import derive
from educe.core.types import (
    JSON,
    Fault,
    Group,
    Message,
    Reply,
    Score,
    StopReason,
    Task,
    TaskRequest,
    Trajectory,
    Turn,
)
from educe.models.chat import ChatFormat
from educe.observability.timing import SILENT, PhaseTimer
from educe.rollout.outcomes import Outcome, ReplyFailure
from educe.rollout.prefetch import TaskMaker
from educe.rollout.scoring import Scoring
from educe.rollout.steps import judged_turns, step_scores
from educe.scheduling.resources import Admission, Standing

PreparePrompt = Callable[[Task], Sequence[Message]]


@dataclass(slots=True)
class _Attempt:
    """One trajectory while it is running."""

    request: TaskRequest
    task: Task
    sample_index: int
    transcript: list[Message]
    context: tuple[int, ...]
    state: JSON
    turns: list[Turn] = field(default_factory=list)
    turn_scores: list[Score | None] = field(default_factory=list)
    parent: str = ""
    scoring_key: str = ""
    result: Trajectory | None = None
    standing: Standing = Standing.OUT
    siblings: list[_Attempt] = field(default_factory=list)  # of its group, itself among them
    is_parked: bool = False  # its score waits for what its siblings write

    @property
    def key(self) -> str:
        return f"{self.request.request_id}/{self.sample_index}"

    @property
    def turn_key(self) -> str:
        return f"{self.key}/{len(self.turns)}"


@dataclass(slots=True)
class _OpenGroup:
    request: TaskRequest
    task: Task
    attempts: list[_Attempt]

    @property
    def is_done(self) -> bool:
        return all(a.result is not None for a in self.attempts)

    def close(self) -> Group:
        done = tuple(a.result for a in self.attempts if a.result is not None)
        for attempt in self.attempts:
            attempt.siblings = []  # or they would hold on to each other
        return Group(self.request, self.task, done)


# Trajectories that may be open for one that samples or waits to.
_OPEN_FOR_ONE_SAMPLING = 4


class RolloutRunner:
    """Runs requests to scored groups.

    Args:
        engine: samples completions.
        chat: renders messages; the only way from text to tokens.
        domains: by name; ``task``, ``initial_state`` are called here, the rest in ``scoring``.
        scoring: killable workers that answer turns and score.
        seed: root of the sampling draws: token t of sample s of a task is a function of
            (seed, request id, task, s, turn, t) alone.
        context_length: prompt plus completion never exceeds it.
        prepare: messages of a task's prompt; the task's own by default (few-shot prompts differ).
        max_open: trajectories that sample or wait to; of each domain, as many may wait for its
            environment or scorer, and four times as many of all domains.
        check: called before every engine step; may raise to stop (nothing is lost: what was not
            yielded was not done).
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        domains: Mapping[str, Domain],
        scoring: Scoring,
        *,
        seed: int,
        context_length: int,
        prepare: PreparePrompt | None = None,
        max_open: int = 256,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self.chat = chat
        self.domains = domains
        self.scoring = scoring
        self.seed = seed
        self.context_length = context_length
        self.prepare: PreparePrompt = prepare or (lambda task: task.messages)
        self.max_open = max_open
        self.check = check
        self.num_sampled_tokens = 0
        self.timeline: PhaseTimer = SILENT
        self.tasks: TaskMaker | None = None  # makes tasks ahead; None makes each when it is opened
        self._admission = Admission(max_open, _OPEN_FOR_ONE_SAMPLING * max_open)
        self._attempts: dict[str, _Attempt] = {}
        self._fed: list[_OpenGroup] = []

    def run_requests(self, requests: Sequence[TaskRequest]) -> Iterator[Group]:
        """Yield one group a request, in the order of the requests.

        Should the caller stop early, what is still running is cancelled.
        """
        if self.tasks is not None:
            self.tasks.expect(requests)
        waiting = dict(enumerate(requests))
        open_groups: dict[int, _OpenGroup] = {}
        next_out = 0
        try:
            while next_out < len(requests):
                for place in self._admitted(waiting):
                    open_groups[place] = self._open(waiting.pop(place))
                self._advance()
                while next_out in open_groups and open_groups[next_out].is_done:
                    yield open_groups.pop(next_out).close()
                    next_out += 1
        finally:
            self._abandon()
        if self.tasks is not None:
            self.tasks.rest(requests)

    def _admitted(self, waiting: Mapping[int, TaskRequest]) -> Iterator[int]:
        """Yield the places of requests that have room, in order; each must be opened at once."""
        blocked: set[str] = set()
        for place in list(waiting) if not self._admission.is_full else ():
            request = waiting[place]
            if request.domain in blocked:
                continue
            if self._admission.is_full:
                return
            if self._admission.has_room(request.domain, request.num_samples):
                yield place
            else:
                blocked.add(request.domain)

    # The same in small steps, for a worker that is fed from outside.

    def submit(self, request: TaskRequest) -> None:
        """Start a request; ``step`` works on it."""
        self._fed.append(self._open(request))

    def step(self) -> list[Group]:
        """Advance everything a little; return the groups that are complete."""
        self._advance()
        done = [g for g in self._fed if g.is_done]
        self._fed = [g for g in self._fed if not g.is_done]
        return [g.close() for g in done]

    @property
    def num_unfinished(self) -> int:
        """Requests started by ``submit`` and not returned by ``step``."""
        return len(self._fed)

    def _open(self, request: TaskRequest) -> _OpenGroup:
        domain = self.domains[request.domain]
        task, tokens = self._made(request)
        messages = list(self.prepare(task))
        is_own = bool(tokens) and tuple(messages) == task.messages
        context = tokens if is_own else self.chat.prompt_tokens(messages)
        state = domain.initial_state(task)
        attempts = [
            _Attempt(request, task, i, list(messages), context, state)
            for i in range(request.num_samples)
        ]
        for attempt in attempts:
            attempt.siblings = attempts
            self._attempts[attempt.key] = attempt
        for attempt in attempts:
            self._generate(attempt)
        return _OpenGroup(request, task, attempts)

    def _made(self, request: TaskRequest) -> tuple[Task, tuple[int, ...]]:
        """Return a request's task and the tokens of its messages, empty where nobody made them."""
        if self.tasks is None:
            return self.domains[request.domain].task(request.split, request.index), ()
        with self.timeline.measure("waiting for tasks"):
            return self.tasks.take(request)

    def _generate(self, attempt: _Attempt) -> None:
        request = attempt.request
        room = self.context_length - len(attempt.context)
        if room < 1:
            reason = (
                f"the context of turn {len(attempt.turns) + 1} has {len(attempt.context)} tokens, "
                f"the limit is {self.context_length}"
            )
            self._score_or_fail(attempt, reason)
            return
        parameters = SamplingParameters(
            max_tokens=min(request.max_completion_tokens, room),
            temperature=request.temperature_of(attempt.sample_index),
            seed_key=derive(
                "sample", self.seed, request.request_id, attempt.task.task_id,
                attempt.sample_index, len(attempt.turns),
            ),
        )  # fmt: skip
        first = not attempt.turns
        self._stand(attempt, Standing.SAMPLING)
        self.engine.submit(
            GenerateRequest(
                attempt.turn_key,
                attempt.context,
                parameters,
                group_key=str(request.request_id) if first and request.num_samples > 1 else "",
                parent=attempt.parent,
                retain=len(attempt.turns) + 1 < request.max_turns,
            )
        )

    def _score_or_fail(self, attempt: _Attempt, reason: str) -> None:
        """A context that outgrew the model ends the attempt: as it stands, or as unscored."""
        if attempt.turns:
            self._submit_score(attempt)
        else:
            self._finish(attempt, Score.unscored(Fault.INFRASTRUCTURE, reason))

    def _advance(self) -> None:
        """One engine step, and whatever the scorers have finished."""
        self.check()
        if self.engine.num_unfinished:
            for completion in self.engine.step():
                self._on_completion(completion)
            wait_s = 0.0
        else:
            wait_s = 0.05
        if self.scoring.num_pending:
            with self.timeline.measure("waiting for rewards" if wait_s else "collecting rewards"):
                outcomes = self.scoring.poll(wait_s)
            for key, outcome in outcomes:
                self._on_outcome(str(key), outcome)
        if self._attempts and not self.engine.num_unfinished and not self.scoring.num_pending:
            # Waiting would be for ever: somebody else has taken what these attempts wait for.
            names = ", ".join(list(self._attempts)[:3])
            raise RuntimeError(
                f"{len(self._attempts)} attempts ({names}, …) wait for a completion or a score "
                "that neither the engine nor the scoring pool has; a pool's outcomes belong to "
                "the one who polls it"
            )

    def _on_completion(self, completion: Completion) -> None:
        attempt = self._attempts[completion.request_id.rpartition("/")[0]]
        self._stand(attempt, Standing.WAITING)
        count = len(completion.token_ids)
        self.num_sampled_tokens += count
        if attempt.parent:
            self.engine.release(attempt.parent)
        attempt.parent = completion.request_id
        message = self.chat.parse(completion.text)
        stop = completion.stop_reason
        if stop is StopReason.END and message.tool_calls:
            stop = StopReason.TOOL
        attempt.turns.append(
            Turn(
                context_token_ids=attempt.context,
                completion_token_ids=completion.token_ids,
                behaviour_logprobs=completion.logprobs,
                policy_versions=(completion.policy_version,) * count,
                stop_reason=stop,
                temperature=attempt.request.temperature_of(attempt.sample_index),
            )
        )
        attempt.transcript.append(message)
        is_last = len(attempt.turns) >= attempt.request.max_turns
        if is_last or stop in (StopReason.LENGTH, StopReason.CANCELLED):
            self._submit_score(attempt)
        else:
            attempt.scoring_key = f"{attempt.key}#respond{len(attempt.turns)}"
            self.scoring.submit_respond(
                attempt.scoring_key, attempt.task, attempt.state, attempt.transcript
            )

    def _submit_score(self, attempt: _Attempt) -> None:
        if self.domains[attempt.request.domain].spec.scores_groups:
            attempt.is_parked = True
            self._score_group_when_done(attempt.siblings)
            return
        attempt.scoring_key = f"{attempt.key}#score"
        self.scoring.submit_score(
            attempt.scoring_key, attempt.task, attempt.state, attempt.transcript
        )

    def _score_group_when_done(self, group: Sequence[_Attempt]) -> None:
        """Submit the scores of a group whose completions are judged side by side."""
        if not all(attempt.is_parked or attempt.result is not None for attempt in group):
            return
        parked = [attempt for attempt in group if attempt.is_parked]
        transcripts = [attempt.transcript for attempt in parked]
        for index, attempt in enumerate(parked):
            attempt.is_parked = False
            attempt.scoring_key = f"{attempt.key}#score"
            state = group_state(attempt.state, transcripts, index)
            self.scoring.submit_score(attempt.scoring_key, attempt.task, state, attempt.transcript)

    def _on_outcome(self, key: str, outcome: Outcome) -> None:
        attempt = self._attempts[key.partition("#")[0]]
        if isinstance(outcome, Score):
            self._finish(attempt, outcome)
        elif isinstance(outcome, ReplyFailure):
            self._finish(attempt, outcome.as_score())
        else:
            self._continue(attempt, outcome)

    def _continue(self, attempt: _Attempt, reply: Reply) -> None:
        attempt.state = reply.state
        attempt.turn_scores.append(reply.score)
        if reply.done:
            attempt.transcript.extend(reply.messages)
            self._submit_score(attempt)
            return
        attempt.context = self.chat.next_context(
            attempt.context,
            attempt.turns[-1].completion_token_ids,
            attempt.transcript,
            reply.messages,
        )
        attempt.transcript.extend(reply.messages)
        self._generate(attempt)

    def _finish(self, attempt: _Attempt, score: Score) -> None:
        if attempt.parent:
            self.engine.release(attempt.parent)
        self._stand(attempt, Standing.OUT)
        attempt.result = Trajectory(
            request_id=attempt.request.request_id,
            sample_index=attempt.sample_index,
            messages=tuple(attempt.transcript),
            turns=tuple(attempt.turns),
            score=score,
            turn_scores=judged_turns(attempt.turn_scores),
            step_scores=step_scores(attempt.turns, score, self.chat.decode),
            state=attempt.state,
        )
        del self._attempts[attempt.key]
        self._score_group_when_done(attempt.siblings)

    def _stand(self, attempt: _Attempt, standing: Standing) -> None:
        self._admission.move(attempt.request.domain, attempt.standing, standing)
        attempt.standing = standing

    def _abandon(self) -> None:
        """Cancel what is still running, so that the engine is at rest and nothing leaks."""
        for attempt in self._attempts.values():
            self.engine.cancel(attempt.turn_key)
            if attempt.parent:
                self.engine.release(attempt.parent)
            self.scoring.cancel(attempt.scoring_key)
        while self.engine.num_unfinished:
            for completion in self.engine.step():
                self.engine.release(completion.request_id)
        self._attempts.clear()
        self._admission.clear()
