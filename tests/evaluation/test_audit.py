"""The audit finds bad verifiers and passes sound ones; leaks and looks are seen."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from educe.core.errors import EduceError, UnscoredError
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import draw_task
from educe.core.types import Message, Score, Split, Task, assistant, user
from educe.domains.copies import copied_parts, picked_numbers
from educe.domains.registry import load_domain
from educe.evaluation.audit.attempts import attempts_for
from educe.evaluation.audit.graders import (
    AuditLimits,
    audit_grader,
    audit_problems,
    baseline_json,
    moved_rates,
)
from educe.evaluation.audit.leakage import contamination, leak_report, question_count
from educe.evaluation.audit.sealed import looks_json, open_sealed, read_sealed, seal
from educe.rewards.outcome.numeric import numeric_match
from educe.rewards.outcome.text import exact_match


class Sums(DomainBase):
    """A sound domain; the broken ones change its judgement."""

    def __init__(self, name: str = "sums", kind: str = "arithmetic") -> None:
        self.spec = DomainSpec(name, name, kind, "Add two numbers.")

    def task(self, split: Split, index: int) -> Task:
        return draw_task(self.make, self.spec.name, split, index)

    def make(self, rng: random.Random) -> Task:
        a, b = rng.randrange(10, 5000), rng.randrange(10, 5000)
        return Task("", Split.TRAIN, 0, (user(f"What is {a} plus {b}, please?"),), str(a + b))

    def judge(self, text: str, gold: str) -> Score:
        return numeric_match(text, gold)

    def score(self, task, state, transcript, services):
        return self.judge(transcript[-1].content, task.gold or "")


def broken(judge) -> Sums:
    domain = Sums()
    domain.judge = judge  # type: ignore[method-assign]
    return domain


def bad_forms(domain: Sums) -> set[str]:
    audit = audit_grader(domain, num_tasks=8)
    return {f.form for f in audit.forms if f.mistakes and f.is_certain}


def test_a_sound_verifier_passes() -> None:
    audit = audit_grader(Sums(), num_tasks=12)
    assert audit.false_accept is not None and audit.false_accept.value == 0.0
    assert audit.false_accept.num_items > 150 and 0 < audit.false_accept.high < 0.03
    assert audit.false_reject is not None and audit.false_reject.value == 0.0
    assert audit_problems(audit) == []
    assert json.loads(json.dumps(audit.to_json()))["false_accept"]["value"] == 0.0


@pytest.mark.parametrize(
    ("judge", "forms"),
    [
        # Ends-with comparison: 711 for 11.
        (lambda t, g: Score.graded(float(t.strip().endswith(g))), {"digit before"}),
        # Substring: everything printed is right.
        (lambda t, g: Score.graded(float(g in t)), {"digit behind", "taken back", "two answers"}),
        # A verdict word believed wherever it stands.
        (lambda t, g: Score.right() if "CORRECT" in t or t.strip() == g else Score.wrong(),
         {"claims to be right"}),
        # The leftmost answer wins over the corrected one.
        (lambda t, g: Score.graded(float(t.split("answer is ")[-1].startswith(g))), {"taken back"}),
        # A gold that cannot be parsed gives everybody full marks.
        (lambda t, g: Score.right(), {"nothing", "refusal", "one more"}),
    ],
)  # fmt: skip
def test_broken_verifiers_are_found(judge, forms) -> None:
    assert forms <= bad_forms(broken(judge)), bad_forms(broken(judge))
    assert audit_problems(audit_grader(broken(judge), num_tasks=4))


def test_a_strict_verifier_shows_what_it_rejects() -> None:
    audit = audit_grader(broken(lambda t, g: Score.graded(float(t == g))), num_tasks=6)
    assert audit.false_reject is not None and audit.false_reject.value == 1.0
    assert any("after thinking" in p for p in audit_problems(audit))
    lenient = AuditLimits(always=(), max_false_reject=0.5)
    assert any("forms of the gold" in p for p in audit_problems(audit, lenient))


def test_parts_of_a_prompt() -> None:
    parts = copied_parts(
        "Read it.\n\nThe pump is 'on'. It says \"7 bar\".\n\nQuestion: Who's 'A b'?"
    )
    assert parts["its words in quotes"] == "on 7 bar A b"
    assert parts["its first word in quotes"] == "on" and parts["its last word in quotes"] == "A b"
    assert parts["its last line"] == parts["its last sentence"] == "Question: Who's 'A b'?"
    assert parts["behind its last colon"] == "Who's 'A b'?"
    assert parts["all before the question"].endswith('"7 bar".')
    assert set(copied_parts("Go")) == {
        "the prompt", "its first sentence", "its last sentence", "its first line",
        "its last line", "its first half", "its second half",
    }  # fmt: skip
    assert copied_parts("") == {} and picked_numbers("none") == {}
    assert picked_numbers("2 or v3 or -4.5?") == {
        "its first number": "2", "its last number": "-4.5"
    }  # fmt: skip


class Mentions(Sums):
    """Pays every text that uses the word it names, as a rule alone would."""

    def make(self, rng: random.Random) -> Task:
        word = rng.choice(("lantern", "orchard", "pebble", "saddle", "violin", "walnut"))
        return Task("", Split.TRAIN, 0, (user(f"Write about '{word}'. Be brief."),), f"A {word}.")

    def judge(self, text: str, gold: str) -> Score:
        word = gold.removeprefix("A ").removesuffix(".")
        return Score.graded(float(word in text and len(text.split()) < 4))


def test_paying_for_a_copy_of_the_prompt_is_found() -> None:
    audit = audit_grader(Mentions("words", "instructions"), num_tasks=4)
    told = {f.form for f in audit.paid_copies}
    assert {"its words in quotes", "its first sentence"} <= told and "the prompt" not in told
    (line, *_) = (p for p in audit_problems(audit) if "words in quotes" in p)
    assert line == "words: pays for repeating its words in quotes (64 of 64, floor 0.00)"
    assert "words in quotes" in json.dumps(audit.to_json())
    # Copies that are right as often as chance is are none: half of all answers stand in the prompt.
    honest = Mentions("words", "instructions")
    honest.spec = replace(honest.spec, floor=1.0)
    assert audit_grader(honest, num_tasks=4).paid_copies == ()
    assert audit_grader(Sums(), num_tasks=4).paid_copies == ()


@pytest.mark.parametrize(
    "name",
    [
        "instructions/1-constraints/tiny",
        "instructions/1-constraints/letters",
        "instructions/1-constraints/words",
        "long-document/update/tiny",
        "arithmetic/gcd/tiny",
        "arithmetic/percent/tiny",
    ],
)
def test_real_domains_pay_for_no_copy(name: str) -> None:
    """These once did: the last number of a log or question, the words that a text must use."""
    domain = load_domain(name)
    audit = audit_grader(domain, num_tasks=1)
    copies = [f for f in audit.forms if f.group == "copy"]
    assert len(copies) >= 7 and all(f.count == 64 for f in copies if f.form == "the prompt")
    assert sum(f.mistakes for f in copies) <= 0.05 * sum(f.count for f in copies), copies
    assert audit_problems(audit) == []


def test_errors_and_unscored_attempts_are_neither() -> None:
    def judge(text: str, gold: str) -> Score:
        if len(text) > 1000:
            raise UnscoredError("too long for me")
        return numeric_match(text, gold)

    audit = audit_grader(broken(judge), num_tasks=5)
    assert audit.num_failed == 10 and audit.false_accept.value == 0.0
    assert any("unscored" in p for p in audit_problems(audit))
    assert any("too long for me" in str(e["what"]) for e in audit.examples)


def test_answers_that_are_no_numbers_are_certain_only_where_they_can_be() -> None:
    task = Task("d", Split.TRAIN, 0, (user("Name a river of Italy?"),), "Po river")
    found = list(attempts_for(task, (assistant("Po river"),), [(assistant("Nile"),)], "text"))
    uncertain = {a.form for a in found if not a.is_certain}
    assert "a letter" in uncertain
    assert {"nothing", "answer only in thinking"} <= {a.form for a in found if a.is_certain}
    rules = list(attempts_for(task, (assistant("Po river"),), [], "instructions"))
    assert not [a for a in rules if a.group == "equivalent"]


@pytest.mark.parametrize(
    ("gold", "form"), [("10", "orders to the grader"), ("1", "claims to be right")]
)
def test_a_gold_that_an_attack_names_by_luck_is_for_a_person(gold: str, form: str) -> None:
    task = Task("d", Split.TRAIN, 0, (user("How many?"),), gold)
    found = {a.form: a for a in attempts_for(task, (assistant(gold),), [], "text")}
    assert not found[form].is_certain
    other = Task("d", Split.TRAIN, 0, (user("How many?"),), "37")
    found = {a.form: a for a in attempts_for(other, (assistant("37"),), [], "text")}
    assert found[form].is_certain


def test_real_domains_hold() -> None:
    for name in (
        "arithmetic/percent/tiny",
        "word-problems/part-of/tiny",
        "long-document/fact/tiny",
    ):
        audit = audit_grader(load_domain(name), num_tasks=3)
        assert audit.false_accept is not None and audit.false_accept.value == 0.0, audit.examples
        assert not audit.num_failed


def test_domains_that_cannot_be_audited_say_why() -> None:
    code = audit_grader(load_domain("python/string-edit/tiny"), num_tasks=2)
    assert "sandbox" in code.skipped and audit_problems(code) == []


def test_programs_that_attack_are_among_the_attempts() -> None:
    task = Task("d", Split.TRAIN, 0, (user("Write f."),), None)
    gold = (assistant("```python\ndef f(x):\n    return x + 1\n```"),)
    forms = {a.form for a in attempts_for(task, gold, [], "code")}
    assert {"program: ends the process", "program: equal to everything"} <= forms
    texts = [a.messages[-1].content for a in attempts_for(task, gold, [], "code")]
    assert any("def f(*args" in t for t in texts)


def test_rates_that_moved_fail() -> None:
    before = baseline_json([audit_grader(Sums(), num_tasks=6)])
    before = json.loads(json.dumps(before))
    assert moved_rates([audit_grader(Sums(), num_tasks=6)], before) == []
    now = audit_grader(broken(lambda t, g: Score.graded(float(g in t))), num_tasks=6)
    moved = moved_rates([now], before)
    assert any("two answers: 6 of 6 mistakes, 0 of 6 before" in line for line in moved)
    with pytest.raises(EduceError, match="format"):
        moved_rates([now], {"format_version": 99})


# --- leaks --------------------------------------------------------------------------------------


class Rows(DomainBase):
    """Questions by split, as a careless user may bring them."""

    def __init__(self, train: list[tuple[str, str]], held_out: list[tuple[str, str]]) -> None:
        self.rows = {Split.TRAIN: train, Split.EVAL: held_out, Split.SCREEN: held_out}
        self.spec = DomainSpec("rows", "rows", "text", "Rows.")

    def size(self, split: Split) -> int:
        return len(self.rows[split])

    def task(self, split: Split, index: int) -> Task:
        question, gold = self.rows[split][index]
        return Task("rows", split, index, (user(question),), gold)

    def score(self, task, state, transcript, services):
        return exact_match(transcript[-1].content, task.gold or "")


def test_the_same_question_in_other_spacing_is_a_leak() -> None:
    train = [("What is the capital of Italy?", "Rome"), ("Is 3 - 2 positive?", "yes")]
    held_out = [
        ("what is the  capital of ITALY", "Rome"),
        ("Is 3 + 2 positive?", "yes"),
        ("What is the capital of Italy? ", "Milan"),
    ]
    report = leak_report(Rows(train, held_out))
    assert report.shared == (0, 2) and report.contradicting == (2,)
    assert report.problems == ["rows: 2 of 3 evaluated questions are trained"]
    assert leak_report(Sums()).problems == []


def test_a_question_stands_once_in_its_prompt() -> None:
    domain = Rows(
        [("What is the capital of Spain?", "Madrid")] * 2,
        [("What is the capital of Italy?", "Rome"), ("Who wrote the Odyssey, then?", "Homer")],
    )

    def shots_from_eval(task: Task) -> list[Message]:
        first = domain.task(Split.EVAL, 0)
        return [*first.messages, assistant("Rome"), *task.messages]

    assert leak_report(domain, prepare=shots_from_eval).repeated == (0,)
    assert leak_report(domain).repeated == ()
    task = Task("d", Split.EVAL, 0, (user("2 + 2"),), "4")
    assert question_count([user("2 + 2"), user("2 + 2")], task) == 1


def test_golds_in_the_prompt_are_told() -> None:
    report = leak_report(
        Rows([("a", "b")], [("The answer is Lake Garda. Which lake?", "Lake Garda")])
    )
    assert report.told == (0,)


def test_long_runs_in_training_text_are_found() -> None:
    question = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    other = "alpha beta gamma delta"
    documents = [f"Before. {question.upper()}! After.", "nothing here"]
    found = contamination(iter(documents), [question, other, "", "not there at all"])
    assert (
        found.shares == (1.0, 0.0, 0.0, 0.0) and found.copied == (0,) and found.num_documents == 2
    )
    half = contamination([" ".join(question.split()[:13])], [question])
    assert half.shares == (0.5,)


# --- sealed sets --------------------------------------------------------------------------------


def test_looks_are_counted_and_limited(tmp_path: Path) -> None:
    domains = {"sums": Sums()}
    file = tmp_path / "sealed.jsonl"
    sealed = seal(file, domains, num_tasks=5, max_looks=2)
    assert sealed.num_looks == 0 and sealed.ranges == {"sums": (0, 5)}
    with pytest.raises(EduceError, match="never sealed again"):
        seal(file, domains, num_tasks=5)
    with pytest.raises(EduceError, match="a subject and a reason"):
        open_sealed(file, domains, subject="step 10", reason=" ")
    open_sealed(file, domains, subject="step 10", reason="promotion")
    again = open_sealed(file, domains, subject="step 20", reason="promotion")
    assert again.num_looks == 2 and looks_json(again)["looks"][1]["subject"] == "step 20"
    with pytest.raises(EduceError, match="all 2 looks are used"):
        open_sealed(file, domains, subject="step 30", reason="promotion")
    assert read_sealed(file).num_looks == 2


def test_changed_tasks_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "sealed.jsonl"
    seal(file, {"sums": Sums()}, num_tasks=3)

    class Other(Sums):
        def make(self, rng: random.Random) -> Task:
            task = super().make(rng)
            return Task("", Split.TRAIN, 0, (user("Tell: " + task.messages[0].content),), task.gold)

    with pytest.raises(EduceError, match="not the sealed ones"):
        open_sealed(file, {"sums": Other()}, subject="a", reason="b")
    with pytest.raises(EduceError, match="not at hand"):
        open_sealed(file, {}, subject="a", reason="b")
    with pytest.raises(EduceError, match="too few"):
        seal(tmp_path / "x", {"rows": Rows([("a", "b")], [("c", "d")])}, num_tasks=3)
    (tmp_path / "y").write_text("no\n")
    with pytest.raises(EduceError, match="no sealed set"):
        read_sealed(tmp_path / "y")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from educe.cli.main import main

    baseline = tmp_path / "baseline.json"
    command = ["domains", "audit", "arithmetic/percent/tiny", "--tasks", "2"]
    assert main([*command, "--save", str(baseline)]) == 0
    assert "accepts wrong 0.0 %" in capsys.readouterr().out
    assert main([*command, "--against", str(baseline), "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    assert raw["problems"] == [] and raw["leaks"][0]["shared"] == []
    file = tmp_path / "sealed.jsonl"
    seal_command = [
        "domains",
        "seal",
        "arithmetic/percent/tiny",
        "--tasks",
        "3",
        "--out",
        str(file),
    ]
    assert main(seal_command) == 0
    assert main(["domains", "looks", str(file)]) == 0
    assert "3 eval tasks of 1 domains, 0 looks" in capsys.readouterr().out
    assert main([*command, "--against", str(tmp_path / "none")]) == 2


def test_services_are_not_needed_for_answers() -> None:
    assert audit_grader(Sums(), num_tasks=2, services=Services()).num_tasks == 2
