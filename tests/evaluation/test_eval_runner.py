"""The runner: what is asked, what is kept, how kinds are told apart, how it continues."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from scripted_domain import Scripted, Sums, shuffled

from educe.core.errors import DomainError, EduceError
from educe.core.types import Fault, Group, Score, Split, TaskRequest, Verdict
from educe.evaluation.records import EvalResult, Outcome, outcome_of
from educe.evaluation.runner import JournalFile, Limits, Progress, evaluate
from educe.evaluation.summary import HeadlineRule, summarise


def gold(task, sample):
    return task.gold


def two_domains() -> dict[str, Sums]:
    return {"sums": Sums(), "few": Sums("few", size=3, floor=0.25)}


def test_gold_answers_score_100_and_every_task_is_asked_once():
    domains = two_domains()
    sampler = Scripted(domains, gold)
    result = evaluate(sampler, domains, tasks_per_domain=5, samples=2, temperature=0.7)
    summary = summarise(result)
    assert [d.score.value for d in summary.domains] == [1.0, 1.0]
    assert summary.macro.value == summary.macro.high == 1.0
    assert summary.macro_corrected.value == pytest.approx(1.0)
    assert sorted(r.key for r in result.rows) == sorted(
        [("sums", i, k) for i in range(5) for k in range(2)]
        + [("few", i, k) for i in range(3) for k in range(2)]
    )
    assert {(r.num_samples, r.temperature, r.max_completion_tokens) for r in sampler.requests} == {
        (2, 0.7, 16)
    }
    assert len({r.request_id for r in sampler.requests}) == 8
    assert all(r.split is Split.EVAL for r in sampler.requests)
    assert result.notes == ("few: only 3 eval tasks exist, 5 were asked",)


def test_order_of_arrival_changes_nothing():
    domains = two_domains()

    def answer(task, sample):
        return task.gold if (task.index + sample) % 3 else "12 or so"

    plain = evaluate(Scripted(domains, answer), domains, tasks_per_domain=6, samples=2)
    mixed = evaluate(
        lambda requests: shuffled(Scripted(domains, answer).run_requests(requests)),
        domains, tasks_per_domain=6, samples=2,
    )  # fmt: skip
    assert plain.rows == mixed.rows


def test_empty_constant_and_other_tasks_gold_score_what_they_should():
    domains = {"sums": Sums()}
    for answer, outcome in (
        (lambda t, k: "", Outcome.UNPARSEABLE),
        (lambda t, k: "-1", Outcome.WRONG),
        (lambda t, k: str(int(t.gold) + 1), Outcome.WRONG),
        (lambda t, k: "I can't help with that", Outcome.UNPARSEABLE),
    ):
        result = evaluate(Scripted(domains, answer), domains, tasks_per_domain=8)
        assert {r.outcome for r in result.rows} == {outcome}
        assert summarise(result).domains[0].score.value == 0.0


KINDS = [
    (Score.right(), False, Outcome.RIGHT),
    (Score.right(), True, Outcome.RIGHT),
    (Score.graded(0.4), True, Outcome.PARTIAL),
    (Score.wrong(), False, Outcome.WRONG),
    (Score.wrong(), True, Outcome.TRUNCATED),
    (Score.unparseable(), True, Outcome.TRUNCATED),
    (Score.unparseable(), False, Outcome.UNPARSEABLE),
    (Score(0.0, Verdict.REFUSED), False, Outcome.REFUSED),
    (Score(0.0, Verdict.WRONG, Fault.CANDIDATE, proof={"timed_out": True}), False,
     Outcome.TIMED_OUT),
    (Score.unscored(Fault.GRADER, "judge failed"), False, Outcome.UNSCORED),
    (Score.unscored(Fault.INFRASTRUCTURE, "worker lost"), True, Outcome.ERRORED),
    (Score(float("nan"), Verdict.RIGHT), False, Outcome.UNSCORED),
    (Score(0.7), False, Outcome.PARTIAL),
    (Score(0.0), False, Outcome.WRONG),
]  # fmt: skip


@pytest.mark.parametrize(("score", "truncated", "outcome"), KINDS)
def test_outcomes_are_told_apart(score, truncated, outcome):
    assert outcome_of(score, truncated) is outcome


def test_unscored_and_errored_are_in_no_mean_but_counted():
    domains = {"sums": Sums()}

    def answer(task, sample):
        if task.index < 2:
            return Score.unscored(Fault.GRADER, "checker crashed")
        if task.index < 3:
            return Score.unscored(Fault.INFRASTRUCTURE, "worker lost")
        return task.gold

    result = evaluate(Scripted(domains, answer), domains, tasks_per_domain=10)
    domain = summarise(result).domains[0]
    assert domain.score.value == 1.0
    assert domain.score.num_items == 7
    assert domain.num_lost_tasks == 3
    assert domain.counts.to_json()["unscored"] == 2
    assert domain.counts.to_json()["errored"] == 1
    assert domain.counts.total == 10


def test_a_headline_is_withheld_above_the_limits():
    domains = {"sums": Sums()}

    def cut(share):
        return lambda t, k: "it is …" if t.index < 100 * share else t.gold

    ok = summarise(evaluate(Scripted(domains, cut(0.05)), domains, tasks_per_domain=100))
    assert ok.headline is not None and not ok.withheld
    bad = summarise(evaluate(Scripted(domains, cut(0.06)), domains, tasks_per_domain=100))
    assert bad.headline is None
    assert bad.macro is not None
    assert "6.0% of completions ended at a token or time limit" in bad.withheld
    assert "6% ended at a token or time limit" in bad.domains[0].cautions[0]

    def lost(task, sample):
        return Score.unscored(Fault.GRADER, "x") if task.index < 6 else task.gold

    bad = summarise(evaluate(Scripted(domains, lost), domains, tasks_per_domain=100))
    assert bad.headline is None and "no score" in bad.withheld
    nothing = summarise(
        evaluate(
            Scripted(domains, lambda t, k: Score.unscored(Fault.GRADER, "x")),
            domains, tasks_per_domain=4,
        ),
        rule=HeadlineRule(max_lost=1.0),
    )  # fmt: skip
    assert nothing.macro is None and nothing.withheld == "nothing was scored"


def test_all_samples_count_not_only_the_first():
    """LME #3080: right, wrong, wrong is one third, and pass@k sees all three."""
    domains = {"sums": Sums()}
    sampler = Scripted(domains, lambda t, k: t.gold if k == 0 else "0")
    domain = summarise(evaluate(sampler, domains, tasks_per_domain=4, samples=3)).domains[0]
    assert domain.score.value == pytest.approx(1 / 3)
    assert domain.pass_at_k == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3), 3: 1.0}
    assert domain.score.num_items == 4


