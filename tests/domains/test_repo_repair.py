"""Repository repair: frozen packages, real edits in a session, and tests that cannot be cheated."""

from __future__ import annotations

import ast
import functools
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from educe.core.errors import DomainError, UnscoredError
from educe.core.protocols import Domain, Services
from educe.core.splits import split_of
from educe.core.types import JSON, Message, Score, Split, Task, ToolCall, Verdict
from educe.domains.builtin import repo_repair
from educe.domains.builtin.repo_repair.changes import API_KINDS, kinds_for
from educe.domains.builtin.repo_repair.checkout import MemoryFiles, SessionFiles
from educe.domains.builtin.repo_repair.defects import BUG_KINDS, Defect, build
from educe.domains.builtin.repo_repair.loading import Failure, same, watch
from educe.domains.builtin.repo_repair.package import SIZES, TEMPLATES
from educe.domains.builtin.repo_repair.tools import (
    TOOLS,
    describe_run,
    edits_between,
    use_tool,
)
from educe.domains.builtin.stateful_tools.tools import ToolFailure, call_text
from educe.domains.check import play, play_demonstration
from educe.models.chat import parse_tool_calls
from educe.sandbox import open_sandbox

SPECS = repo_repair.specs()
NAMES = [spec.name for spec in SPECS]
TINY = "repo-repair/bug/tiny"


@functools.cache
def task_of(name: str, index: int = 0, split: Split = Split.TRAIN) -> Task:
    return repo_repair.create(name).task(split, index)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with open_sandbox() as sandbox:
        yield Services(sandbox=sandbox)


def calls(*made: tuple[str, Mapping[str, JSON]]) -> Message:
    text = "\n".join(call_text(name, arguments) for name, arguments in made)
    return Message("assistant", text, parse_tool_calls(text))


def written(path: str, content: str) -> tuple[str, dict[str, JSON]]:
    return "write_file", {"path": path, "content": content}


def play_and_see(
    domain: Domain, task: Task, turns: Sequence[Message], services: Services
) -> tuple[Score, JSON, list[Message]]:
    """Play turns as the rollout does, the state going through JSON."""
    state, transcript = domain.initial_state(task), list(task.messages)
    for number, turn in enumerate(turns, 1):
        transcript.append(turn)
        if number == domain.spec.max_turns:
            break
        reply = domain.respond(task, state, transcript, services)
        state = json.loads(json.dumps(reply.state))
        transcript += reply.messages
        if reply.done:
            break
    return domain.score(task, state, transcript, services), state, transcript


# ---- the packages ----


def test_there_are_five_sizes_of_bugs_and_of_api_changes() -> None:
    assert len(NAMES) == 2 * len(SIZES) == 10
    assert SIZES["tiny"].num_modules[0] == 3 and SIZES["huge"].num_modules[1] == 30
    assert len(BUG_KINDS) >= 10 and len(API_KINDS) >= 8
    assert all(s.executes_code and s.has_gold and s.max_turns > 1 for s in SPECS)
    assert all(s.integrity == "outside" for s in SPECS)


