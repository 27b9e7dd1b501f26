"""Long prompts: they fit, gold scores 100, degenerate replies score what they should."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from educe.core.errors import DomainError, EduceError
from educe.core.protocols import Services
from educe.core.types import Message, Split, Task, Verdict, assistant
from educe.evaluation.long_context import (
    KINDS,
    LongContextDomain,
    documents,
    load_kind,
    scoring_domain,
)
from educe.evaluation.long_context import code as code_kinds
from educe.evaluation.long_context.draft import Draft, messages_of, placed, with_control
from educe.evaluation.long_context.fit import estimated_tokens, fit
from educe.evaluation.long_context.needles import VALUE_PATTERNS, unique_values
from educe.evaluation.long_context.scoring import judge
from educe.evaluation.long_context.summary import (
    Observation,
    curve,
    effective_length,
    position_bias,
    suspicious_rises,
    worst_cell,
)

TOKEN = re.compile(r"\w{1,6}|[^\w\s]")


def count(messages: Sequence[Message]) -> int:
    """A tokenizer of our own: pieces of words, and four tokens of template a message."""
    return sum(len(TOKEN.findall(m.content)) + 4 for m in messages) + 3


@pytest.fixture(autouse=True)
def small_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Home-made text in place of the packages'."""
    functions = tuple(
        code_kinds.Function(
            f"do_{i}",
            f"def do_{i}(x):\n    y = step_{i % 7}(x)\n    return y + {i}",
            frozenset({f"step_{i % 7}", f"rare_{i // 3}"}),
        )
        for i in range(150)
    )
    monkeypatch.setattr(code_kinds, "source_functions", lambda: functions)
    paragraphs = tuple(
        documents.Paragraph(f"article {i % 40}", f"The river number {i} has the length {i + 9000}.")
        for i in range(400)
    )
    known = tuple(
        documents.Question(f"How long is river number {i}?", (str(i + 9000),), (paragraphs[i],))
        for i in range(100)
    )
    unknown = tuple(
        documents.Question(f"Who found river number {i}?", (), (paragraphs[i],)) for i in range(100)
    )
    monkeypatch.setattr(documents, "single_hop", lambda: (known, unknown, paragraphs))
    two = tuple(
        documents.Question(
            f"Is river {i} longer?", (f"river {i}x",), (paragraphs[i], paragraphs[i + 1])
        )
        for i in range(90)
    )
    monkeypatch.setattr(documents, "two_hops", lambda: (two, paragraphs))
    names = ("ANNA", "BEN", "CARL", "DORA", "EVE", "FRED", "GINA", "HUGO")
    plays = tuple(
        tuple(
            documents.Speech(
                names[(7 * i + i // 5) % 8], f"In play {p} this line number {i} is said aloud."
            )
            for i in range(200)
        )
        for p in range(3)
    )
    monkeypatch.setattr(documents, "speeches", lambda: plays)
    documents._said_once.cache_clear()
    yield
    documents._said_once.cache_clear()


def reply(domain: LongContextDomain, task: Task, text: str):
    return domain.score(task, None, [*task.messages, assistant(text)], Services())


ALL = sorted(KINDS)


@pytest.mark.parametrize("name", ALL)
def test_every_kind_fits_and_judges(name: str) -> None:
    """Gold is 1; empty, a refusal, a dump, another task's gold and the best constant are not."""
    kind = load_kind(name)
    length = 900
    domain = LongContextDomain(kind, length, count)
    scorer = scoring_domain(name)
    tasks = [domain.task(Split.EVAL, i) for i in range(10)]
    assert tasks[3] == domain.task(Split.EVAL, 3)
    assert len({t.content_hash for t in tasks}) == 10
    wrong: dict[str, list[float]] = {"empty": [], "refusal": [], "dump": [], "other": [], "one": []}
    for i, task in enumerate(tasks):
        used = count(task.messages)
        assert used == task.metadata["num_tokens"] <= length - kind.reply_tokens
        assert used >= 0.85 * (length - kind.reply_tokens), f"{name} leaves {length - used}"
        again = Task.from_json(task.to_json())
        gold = reply(scorer, again, task.gold or "")
        assert gold.value == 1.0 and gold.verdict is Verdict.RIGHT, (task.gold, gold)
        other = next(t for t in tasks[i + 1 :] + tasks if t.gold != task.gold)
        wrong["empty"].append(reply(scorer, task, "").value or 0.0)
        wrong["refusal"].append(reply(scorer, task, "I cannot help with that.").value or 0.0)
        dump = "\n".join(m.content for m in task.messages)
        wrong["dump"].append(reply(scorer, task, dump).value or 0.0)
        wrong["other"].append(reply(scorer, task, other.gold or "").value or 0.0)
        wrong["one"].append(reply(scorer, task, tasks[0].gold or "").value or 0.0)
    means = {what: float(np.mean(values)) for what, values in wrong.items()}
    assert means["empty"] == means["refusal"] == means["dump"] == 0.0, means
    assert means["other"] <= kind.floor + 0.35 and means["one"] <= kind.floor + 0.45, means


@pytest.mark.parametrize("name", [n for n in ALL if KINDS[n].has_depth])
def test_the_evidence_stands_at_its_depth(name: str) -> None:
    import random

    places = []
    for depth in (0.0, 0.5, 1.0):
        draft = load_kind(name).write(random.Random(3), 60, depth)
        first = draft.evidence[0] if name not in ("chat-ordinal",) else None
        if name == "chat-ordinal":
            wanted = draft.answers[0].split(" ", 1)[1]
            first = next(i for i, p in enumerate(draft.pieces) if p[1].content == wanted)
        if name.startswith("paragraphs-two"):
            continue
        places.append(first / (len(draft.pieces) - 1))
    assert not places or places == pytest.approx([0.0, 0.5, 1.0], abs=0.08)


@pytest.mark.parametrize("name", ALL)
def test_controls_show_other_pieces_and_the_same_question(name: str) -> None:
    kind = load_kind(name)
    tasks = {
        c: LongContextDomain(kind, 700, count, control=c).task(Split.EVAL, 2)
        for c in ("", "no-context", "shuffled", "oracle")
    }
    assert len({t.gold for t in tasks.values()}) == 1
    questions = {t.messages[-1].content.splitlines()[-1] for t in tasks.values()}
    assert len(questions) == 1
    lengths = {c: count(t.messages) for c, t in tasks.items()}
    assert max(lengths["no-context"], lengths["oracle"]) < lengths[""]
    assert lengths["shuffled"] == pytest.approx(lengths[""], rel=0.2)
    for task in tasks.values():
        assert reply(scoring_domain(name), task, task.gold or "").value == 1.0
    # The evidence is still whole under the oracle, and gone without context.
    if name.startswith("needle"):
        for answer in tasks[""].metadata["answers"]:
            assert answer in tasks["oracle"].messages[0].content
            assert answer not in tasks["no-context"].messages[0].content


def test_the_search_ends_and_uses_the_room() -> None:
    calls = []

    def build(size: int) -> int:
        calls.append(size)
        return size

    for per_piece in (1, 7, 40, 333):
        calls.clear()
        found = fit(build, lambda n, p=per_piece: 50 + p * n, 10_000)
        assert 10_000 - 2 * per_piece - 200 <= found.num_tokens <= 10_000
        assert len(calls) <= 41
    for start in (1, 30, 240, 260, 4000):
        found = fit(build, lambda n: 50 + 40 * n, 10_000, start=start)
        assert 9_700 <= found.num_tokens <= 10_000, start
    # The source runs dry: it ends all the same.
    dry = fit(build, lambda n: 50 + 10 * min(n, 30), 10_000)
    assert dry.num_tokens == 350
    with pytest.raises(EduceError, match="50 tokens without any filler, more than the 40"):
        fit(build, lambda n: 50 + n, 40)
    assert estimated_tokens([assistant("abcd" * 10)]) == 16


def test_a_domain_without_a_tokenizer_only_scores() -> None:
    with pytest.raises(DomainError, match="only score"):
        scoring_domain("count").task(Split.EVAL, 0)
    with pytest.raises(EduceError, match="Did you mean 'count'"):
        load_kind("cuont")
    with pytest.raises(EduceError, match="take a longer length"):
        LongContextDomain(load_kind("needle-multiquery-uuid"), 230, count).task(Split.EVAL, 0)


# --- scoring ------------------------------------------------------------------------------------

NUMBER = {"kind": "values", "pattern": VALUE_PATTERNS["number"]}


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("1234567", 1.0),
        ("The number of the amber anvil is 1234567.", 1.0),
        ("1234567, 1234567", 1.0),
        ("1234567 or 7654321", 0.0),
        ("81234567", 0.0),
        ("12345678", 0.0),
        ("<think>7654321?</think>1234567", 1.0),
        ("1,234,567", 0.0),
        ("none", 0.0),
        ("word " * 80 + "1234567", 0.0),
    ],
)
def test_values_are_an_exact_set(said: str, value: float) -> None:
    assert judge(said, ["1234567"], NUMBER).value == value


