"""Long documents: golds recomputed from the text, controls, lengths, depth."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest

from educe.core.errors import DomainError
from educe.core.protocols import Services
from educe.core.types import Split, Task, assistant
from educe.domains.builtin import long_document
from educe.domains.builtin.long_document import (
    LENGTHS,
    oracle_document,
    shuffled_document,
    without_document,
)
from educe.domains.builtin.long_document.kinds import KINDS
from educe.domains.builtin.long_document.world import estimate_tokens
from educe.domains.check import check_domain

NAMES = [s.name for s in long_document.specs()]
SHORT = [n for n in NAMES if n.endswith(("/tiny", "/512"))]


def tasks(name: str, count: int, split: Split = Split.TRAIN) -> list[Task]:
    domain = long_document.create(name)
    return [domain.task(split, i) for i in range(count)]


def score(task: Task, text: str) -> float | None:
    domain = long_document.create(task.domain)
    return domain.score(task, None, [*task.messages, assistant(text)], Services()).value


def document(task: Task) -> str:
    start, end = task.metadata["span"]
    return task.messages[0].content[start:end]


def question(task: Task) -> str:
    return task.messages[0].content.rpartition("Question: ")[2].partition("\n")[0]


def test_the_offer() -> None:
    assert len(KINDS) >= 14 and set(LENGTHS.values()) >= {150, 512, 4096, 32768}
    assert len(NAMES) == len(KINDS) * len(LENGTHS)
    assert all(s.floor <= 0.5 for s in long_document.specs())


@pytest.mark.parametrize("name", SHORT)
def test_domain_proves_itself(name: str) -> None:
    report = check_domain(long_document.create(name), num_tasks=6)
    assert report.problems == ()
    assert report.gold == 1.0 and report.empty == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith(("16k", "32k"))])
def test_domain_proves_itself_on_many_tasks(name: str) -> None:
    assert check_domain(long_document.create(name), num_tasks=40).problems == ()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_lengths_fit_the_nominal_one(kind: str) -> None:
    """The estimate is the measured ratio times characters; prompts stay below their length."""
    for length in ("tiny", "1k", "8k"):
        task = tasks(f"long-document/{kind}/{length}", 1)[0]
        estimated = estimate_tokens(task.messages[0].content) * KINDS[kind].token_ratio
        assert 0.7 * LENGTHS[length] < estimated <= LENGTHS[length]


def test_a_very_long_document() -> None:
    task = tasks("long-document/update/32k", 1)[0]
    assert estimate_tokens(task.messages[0].content) > 25_000
    assert score(task, task.gold or "") == 1.0


# ---------------------------------------------------------------- golds from the text alone


@pytest.mark.parametrize("length", ["tiny", "512", "2k"])
def test_update_count_and_total_are_what_the_text_says(length: str) -> None:
    for task in tasks(f"long-document/update/{length}", 4):
        device = re.search(r"was the (.+) set last", question(task))
        assert device
        values = re.findall(rf"The {re.escape(device.group(1))} was set to (\d+)\.", document(task))
        assert values[-1] == task.gold
    for kind in ("count", "total", "top"):
        for task in tasks(f"long-document/{kind}/{length}", 4):
            rows = re.findall(r"Day \d+: (\w+ \w+) bought (\d+) (\w+)\.", document(task))
            assert _ledger_answer(kind, question(task), rows) == task.gold


def _ledger_answer(kind: str, asked: str, rows: list[tuple[str, str, str]]) -> str:
    if kind == "count":
        person = asked.removeprefix("How many entries are there for ").rstrip("?")
        return str(sum(p == person for p, _, _ in rows))
    if kind == "total":
        match = re.fullmatch(r"How many (\w+) did (\w+ \w+) buy in all\?", asked)
        assert match
        return str(sum(int(n) for p, n, g in rows if (g, p) == match.groups()))
    goods = asked.removeprefix("Who bought the most ").removesuffix(" in all?")
    sums: Counter[str] = Counter()
    for person, number, what in rows:
        sums[person] += int(number) * (what == goods)
    ranked = sums.most_common(2)
    assert ranked[0][1] > ranked[1][1], "no ties"
    return ranked[0][0]


@pytest.mark.parametrize("length", ["tiny", "512", "2k"])
def test_variables_are_simulated_from_the_text(length: str) -> None:
    for task in tasks(f"long-document/variables/{length}", 5):
        state: dict[str, str] = {}
        for line in document(task).splitlines():
            if match := re.fullmatch(r"([A-Z]{3}) becomes (\d+)\.", line):
                state[match.group(1)] = match.group(2)
            elif match := re.fullmatch(r"([A-Z]{3}) takes the value of ([A-Z]{3})\.", line):
                state[match.group(1)] = state[match.group(2)]
        value = re.search(r"\d{5}", question(task))
        assert value
        holders = sorted(n for n, v in state.items() if v == value.group())
        assert ", ".join(holders) == task.gold


def test_facts_keys_and_groups_have_one_answer() -> None:
    for task in tasks("long-document/near-keys/1k", 4):
        key = question(task).split()[4]
        assert re.findall(rf"Box {key} holds the number (\d+)", document(task)) == [task.gold]
        keys = re.findall(r"Box (\w+) holds", document(task))
        assert len(set(keys)) == len(keys)
        distances = [sum(a != b for a, b in zip(key, k, strict=True)) for k in keys]
        assert 1 in distances
    for task in tasks("long-document/group/1k", 4):
        cabins: defaultdict[str, list[str]] = defaultdict(list)
        for person, cabin in re.findall(r"(\w+ \w+) sleeps in cabin (\d+)", document(task)):
            cabins[cabin].append(person)
        asked = re.search(r"\d+", question(task))
        assert asked and ", ".join(cabins[asked.group()]) == task.gold
        assert {len(c) for c in cabins.values()} <= {2, 3, 4, 5}
    for task in tasks("long-document/order/1k", 4):
        names = re.findall(r"(\w+ \w+) (?:asked|reported|praised|complained|explained)",
                           document(task).replace("Then ", ""))  # fmt: skip
        match = re.fullmatch(r"Who spoke directly (after|before) (\w+ \w+)\?", question(task))
        assert match and len(set(names)) == len(names)
        index = names.index(match.group(2)) + (1 if match.group(1) == "after" else -1)
        assert names[index] == task.gold


def test_not_stated_is_neither_always_nor_never_right() -> None:
    found = tasks("long-document/not-stated/512", 120)
    share = sum(t.gold == "not stated" for t in found) / len(found)
    assert 0.25 < share < 0.55
    for task in found:
        if task.gold == "not stated":
            assert task.metadata["evidence"] == []
            assert score(task, "not stated") == 1.0 and score(task, "Selby") == 0.0
        else:
            assert task.gold in document(task) and score(task, "not stated") == 0.0


def test_inference_shares_no_content_word_with_its_evidence() -> None:
    common = {"who", "is", "a", "an", "the", "to", "at", "in", "be", "was", "must", "would"}
    for task in tasks("long-document/inference/512", 20):
        (evidence,) = task.metadata["evidence"]
        words = [set(re.findall(r"[a-z]+", t.lower())) - common for t in (evidence, question(task))]
        assert not words[0] & words[1]


# ---------------------------------------------------------------- scores and controls


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_without_the_document_nothing_can_be_known(kind: str) -> None:
    """Best answer to the question's wording alone, from 60 other tasks, stays near the floor."""
    name = f"long-document/{kind}/512"
    found = tasks(name, 60)
    guesses: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task in found[:40]:
        guesses[question(task)[:12]][task.gold or ""] += 1
    hits = 0.0
    for task in found[40:]:
        bare = without_document(task)
        assert document(task) not in bare.messages[0].content
        assert question(bare) == question(task)
        ranked = guesses[question(task)[:12]].most_common(1)
        hits += score(bare, ranked[0][0] if ranked else "") or 0.0
    floor = long_document.create(name).spec.floor
    assert hits / 20 <= floor + 0.25  # 20 tasks: beyond two standard errors


