"""Python functions: frozen tasks, hidden tests that cannot be cheated, feedback that is real."""

from __future__ import annotations

import ast
import functools
import json
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from educe.core.errors import DomainError, InfrastructureError, UnscoredError
from educe.core.protocols import Domain, Services
from educe.core.splits import split_of
from educe.core.types import Fault, Message, Score, Split, Task, Verdict, assistant, user
from educe.domains.builtin import python_functions
from educe.domains.builtin.python_functions import pieces
from educe.domains.builtin.python_functions.attempts import cases_of
from educe.domains.builtin.python_functions.bugs import plant_bug
from educe.domains.builtin.python_functions.domain import NUM_SHOWN
from educe.domains.builtin.python_functions.extract import extract_function
from educe.domains.builtin.python_functions.problem import Case, Problem, instantiate, is_varied
from educe.domains.builtin.python_functions.registry import GENERATORS
from educe.sandbox import BoxVerdict, CallResult, Job, Level, Result, Sandbox, open_sandbox

SPECS = python_functions.specs()
WRITING = [s.name for s in SPECS if s.name.startswith("python/")]


@functools.cache
def task_of(name: str, split: Split = Split.TRAIN, index: int = 0) -> Task:
    return python_functions.create(name).task(split, index)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with open_sandbox() as sandbox:
        yield Services(sandbox=sandbox)


def score_text(domain: Domain, task: Task, text: str, services: Services) -> Score:
    state = domain.initial_state(task)
    return domain.score(task, state, [*task.messages, assistant(text)], services)


