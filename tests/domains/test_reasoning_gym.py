"""reasoning-gym families as domains: manifest, reproducibility, honest and safe scoring."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from educe.config.settings import DomainSettings
from educe.core.protocols import Domain, Services
from educe.core.types import Score, Split, Task, Verdict, assistant
from educe.domains.build_manifest import describe
from educe.domains.check import check_domain, is_above_floor
from educe.domains.copies import paid_copies
from educe.domains.extraction import extract_answer, parse_number, same_answer
from educe.domains.fingerprint import differing_domains
from educe.domains.reasoning_gym import manifest, specs
from educe.domains.reasoning_gym.domain import INSTRUCTION
from educe.domains.reasoning_gym.levels import EXCLUDED, FAMILIES
from educe.domains.reasoning_gym.scoring import OWN_RULES, evaluate_arithmetic, judge
from educe.domains.registry import load_domain

SAMPLE = ["rg/gcd/tiny", "rg/mini_sudoku/easy", "rg/word_sorting/tiny", "rg/time_intervals/hard"]


def answer(domain: Domain, task: Task, text: str) -> Score:
    return domain.score(task, None, [*task.messages, assistant(text)], Services())


def entry_of(family: str, seed: int = 3, **configuration: Any) -> tuple[Any, dict[str, Any]]:
    generator = reasoning_gym.create_dataset(family, seed=seed, size=1, **configuration)
    return generator, generator[0]


def test_every_family_is_offered_or_excluded_with_a_reason() -> None:
    assert set(FAMILIES) | set(EXCLUDED) == set(DATASETS)
    assert not set(FAMILIES) & set(EXCLUDED)
    assert all(len(reason) > 10 for reason in EXCLUDED.values())


def test_the_manifest_lists_every_level() -> None:
    names = {f"rg/{family}/{level}" for family, (_, levels) in FAMILIES.items() for level in levels}
    assert set(manifest()) == names == {spec.name for spec in specs()}
    assert len(names) >= 300


@pytest.mark.parametrize("name", SAMPLE)
def test_the_manifest_is_what_the_script_writes(name: str) -> None:
    _, family, level = name.split("/")
    fresh, shipped = describe(family, level), manifest()[name]
    measured = ("floor", "num_tasks", "max_completion_tokens")
    configuration = {
        k: list(v) if isinstance(v, tuple) else v for k, v in fresh["configuration"].items()
    }
    assert {**fresh, "configuration": configuration} | {k: shipped[k] for k in measured} == shipped
    assert shipped["max_completion_tokens"] >= fresh["max_completion_tokens"]


@pytest.mark.parametrize("name", ["rg/gcd/tiny", "rg/syllogism/tiny", "rg/letter_counting/easy"])
def test_the_shipped_floor_is_what_a_check_measures(name: str) -> None:
    report = check_domain(load_domain(name), num_tasks=160)
    assert report.is_ok, report.problems
    assert report.constant == pytest.approx(manifest()[name]["floor"], abs=0.05)


def test_tasks_do_not_depend_on_the_process() -> None:
    """Four families draw from sets of strings, one from the global generator, two build lists."""
    names = ["ransom_note/easy", "isomorphic_strings/easy", "word_ladder/tiny"]
    names += ["polynomial_multiplication/medium", "list_functions/medium", "acre/medium"]
    chosen = {f"rg/{name}": DomainSettings() for name in names}
    assert differing_domains(chosen, num_tasks=6) == []


def test_the_package_alone_depends_on_the_process(tmp_path: Path) -> None:
    """What the test above would catch: an unordered set in the generator."""
    module = tmp_path / "unordered.py"
    module.write_text(
        "from educe.domains.registry import load_domain\n"
        "from educe.domains.reasoning_gym.domain import ReasoningGymDomain\n"
        "def create():\n"
        "    domain = load_domain('rg/ransom_note/easy')\n"
        "    fresh = ReasoningGymDomain(domain.spec, family='ransom_note', configuration={},\n"
        "                               is_multiline=False, is_numeric=False)\n"
        "    fresh._generator.letters = set('abcdefghijklmnopqrstuvwxyz')\n"
        "    return fresh\n"
    )
    settings = DomainSettings(function=f"{module}:create")
    assert differing_domains({"mine": settings}, num_tasks=4) == ["mine"]


def test_an_item_is_a_function_of_its_index_alone() -> None:
    domain = load_domain("rg/letter_jumble/easy")
    forward = [domain.task(Split.TRAIN, i) for i in range(6)]
    backward = [domain.task(Split.TRAIN, i) for i in reversed(range(6))]
    assert forward == backward[::-1]
    assert len({task.content_hash for task in forward}) == 6
    neighbour = load_domain("rg/letter_jumble/tiny")
    assert neighbour.task(Split.TRAIN, 1).messages != forward[0].messages


def test_global_generators_and_stdout_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    random.seed(7)
    np.random.seed(7)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    for name in ("rg/list_functions/medium", "rg/pool_matrix/tiny", "rg/bf/easy"):
        domain = load_domain(name)
        task = domain.task(Split.TRAIN, 0)
        assert answer(domain, task, task.gold or "").value == 1
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[union-attr]
    assert capsys.readouterr().out == ""


def test_the_prompt_asks_for_the_final_answer_once() -> None:
    task = load_domain("rg/gcd/tiny").task(Split.TRAIN, 0)
    (message,) = task.messages
    assert message.content.endswith("\n" + INSTRUCTION)
    assert message.content.count(INSTRUCTION) == 1


def test_a_first_level_of_every_family_passes_a_small_check() -> None:
    for family, (_, levels) in FAMILIES.items():
        if family in ("figlet_font", "group_anagrams"):
            continue  # half a second of set-up each; part of the slow test
        name = f"rg/{family}/{next(iter(levels))}"
        domain = load_domain(name)
        task = domain.task(Split.TRAIN, 11)
        assert answer(domain, task, task.gold or "").value == 1, name
        assert answer(domain, task, "").verdict is Verdict.UNPARSEABLE, name
        assert answer(domain, task, "zzz zzz").value == 0, name


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(manifest()))
def test_every_domain_passes_its_check(name: str) -> None:
    report = check_domain(load_domain(name), num_tasks=32)
    assert report.is_ok, report.problems


@pytest.mark.parametrize(
    ("family", "configuration", "reply", "paid"),
    [
        ("color_cube_rotation", {}, "no colour", 0.01),
        ("prime_factorization", {}, "1", 0.01),
        ("complex_arithmetic", {}, "1.0 + 1.0i", 1e-9),
        ("word_sorting", {}, "zebra, apple", 0.0),
        ("rectangle_count", {"max_rectangles": 5}, "3", 0.01),
    ],
)
def test_crumbs_for_wrong_answers_are_nothing(
    family: str, configuration: dict[str, Any], reply: str, paid: float
) -> None:
    generator, entry = entry_of(family, **configuration)
    assert 1 > generator.score_answer(reply, entry) >= 0
    score = judge(family, reply, entry, generator.score_answer)
    assert score.value == 0
    assert score.parts["family_score"] == generator.score_answer(reply, entry)


def test_own_rules_refuse_what_the_package_accepts() -> None:
    """These three answers are wrong, and the package gives them full marks."""
    halting, entry = entry_of("game_of_life_halting", grid_size_x=8, grid_size_y=8)
    wrong = "True" if entry["answer"] == "False" else "False"
    assert halting.score_answer(wrong, entry) == 1
    assert judge("game_of_life_halting", wrong, entry, halting.score_answer).value == 0

    sorting, entry = entry_of("number_sorting", max_decimals=0, min_numbers=4)
    nearly = str([float(x.strip(" '")) + 0.5 for x in entry["answer"].strip("[]").split(",")])
    assert sorting.score_answer(nearly, entry) == 1
    assert judge("number_sorting", nearly, entry, sorting.score_answer).value == 0

    decimals, entry = entry_of(
        "decimal_arithmetic", min_num_decimal_places=1, max_num_decimal_places=1
    )
    nearly = f"{float(entry['answer']) + 0.09:.2f}"
    assert decimals.score_answer(nearly, entry) == 1
    assert judge("decimal_arithmetic", nearly, entry, decimals.score_answer).value == 0


def test_a_probability_is_not_a_prefix_of_itself() -> None:
    flips, entry = entry_of("coin_flip", min_trials=10)
    assert entry["answer"] != "0"
    assert flips.score_answer("0", entry) == 1
    assert judge("coin_flip", "0", entry, flips.score_answer).value == 0
    fraction = Fraction(entry["answer"]).limit_denominator(2**20)
    assert judge("coin_flip", str(fraction), entry, flips.score_answer).value == 1
    assert judge("coin_flip", f"{float(fraction):.5f}", entry, flips.score_answer).value == 1
    assert judge("coin_flip", "1/0", entry, flips.score_answer).value == 0


def test_number_lists_may_be_written_plainly() -> None:
    generator, entry = entry_of("number_sorting", max_decimals=0)
    plain = ", ".join(x.strip(" '") for x in entry["answer"].strip("[]").split(","))
    assert judge("number_sorting", plain, entry, generator.score_answer).value == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "family", ["string_insertion", "spiral_matrix", "binary_matrix", "n_queens"]
)
def test_answers_are_never_run_as_code(family: str, tmp_path: Path) -> None:
    """The package's scorers evaluate these answers: a file proves it, and that ours do not."""
    generator, entry = entry_of(family)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    generator.score_answer(f"[str(open({str(theirs)!r}, 'w').close())]", entry)
    assert theirs.exists()
    reply = f"[str(open({str(ours)!r}, 'w').close())]"
    assert judge(family, reply, entry, generator.score_answer).value == 0
    assert not ours.exists()


