"""A domain of three turns whose environment judges each; scores have parts and steps."""

from __future__ import annotations

from educe.core.protocols import DomainBase, DomainSpec
from educe.core.types import Reply, Score, Task, user


class Judged(DomainBase):
    spec = DomainSpec("judged", "judged", "text", "Letters, turn by turn.", max_turns=3,
                      max_completion_tokens=4, has_gold=False)  # fmt: skip

    def task(self, split, index):
        return Task("judged", split, index, (user(f"{split} {index}"),))

    def initial_state(self, task):
        return 0

    def respond(self, task, state, transcript, services):
        share = _share(transcript[-1].content)
        return Reply((user("more"),), done=False, state=state + 1, score=Score.graded(share))

    def score(self, task, state, transcript, services):
        text = transcript[-1].content
        share = _share(text)
        half = max(1, len(text) // 2)
        steps = ((half, _share(text[:half])), (len(text), share))
        return Score(share, parts={"short": 1.0 / (1 + len(text))}, steps=steps)


def _share(text: str) -> float:
    return sum(c.islower() for c in text) / max(1, len(text))


def domain() -> Judged:
    return Judged()