class Stops(Scripted):
    """Breaks after some groups, like a killed process."""

    def __init__(self, domains, answer, after: int) -> None:
        super().__init__(domains, answer)
        self.after = after

    def run_requests(self, requests: Sequence[TaskRequest]) -> Iterator[Group]:
        for number, group in enumerate(super().run_requests(requests)):
            if number == self.after:
                raise KeyboardInterrupt
            yield group


def test_an_interrupted_evaluation_continues_and_repeats_nothing(tmp_path: Path):
    domains = two_domains()
    journal = tmp_path / "rows.jsonl"
    settings = {"tasks_per_domain": 6, "samples": 2, "temperature": 0.5}
    whole = evaluate(Scripted(domains, gold), domains, **settings)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Stops(domains, gold, 4), domains, journal=JournalFile(journal), **settings)
    # A line torn by a kill: cut off, its task is done again.
    with journal.open("ab") as file:
        file.write(b'{"domain": "sums", "ind')
    seen: list[Progress] = []
    rest = Scripted(domains, gold)
    result = evaluate(rest, domains, journal=JournalFile(journal), progress=seen.append, **settings)
    assert result.rows == whole.rows
    assert len(rest.requests) == 9 - 4
    assert [(p.done, p.total, p.num_resumed) for p in seen] == [(n, 9, 4) for n in range(5, 10)]
    assert seen[-1].left_s == 0.0
    again = Scripted(domains, gold)
    assert evaluate(again, domains, journal=JournalFile(journal), **settings).rows == whole.rows
    assert again.requests == []


