"""Many tests at once, and the search for lost domains among hundreds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from scripted_domain import Scripted, Sums

from educe.core.errors import EduceError
from educe.core.types import Score, Split
from educe.evaluation.forgetting import continual_metrics, screen_and_confirm
from educe.evaluation.report import board_to_html, board_to_markdown
from educe.evaluation.runner import evaluate
from educe.evaluation.statistics import (
    benjamini_hochberg,
    benjamini_yekutieli,
    bonferroni,
    e_benjamini_hochberg,
    holm,
    mcnemar,
)

P = [0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205, 0.212, 0.216]


def test_adjusted_values_on_a_worked_example():
    assert benjamini_hochberg(P)[:2] == pytest.approx([0.01, 0.04])
    assert (benjamini_hochberg(P) <= 0.05).sum() == 2
    harmonic = sum(1 / i for i in range(1, 11))
    assert benjamini_yekutieli(P)[1] == pytest.approx(min(1.0, 0.04 * harmonic))
    assert holm(P)[:3] == pytest.approx([0.01, 0.072, 0.312])
    assert bonferroni(P)[:2] == pytest.approx([0.01, 0.08])
    shuffled = [P[i] for i in (3, 1, 0, 2)]
    assert holm(shuffled) == pytest.approx([holm(sorted(shuffled))[i] for i in (3, 1, 0, 2)])
    assert len(benjamini_hochberg([])) == len(holm([])) == 0
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        holm([1.2])


def test_e_values():
    assert e_benjamini_hochberg([100, 30, 1, 0.2], 0.1).tolist() == [True, True, False, False]
    assert e_benjamini_hochberg([100, 19, 1, 0.2], 0.1).tolist() == [True, False, False, False]
    assert not e_benjamini_hochberg([9.9], 0.1).any()
    assert e_benjamini_hochberg([], 0.1).tolist() == []
    with pytest.raises(ValueError, match=">= 0"):
        e_benjamini_hochberg([-1], 0.1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_adjustments_are_ordered_and_never_below_the_p_value(p):
    bh, by, hm, bf = benjamini_hochberg(p), benjamini_yekutieli(p), holm(p), bonferroni(p)
    assert (bh >= np.array(p) - 1e-12).all()
    assert (by >= bh - 1e-12).all() and (hm >= bh - 1e-12).all() and (bf >= hm - 1e-12).all()


# --- 300 domains, ten of which lose 15 points, with 10 % of tasks moving either way --------------

DOMAINS, LOSERS = 300, 10


def one_sided(learned: np.ndarray, forgotten: np.ndarray) -> np.ndarray:
    """Mid-p of "worse", vectorised; equality with the library is asserted below."""
    total = learned + forgotten
    tail = np.where(forgotten > 0, special.bdtrc(np.maximum(forgotten - 1, 0), total, 0.5), 1.0)
    return tail - stats.binom.pmf(forgotten, total, 0.5) / 2


def moves(rng, items: int, replicates: int) -> tuple[np.ndarray, np.ndarray]:
    down, up = np.full((replicates, DOMAINS), 0.1), 0.1
    down[:, :LOSERS] = 0.25
    forgotten = rng.binomial(items, down)
    return rng.binomial(items - forgotten, up / (1 - down)), forgotten


def found_and_false(claimed: np.ndarray) -> tuple[float, float, float]:
    """Return (share of losers found, false domains, false discovery rate)."""
    false = claimed[:, LOSERS:].sum(1)
    rate = false / np.maximum(claimed.sum(1), 1)
    return claimed[:, :LOSERS].mean(), false.mean(), rate.mean()


def test_the_vectorised_p_values_are_the_librarys():
    rng = np.random.default_rng(0)
    learned, forgotten = moves(rng, 50, 1)
    p = one_sided(learned, forgotten)[0]
    for i in range(0, DOMAINS, 17):
        assert mcnemar(int(learned[0, i]), int(forgotten[0, i])).mid_p_less == pytest.approx(p[i])


ONE_STAGE = [
    # items, p < .05: found, false domains; BH found, its FDR; Bonferroni found; pooled detects
    (50, 0.56, 12, 0.06, 0.04, 0.03, 0.37),
    (73, 0.71, 14, 0.16, 0.09, 0.07, 0.48),
    (100, 0.83, 14, 0.33, 0.08, 0.14, 0.60),
    (200, 0.98, 15, 0.82, 0.09, 0.51, 0.85),
]


@pytest.mark.parametrize("row", ONE_STAGE)
def test_one_stage_finds_little_or_claims_too_much(row):
    items, single, false, bh, bh_rate, family, pooled = row
    rng = np.random.default_rng(items)
    learned, forgotten = moves(rng, items, 250)
    p = one_sided(learned, forgotten)
    found, wrong, _ = found_and_false(p < 0.05)
    assert found == pytest.approx(single, abs=0.03)
    assert wrong == pytest.approx(false, abs=1.2)
    found, _, rate = found_and_false(np.array([benjamini_hochberg(row) <= 0.1 for row in p]))
    assert found == pytest.approx(bh, abs=0.04)
    assert rate == pytest.approx(bh_rate, abs=0.045)
    found, _, _ = found_and_false(np.array([bonferroni(row) <= 0.05 for row in p]))
    assert found == pytest.approx(family, abs=0.03)
    z = (forgotten.sum(1) - learned.sum(1)) / np.sqrt((forgotten + learned).sum(1))
    assert (z > 1.645).mean() == pytest.approx(pooled, abs=0.1)


TWO_STAGES = [(50, 200, 0.65, 21_700), (100, 200, 0.88, 37_000), (100, 400, 0.91, 45_000)]


@pytest.mark.parametrize(("screen", "fresh", "finds", "budget"), TWO_STAGES)
def test_two_stages_find_most_at_the_same_budget(screen, fresh, finds, budget):
    """At least 65 % of true losses with 72 tasks a domain, false discoveries below a tenth."""
    rng = np.random.default_rng(screen + fresh)
    suspects = one_sided(*moves(rng, screen, 250)) < 0.1
    p = one_sided(*moves(rng, fresh, 250))
    claimed = np.zeros_like(suspects)
    for i, named in enumerate(suspects):
        index = np.flatnonzero(named)
        claimed[i, index] = benjamini_hochberg(p[i, index]) <= 0.1
    found, _, rate = found_and_false(claimed)
    assert found == pytest.approx(finds, abs=0.035)
    assert rate == pytest.approx(0.07, abs=0.025)
    spent = DOMAINS * screen + fresh * suspects.sum(1).mean()
    assert spent == pytest.approx(budget, rel=0.02)


# --- the library's own two stages on real results -----------------------------------------------


def board_of(names, lost, *, format_lost=(), reuse=False):
    """Screen and confirm domains of which some were made to forget 40 % of their tasks."""
    domains = {n: Sums(n) for n in names}

    def answer(forgot):
        def say(task, sample):
            roll = (task.index * 7919 + len(task.domain) * 31 + int(task.domain[1:]) * 101) % 100
            if forgot and task.domain in lost and roll < 40:
                return f"It is {task.gold}" if task.domain in format_lost else "0"
            return task.gold if roll < 80 else "0"

        return say

    def run(forgot, chosen, split, scorer=None, start=0):
        part = {n: domains[n] for n in chosen}
        return evaluate(
            Scripted(part, answer(forgot)), part, tasks_per_domain=40 + start, split=split,
            scorer=scorer,
        )  # fmt: skip

    def later(result):
        from dataclasses import replace

        return replace(result, rows=tuple(r for r in result.rows if r.index >= 40))

    def lenient(domain, task, trajectory):
        right = trajectory.messages[-1].content.split()[-1] == task.gold
        return Score.right() if right else Score.wrong()

    def fresh(chosen):
        pair = [run(forgot, chosen, Split.SCREEN, start=100) for forgot in (False, True)]
        return tuple(pair) if reuse else tuple(later(r) for r in pair)

    screen = [run(forgot, names, Split.SCREEN) for forgot in (False, True)]
    soft = tuple(
        later(run(forgot, names, Split.SCREEN, lenient, start=200)) for forgot in (False, True)
    )
    return screen_and_confirm(*screen, fresh, lenient=soft)


def test_the_board_names_what_was_lost_and_what_kind_of_loss():
    names = [f"d{i:02d}" for i in range(14)]
    board = board_of(names, lost={"d03", "d11"}, format_lost={"d11"})
    assert [loss.domain for loss in board.lost] == ["d03", "d11"]
    kinds = {loss.domain: loss.kind for loss in board.lost}
    assert kinds == {"d03": "knowledge", "d11": "format"}
    loss = board.lost[0]
    assert loss.difference.value == pytest.approx(-0.4, abs=0.03)
    assert loss.forgotten == 40 and loss.learned == 0
    assert board.num_domains == 14
    assert board.num_tasks == 14 * 40 + 100 * len(board.suspects)
    assert board.to_json()["lost"] == ["d03", "d11"]
    history = [small(names[:6], label="step 1"), small(names[:6], label="step 2")]
    text = board_to_markdown(board, history)
    assert "2 of 14 domains lost" in text and "By kind: 1 knowledge, 1 format." in text
    assert "| d03 | lost | knowledge | -40" in text
    assert "| macro average | 50.0 | 50.0 |" in text and "| d11 | – | – |" in text
    html = board_to_html(board, history)
    assert html.count("<svg") == 3 and html.startswith("<!doctype html>")
    assert html.count("<circle") == 4 and "nan" not in html


def small(names, label):
    domains = {n: Sums(n) for n in names}
    sampler = Scripted(domains, lambda t, k: t.gold if t.index % 2 else "0")
    return evaluate(sampler, domains, tasks_per_domain=6, label=label)


def test_a_clean_checkpoint_has_an_empty_board():
    board = board_of([f"d{i:02d}" for i in range(12)], lost=set())
    assert board.lost == [] and board.suspects == ()


def test_confirming_on_the_screens_own_tasks_is_refused():
    with pytest.raises(EduceError, match=r"repeats 40 tasks of the screen, e.g. of d03"):
        board_of(["d03", "d04"], lost={"d03"}, reuse=True)


def test_continual_metrics_and_the_bias_of_the_maximum():
    scores = [[0.8, 0.3, 0.2], [0.6, 0.9, 0.4], [0.5, 0.7, 0.9]]
    found = continual_metrics(scores, [0.1, 0.1, 0.1])
    assert found.average == pytest.approx(0.7)
    assert found.backward_transfer == pytest.approx((-0.3 - 0.2) / 2)
    assert found.forward_transfer == pytest.approx((0.2 + 0.3) / 2)
    assert found.forgetting == pytest.approx((0.3 + 0.2) / 2)
    # Nothing is ever forgotten, only measured with noise: the maximum claims loss, halves do not.
    rng = np.random.default_rng(1)
    naive, split = [], []
    for _ in range(200):
        halves = rng.binomial(25, 0.5, size=(2, 8, 8)) / 25
        result = continual_metrics(
            halves.mean(0), np.full(8, 0.5), halves_TI=(halves[0], halves[1])
        )
        naive.append(result.forgetting)
        split.append(result.forgetting_split_half)
    assert np.mean(naive) > 0.08
    assert abs(np.mean(split)) < 0.02
    with pytest.raises(ValueError, match="square matrix"):
        continual_metrics([[1.0, 2.0]], [0.1, 0.2])