def test_precision_and_recall_are_parts() -> None:
    score = judge("1111111 2222222 9999999", ["1111111", "2222222", "3333333"], NUMBER)
    assert score.value == 0.0
    assert score.parts == {"precision": pytest.approx(2 / 3), "recall": pytest.approx(2 / 3)}


def test_values_have_no_parts_in_common() -> None:
    import random

    for kind, pattern in VALUE_PATTERNS.items():
        values = unique_values(random.Random(1), kind, 300)
        assert len(set(values)) == 300 and len({len(v) for v in values}) == 1
        assert all(re.fullmatch(pattern, v) for v in values)


def test_verbatim_needs_prefix_and_text() -> None:
    check = {"kind": "verbatim", "prefix": "x7k2"}
    gold = "x7k2 Nobody expected the sound of rain."
    assert judge(gold, [gold], check).value == 1.0
    assert judge(f'"{gold}"', [gold], check).value == 1.0
    assert judge("Nobody expected the sound of rain.", [gold], check).parts["similarity"] == 0.0
    near = judge("x7k2 Nobody expected the smell of rain.", [gold], check)
    assert near.value == 0.0 and 0.7 < (near.parts["similarity"] or 0) < 1.0


def test_the_last_instruction_wins() -> None:
    check = {"kind": "state", "stale": ["falcon", "ginger"]}
    answers = ["harvest", "island"]
    assert judge("Harvest island", answers, check).value == 1.0
    assert judge("harvest: island.", answers, check).value == 1.0
    assert judge("falcon island", answers, check).parts == {
        "current": 0.0, "stale": 1.0, "target": 1.0
    }  # fmt: skip
    assert judge("harvest", answers, check).value == 0.0
    assert judge("harvest ginger island", answers, check).value == 0.0


