"""Any domain with a Python and a shell in front of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, UnscoredError
from educe.core.protocols import Services
from educe.core.types import JSON, Message, Split, Task, assistant
from educe.domains.builtin.stateful_tools.tools import call_text
from educe.domains.registry import load_domain
from educe.domains.session_tools import SessionTools, with_tools
from educe.sandbox import SandboxError, open_sandbox

INNER = "arithmetic/add/tiny"


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    try:
        opened = open_sandbox(minimum="confined")
    except SandboxError as error:
        pytest.skip(str(error))
    with opened as sandbox:
        yield Services(sandbox=sandbox)


def made(*tools: str) -> SessionTools:
    domain = with_tools(INNER, tools or ("python",))
    assert isinstance(domain, SessionTools)
    return domain


def turn(
    domain: SessionTools, task: Task, state: JSON, services: Services, *calls: str
) -> tuple[JSON, list[str]]:
    """Play one turn of calls, the state going through JSON."""
    message = assistant("\n".join(calls))
    reply = domain.respond(task, state, [*task.messages, message], services)
    assert not reply.done
    return json.loads(json.dumps(reply.state)), [m.content for m in reply.messages]


def python(code: str) -> str:
    return call_text("python", {"code": code})


def test_variables_and_files_last_over_turns(services: Services) -> None:
    domain = made("python", "shell", "write_file", "read_file")
    task = domain.task(Split.TRAIN, 0)
    state = domain.initial_state(task)
    state, told = turn(domain, task, state, services, python("x = 6"), python("x * 7"))
    assert told == ["", "42"]
    write = call_text("write_file", {"path": "n.txt", "content": "seven"})
    state, told = turn(domain, task, state, services, write)
    assert told == ["[wrote n.txt]"]
    shell = call_text("shell", {"command": "cat n.txt"})
    state, told = turn(domain, task, state, services, shell, python("x, open('n.txt').read()"))
    assert told == ["seven", "(6, 'seven')"]
    assert state["num_calls"] == 5


def test_the_inner_domain_judges_the_answer(services: Services) -> None:
    domain = made()
    task = domain.task(Split.TRAIN, 3)
    inner = load_domain(INNER, DomainSettings())
    assert task.gold == inner.task(Split.TRAIN, 3).gold and task.tools[0].name == "python"
    assert "python(code: string)" in task.messages[-1].content
    state, _ = turn(domain, task, domain.initial_state(task), services, python("1 + 1"))
    gold = domain.demonstration(task)
    transcript: list[Message] = [*task.messages, assistant("…"), *gold]
    reply = domain.respond(task, state, transcript, services)
    assert reply.done
    score = domain.score(task, reply.state, transcript, services)
    assert score.value == 1.0 and score.parts["num_calls"] == 1.0
    wrong = domain.score(task, state, [*task.messages, assistant("nonsense")], services)
    assert wrong.value == 0.0
    assert domain.spec.max_turns == inner.spec.max_turns + 3 and domain.spec.executes_code


def test_what_ended_the_interpreter_is_not_played_again(services: Services) -> None:
    domain = made()
    task = domain.task(Split.TRAIN, 0)
    state, told = turn(
        domain, task, domain.initial_state(task), services, python("x = 1\nopen('f', 'w').close()")
    )
    state, told = turn(domain, task, state, services, python("import os; os._exit(3)"))
    assert "[session reset" in told[0]
    state, told = turn(domain, task, state, services, python("os.listdir()"), python("x"))
    assert "NameError" in told[0] and "NameError" in told[1]
    _, told = turn(domain, task, state, services, python("import os; os.listdir('.')"))
    assert "'f'" in told[0]


def test_mistakes_are_answered(services: Services) -> None:
    domain = made()
    task = domain.task(Split.TRAIN, 0)
    state = domain.initial_state(task)
    for text, told in (
        ("<tool_call>{oops}</tool_call>", "malformed tool call"),
        (call_text("shell", {"command": "ls"}), "there is no tool 'shell'; known: python"),
        (call_text("python", {}), "python needs 'code'"),
    ):
        _, (answer,) = turn(domain, task, state, services, text)
        assert told in answer
    _, told = turn(domain, task, state, services, *[python("1")] * 10)
    assert len(told) == 9 and "only the first 8" in told[-1]
    _, (long,) = turn(domain, task, state, services, python("print('x' * 6000)"))
    assert long.endswith("[cut]") and len(long) < 2100
    with pytest.raises(UnscoredError, match="sandbox"):
        turn(domain, task, state, Services(), python("1"))


def test_recipes_name_it_and_bad_options_are_refused() -> None:
    options = {"domain": INNER, "tools": ["python", "shell"], "turns": 2}
    settings = DomainSettings(function="educe.domains.session_tools:with_tools", options=options)
    domain = load_domain("mine", settings)
    assert domain.task(Split.EVAL, 0).tools[1].name == "shell"
    with pytest.raises(DomainError, match="Did you mean 'python'"):
        with_tools(INNER, ("pyton",))
    with pytest.raises(DomainError, match="needs a tool"):
        with_tools(INNER, ())
