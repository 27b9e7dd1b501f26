"""The seams: what one layer promises another without either importing the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from educe.core.types import JSON, Message, Reply, Score, Split, StopReason, Task


@dataclass(frozen=True, slots=True)
class DomainSpec:
    """What is known about a domain without making a task (kept in the cached manifest).

    Attributes:
        name: ``family/…/level``; unique in the registry.
        family: groups levels of one generator, e.g. ``rg/gcd``.
        kind: what the model must do: ``arithmetic``, ``logic``, ``code``, ``tools``,
            ``instructions``, ``long-document``, ``text``, ``games`` …
        description: one sentence.
        licence: of the data or generator.
        floor: the chance level, in [0, 1]: the best score of an answer that ignores the question.
        max_turns: 1 for single-turn domains.
        max_completion_tokens: what a right answer needs at most (a default for recipes).
        executes_code: whether scoring runs model-written code.
        integrity: ``outside`` when no answer or test is in the process of the model's code;
            ``in_process`` (its own test suites) trains only where a recipe opts in.
        has_gold: whether ``demonstration`` works (needed by SFT).
        num_tasks: distinct training tasks, None when unbounded.
        tags: free words for search.
        scores_groups: ``score`` wants to see all completions of a request: its state then is
            ``{"own": state, "group": transcripts as JSON, "index": its place}`` (``group_state``).
    """

    name: str
    family: str
    kind: str
    description: str
    licence: str = "Apache-2.0"
    floor: float = 0.0
    max_turns: int = 1
    max_completion_tokens: int = 128
    executes_code: bool = False
    has_gold: bool = True
    num_tasks: int | None = None
    tags: tuple[str, ...] = ()
    integrity: Literal["outside", "in_process"] = "outside"
    scores_groups: bool = False


def group_state(state: JSON, transcripts: Sequence[Sequence[Message]], index: int) -> JSON:
    """Return the state that ``score`` gets where a spec ``scores_groups``."""
    group = [[message.to_json() for message in transcript] for transcript in transcripts]
    return {"own": state, "group": group, "index": index}


@dataclass(frozen=True, slots=True)
class Services:
    """What a scorer may use; everything else (network, files, processes) is not its business.

    ``sandbox`` runs model-written programs (see :class:`Sandbox`), ``judge`` asks a model.
    """

    sandbox: Any = None
    judge: Any = None


@runtime_checkable
class Domain(Protocol):
    """A source of frozen tasks, with the environment around them and their scorer.

    ``respond`` and ``score`` run inside killable worker processes and must be pure functions of
    their arguments (plus the sandbox). They take and return JSON-able state, never keep any.
    """

    spec: DomainSpec

    def task(self, split: Split, index: int) -> Task:
        """Return task ``index`` of ``split``; a pure function of its arguments.

        Raises IndexError beyond the end of a finite split.
        """
        ...

    def size(self, split: Split) -> int | None:
        """Return the number of tasks in a split, None when unbounded."""
        ...

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        """Return the messages of a perfect attempt (assistant, and tool/user replies between).

        Raises DomainError when the domain has no gold answers.
        """
        ...

    def initial_state(self, task: Task) -> JSON:
        """Return the environment's state before the first turn (None for single-turn domains)."""
        ...

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        """Answer the last assistant message; called after every turn but the last allowed one.

        ``transcript`` is task.messages plus all turns so far. A single-turn domain returns
        ``Reply(done=True)``.
        """
        ...

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        """Judge a finished trajectory. ``state`` is the last one that ``respond`` returned."""
        ...


class DomainBase:
    """Defaults for a single-turn domain: no state, one turn, the gold text as demonstration."""

    spec: DomainSpec

    def size(self, split: Split) -> int | None:
        return None

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        if task.gold is None:
            from educe.core.errors import DomainError

            raise DomainError(f"task {task.task_id} has no gold answer to demonstrate")
        return (Message("assistant", task.gold),)

    def initial_state(self, task: Task) -> JSON:
        return None

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        return Reply(done=True, state=state)


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How one turn is sampled. ``temperature`` 0 is greedy.

    ``top_k`` 0 and ``top_p`` 1 mean no truncation; training requires both untouched, because the
    trainer's log-probabilities are of the whole softmax.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed_key: int = 0
    ignore_end: bool = False


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Ask an engine for one completion of a token prompt.

    Requests with one ``group_key`` (not empty) have equal prompts: the prompt is computed once.
    ``parent`` names a finished request that was submitted with ``retain=True`` and whose tokens
    begin this prompt: what was computed for it is used again. ``seed_key`` in the parameters makes
    the draws (see ``core.seeds``).
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    parameters: SamplingParameters
    group_key: str = ""
    parent: str = ""
    retain: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns: the very tokens sampled, with their behaviour log-probabilities.

    The log-probabilities are of the distribution sampled from (temperature and truncation
    applied); for greedy sampling, of the softmax at temperature 1.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    stop_reason: StopReason
    text: str


class Engine(Protocol):
    """Turns token prompts into sampled completions by continuous batching."""

    def submit(self, request: GenerateRequest) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def step(self) -> list[Completion]:
        """Advance all running rows by one token (or prefill); return what finished."""
        ...

    @property
    def num_unfinished(self) -> int: ...

    def release(self, request_id: str) -> None:
        """Forget what was retained for a request; unknown ids are fine."""
        ...

    def publish(self, version: int) -> None:
        """Make the trainer's current weights visible; drops caches of older versions.

        Raises RuntimeError while requests are unfinished: weights change only at rest.
        """
        ...


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Metrics of one step: ``values`` is flat, names are ``group/name`` or ``domain/NAME/name``."""

    stage: str
    step: int
    values: Mapping[str, float]
    wall_time_s: float = 0.0


class Recorder(Protocol):
    """Where the loops write what happened; ``observability.RunStore`` is the one that keeps it."""

    def record_metrics(self, row: MetricRow) -> None: ...

    def record_sample(self, stage: str, step: int, sample: Mapping[str, JSON]) -> None: ...

    def record_event(self, kind: str, payload: Mapping[str, JSON]) -> None: ...


@dataclass(frozen=True, slots=True)
class WeightView:
    """A versioned view of the weights that an engine reads.

    ``shared`` views read the trainer's own tensors, so a publish only drops caches.
    """

    version: int
    module: Any
    shared: bool = True
    metadata: Mapping[str, JSON] = field(default_factory=dict)