@pytest.mark.parametrize(
    "reply",
    [
        "x**9**9**9**9",
        "9**99999999",
        "x**(10**(10**10))",
        "__import__('os').getcwd()",
        "x.__class__",
        "lambda x: x",
        "factorial(99999999)",
        "(" * 300 + "x" + ")" * 300,
        "x" * 500,
    ],
)
@pytest.mark.parametrize("family", ["simple_integration", "polynomial_multiplication"])
def test_expressions_that_never_end_are_not_evaluated(family: str, reply: str) -> None:
    _, entry = entry_of(family)

    def must_not_run(*arguments: Any) -> float:
        raise AssertionError("the answer reached the evaluating scorer")

    score = judge(family, reply, entry, must_not_run)
    assert score.verdict is Verdict.UNPARSEABLE
    assert "AssertionError" not in score.reason


def test_an_equal_expression_is_right() -> None:
    generator, entry = entry_of("polynomial_multiplication", variables=("x",), max_degree=2)
    terms = entry["answer"].replace(" - ", " + -").split(" + ")
    swapped = " + ".join(f"({term})" for term in reversed(terms))
    assert judge("polynomial_multiplication", swapped, entry, generator.score_answer).value == 1


def test_countdown_is_checked_with_exact_fractions() -> None:
    entry = {"answer": "8*3", "metadata": {"numbers": [3, 3, 8, 8], "target": 24}}

    def must_not_run(*arguments: Any) -> float:
        raise AssertionError

    assert judge("countdown", "8/(3-8/3)", entry, must_not_run).value == 1
    assert judge("countdown", "8/(3-8/3) = 24", entry, must_not_run).value == 1
    assert judge("countdown", "8*3", {**entry, "answer": ""}, must_not_run).value == 0
    assert judge("countdown", "8*3+8-8", entry, must_not_run).value == 0
    assert judge("countdown", "24", entry, must_not_run).value == 0


