"""The same tasks in other words: prompt templates, reasoning, tools, a second look.

A wording changes what the model reads and how its text becomes the answer; the task, its grader and
its identity stay. The wrapped domain sees its own task and its own messages, so no grader needs to
know that a wording exists. Rows of a reworded task carry the original's content hash (``base_hash``
in the metadata), which pairs them with the original's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from educe.config.settings import DomainSettings
from educe.core.errors import EduceError, did_you_mean
from educe.core.protocols import Domain, DomainSpec, Services
from educe.core.types import JSON, Message, Reply, Score, Split, Task, user
from educe.domains.registry import load_domain
from educe.evaluation.python_tool import PYTHON_TOOL_TEXT, run_tool_calls
from educe.rewards.outcome.extraction import answer_line, strip_reasoning

# Kinds whose answer is a text of its own form: reasoning must stand apart from it.
_FORMED = frozenset({"code", "tools", "instructions", "writing", "function-calling"})

_STEPS = (
    "Think step by step first. Then give the final answer on a last line of its own that begins "
    'with "Answer:".'
)
_STEPS_APART = (
    "Think step by step first, between <think> and </think>. After </think> write only what the "
    "task asks for."
)
_CHECK = (
    "Check your answer: look for mistakes, correct them, and write the complete final answer once "
    "more, in the form that the task asks for."
)
TEMPLATES: tuple[str, ...] = (
    "{}",
    "Please solve the following.\n\n{}",
    "Below is a task. Read it with care, then reply.\n\n---\n{}\n---",
    "Task:\n{}\n\nYour reply:",
    "I need your help with this:\n\n{}\n\nKeep to the form that is asked for.",
)


@dataclass(frozen=True, slots=True)
class Wording:
    """How a task is asked.

    Attributes:
        name: ``cot``, ``tools``, ``reflect`` or ``template-0`` … ``template-4``.
        extra_tokens: room that a turn gets on top of the domain's own.
        extra_turns: turns on top of the domain's own; single-turn domains only.
    """

    name: str
    extra_tokens: int = 0
    extra_turns: int = 0

    def prompt(self, text: str, spec: DomainSpec) -> str:
        """Return the last user message in this wording."""
        if self.name.startswith("template-"):
            return TEMPLATES[int(self.name.removeprefix("template-"))].format(text)
        if self.name == "cot":
            return f"{text}\n\n{_STEPS_APART if spec.kind in _FORMED else _STEPS}"
        if self.name == "tools":
            return f"{text}\n\n{PYTHON_TOOL_TEXT}"
        return text


WORDINGS: Mapping[str, Wording] = {
    "cot": Wording("cot", extra_tokens=256),
    "tools": Wording("tools", extra_tokens=192, extra_turns=3),
    "reflect": Wording("reflect", extra_turns=1),
    **{f"template-{i}": Wording(f"template-{i}") for i in range(len(TEMPLATES))},
}


class RewordedDomain:
    """A domain whose tasks are asked in another wording.

    A domain of several turns keeps its own turns: only its prompt is reworded, and wordings that
    need turns of their own leave it as it is (``applies`` tells).
    """

    def __init__(self, inner: Domain, wording: Wording) -> None:
        self.inner, self.wording = inner, wording
        spec = inner.spec
        self.applies = applies_to(wording, spec)
        extra = wording if self.applies else Wording("none")
        self.spec = replace(
            spec,
            max_completion_tokens=spec.max_completion_tokens + extra.extra_tokens,
            max_turns=spec.max_turns + extra.extra_turns,
            executes_code=spec.executes_code or (self.applies and wording.name == "tools"),
        )

    def task(self, split: Split, index: int) -> Task:
        task = self.inner.task(split, index)
        messages = task.messages
        if self.applies:
            place = max((i for i, m in enumerate(messages) if m.role == "user"), default=None)
            if place is None:
                raise EduceError(f"{task.task_id} has no user message to reword")
            asked = replace(
                messages[place], content=self.wording.prompt(messages[place].content, self.spec)
            )
            messages = (*messages[:place], asked, *messages[place + 1 :])
        base = task.metadata.get("base_hash", task.content_hash)
        return replace(
            task, messages=messages, metadata={"base_hash": base, "inner": task.to_json()}
        )

    def size(self, split: Split) -> int | None:
        return self.inner.size(split)

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        """Return the inner demonstration; a second look repeats it."""
        shown = self.inner.demonstration(inner_task(task))
        if self.applies and self.wording.name == "reflect":
            return (*shown, user(_CHECK), *shown)
        return shown

    def initial_state(self, task: Task) -> JSON:
        return self.inner.initial_state(inner_task(task))

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        said = transcript[len(task.messages) :]
        if self.applies and self.wording.name == "tools":
            replies = run_tool_calls(said[-1], services)
            return Reply(replies, done=not replies, state=state)
        if self.applies and self.wording.name == "reflect":
            is_first = sum(m.role == "assistant" for m in said) == 1
            return Reply((user(_CHECK),) if is_first else (), done=not is_first, state=state)
        return self.inner.respond(
            inner_task(task), state, [*inner_task(task).messages, *said], services
        )

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        said = list(transcript[len(task.messages) :])
        original = inner_task(task)
        if not self.applies or self.wording.name.startswith("template-"):
            return self.inner.score(original, state, [*original.messages, *said], services)
        answers = [m for m in said if m.role == "assistant"]
        if not answers:
            return Score.unparseable("nothing was said")
        last = self._score_text(original, state, answers[-1].content, services)
        if self.wording.name != "reflect" or len(answers) < 2:
            return last
        first = self._score_text(original, state, answers[0].content, services)
        was_right = first.is_scored and (first.value or 0.0) >= 1.0
        is_right = last.is_scored and (last.value or 0.0) >= 1.0
        return replace(
            last,
            proof={
                **last.proof,
                "first_attempt_right": was_right,
                "num_attempts": len(answers),
                "fixed_after_feedback": is_right and not was_right,
            },
        )

    def _score_text(self, original: Task, state: JSON, text: str, services: Services) -> Score:
        visible = strip_reasoning(text)
        line = None if self.spec.kind in _FORMED else answer_line(visible)
        answer = Message("assistant", visible if line is None else line)
        return self.inner.score(original, state, [*original.messages, answer], services)


def applies_to(wording: Wording, spec: DomainSpec) -> bool:
    """Return whether a wording changes a domain: those with turns of their own need a single-turn
    domain, and text that must be formed from its first word leaves no room for tool calls."""
    if wording.name.startswith("template-"):
        return True
    if wording.name == "tools":
        return spec.max_turns == 1 and spec.kind not in ("tools", "instructions", "writing")
    return spec.max_turns == 1


def inner_task(task: Task) -> Task:
    """Return the task as the wrapped domain made it."""
    return Task.from_json(task.metadata["inner"])


def wording_named(name: str) -> Wording:
    """Return a wording; raises EduceError for an unknown name."""
    if name not in WORDINGS:
        raise EduceError(
            f"there is no wording {name!r}; known: {', '.join(WORDINGS)}."
            f"{did_you_mean(name, WORDINGS)}"
        )
    return WORDINGS[name]


# --- what scoring workers load parts by ---------------------------------------------------------


def registered_domain(name: str, options: Mapping[str, JSON]) -> Domain:
    """Return a registered domain, for rows that carry another name."""
    return load_domain(name, DomainSettings(options=dict(options)))


def reworded_domain(wording: str, inner: Mapping[str, JSON], name: str) -> Domain:
    """Return the domain that settings give, in another wording."""
    return RewordedDomain(
        load_domain(name, DomainSettings.model_validate(inner)), wording_named(wording)
    )


def worker_settings(source: str, settings: DomainSettings) -> DomainSettings:
    """Return settings that load a domain under any name: registered ones by a function."""
    if not source:
        return settings
    options = {"name": source, "options": dict(settings.options)}
    return DomainSettings(function="educe.evaluation.wordings:registered_domain", options=options)


def reworded_settings(wording: str, inner: DomainSettings, name: str) -> DomainSettings:
    """Return settings that load ``inner`` in another wording."""
    options = {"wording": wording, "inner": inner.model_dump(mode="json"), "name": name}
    return DomainSettings(function="educe.evaluation.wordings:reworded_domain", options=options)