def test_answers_with_sources() -> None:
    check = {"kind": "sources", "sources": [3, 8], "answerable": True}
    full = judge("Answer: the Nile\nSources: [3], [8]", ["Nile", "River Nile"], check)
    assert full.value == 1.0 and full.parts["citation_f1"] == 1.0 and full.parts["f1"] == 1.0
    half = judge("Answer: Nile\nSources: [3], [4]", ["Nile"], check)
    assert half.value == 1.0 and half.parts["citation_f1"] == 0.5
    bare = judge("Nile", ["Nile"], check)
    assert bare.value == 1.0 and bare.parts["citation_f1"] == 0.0
    wrong = judge("Answer: the blue Nile in Egypt", ["Nile"], check)
    assert wrong.value == 0.0 and 0 < (wrong.parts["f1"] or 0) < 1
    quiet = judge("Answer: not stated", ["Nile"], check)
    assert quiet.value == 0.0 and quiet.parts["abstained"] == 1.0
    unknown = {"kind": "sources", "sources": [3], "answerable": False}
    assert judge("Answer: not stated\nSources: [3]", ["not stated"], unknown).value == 1.0
    assert judge("Answer: Nile", ["not stated"], unknown).value == 0.0


def test_distractors_never_hold_the_answer() -> None:
    domain = LongContextDomain(load_kind("paragraphs"), 1500, count)
    for i in range(12):
        task = domain.task(Split.EVAL, i)
        if task.metadata["check"]["answerable"]:
            answer = task.metadata["answers"][0]
            assert task.messages[0].content.count(answer) == 1
            assert f"[{task.metadata['check']['sources'][0]}] " in task.messages[0].content


def run_chain(draft: Draft) -> str:
    """Return what Python says: run the definitions that stand in the prompt, then the question."""
    shown = draft.separator.join(str(p) for p in draft.pieces)
    call = re.search(r"What does (\w+\(\d+\)) return", draft.question)
    assert call is not None
    names: dict[str, Any] = {}
    chain = [str(draft.pieces[i]) for i in draft.evidence]
    assert len(chain) == 3 and all(shown.count(f"def {c.split('(')[0][4:]}(") == 1 for c in chain)
    exec("\n".join(chain), names)
    # Each of the three is needed.
    for left_out in range(3):
        fewer: dict[str, Any] = {}
        exec("\n".join(c for i, c in enumerate(chain) if i != left_out), fewer)
        with pytest.raises(NameError):
            eval(call[1], fewer)
    return str(eval(call[1], names))


def test_a_chain_returns_what_python_returns() -> None:
    import random

    golds = set()
    for i in range(60):
        draft = code_kinds.write_chain(random.Random(i), 12, (0.0, 0.25, 0.5, 0.75, 1.0)[i % 5])
        assert draft.answers == (run_chain(draft),)
        golds |= set(draft.answers)
    assert len(golds) > 30


def called_from(functions: Sequence[str], name: str) -> list[str]:
    """Who calls a name, read by Python's tokenizer: the name, a bracket, and no ``def`` before."""
    found = []
    for text in functions:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
            is_call = token.string == name and after.string == "(" and before.string != "def"
            if is_call and token.type == tokenize.NAME:
                found.append(re.findall(r"def (\w+)\(", text)[0])
                break
    return sorted(found)