def test_arithmetic_evaluation() -> None:
    assert evaluate_arithmetic("2 * (3 + 4) - -1") == (15, [2, 3, 4, 1])
    for text in ("2**9", "7//2", "1/0", "x", "", "(" * 150, "2 3", "True"):
        assert evaluate_arithmetic(text) is None, text


def test_scorers_that_raise_call_the_answer_unparseable() -> None:
    generator, entry = entry_of("prime_factorization")
    with pytest.raises(ValueError, match="invalid literal"):
        generator.score_answer("two times two", entry)
    score = judge("prime_factorization", "two times two", entry, generator.score_answer)
    assert (score.value, score.verdict) == (0, Verdict.UNPARSEABLE)


def test_own_rules_are_for_offered_families() -> None:
    assert set(OWN_RULES) <= set(FAMILIES)


@pytest.mark.parametrize(
    ("text", "shape", "found"),
    [
        ("7", {"is_numeric": True}, "7"),
        ("The answer is 5.", {"is_numeric": True}, "5."),
        ("**Answer:** 12", {"is_numeric": True}, "12"),
        ("answer: 3\nNo wait.\nFinal answer: 4", {"is_numeric": True}, "4"),
        ("3 + 4 = 7", {"is_numeric": True}, "7"),
        ("The GCD of 4 and 6 is 2", {"is_numeric": True}, "2"),
        ("It is 6 or 7", {"is_numeric": True}, "It is 6 or 7"),
        ("There are 1,200 of them", {"is_numeric": True}, "1,200"),
        ("so we get\n\\boxed{\\frac{1}{2}} hence done", {}, "\\frac{1}{2}"),
        ("<think>answer: 9</think>8", {"is_numeric": True}, "8"),
        ("<think>answer: 9", {"is_numeric": True}, ""),
        ("Let me think.\n\nParis", {}, "Paris"),
        ('"Paris"', {}, "Paris"),
        ("**Yes**", {}, "Yes"),
        ("```\n1 2\n3 4\n```", {"is_multiline": True}, "1 2\n3 4"),
        ("Answer:\n1 2\n3 4\n", {"is_multiline": True}, "1 2\n3 4"),
        ("Answer:\n5\nas shown", {"is_numeric": True}, "5"),
        ("", {}, ""),
        ("   \n ", {"is_multiline": True}, ""),
        ("Answer:", {}, "Answer:"),
    ],
)
def test_extraction(text: str, shape: dict[str, bool], found: str) -> None:
    assert extract_answer(text, **shape) == found


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("Yes.", "yes", True),
        ("1,200", "1200", True),
        ("5.0", "5", True),
        ("['1', '2']", "[1,2]", True),
        ("1 2\n3 4 ", "1 2\n3 4", True),
        ("12 3", "1 23", False),
        ("711", "11", False),
        ("2/4", "1/2", False),
        ("", "0", False),
        ("no", "yes", False),
        ("1e400", "1e401", False),
    ],
)
def test_sameness(first: str, second: str, is_same: bool) -> None:
    assert same_answer(first, second) is is_same


def test_numbers_are_whole_texts() -> None:
    assert parse_number("-1,234.50") == parse_number("-1234.5")
    assert parse_number("12 apples") is None
    assert parse_number("1e999999999") is None


def test_floors_know_what_repeating_the_prompt_pays() -> None:
    """The form that knights and knaves shows is right once in four; some programs do nothing."""
    for name, form in (
        ("rg/knights_knaves/easy", "its first word in quotes"),
        ("rg/ab/tiny", "all before the question"),
    ):
        paid = paid_copies(load_domain(name), 48, Services())
        best = max(paid, key=lambda f: paid[f])
        assert best == form and paid[best] > 0.1
        assert not is_above_floor(paid[best], 48, manifest()[name]["floor"])
