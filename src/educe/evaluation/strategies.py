"""Ways to spend tokens on the same tasks: what each costs and what it brings.

A strategy rewords parts (``wordings``), may draw several completions, and reduces them to one row a
task. Rows keep the original task's content hash, so strategies are compared task by task.

- ``direct``: the task as it is.
- ``cot``: reasoning first (Wei et al. 2022), the answer behind it.
- ``tools``: may run Python in the sandbox before it answers.
- ``reflect``: a second look at its own answer, without any hint whether it was right.
- ``self-consistency``: eight reasoned samples, the most frequent answer class (Wang et al. 2022).
- ``best-of-n``: eight samples, the one with the highest mean log-probability of its tokens. What
  the verifier would have chosen is recorded as ``oracle_right``, never as the score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from educe.core.errors import EduceError, did_you_mean
from educe.core.types import Group, Trajectory
from educe.evaluation.answers import answer_class
from educe.evaluation.records import EvalRow, Outcome

RowsOf = Callable[[Group], list[EvalRow]]
Chooser = Callable[[Sequence[EvalRow], Sequence[Trajectory]], int | None]


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to answer.

    Attributes:
        wording: of ``wordings.WORDINGS``; empty leaves the prompt as it is.
        draws: completions that become one row.
        temperature: of the draws; None keeps the part's.
        choose: index of the draw that is the answer, None when no draw can be.
    """

    name: str
    description: str
    wording: str = ""
    draws: int = 1
    temperature: float | None = None
    choose: Chooser | None = None

    def reduce(self, group: Group, rows: Sequence[EvalRow]) -> list[EvalRow]:
        """Return one row for every ``draws`` rows of a finished group.

        The chosen draw's row stands for the task, with the tokens of all draws; without a choice
        (every draw was lost) the first row stands and stays without a score.
        """
        if self.choose is None or self.draws == 1:
            return list(rows)
        reduced = []
        for number, start in enumerate(range(0, len(rows), self.draws)):
            drawn = rows[start : start + self.draws]
            sampled = group.trajectories[start : start + self.draws]
            reduced.append(self._one(number, drawn, sampled))
        return reduced

    def _one(self, number: int, rows: Sequence[EvalRow], sampled: Sequence[Trajectory]) -> EvalRow:
        assert self.choose is not None
        chosen = self.choose(rows, sampled)
        row = rows[0 if chosen is None else chosen]
        num_right = sum(r.outcome is Outcome.RIGHT for r in rows)
        proof = {
            **row.proof,
            "strategy": self.name,
            "draws": len(rows),
            "chosen": chosen,
            "num_right": num_right,
            "num_unscored": sum(r.value is None for r in rows),
            "oracle_right": num_right > 0,
        }
        return replace(
            row, sample=number, num_tokens=sum(r.num_tokens for r in rows),
            num_turns=sum(r.num_turns for r in rows), proof=proof,
        )  # fmt: skip


def most_frequent(rows: Sequence[EvalRow], _: Sequence[Trajectory]) -> int | None:
    """Return the first draw of the most frequent answer class; "no answer" wins no vote.

    Equal counts go to the class that was drawn first, which chance decided.
    """
    votes = {i: answer_class(r) for i, r in enumerate(rows) if r.value is not None}
    if not votes:
        return None
    counts = Counter(c for c in votes.values() if c is not None)
    if not counts:
        return next(iter(votes))
    top = max(counts.values())
    winner = next(c for c in votes.values() if c is not None and counts[c] == top)
    return next(i for i, c in votes.items() if c == winner)


def most_likely(rows: Sequence[EvalRow], sampled: Sequence[Trajectory]) -> int | None:
    """Return the draw with the highest mean log-probability of its tokens, among scored ones.

    Cut draws come last: an endless repetition is very likely and no answer.
    """

    def likelihood(index: int) -> tuple[bool, float]:
        logprobs = [x for turn in sampled[index].turns for x in turn.behaviour_logprobs]
        mean = sum(logprobs) / len(logprobs) if logprobs else float("-inf")
        return (not sampled[index].is_truncated, mean)

    scored = [i for i, r in enumerate(rows) if r.value is not None]
    return max(scored, key=likelihood) if scored else None


STRATEGIES: Mapping[str, Strategy] = {
    s.name: s
    for s in (
        Strategy("direct", "the task as it is"),
        Strategy("cot", "reasons first, then answers", wording="cot"),
        Strategy("tools", "may run Python first", wording="tools"),
        Strategy("reflect", "answers, then looks at its answer again", wording="reflect"),
        Strategy(
            "self-consistency", "8 reasoned samples, the most frequent answer", wording="cot",
            draws=8, temperature=0.8, choose=most_frequent,
        ),
        Strategy(
            "best-of-n", "8 samples, the most likely one", draws=8, temperature=0.8,
            choose=most_likely,
        ),
    )
}  # fmt: skip


def strategy_named(name: str) -> Strategy:
    """Return a strategy; raises EduceError with the known names for another."""
    if name not in STRATEGIES:
        raise EduceError(
            f"there is no strategy {name!r}; known: {', '.join(STRATEGIES)}."
            f"{did_you_mean(name, STRATEGIES)}"
        )
    return STRATEGIES[name]
