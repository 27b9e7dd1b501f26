"""Long conversations: golds recomputed from the text, lengths, and a plan judged as a whole."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from educe.core.errors import DomainError
from educe.core.protocols import Services
from educe.core.types import Split, Task, assistant
from educe.domains.builtin import long_dialogue
from educe.domains.builtin.long_dialogue import KINDS, LENGTHS
from educe.domains.builtin.long_dialogue.brief import _AVOIDED, _STEPS
from educe.domains.builtin.long_dialogue.talk import MESSAGE_TOKENS
from educe.domains.builtin.long_document.world import estimate_tokens
from educe.domains.check import check_domain

NAMES = [s.name for s in long_dialogue.specs()]
SHORT = [n for n in NAMES if n.endswith(("/tiny", "/512"))]


def tasks(name: str, count: int, split: Split = Split.TRAIN) -> list[Task]:
    domain = long_dialogue.create(name)
    return [domain.task(split, i) for i in range(count)]


def score(task: Task, text: str) -> float | None:
    domain = long_dialogue.create(task.domain)
    return domain.score(task, None, [*task.messages, assistant(text)], Services()).value


def said(task: Task) -> list[str]:
    return [m.content for m in task.messages[:-1] if m.role == "user"]


def request(task: Task) -> str:
    return task.messages[-1].content


def test_the_offer() -> None:
    assert len(KINDS) >= 6 and "long-dialogue/brief/tiny" not in NAMES
    assert len(NAMES) == len(KINDS) * len(LENGTHS) - 1
    assert all(s.floor <= 0.55 and s.kind == "long-dialogue" for s in long_dialogue.specs())


@pytest.mark.parametrize("name", SHORT)
def test_domain_proves_itself(name: str) -> None:
    report = check_domain(long_dialogue.create(name), num_tasks=6)
    assert report.problems == ()
    assert report.gold == 1.0 and report.empty == 0.0 and report.attack == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith(("16k", "32k"))])
def test_domain_proves_itself_on_many_tasks(name: str) -> None:
    assert check_domain(long_dialogue.create(name), num_tasks=40).problems == ()


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith(("/tiny", "/512", "/1k", "/8k"))])
def test_lengths_fit_the_nominal_one(name: str) -> None:
    _, kind, length = name.split("/")
    for task in tasks(name, 3):
        estimated = sum(estimate_tokens(m.content) + MESSAGE_TOKENS for m in task.messages)
        estimated *= KINDS[kind].token_ratio
        assert 0.6 * LENGTHS[length] < estimated <= LENGTHS[length], (name, estimated)


@pytest.mark.parametrize("name", SHORT)
def test_turns_alternate_and_the_user_asks_last(name: str) -> None:
    for task in tasks(name, 3):
        roles = [m.role for m in task.messages]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)] and roles[-1] == "user"


def test_a_very_long_conversation() -> None:
    task = tasks("long-dialogue/revised/32k", 1)[0]
    assert sum(estimate_tokens(m.content) for m in task.messages) > 20_000
    assert score(task, task.gold or "") == 1.0


# ---------------------------------------------------------------- golds from the text alone


@pytest.mark.parametrize("length", ["tiny", "512", "2k"])
def test_the_last_wish_counts(length: str) -> None:
    for task in tasks(f"long-dialogue/revised/{length}", 4):
        part = re.search(r"is the (.+) set now", request(task))
        assert part
        pattern = rf"[Ss]et the {re.escape(part.group(1))} to (\d+)\."
        values = [v for text in said(task) for v in re.findall(pattern, text)]
        assert values[-1] == task.gold
        for stale in set(values) - {task.gold}:
            assert score(task, stale) == 0.0


@pytest.mark.parametrize("length", ["tiny", "512"])
def test_who_said_it_matters(length: str) -> None:
    sides = Counter()
    for task in tasks(f"long-dialogue/who-said/{length}", 12):
        thing = re.search(r"(?:fetch|for) the (.+?)(?: from)?\?", request(task))
        assert thing
        text = "\n".join(m.content for m in task.messages)
        mine = re.search(rf"The {thing.group(1)}: I would fetch them from (\w+)\.", text)
        yours = re.search(rf"For the {thing.group(1)} I suggest (\w+)\.", text)
        assert mine and yours and mine.group(1) != yours.group(1)
        is_yours = "you suggest" in request(task)
        sides[is_yours] += 1
        assert task.gold == (yours if is_yours else mine).group(1)
        assert score(task, (mine if is_yours else yours).group(1)) == 0.0
    assert len(sides) == 2


def test_the_nth_gift() -> None:
    for task in tasks("long-dialogue/ordinal/512", 6):
        asked = re.search(
            r"number (\d+) of those that you thought of for (\w+ \w+)\?", request(task)
        )
        assert asked
        gifts = [
            answer.content.removeprefix("A ").rstrip(".")
            for text, answer in zip(task.messages[::2], task.messages[1::2], strict=False)
            if text.content == f"Think of a gift for {asked.group(2)}."
        ]
        assert gifts[int(asked.group(1)) - 1] == task.gold


def test_replies_follow_the_last_rule() -> None:
    for task in tasks("long-dialogue/opening/1k", 8):
        rule = ""
        for before, after in zip(task.messages[::2], task.messages[1::2], strict=False):
            found = re.search(r'begin each reply with "(.+)" and nothing', before.content)
            rule = found.group(1) if found else rule
            assert after.content.startswith(rule)
        assert task.gold and task.gold.startswith(rule)
        answer = task.gold.removeprefix(rule).strip()
        assert score(task, answer) == 0.0 and score(task, f"So: {task.gold}") == 0.0
        assert score(task, f"{rule}\n{answer}.") == 1.0
        stale = [o for o in ("Noted:", "Surely:", "Indeed:", "Gladly:") if o != rule]
        assert all(score(task, f"{o} {answer}") == 0.0 for o in stale)


# ---------------------------------------------------------------- the brief


def brief_tasks(length: str = "1k", count: int = 8) -> list[Task]:
    return tasks(f"long-dialogue/brief/{length}", count)


def test_the_brief_is_early_and_the_request_repeats_none_of_it() -> None:
    for task in brief_tasks("2k", 6):
        assert "I am planning the" in task.messages[0].content
        for commitment in task.metadata["commitments"]:
            for word in (commitment.get("says"), commitment.get("number")):
                assert word is None or str(word) not in request(task)
        assert task.metadata["depth"] < 0.7


def test_a_change_counts_and_what_it_replaced_is_wrong() -> None:
    changed = Counter()
    for task in brief_tasks("1k", 24):
        change = next((t for t in said(task) if t.startswith("About my own")), "")
        changed[bool(change)] += 1
        if "crowns" in change:
            now = re.findall(r"(\d+) crowns", change)[0]
            old = re.findall(r"(\d+) crowns", task.messages[0].content)[0]
            assert f"{now} crowns" in (task.gold or "")
            assert (score(task, (task.gold or "").replace(now, old)) or 0) < 0.7
        if "no longer in" in change:
            old = re.findall(r"no longer in (\w+)\.", change)[0]
            assert (score(task, (task.gold or "") + f" Not in {old}.") or 0) < 0.7
    assert len(changed) == 2


def test_each_broken_commitment_costs_and_every_missing_one() -> None:
    for task in brief_tasks("1k", 4):
        gold = task.gold or ""
        form = task.metadata["form"]
        assert gold.count(f"{form['heading']} ") >= form["sections"]
        assert score(task, gold) == 1.0
        for commitment in task.metadata["commitments"]:
            if commitment.get("where") == "nowhere":
                broken = gold + f" How {commitment['says']}!"
            elif "number" in commitment:
                broken = gold.replace(str(commitment["number"]), "some")
            else:
                broken = gold.replace(str(commitment["says"]), "this")
            assert broken != gold
            value = score(task, broken)
            assert value is not None and value < 0.7, commitment
        # A late slip counts as much as an early one.
        last = gold.rindex("\n")
        for wrong in task.metadata["commitments"][0]["instead"][:2]:
            for slip in (f"{gold} Or in {wrong}.", f"{gold[:last]} Or in {wrong}.{gold[last:]}"):
                assert (score(task, slip) or 0) < 0.7
        assert score(task, gold[:last]) == 0.0  # a part less
        assert score(task, gold.replace("\n", " ")) == 0.0


def test_what_a_plan_is_padded_with_breaks_nothing() -> None:
    words = " ".join(_STEPS).lower()
    assert not any(re.search(rf"\b{word}\b", words) for word in _AVOIDED)
    assert not re.search(r"\d", words)


def test_misuse_is_refused() -> None:
    with pytest.raises(DomainError, match="Did you mean"):
        long_dialogue.create("long-dialogue/recal/1k")
    with pytest.raises(DomainError, match="unknown option"):
        long_dialogue.create("long-dialogue/recall/1k", worked=True)
