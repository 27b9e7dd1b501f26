"""Any domain with a computer: a Python and a shell in a sandbox session, then the answer.

A recipe wraps a domain with them:

    [domains."gcd-with-python"]
    function = "educe.domains.session_tools:with_tools"
    options = { domain = "rg/gcd/tiny", tools = ["python"], turns = 3 }

Turns are pure: one may be answered by any worker and again after a resume, so no box stays open
between them. The state is the log of calls; a turn opens a session, plays the log again (silently)
and then makes its own calls. Programs with a fixed seed do the same thing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from educe.core.errors import DomainError, UnscoredError, did_you_mean
from educe.core.protocols import Domain, Services
from educe.core.types import JSON, Message, Reply, Score, Split, Task, ToolCall
from educe.models.chat import parse_tool_calls

if TYPE_CHECKING:
    from educe.sandbox.sessions import Session

_MAX_CALLS, _MAX_SHOWN = 8, 2000
_COMPLETION_TOKENS = 192
_CPU_S, _WALL_S, _MEMORY_MB, _DISK_MB, _OUTPUT_BYTES = 2.0, 10.0, 256, 16, 8192
_OPENING_TAG = "<tool_call>"
_RESET = "reset"  # in a log: the interpreter was ended here, the files stayed
_END_INTERPRETER = "import os; os._exit(1)"


def with_tools(
    domain: str, tools: Sequence[str] = ("python",), turns: int = 3, **options: JSON
) -> Domain:
    """Return a domain whose model may use tools of a sandbox session before it answers.

    Args:
        domain: the registered domain that asks and judges.
        tools: of ``educe.sandbox.sessions.TOOLS``: python, shell, read_file, write_file,
            list_files.
        turns: turns with calls, before the domain's own.
        options: of the inner domain.

    Raises:
        DomainError: for an unknown domain or tool.
    """
    from educe.config.settings import DomainSettings
    from educe.domains.registry import load_domain

    return SessionTools(load_domain(domain, DomainSettings(options=options)), tools, turns)


class SessionTools:
    """A domain with tools in front; see :func:`with_tools`."""

    def __init__(self, inner: Domain, tools: Sequence[str], turns: int) -> None:
        from educe.sandbox.sessions import TOOLS

        known = {tool.name: tool for tool in TOOLS}
        for name in tools:
            if name not in known:
                raise DomainError(
                    f"there is no session tool {name!r}; known: {', '.join(known)}."
                    + did_you_mean(name, known)
                )
        if not tools or turns < 1:
            raise DomainError("a domain with session tools needs a tool and a turn to use it")
        self.inner = inner
        self._tools = tuple(known[name] for name in tools)
        self.spec = replace(
            inner.spec,
            name=f"{inner.spec.name}+{'+'.join(tools)}",
            executes_code=True,
            max_turns=inner.spec.max_turns + turns,
            max_completion_tokens=max(inner.spec.max_completion_tokens, _COMPLETION_TOKENS),
            tags=(*inner.spec.tags, "tools"),
            scores_groups=False,  # its score is asked for one at a time
        )

    def _own(self, task: Task) -> Task:
        return replace(task, domain=self.inner.spec.name)

    def task(self, split: Split, index: int) -> Task:
        from educe.domains.builtin.stateful_tools.tools import describe_tools

        task = self.inner.task(split, index)
        *before, last = task.messages
        text = f"{last.content}\n{describe_tools(self._tools)}\nThen answer without a call."
        messages = (*before, replace(last, content=text))
        return replace(task, domain=self.spec.name, messages=messages, tools=self._tools)

    def size(self, split: Split) -> int | None:
        return self.inner.size(split)

    def demonstration(self, task: Task) -> tuple[Message, ...]:
        return self.inner.demonstration(self._own(task))

    def initial_state(self, task: Task) -> JSON:
        return {"inner": self.inner.initial_state(self._own(task)), "log": [], "num_calls": 0}

    def respond(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Reply:
        last = transcript[-1]
        calls = last.tool_calls or _calls_in(last.content)
        if calls:
            return self._use(task, state, calls, services)
        if _OPENING_TAG in last.content:
            text = 'error: malformed tool call; write {"name": ..., "arguments": {...}} as JSON'
            return Reply((Message("tool", text, name="error"),), done=False, state=state)
        reply = self.inner.respond(self._own(task), state["inner"], transcript, services)
        return replace(reply, state={**state, "inner": reply.state})

    def _use(self, task: Task, state: JSON, calls: Sequence[ToolCall], services: Services) -> Reply:
        if services.sandbox is None:
            raise UnscoredError(f"{task.domain} needs Services.sandbox, and none was given")
        log, allowed = [list(entry) for entry in state["log"]], {tool.name for tool in self._tools}
        messages = []
        with _opened(services.sandbox) as session:
            for name, arguments in log:
                _play(session, name, arguments)
            for call in calls[:_MAX_CALLS]:
                if call.name not in allowed:
                    known = ", ".join(sorted(allowed))
                    text = f"[tool error: there is no tool {call.name[:40]!r}; known: {known}]"
                else:
                    text = session.call_tool(call)
                    log = _logged(log, call, text)
                shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "\n[cut]"
                messages.append(Message("tool", shown, name=call.name[:40]))
        if len(calls) > _MAX_CALLS:
            text = f"error: only the first {_MAX_CALLS} calls of a turn were made"
            messages.append(Message("tool", text, name="error"))
        number = state["num_calls"] + min(len(calls), _MAX_CALLS)
        return Reply(tuple(messages), done=False, state={**state, "log": log, "num_calls": number})

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        state = state or self.initial_state(task)
        score = self.inner.score(self._own(task), state["inner"], transcript, services)
        return replace(score, parts={**score.parts, "num_calls": float(state["num_calls"])})


def _opened(sandbox: Any) -> Session:
    from educe.sandbox.contract import Limits

    limits = Limits(
        cpu_s=_CPU_S,
        wall_s=_WALL_S,
        memory_mb=_MEMORY_MB,
        disk_mb=_DISK_MB,
        stdout_bytes=_OUTPUT_BYTES,
        stderr_bytes=_OUTPUT_BYTES,
    )
    session: Session = sandbox.open_session(limits=limits)
    return session


def _play(session: Session, name: str, arguments: str) -> None:
    if name == _RESET:
        session.python(_END_INTERPRETER)
    else:
        session.call_tool(ToolCall(name, arguments))


def _logged(log: list[list[str]], call: ToolCall, text: str) -> list[list[str]]:
    """Return the log with a call that was made; one that ended something leaves that instead.

    What such a call did before its end is not done again: it would take its whole time again.
    """
    if "files are gone too]" in text:
        return []
    if "[session reset: " in text:
        return [*log, [_RESET, ""]]
    if "[the turn took too long" in text:
        return log
    return [*log, [call.name, call.arguments]]


def _calls_in(text: str) -> tuple[ToolCall, ...]:
    """Return the calls in a text nobody has parsed yet; none when one cannot even be read."""
    try:
        return parse_tool_calls(text)
    except (ValueError, RecursionError):  # numbers of too many digits, brackets nested too deep
        return ()