def test_listing_does_not_import_torch() -> None:
    code = (
        "import sys, educe.domains.builtin.repo_repair as r; from educe.core.types import Split; "
        "r.specs(); r.create('repo-repair/api/tiny').task(Split.TRAIN, 0); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_and_kinds_are_refused_with_a_hint() -> None:
    with pytest.raises(DomainError, match="repo-repair/bug/tiny"):
        repo_repair.create("repo-repair/bug/tyni")
    with pytest.raises(DomainError, match="off-by-one"):
        repo_repair.create(TINY, kinds=["off-by-two"])


def test_every_bug_changes_its_template() -> None:
    for template in TEMPLATES.values():
        for planted in template.bugs:
            for old, _ in planted.changes:
                assert template.text.count(old) == 1, (template.key, planted.kind, old)


@pytest.mark.parametrize("key", sorted(TEMPLATES))
def test_every_bug_and_change_can_be_told_by_tests(key: str) -> None:
    template = TEMPLATES[key]
    defects = [(bug.kind, bug) for bug in template.bugs]
    if not template.calls and template.signature != "class":
        defects += [(kind, None) for kind in kinds_for(template)]
    for kind, planted in defects:
        for seed in range(24):
            rng = random.Random(f"{key}{kind}{seed}")
            defect = Defect(kind, template, template.draw_constants(rng), planted)
            problem = build(rng, SIZES["tiny"], defect)
            if problem is not None:
                break
        else:
            pytest.fail(f"{kind} of {key} is never noticed: {planted}")
        assert problem.failing and problem.shown_failing
        for path, text in problem.goal.items():
            ast.parse(text, path)
        modules = [text for path, text in problem.goal.items() if not path.startswith("tests/")]
        assert max(len(line) for text in modules for line in text.split("\n")) <= 100


@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_frozen_and_belong_to_one_split(name: str) -> None:
    domain = repo_repair.create(name)
    for split in Split:
        task = task_of(name, 1, split)
        if split is Split.TRAIN:
            assert domain.task(split, 1) == task
        assert split_of(task.content_hash) is split is split_of(task.metadata["key"])
        again = Task.from_json(json.loads(json.dumps(task.to_json())))
        assert again == task and again.tools == TOOLS
    size = SIZES[name.rpartition("/")[2]]
    package = task.metadata["package"]
    modules = [p for p in task.metadata["files"] if p.startswith(f"{package}/")]
    modules = [path for path in modules if not path.endswith("__init__.py")]
    assert size.num_modules[0] <= len(modules) <= size.num_modules[1]
    told = task.messages[0].content
    assert all(path in told for path in modules)
    for test_id, program, expected in task.metadata["required"]:
        assert program not in told and test_id.startswith("tests/")
        assert json.loads(json.dumps(expected)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_gold_edits_turn_the_start_into_a_package_that_passes(name: str) -> None:
    for index in range(2 if "tiny" in name or "small" in name else 1):
        task = task_of(name, index)
        files = MemoryFiles(task.metadata["files"])
        for tool, arguments in task.metadata["calls"]:
            assert use_tool(files, ToolCall(tool, json.dumps(arguments))).startswith("edited")
        failing = []
        for test_id, program, expected in task.metadata["required"]:
            run = (program, False), ("observe()", True)
            assert same(watch(files.tree, (), run)[0], expected), test_id
            observed = watch(task.metadata["files"], (), run)[0]
            failing += [] if same(observed, expected) else [test_id]
        assert failing == task.metadata["failing"] and failing
        untouched = {a["path"] for _, a in task.metadata["calls"]}
        assert not any(path.startswith("tests/") for path in untouched)


def test_tiny_tasks_fit_a_small_context() -> None:
    for kind in ("bug", "api"):
        for index in range(12):
            task = task_of(f"repo-repair/{kind}/tiny", index)
            shown = "".join(task.metadata["files"][p] for p in task.metadata["files"] if "/" in p)
            assert len(task.messages[0].content) < 2400
            assert len(task.gold or "") < 1200 and len(shown) < 4000


@pytest.mark.parametrize("name", NAMES)
def test_a_demonstration_keeps_to_the_domains_limits(name: str) -> None:
    """Measured: 0.33 to 0.40 tokens a character, the long turns below 0.36."""
    domain = repo_repair.create(name)
    for index in range(2):
        turns = [m for m in domain.demonstration(task_of(name, index)) if m.role == "assistant"]
        assert len(turns) <= domain.spec.max_turns
        assert all(0.37 * len(m.content) < domain.spec.max_completion_tokens for m in turns)


def test_a_sample_is_distinct_and_covers_the_kinds() -> None:
    for kind, known in (("bug", BUG_KINDS), ("api", API_KINDS)):
        tasks = [task_of(f"repo-repair/{kind}/tiny", index) for index in range(50)]
        assert len({task.content_hash for task in tasks}) == 50
        assert len({json.dumps(task.metadata["files"]) for task in tasks}) == 50
        assert len({task.metadata["kind"] for task in tasks}) >= 0.7 * len(known)


@pytest.mark.slow
def test_a_thousand_tasks_are_distinct() -> None:
    hashes: set[str] = set()
    kinds: Counter[str] = Counter()
    for name in NAMES:
        domain = repo_repair.create(name)
        for index in range(110):
            task = domain.task(Split.TRAIN, index)
            hashes.add(task.content_hash)
            kinds[task.metadata["kind"]] += 1
    assert len(hashes) == 1100 and set(kinds) == {*BUG_KINDS, *API_KINDS}


def test_kinds_can_be_chosen() -> None:
    domain = repo_repair.create("repo-repair/api/tiny", kinds=["moved-module"])
    tasks = [domain.task(Split.TRAIN, index) for index in range(4)]
    assert {task.metadata["kind"] for task in tasks} == {"moved-module"}


# ---- the environment ----


@pytest.mark.parametrize("name", NAMES)
def test_demonstrations_are_right_and_their_replies_real(name: str, services: Services) -> None:
    domain, task = repo_repair.create(name), task_of(name)
    score, complaint = play_demonstration(domain, task, services)
    assert not complaint
    assert score.value == 1.0 and score.verdict is Verdict.RIGHT, score
    assert score.proof["integrity"] == "outside" and score.parts["broken"] == 0.0
    turns = [m for m in domain.demonstration(task) if m.role == "assistant"]
    assert len(turns) <= domain.spec.max_turns
    assert all(m.tool_calls == parse_tool_calls(m.content) for m in turns)
    other = task_of(name, 1)
    wrong = [m for m in domain.demonstration(other) if m.role == "assistant"]
    assert play(domain, task, wrong, services).value == 0.0


@pytest.mark.parametrize("name", [TINY, "repo-repair/bug/medium", "repo-repair/api/small"])
def test_no_attack_is_paid(name: str, services: Services) -> None:
    domain, task = repo_repair.create(name), task_of(name, 2)
    attacks = domain.attacks(task)  # type: ignore[attr-defined]
    assert len(attacks) >= 15
    for attack, attempt in attacks.items():
        score = play(domain, task, attempt, services)
        assert score.value == 0.0, (attack, score)


def test_knowing_what_is_shown_is_not_enough(services: Services) -> None:
    """The table of shown answers passes the shown tests, and the hidden observations fail it."""
    domain = repo_repair.create(TINY)
    task = next(t for t in (task_of(TINY, i) for i in range(20)) if t.metadata["known"])
    attempt = domain.attacks(task)["table of known answers"]  # type: ignore[attr-defined]
    turns = [attempt[0], calls(("run_tests", {})), attempt[1]]
    score, _, transcript = play_and_see(domain, task, turns, services)
    target = next(t for t in task.metadata["shown"] if task.metadata["known"][0] in t)
    assert target not in transcript[4].content
    assert score.value == 0.0 and target in score.proof["failing"]


def test_attacks_together_with_a_repair_do_no_harm(services: Services) -> None:
    """Test files are nobody's business: a repair counts, whatever became of them."""
    domain, task = repo_repair.create(TINY), task_of(TINY)
    gold = [(name, arguments) for name, arguments in task.metadata["calls"]]
    tests = [path for path in task.metadata["files"] if path.startswith("tests/")]
    changed = calls(*gold, *[("delete_file", {"path": path}) for path in tests[:2]])
    assert play(domain, task, [changed], services).value == 1.0


def test_what_the_edits_break_is_named(services: Services) -> None:
    domain, task = repo_repair.create("repo-repair/api/small"), task_of("repo-repair/api/small", 1)
    sound = [i for i in task.metadata["shown"] if i not in task.metadata["failing"]]
    stem = sound[0].split("::")[0].removeprefix("tests/test_")
    path = f"{task.metadata['package']}/{stem}"
    gold = [m for m in domain.demonstration(task) if m.role == "assistant"][:-2]
    spoil = calls(written(path, "raise RuntimeError('gone')\n"), ("run_tests", {}))
    score, state, transcript = play_and_see(domain, task, [*gold, spoil], services)
    told = transcript[-1].content
    broken = told[told.index("Broken by your edits: ") :]
    assert sound[0] in broken and "RuntimeError: gone" in told and f"{path} line 1" in told
    assert score.value == 0.0 and sound[0] in score.proof["broken"]
    assert score.parts["broken"] >= 1.0 and sound[0] in score.reason
    assert state["num_runs"] == 2 if len(gold) > 9 else state["num_runs"] >= 1


def test_failures_say_what_was_got_and_where(services: Services) -> None:
    task = task_of(TINY)
    files = SessionFiles(services.sandbox, {**task.metadata["files"], **MORE_TESTS})
    reports = {name: (how, text) for name, how, text in files.run_tests(sorted(MORE_TESTS))}
    assert reports["tests/test_more.py::test_wrong"] == ("failed", "1 + 1 gave 2, expected 3")
    assert reports["tests/test_more.py::test_right"] == ("passed", "")
    assert "line 11" in reports["tests/test_more.py::test_plain"][1]
    assert reports["tests/test_more.py::test_exits"][1].startswith("SystemExit: 0")
    assert "ended before all tests" in reports["tests/test_hard_exit.py::"][1]
    assert "took too long" in reports["tests/test_endless.py::"][1]
    assert "SyntaxError" in reports["tests/test_syntax.py::"][1]
    assert "tests/made_by_a_test.txt" in files.tree, "a test's files stay, as in any checkout"


MORE_TESTS = {
    "tests/test_more.py": """import sys
def test_right():
    print("noise")
    assert 1 + 1 == 2
def test_wrong():
    assert 1 + 1 == 3
def test_exits():
    sys.exit(0)
def test_plain():
    open("tests/made_by_a_test.txt", "w").close()
    assert not True
""",
    "tests/test_hard_exit.py": "import os\ndef test_x():\n    os._exit(0)\n",
    "tests/test_endless.py": "def test_x():\n    while True:\n        pass\n",
    "tests/test_syntax.py": "def test_x(:\n",
}


def test_a_checkout_answers_like_a_dictionary(services: Services) -> None:
    """Demonstrations are made without a sandbox: both kinds of files give the same replies."""
    tree = {"a/b.py": "x = 1\ny = 1\n", "a/__init__.py": "", "tests/test_b.py": "# x = 1\n"}
    made = [
        ("list_files", {}),
        ("read_file", {"path": "a/b.py"}),
        ("read_file", {"path": "a/c.py"}),
        ("search", {"text": "x = 1"}),
        ("search", {"text": "nowhere"}),
        ("edit_file", {"path": "a/b.py", "old": "= 1", "new": "= 2"}),
        ("edit_file", {"path": "a/b.py", "old": "x = 1", "new": "x = 2"}),
        ("write_file", {"path": "a/new.py", "content": "z = 'ü'\n"}),
        ("delete_file", {"path": "a/b.py"}),
        ("delete_file", {"path": "a/b.py"}),
        ("write_file", {"path": "../out.py", "content": ""}),
        ("write_file", {"path": ".hidden", "content": ""}),
        ("write_file", {"path": "a/bad.py", "content": "\ud800"}),
        ("list_files", {}),
    ]
    memory, session = MemoryFiles(tree), SessionFiles(services.sandbox, tree)
    for name, arguments in made:
        call = ToolCall(name, json.dumps(arguments))
        assert answer(memory, call) == answer(session, call), call
    session.close()
    assert memory.tree == session.tree
    assert memory.tree["a/new.py"] == "z = 'ü'\n" and "a/b.py" not in memory.tree


def answer(files: Any, call: ToolCall) -> str:
    try:
        return use_tool(files, call)
    except ToolFailure as failure:
        return f"error: {failure}"


def test_mistakes_are_answered_and_the_episode_goes_on(services: Services) -> None:
    domain, task = repo_repair.create(TINY), task_of(TINY)
    gold = calls(*[(name, arguments) for name, arguments in task.metadata["calls"]])
    mistakes = [
        (call_text("edit", {"path": "x"}), "Did you mean 'edit_file'"),
        (call_text("read_file", {}), "needs the argument 'path'"),
        (call_text("read_file", {"path": 3}), "needs the argument 'path'"),
        (call_text("run_tests", {"path": "x"}), "has no argument 'path'"),
        (call_text("read_file", {"path": "/etc/passwd"}), "must be relative"),
        (call_text("read_file", {"path": "nothing.py"}), "no file 'nothing.py'"),
        (call_text("edit_file", {"path": task.metadata["target"], "old": "", "new": ""}), "empty"),
        ("<tool_call>{oops}</tool_call>", "malformed tool call"),
        ('<tool_call>{"name": "search", "arguments": [1]}</tool_call>', "a JSON object"),
    ]
    for text, words in mistakes:
        turn = Message("assistant", text, parse_tool_calls(text))
        score, state, transcript = play_and_see(domain, task, [turn, gold], services)
        assert transcript[2].role == "tool" and words in transcript[2].content
        assert transcript[2].content.startswith("error: ")
        assert score.value == 1.0 and state["num_errors"] == 1


def test_the_calls_of_the_last_allowed_turn_count(services: Services) -> None:
    domain, task = repo_repair.create(TINY), task_of(TINY)
    looks = [calls(("list_files", {}))] * (domain.spec.max_turns - 1)
    gold = calls(*[(name, arguments) for name, arguments in task.metadata["calls"]])
    score, state, _ = play_and_see(domain, task, [*looks, gold], services)
    assert score.value == 1.0 and state["edits"] == {}


def test_scoring_twice_is_scoring_once(services: Services) -> None:
    domain, task = repo_repair.create(TINY), task_of(TINY)
    gold = calls(*[(name, arguments) for name, arguments in task.metadata["calls"]])
    state, transcript = domain.initial_state(task), [*task.messages, gold]
    before = json.dumps([state, task.to_json()])
    for _ in range(2):
        assert domain.score(task, state, transcript, services).value == 1.0
    assert json.dumps([state, task.to_json()]) == before


def test_no_call_needs_no_sandbox_and_a_call_needs_one() -> None:
    domain, task = repo_repair.create(TINY), task_of(TINY)
    score = play(domain, task, [Message("assistant", "Done.")], Services())
    assert score.value == 0.0 and score.verdict is Verdict.WRONG
    malformed = play(domain, task, [Message("assistant", "<tool_call>x</tool_call>")], Services())
    assert malformed.verdict is Verdict.UNPARSEABLE
    with pytest.raises(UnscoredError, match="sandbox"):
        play(domain, task, [calls(("list_files", {}))], Services())


def test_tests_that_break_the_box_cost_nothing_but_their_report(services: Services) -> None:
    domain, task = repo_repair.create(TINY), task_of(TINY)
    bomb = "import os, signal\nos.kill(-1, signal.SIGKILL)\ndef test_x(): pass\n"
    gold = [(name, arguments) for name, arguments in task.metadata["calls"]]
    turn = calls(*gold, written("tests/test_bomb.py", bomb), ("run_tests", {}))
    score, state, transcript = play_and_see(domain, task, [turn], services)
    assert transcript[-1].content.startswith("error: the test run broke off")
    assert score.value == 1.0 and "tests/test_bomb.py" in state["edits"]


def test_partial_pay_is_the_share_of_repaired_tests_without_damage(services: Services) -> None:
    name = "repo-repair/api/small"
    strict, lenient = repo_repair.create(name), repo_repair.create(name, partial=True)
    for index in range(8):
        task = task_of(name, index)
        paths = list(dict.fromkeys(a["path"] for _, a in task.metadata["calls"]))
        if len(paths) == 2:
            break
    some = calls(*[(n, a) for n, a in task.metadata["calls"] if a["path"] == paths[0]])
    assert play(strict, task, [some], services).value == 0.0
    score = play(lenient, task, [some], services)
    left = len(score.proof["failing"])
    assert 0 < left <= len(task.metadata["failing"])
    assert score.value == pytest.approx(1 - left / len(task.metadata["failing"]))


# ---- pieces ----


def test_edits_turn_any_text_into_any_other() -> None:
    rng = random.Random(5)
    lines = ["a = 1\n", "b = 2\n", "    a = 1\n", "\n", "c = 3\n", "return a\n"]
    for _ in range(200):
        before = "".join(rng.choices(lines, k=rng.randint(1, 9)))
        after = "".join(rng.choices(lines, k=rng.randint(1, 9)))
        files = MemoryFiles({"x.py": before})
        for old, new in edits_between(before, after):
            arguments = json.dumps({"path": "x.py", "old": old, "new": new})
            use_tool(files, ToolCall("edit_file", arguments))
        assert files.tree["x.py"] == after


def test_a_run_is_described_with_what_was_broken() -> None:
    shown = ["tests/test_a.py::test_a", "tests/test_a.py::test_b", "tests/test_b.py::test_c"]
    reports = [(shown[0], "passed", ""), (shown[1], "failed", "x"), ("tests/test_b.py::", "e", "y")]
    text = describe_run(reports, shown, [shown[1]])
    assert text.splitlines() == [
        "1 passed, 2 failed",
        "FAILED tests/test_a.py::test_b: x",
        "FAILED tests/test_b.py: y",
        "Broken by your edits: tests/test_b.py::test_c",
    ]
    assert describe_run([(name, "passed", "") for name in shown], shown, []) == "3 passed"


def test_observations_are_exact_and_failures_are_kept() -> None:
    files = {"p/__init__.py": "", "p/m.py": "def f(x):\n    return 10 // x\n"}
    script = (("f(5)", True), ("f(0)", True), ("g()", True), ("y = f(2)", False), ("[y]", True))
    seen = watch(files, ("from p.m import f",), script)
    assert seen[0] == 2 and seen[3] == [5]
    assert isinstance(seen[1], Failure) and seen[1].text.startswith("ZeroDivisionError")
    assert isinstance(seen[2], Failure)
    gone = watch(files, ("from p.old import f",), script[:1])
    assert isinstance(gone[0], Failure) and "p.old" in gone[0].text
    assert not same(1, True) and not same([1], [1.0]) and same({"a": [1]}, {"a": [1]})


def test_a_renamed_task_keeps_its_tests(services: Services) -> None:
    task = replace(task_of(TINY), domain="mine")
    domain = repo_repair.create(TINY)
    gold = calls(*[(name, arguments) for name, arguments in task.metadata["calls"]])
    assert play(domain, task, [gold], services).value == 1.0


def test_a_sandbox_of_another_process_does(services: Services) -> None:
    """Score workers share a sandbox by its address."""
    domain, task = repo_repair.create(TINY), task_of(TINY)
    gold = calls(*[(name, arguments) for name, arguments in task.metadata["calls"]])
    turns = [gold, calls(("run_tests", {})), Message("assistant", "Done.")]
    with open_sandbox(address=services.sandbox.address) as shared:
        score, _, transcript = play_and_see(domain, task, turns, Services(sandbox=shared))
    assert score.value == 1.0 and transcript[-2].content == "3 passed"