def test_more_tasks_later_extend_the_same_journal(tmp_path: Path):
    domains = {"sums": Sums()}
    journal = tmp_path / "rows.jsonl"
    evaluate(Scripted(domains, gold), domains, tasks_per_domain=3, journal=JournalFile(journal))
    more = Scripted(domains, gold)
    assert len(evaluate(more, domains, tasks_per_domain=5, journal=JournalFile(journal)).rows) == 5
    assert [r.index for r in more.requests] == [3, 4]
    fewer = evaluate(
        Scripted(domains, gold), domains, tasks_per_domain=2, journal=JournalFile(journal)
    )
    assert [r.index for r in fewer.rows] == [0, 1]


def test_a_journal_of_other_settings_is_refused(tmp_path: Path):
    domains = {"sums": Sums()}
    journal = tmp_path / "rows.jsonl"
    evaluate(
        Scripted(domains, gold), domains, tasks_per_domain=2, journal=JournalFile(journal, "A")
    )
    with pytest.raises(EduceError, match="identity: there 'A', wanted 'B'"):
        evaluate(
            Scripted(domains, gold), domains, tasks_per_domain=2, journal=JournalFile(journal, "B")
        )
    with pytest.raises(EduceError, match=r"temperature: there 0.0, wanted 1.0"):
        evaluate(
            Scripted(domains, gold), domains, tasks_per_domain=2, journal=JournalFile(journal, "A"),
            temperature=1.0,
        )  # fmt: skip
    with journal.open("ab") as file:
        file.write(b'{"domain": "sums"}\n')
    with pytest.raises(EduceError, match=r"rows.jsonl:4: not a group"):
        evaluate(
            Scripted(domains, gold), domains, tasks_per_domain=2, journal=JournalFile(journal, "A")
        )


def test_a_sampler_that_drops_or_invents_is_an_error():
    domains = {"sums": Sums()}

    def drops(requests):
        return list(Scripted(domains, gold).run_requests(requests))[1:]

    def doubles(requests):
        groups = list(Scripted(domains, gold).run_requests(requests))
        return [*groups, groups[0]]

    with pytest.raises(EduceError, match=r"no group for 1 of 3 requests, e.g. sums task 0"):
        evaluate(drops, domains, tasks_per_domain=3)
    with pytest.raises(EduceError, match="came twice"):
        evaluate(doubles, domains, tasks_per_domain=3)
    with pytest.raises(DomainError, match="few has no eval tasks"):
        evaluate(drops, {"few": Sums("few", size=0)}, tasks_per_domain=3)
    with pytest.raises(EduceError, match="at least one task"):
        evaluate(drops, domains, tasks_per_domain=0)


def test_limits_replace_the_domains_own_and_a_scorer_judges_anew():
    domains = {"sums": Sums()}
    sampler = Scripted(domains, lambda t, k: f"The answer is {t.gold}")

    def lenient(domain, task, trajectory):
        return (
            Score.right() if trajectory.messages[-1].content.endswith(task.gold) else Score.wrong()
        )

    strict = evaluate(sampler, domains, tasks_per_domain=3)
    kind = evaluate(
        sampler, domains, tasks_per_domain=3, scorer=lenient,
        limits={"sums": Limits(max_completion_tokens=99, temperature=0.3)},
    )  # fmt: skip
    assert summarise(strict).macro.value == 0.0
    assert summarise(kind).macro.value == 1.0
    assert sampler.requests[-1].max_completion_tokens == 99
    assert sampler.requests[-1].temperature == 0.3


def test_tasks_of_equal_content_are_one_cluster():
    domains = {"sums": Sums(repeat=5)}
    sampler = Scripted(domains, lambda t, k: t.gold if int(t.gold) % 2 else "0")
    repeated = summarise(evaluate(sampler, domains, tasks_per_domain=50)).domains[0]
    apart = {"sums": Sums()}
    sampler = Scripted(apart, lambda t, k: t.gold if t.index % 5 in (0, 2, 4) else "0")
    distinct = summarise(evaluate(sampler, apart, tasks_per_domain=50)).domains[0]
    assert repeated.num_distinct == 5
    assert repeated.score.num_clusters == 5
    assert repeated.score.value == distinct.score.value == 0.6
    assert repeated.score.half_width > 2 * distinct.score.half_width


def test_results_round_trip_through_json():
    domains = two_domains()
    result = evaluate(Scripted(domains, gold), domains, tasks_per_domain=3, samples=2)
    assert EvalResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    with pytest.raises(ValueError, match="format 7"):
        EvalResult.from_json({**result.to_json(), "format_version": 7})