def fenced(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```"


def test_there_are_many_generators_and_each_has_three_domains() -> None:
    assert len({topic for topic, _ in GENERATORS}) >= 40
    assert len(SPECS) == 3 * len(GENERATORS) == len({s.name for s in SPECS})
    assert {s.name.rpartition("/")[2] for s in SPECS} == {"tiny", "easy", "medium", "hard"}
    repair = {s.max_turns for s in SPECS if s.name.startswith("python-repair/")}
    assert repair == {2, 3}
    assert all(s.executes_code and s.has_gold for s in SPECS)


def test_listing_does_not_import_torch() -> None:
    code = (
        "import sys, educe.domains.builtin.python_functions as p; p.specs(); "
        "d = p.create('python/arithmetic/tiny'); d.spec; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(DomainError, match="python/arithmetic/tiny"):
        python_functions.create("python/aritmetic/tiny")


@pytest.mark.parametrize("family", ["python", "python-repair", "python-debug"])
def test_tasks_are_pure_and_round_trip(family: str) -> None:
    for topic, level in list(GENERATORS)[::7]:
        name = f"{family}/{topic}/{level}"
        task = python_functions.create(name).task(Split.EVAL, 3)
        again = python_functions.create(name).task(Split.EVAL, 3)
        assert task == again
        assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task
        assert (task.domain, task.split, task.index) == (name, Split.EVAL, 3)


def test_every_domain_has_tasks_in_every_split_and_functions_do_not_cross_splits() -> None:
    for name in WRITING:
        for split in Split:
            task = task_of(name, split)
            assert split_of(task.content_hash) is split
            assert split_of(task.metadata["key"]) is split, name


def test_hidden_tests_are_not_shown_ones_and_results_vary() -> None:
    for name in WRITING:
        task = task_of(name, index=2)
        shown, hidden = cases_of(task, "shown"), cases_of(task, "hidden")
        assert len(shown) == NUM_SHOWN[name.rpartition("/")[2]]
        assert len(hidden) >= 6
        inputs = {json.dumps(c.args) for c in (*shown, *hidden)}
        assert len(inputs) == len(shown) + len(hidden), "an input occurs twice"
        assert is_varied(hidden)
        text = task.messages[0].content
        for case in hidden:
            call = f"{task.metadata['entry_point']}({', '.join(map(repr, case.args))})"
            assert call not in text


def test_tiny_tasks_are_short() -> None:
    for name in WRITING:
        if name.endswith("/tiny"):
            for index in (0, 2, 3, 4):
                task = task_of(name, index=index)
                # About four characters a token in prose; code and digits take more tokens.
                assert len(task.messages[0].content) < 400
                assert task.gold is not None and len(task.gold) < 180
                assert len(task.gold.splitlines()) == 4  # fence, def, return, fence


def test_sampled_content_is_distinct_and_the_space_exceeds_100_000_functions() -> None:
    tasks = [task_of(name, split) for name in WRITING for split in Split]
    tasks += [task_of(name, index=index) for name in WRITING[::6] for index in range(1, 12)]
    assert len({t.content_hash for t in tasks}) == len(tasks)

    # Without a repetition in n draws, a space of N functions is improbable: exp(-n(n-1) / 2N).
    # For n = 1500 and N = 100,000 that is below 2e-5, in one generator alone.
    rng = random.Random(0)
    draw = GENERATORS["list-pipeline", "hard"]
    assert len({draw(rng).body for _ in range(1500)}) == 1500

    # Combinatorially: ordered triples of list operations (no two of a kind in a row) and an end.
    operations = {pieces.list_operation(rng).code for _ in range(1000)}
    ends = {pieces.list_reduction(rng).code for _ in range(400)}
    size = len(operations) * (len(operations) // 2) ** 2 * len(ends)
    assert size > 100_000


@pytest.mark.parametrize("names", [WRITING[::6], pytest.param(WRITING, marks=pytest.mark.slow)])
def test_gold_is_right(names: list[str], services: Services) -> None:
    for name in names:
        domain, task = python_functions.create(name), task_of(name, index=2)
        (message,) = domain.demonstration(task)
        score = score_text(domain, task, message.content, services)
        assert score.value == 1.0 and score.verdict is Verdict.RIGHT, (name, score)
        assert score.parts["hidden_fraction"] == 1.0 and score.parts["shown_pass"] == 1.0


@pytest.mark.parametrize("family", ["python-repair", "python-debug"])
def test_gold_is_right_in_the_other_families(family: str, services: Services) -> None:
    for topic, level in list(GENERATORS)[::16]:
        domain = python_functions.create(f"{family}/{topic}/{level}")
        task = domain.task(Split.EVAL, 0)
        (message,) = domain.demonstration(task)
        assert score_text(domain, task, message.content, services).value == 1.0


def test_wrong_constant_and_empty_answers_score_nothing(services: Services) -> None:
    for topic, level in list(GENERATORS)[::15]:
        domain = python_functions.create(f"python/{topic}/{level}")
        task = domain.task(Split.TRAIN, 0)
        entry = task.metadata["entry_point"]
        hidden = cases_of(task, "hidden")
        constant = f"def {entry}(*args):\n    return {hidden[0].expected!r}"
        other = domain.task(Split.TRAIN, 1).gold or ""
        for text in ("", "I cannot do that.", other, fenced(constant), f"def {entry}(*a): pass"):
            score = score_text(domain, task, text, services)
            assert score.value == 0.0, (topic, text)


def hard_coded(task: Task) -> str:
    """A table of the shown tests, with a shown result for everything else."""
    table = {json.dumps(c.args): c.expected for c in cases_of(task, "shown")}
    last = cases_of(task, "shown")[-1].expected
    entry = task.metadata["entry_point"]
    return (
        f"import json\ntable = {table!r}\n"
        f"def {entry}(*args):\n    return table.get(json.dumps(list(args)), {last!r})"
    )


CHEATS = {
    "exit at import": "import sys\ndef NAME(*a):\n    return 1\nsys.exit(0)",
    "exit in the call": "import sys\ndef NAME(*a):\n    sys.exit(0)",
    "hard exit": "import os\ndef NAME(*a):\n    os._exit(0)",
    "markers": "def NAME(*a):\n    print('ALL TESTS PASSED\\nOK\\n')\n    return True",
    "always equal": (
        "class Same:\n    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n    __hash__ = None\n"
        "def NAME(*a):\n    return Same()"
    ),
    "equal int": (
        "class Same(int):\n    def __eq__(self, other): return True\n"
        "    __hash__ = int.__hash__\ndef NAME(*a):\n    return Same(3)"
    ),
    "equal str": (
        "class Same(str):\n    def __eq__(self, other): return True\n"
        "    __hash__ = str.__hash__\ndef NAME(*a):\n    return Same('x')"
    ),
    "search files": (
        "import json, os\n"
        "def NAME(*a):\n"
        "    for folder in ('.', '..', os.path.dirname(os.path.abspath(__file__))):\n"
        "        for name in os.listdir(folder):\n"
        "            path = os.path.join(folder, name)\n"
        "            if os.path.isfile(path) and 'expected' in open(path).read():\n"
        "                for row in json.load(open(path)):\n"
        "                    if row['args'] == list(a): return row['expected']\n"
        "    return None"
    ),
    "search frames": (
        "import sys\ndef NAME(*a):\n    frame = sys._getframe()\n    while frame:\n"
        "        for v in {**frame.f_globals, **frame.f_locals}.values():\n"
        "            if hasattr(v, 'expected'): return v.expected\n"
        "        frame = frame.f_back\n    return None"
    ),
    "patched builtins": (
        "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda *a: 0\n"
        "def NAME(*a):\n    return 1"
    ),
    "error": "def NAME(*a):\n    raise AssertionError('passed')",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_score_nothing(cheat: str, services: Services) -> None:
    for name in ("python/arithmetic/tiny", "python/string-edit/tiny"):
        domain = python_functions.create(name)
        task = domain.task(Split.TRAIN, 4)
        source = CHEATS[cheat].replace("NAME", task.metadata["entry_point"])
        score = score_text(domain, task, fenced(source), services)
        assert score.value == 0.0, score
        assert score.parts["hidden_fraction"] in (0.0, pytest.approx(0.0, abs=0.35))


def test_hard_coding_the_shown_tests_scores_nothing(services: Services) -> None:
    for name in WRITING[::12]:
        domain = python_functions.create(name)
        task = domain.task(Split.TRAIN, 0)
        score = score_text(domain, task, fenced(hard_coded(task)), services)
        assert score.parts["shown_pass"] == 1.0, (name, "the cheat itself must work")
        assert score.value == 0.0, name


def test_timeout_and_exception_are_the_candidates_fault(services: Services) -> None:
    domain = python_functions.create("python/arithmetic/tiny")
    task = domain.task(Split.TRAIN, 0)
    entry = task.metadata["entry_point"]
    for body, word in (("while True: pass", "timeout"), ("    return 1 / 0", "ZeroDivision")):
        score = score_text(domain, task, fenced(f"def {entry}(x):\n    {body.strip()}"), services)
        assert (score.value, score.fault) == (0.0, Fault.CANDIDATE)
        assert word in score.reason


def test_code_that_does_not_compile_is_unparseable(services: Services) -> None:
    domain = python_functions.create("python/arithmetic/tiny")
    task = domain.task(Split.TRAIN, 0)
    score = score_text(domain, task, fenced("def broken(:\n"), services)
    assert score.verdict is Verdict.UNPARSEABLE and score.value == 0.0
    assert score.parts["parsed"] == 1.0 and score.parts["compiles"] == 0.0
    assert "SyntaxError" in score.reason


def test_partial_pay_is_chance_corrected(services: Services) -> None:
    name = "python/number-check/tiny"
    binary, partial = python_functions.create(name), python_functions.create(name, partial=True)
    task = binary.task(Split.TRAIN, 0)
    entry = task.metadata["entry_point"]
    for value in (True, False):
        text = fenced(f"def {entry}(*a):\n    return {value}")
        assert score_text(partial, task, text, services).value == 0.0, "a constant earns nothing"
    hidden = cases_of(task, "hidden")
    table = {json.dumps(c.args): c.expected for c in hidden[:-1]}
    almost = (
        f"import json\ndef {entry}(*a):\n"
        f"    return {table!r}.get(json.dumps(list(a)), {not hidden[-1].expected})"
    )
    value = score_text(partial, task, fenced(almost), services).value
    assert value is not None and 0.3 < value < 1.0
    assert score_text(binary, task, fenced(almost), services).value == 0.0


def test_extraction_takes_the_last_block_that_defines_the_function() -> None:
    text = (
        "```python\ndef f(x):\n    return 1\n```\nbetter:\n```python\ndef f(x):\n    return 2\n```"
    )
    found = extract_function(text + "\n```python\nprint(f(3))\n```", "f")
    assert found.source == "def f(x):\n    return 2\n"
    assert extract_function("def f(x): return 3", "f").source == "def f(x): return 3"
    assert extract_function("f = lambda x: 3", "f").source is not None
    assert extract_function("```\ndef f(x):\n    return 4", "f").source == "def f(x):\n    return 4"
    assert not extract_function("def g(x): return 3", "f").is_found
    assert not extract_function("The answer is 3.", "f").is_found
    assert extract_function("```python\ndef f(:\n```", "f").source is None
    for nasty in ("\ud800", "\0", "(" * 3000, "x" * 30_000, "'\\d'"):
        assert (
            extract_function(f"```python\ndef f(x): return '''{nasty}'''\n```", "g").source is None
        )


def test_repair_shows_real_output_and_keeps_every_attempt(services: Services) -> None:
    domain = python_functions.create("python-repair/arithmetic/tiny")
    task = domain.task(Split.TRAIN, 0)
    entry, shown = task.metadata["entry_point"], cases_of(task, "shown")
    wrong = fenced(f"def {entry}(x):\n    return 123456")
    transcript = [*task.messages, assistant(wrong)]
    reply = domain.respond(task, domain.initial_state(task), transcript, services)
    assert not reply.done and reply.messages[0].role == "user"
    feedback = reply.messages[0].content
    assert f"{entry}({shown[0].args[0]}) returned 123456" in feedback
    assert f"expected {shown[0].expected}" in feedback
    assert not any(f"({c.args[0]})" in feedback for c in cases_of(task, "hidden"))

    transcript += [*reply.messages, assistant(task.gold or "")]
    state = json.loads(json.dumps(reply.state))
    final = domain.respond(task, state, transcript, services)
    assert final.done and not final.messages
    for last_state in (final.state, state):  # with and without a reply to the last turn
        score = domain.score(task, last_state, transcript, services)
        assert score.value == 1.0
        assert score.proof["num_attempts"] == 2
        assert score.proof["first_attempt_right"] is False
        assert score.proof["fixed_after_feedback"] is True


def test_repair_that_is_right_at_once_and_repair_that_never_is(services: Services) -> None:
    domain = python_functions.create("python-repair/arithmetic/tiny")
    task = domain.task(Split.TRAIN, 1)
    right = [*task.messages, *domain.demonstration(task)]
    reply = domain.respond(task, domain.initial_state(task), right, services)
    assert reply.done
    score = domain.score(task, reply.state, right, services)
    assert score.value == 1.0
    assert score.proof["first_attempt_right"] is True
    assert score.proof["fixed_after_feedback"] is False and score.proof["num_attempts"] == 1

    reply = domain.respond(
        task, domain.initial_state(task), [*task.messages, assistant("no idea")], services
    )
    assert not reply.done and task.metadata["entry_point"] in reply.messages[0].content
    transcript = [
        *task.messages,
        assistant("no idea"),
        *reply.messages,
        assistant(hard_coded(task)),
    ]
    score = domain.score(task, reply.state, transcript, services)
    assert score.value == 0.0 and score.parts["shown_pass"] == 1.0
    assert score.proof["fixed_after_feedback"] is False and score.proof["num_attempts"] == 2


def test_debug_prompts_hold_a_bug_and_its_real_outcome(services: Services) -> None:
    for topic, level in list(GENERATORS)[::24]:
        domain = python_functions.create(f"python-debug/{topic}/{level}")
        task = domain.task(Split.TRAIN, 0)
        text = task.messages[0].content
        buggy = text.split("```python\n")[1].split("\n```")[0]
        ast.parse(buggy)
        assert any(word in text for word in (" returned ", " raised ", " did not end"))
        score = score_text(domain, task, fenced(buggy), services)
        assert score.value == 0.0, "echoing the bug must not pay"
        assert score.parts["shown_pass"] is not None and score.parts["shown_pass"] < 1.0


def test_bugs_that_never_end_are_noticed_while_they_are_made() -> None:
    source = "def f(n):\n    while n > 0:\n        n -= 1\n    return n + 5"
    cases = [Case((n,), 5) for n in range(2, 6)]
    outcomes = set()
    for seed in range(40):
        bug = plant_bug(source, "f", cases[:2], cases[2:], random.Random(seed))
        outcomes.update(bug[1] if bug else [])
    assert any("did not end" in outcome for outcome in outcomes)
    assert any("returned" in outcome for outcome in outcomes)


def test_degenerate_functions_are_rejected() -> None:
    def problem(body: str) -> Problem:
        return Problem("f", ("int",), "x", body, lambda r: (r.randint(0, 99),))

    rng = random.Random(0)
    assert instantiate(problem("return 3"), rng, 2, 8) is None
    assert instantiate(problem("return a_"), rng, 2, 8) is None
    assert instantiate(problem("return a_ + 1"), rng, 2, 8) is not None


def test_without_a_sandbox_nothing_is_scored() -> None:
    domain = python_functions.create("python/arithmetic/tiny")
    task = domain.task(Split.TRAIN, 0)
    with pytest.raises(UnscoredError, match=r"Services\.sandbox"):
        score_text(domain, task, task.gold or "", Services())


class LostBackend:
    """A sandbox whose executor was lost."""

    level = Level.PLAIN

    def run_batch(self, jobs: list[Job]) -> list[Result]:
        calls = tuple(CallResult("missing") for _ in jobs[0].calls)
        return [Result(BoxVerdict.INFRA, "the executor was lost", calls=calls)]

    def close(self) -> None:
        pass


def test_a_lost_sandbox_is_never_a_number() -> None:
    domain = python_functions.create("python-repair/arithmetic/tiny")
    task = domain.task(Split.TRAIN, 0)
    lost = Services(sandbox=Sandbox(LostBackend()))
    transcript = [*task.messages, assistant(task.gold or "")]
    with pytest.raises(InfrastructureError, match="the executor was lost"):
        domain.score(task, domain.initial_state(task), transcript, lost)
    with pytest.raises(InfrastructureError):
        domain.respond(task, domain.initial_state(task), transcript, lost)


def test_the_task_asks_in_one_user_message() -> None:
    task = python_functions.create("python/list-map/tiny").task(Split.TRAIN, 0)
    assert task.messages == (user(task.messages[0].content),)
    assert isinstance(task.messages[0], Message)
