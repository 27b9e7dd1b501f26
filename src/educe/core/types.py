"""What flows between the parts: tasks, messages, trajectories, groups and scores.

All of these are plain, serialisable records with ids; none of them knows a tensor. ``to_json`` and
``from_json`` round-trip exactly: the journal, the run store and remote workers depend on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

JSON = Any  # a value that json.dumps accepts


class Split(StrEnum):
    """Disjoint index ranges of a domain. ``screen`` is for monitoring during training."""

    TRAIN = "train"
    EVAL = "eval"
    SCREEN = "screen"


class Verdict(StrEnum):
    """What the completion was, judged as an answer."""

    RIGHT = "right"
    WRONG = "wrong"
    PARTIAL = "partial"
    UNPARSEABLE = "unparseable"
    REFUSED = "refused"


class StopReason(StrEnum):
    """Why the generation of one turn ended."""

    END = "end"
    LENGTH = "length"
    TOOL = "tool"
    CANCELLED = "cancelled"


class Fault(StrEnum):
    """Whose fault it was that something broke. Only the candidate's faults may become numbers."""

    CANDIDATE = "candidate"
    GRADER = "grader"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant makes. ``arguments`` is the raw JSON text the model wrote."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool offered to the model; ``parameters`` is a JSON schema (OpenAI tool format)."""

    name: str
    description: str
    parameters: Mapping[str, JSON]

    def to_openai(self) -> dict[str, JSON]:
        """Return the entry of a request's ``tools`` in OpenAI's chat interface."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. ``role`` is system, user, assistant or tool."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    name: str = ""

    def to_json(self) -> dict[str, JSON]:
        out: dict[str, JSON] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            out["tool_calls"] = [dataclasses.asdict(c) for c in self.tool_calls]
        if self.name:
            out["name"] = self.name
        return out

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Message:
        calls = tuple(ToolCall(**c) for c in raw.get("tool_calls", ()))
        return Message(raw["role"], raw["content"], calls, raw.get("name", ""))


def user(content: str) -> Message:
    return Message("user", content)


def assistant(content: str) -> Message:
    return Message("assistant", content)


def system(content: str) -> Message:
    return Message("system", content)


@dataclass(frozen=True, slots=True)
class Task:
    """One frozen problem: a function of (domain, split, index).

    Attributes:
        domain: registered name, e.g. ``rg/gcd/easy``.
        split: the index range it belongs to.
        index: position within the split, from 0.
        messages: the prompt.
        gold: the reference answer as text, None where there is none.
        metadata: JSON values the scorer needs (never shown to the model).
        tools: tools offered to the model.
    """

    domain: str
    split: Split
    index: int
    messages: tuple[Message, ...]
    gold: str | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()

    @property
    def task_id(self) -> str:
        return f"{self.domain}:{self.split}:{self.index}"

    @property
    def content_hash(self) -> str:
        """Hash of what the model sees and must answer; equal content in two splits is a leak."""
        text = json.dumps([[m.role, m.content] for m in self.messages] + [self.gold])
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def to_json(self) -> dict[str, JSON]:
        return {
            "domain": self.domain,
            "split": str(self.split),
            "index": self.index,
            "messages": [m.to_json() for m in self.messages],
            "gold": self.gold,
            "metadata": dict(self.metadata),
            "tools": [dataclasses.asdict(t) for t in self.tools],
        }

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Task:
        return Task(
            domain=raw["domain"],
            split=Split(raw["split"]),
            index=raw["index"],
            messages=tuple(Message.from_json(m) for m in raw["messages"]),
            gold=raw["gold"],
            metadata=raw["metadata"],
            tools=tuple(ToolSpec(**t) for t in raw["tools"]),
        )


@dataclass(frozen=True, slots=True)
class Score:
    """The judgement of one trajectory.

    ``value`` is in [0, 1] for built-in domains (any finite float for user rewards) or None when the
    sample is *unscored*: out of the baseline and out of the loss, counted, never silently 0.
    ``fault`` says whose fault a failure was; a candidate's fault keeps its value (usually 0), a
    grader's or the infrastructure's fault has value None by construction.

    ``steps`` are (end, value) of steps within the last completion: ``end`` counts the characters of
    its message up to where the step ends. They are credit within the completion, beside ``value``;
    a step without a value (None, or no finite number) adds nothing.
    """

    value: float | None
    verdict: Verdict | None = None
    fault: Fault | None = None
    reason: str = ""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    proof: Mapping[str, JSON] = field(default_factory=dict)
    steps: tuple[tuple[int, float | None], ...] = ()

    def __post_init__(self) -> None:
        value = self.value
        if self.steps:
            object.__setattr__(self, "steps", tuple((int(e), _finite(v)) for e, v in self.steps))
        if self.fault in (Fault.GRADER, Fault.INFRASTRUCTURE) and value is not None:
            raise ValueError(f"a {self.fault} fault cannot carry the value {value}")
        if value is not None and not (value == value and abs(value) != float("inf")):
            # A NaN or infinite reward is the grader's bug; it must not reach its siblings.
            object.__setattr__(self, "value", None)
            object.__setattr__(self, "fault", Fault.GRADER)
            object.__setattr__(self, "verdict", None)
            object.__setattr__(
                self, "reason", f"scorer returned {value}: {self.reason}".strip(": ")
            )

    @property
    def is_scored(self) -> bool:
        return self.value is not None

    @staticmethod
    def right(reason: str = "", **parts: float | None) -> Score:
        return Score(1.0, Verdict.RIGHT, reason=reason, parts=parts)

    @staticmethod
    def wrong(reason: str = "", **parts: float | None) -> Score:
        return Score(0.0, Verdict.WRONG, reason=reason, parts=parts)

    @staticmethod
    def unparseable(reason: str = "", **parts: float | None) -> Score:
        return Score(0.0, Verdict.UNPARSEABLE, reason=reason, parts=parts)

    @staticmethod
    def graded(value: float, reason: str = "", **parts: float | None) -> Score:
        """A score whose verdict follows from its value: 1 is right, 0 wrong, between is partial."""
        verdict = Verdict.RIGHT if value >= 1 else Verdict.WRONG if value <= 0 else Verdict.PARTIAL
        return Score(float(value), verdict, reason=reason, parts=parts)

    @staticmethod
    def unscored(fault: Fault, reason: str) -> Score:
        return Score(None, None, fault, reason)

    def to_json(self) -> dict[str, JSON]:
        raw: dict[str, JSON] = {
            "value": self.value,
            "verdict": None if self.verdict is None else str(self.verdict),
            "fault": None if self.fault is None else str(self.fault),
            "reason": self.reason,
            "parts": dict(self.parts),
            "proof": dict(self.proof),
        }
        return {**raw, "steps": [list(s) for s in self.steps]} if self.steps else raw

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Score:
        return Score(
            value=raw["value"],
            verdict=None if raw["verdict"] is None else Verdict(raw["verdict"]),
            fault=None if raw["fault"] is None else Fault(raw["fault"]),
            reason=raw["reason"],
            parts=raw["parts"],
            proof=raw["proof"],
            steps=tuple((end, value) for end, value in raw.get("steps", ())),
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What an environment answers to an assistant turn.

    ``messages`` are appended to the transcript (role tool or user); ``done`` ends the trajectory.
    ``state`` is the environment's new JSON state. ``score`` judges the turn that was answered, for
    credit turn by turn; None where only the whole trajectory is judged.
    """

    messages: tuple[Message, ...] = ()
    done: bool = True
    state: JSON = None
    score: Score | None = None

    def to_json(self) -> dict[str, JSON]:
        raw: dict[str, JSON] = {
            "messages": [m.to_json() for m in self.messages],
            "done": self.done,
            "state": self.state,
        }
        return raw if self.score is None else {**raw, "score": self.score.to_json()}

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Reply:
        judged = raw.get("score")
        return Reply(
            tuple(Message.from_json(m) for m in raw["messages"]),
            raw["done"],
            raw["state"],
            None if judged is None else Score.from_json(judged),
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation within a trajectory, in the very tokens that were fed and sampled.

    ``context_token_ids`` is everything the model had read before it sampled the first completion
    token; ``completion_token_ids`` includes the end token where one was sampled.
    ``behaviour_logprobs`` are of the distribution that was really sampled (temperature applied).
    """

    context_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    policy_versions: tuple[int, ...]
    stop_reason: StopReason
    temperature: float

    def to_json(self) -> dict[str, JSON]:
        raw = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        raw["stop_reason"] = str(self.stop_reason)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in raw.items()}

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Turn:
        return Turn(
            tuple(raw["context_token_ids"]),
            tuple(raw["completion_token_ids"]),
            tuple(raw["behaviour_logprobs"]),
            tuple(raw["policy_versions"]),
            StopReason(raw["stop_reason"]),
            raw["temperature"],
        )


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """An order for one group: sample ``num_samples`` trajectories of one task.

    The last ``num_greedy`` of them are decoded greedily: a baseline, never trained on.
    """

    request_id: int
    domain: str
    split: Split
    index: int
    num_samples: int
    temperature: float = 1.0
    max_completion_tokens: int = 128
    max_turns: int = 1
    num_greedy: int = 0

    @property
    def num_sampled(self) -> int:
        """Samples that are no greedy baseline; they come first."""
        return self.num_samples - self.num_greedy

    def temperature_of(self, sample_index: int) -> float:
        """Return the temperature of one sample: 0 for a greedy one."""
        return self.temperature if sample_index < self.num_sampled else 0.0

    def to_json(self) -> dict[str, JSON]:
        return {**dataclasses.asdict(self), "split": str(self.split)}

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> TaskRequest:
        return TaskRequest(**{**raw, "split": Split(raw["split"])})


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished attempt at a task: the transcript, its token record and its score.

    ``turn_scores[j]`` judges turn j (the last may have none); ``step_scores`` are (index of the
    action token that ends the step, value), counted over all completion tokens of the trajectory.
    """

    request_id: int
    sample_index: int
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    score: Score
    turn_scores: tuple[Score, ...] = ()
    state: JSON = None
    step_scores: tuple[tuple[int, float | None], ...] = ()

    @property
    def num_completion_tokens(self) -> int:
        return sum(len(t.completion_token_ids) for t in self.turns)

    @property
    def is_truncated(self) -> bool:
        return bool(self.turns) and self.turns[-1].stop_reason is StopReason.LENGTH

    def to_json(self) -> dict[str, JSON]:
        return {
            "request_id": self.request_id,
            "sample_index": self.sample_index,
            "messages": [m.to_json() for m in self.messages],
            "turns": [t.to_json() for t in self.turns],
            "score": self.score.to_json(),
            "turn_scores": [s.to_json() for s in self.turn_scores],
            "step_scores": [list(step) for step in self.step_scores],
            "state": self.state,
        }

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Trajectory:
        return Trajectory(
            request_id=raw["request_id"],
            sample_index=raw["sample_index"],
            messages=tuple(Message.from_json(m) for m in raw["messages"]),
            turns=tuple(Turn.from_json(t) for t in raw["turns"]),
            score=Score.from_json(raw["score"]),
            turn_scores=tuple(Score.from_json(s) for s in raw["turn_scores"]),
            step_scores=tuple((end, value) for end, value in raw.get("step_scores", ())),
            state=raw["state"],
        )


@dataclass(frozen=True, slots=True)
class Group:
    """All trajectories of one request, in sample order."""

    request: TaskRequest
    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def scores(self) -> Sequence[Score]:
        return [t.score for t in self.trajectories]

    def to_json(self) -> dict[str, JSON]:
        return {
            "request": self.request.to_json(),
            "task": self.task.to_json(),
            "trajectories": [t.to_json() for t in self.trajectories],
        }

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Group:
        return Group(
            TaskRequest.from_json(raw["request"]),
            Task.from_json(raw["task"]),
            tuple(Trajectory.from_json(t) for t in raw["trajectories"]),
        )


def _finite(value: float | None) -> float | None:
    """Return the number, None for what is none."""
    return value if value is not None and math.isfinite(value) else None