def test_callers_are_those_that_call() -> None:
    """A name in a comment, a text or without brackets is no call; a method is one."""
    import ast

    text = (
        "def outer(x):\n    # absent(1)\n    'spoken(2)'\n    kept = named\n"
        "    def inner():\n        return deep(x)\n    return x.method(direct(inner))"
    )
    called = code_kinds._called(ast.parse(text).body[0])
    assert called == {"deep", "method", "direct"}
    for name in ("absent", "spoken", "named"):
        assert called_from([text], name) == []
    assert all(called_from([text], name) == ["outer"] for name in called)


@pytest.mark.slow
def test_golds_of_real_source_are_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches the package: its functions parse, the golds agree with another way to read them."""
    import random

    monkeypatch.undo()
    functions = code_kinds.source_functions()
    assert len(functions) > 150 and all(compile(f.text, f.name, "exec") for f in functions)
    for i in range(30):
        chain = code_kinds.write_chain(random.Random(i), 40, i / 30)
        assert chain.answers == (run_chain(chain),)
        draft = code_kinds.write_callers(random.Random(i), 40, 0.5)
        name = draft.question.split(" call ")[1].split("(")[0]
        assert list(draft.answers) == called_from([str(p) for p in draft.pieces], name)


def test_needles_at_equal_depth_keep_their_order() -> None:
    pieces, index = placed(["a", "b"], [(0.5, "x"), (0.5, "y"), (0.0, "z"), (1.0, "w")])
    assert pieces == ("z", "a", "x", "y", "b", "w") and index == (2, 3, 0, 5)


def test_shuffling_keeps_every_word() -> None:
    import random

    draft = load_kind("chat-state").write(random.Random(0), 10, 0.5)
    shuffled = with_control(draft, "shuffled", random.Random(1))
    words = [sorted(" ".join(m.content for m in messages_of(d)).split()) for d in (draft, shuffled)]
    assert words[0] == words[1]


# --- the numbers --------------------------------------------------------------------------------


def grid(rate, *, lengths=(1024, 2048, 4096, 8192, 16384), tasks=80, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Observation(kind, n, d, f"{kind}{n}{d}{i}", float(rng.random() < rate(n, d)))
        for kind in ("a", "b")
        for n in lengths
        for d in (0.0, 0.25, 0.5, 0.75, 1.0)
        for i in range(tasks // 5)
    ]


def test_effective_length_finds_where_the_score_falls() -> None:
    falls = grid(lambda n, d: 0.9 if n <= 8192 else 0.4)
    found = effective_length(falls)
    assert found.value == 8192 and found.low == found.high == 8192 and not found.is_at_end
    assert found.base_length == 4096
    holds = effective_length(grid(lambda n, d: 0.9))
    assert holds.value == 16384 and holds.is_at_end
    unclear = effective_length(grid(lambda n, d: 0.8 if n <= 4096 else 0.68, tasks=60, seed=3))
    assert unclear.low < unclear.high
    none = effective_length(grid(lambda n, d: 0.05), guessed=0.3)
    assert none.value is None and "not above guessing" in none.reason
    assert effective_length([]).value is None
    # A dip in the middle ends it, whatever comes after.
    dip = effective_length(grid(lambda n, d: 0.3 if n == 8192 else 0.9))
    assert dip.value == 4096


def test_worst_depth_and_position_bias() -> None:
    middle = grid(lambda n, d: 0.2 if d == 0.5 else 0.95)
    _, depth, estimate = worst_cell(middle)
    assert depth == 0.5 and estimate.value < 0.4
    bias = position_bias(middle)
    assert bias is not None and bias.bend.low > 0.2 and bias.p_value < 1e-6
    assert bias.slope.low < 0 < bias.slope.high
    sloped = position_bias(grid(lambda n, d: 0.3 + 0.5 * d))
    assert sloped is not None and sloped.slope.value == pytest.approx(0.5, abs=0.12)
    alarms = [position_bias(grid(lambda n, d: 0.6, tasks=20, seed=s)).p_value for s in range(150)]
    assert np.mean(np.array(alarms) < 0.05) < 0.11
    assert position_bias(middle[:5]) is None


def test_scores_that_rise_with_length_are_pointed_out() -> None:
    rising = curve(grid(lambda n, d: 0.4 if n == 1024 else 0.9))
    assert len(suspicious_rises(rising)) == 1 and "1024 to 2048" in suspicious_rises(rising)[0]
    assert suspicious_rises(curve(grid(lambda n, d: 0.8))) == []