def test_printing_the_document_earns_nothing() -> None:
    for name in SHORT:
        for task in tasks(name, 3):
            if task.metadata["check"] == "items":
                assert score(task, document(task)) == 0.0
                names = sorted(set(re.findall(r"[A-Z]\w+ [A-Z]\w+|[A-Z]{3}\b", document(task))))
                assert score(task, ", ".join([*names, "nothing"])) == 0.0


def test_controls_keep_the_question_and_change_the_document() -> None:
    for kind in sorted(KINDS):
        task = tasks(f"long-document/{kind}/512", 1)[0]
        oracle, shuffled = oracle_document(task), shuffled_document(task)
        assert sorted(document(shuffled).split()) == sorted(document(task).split())
        assert document(shuffled) != document(task)
        assert all(e in document(oracle) for e in task.metadata["evidence"])
        assert len(document(oracle)) < len(document(task))
        for changed in (oracle, shuffled):
            assert changed.gold == task.gold and question(changed) == question(task)
            assert score(changed, task.gold or "") == 1.0
        assert shuffled_document(task) == shuffled


def test_evidence_is_spread_over_the_depth() -> None:
    depths = [t.metadata["depth"] for t in tasks("long-document/fact/512", 120)]
    thirds = Counter(min(2, int(3 * d)) for d in depths)
    assert min(thirds[i] for i in range(3)) >= 20
    for task in tasks("long-document/fact/512", 10):
        (evidence,) = task.metadata["evidence"]
        place = document(task).index(evidence) / len(document(task))
        assert abs(place - task.metadata["depth"]) < 0.01


def test_answers_come_in_any_order_and_whole() -> None:
    task = tasks("long-document/group/512", 1)[0]
    names = list(task.metadata["answers"])
    assert score(task, " and ".join(reversed(names))) == 1.0
    assert score(task, f"The answer is {', '.join(names)}.") == 1.0
    assert score(task, names[0]) == 0.0
    number = tasks("long-document/near-keys/512", 1)[0]
    assert score(number, f"1{number.gold}") == 0.0
    assert score(number, f"The box holds {number.gold}.") == 1.0


def test_misuse_is_refused() -> None:
    with pytest.raises(DomainError, match="Did you mean"):
        long_document.create("long-document/facts/1k")
    with pytest.raises(DomainError, match="unknown option"):
        long_document.create("long-document/fact/1k", worked=True)
