"""Four domains about copying a number, built to conflict and to help each other.

Two share one prompt style and want opposite formats, told apart by one letter: ``terse`` the digits
alone, ``wordy`` a whole sentence. Two others have questions of their own and want the same format.
The demonstrations are in either format, at random: what SFT teaches is both formats and no choice,
so that every domain's reward has to make the choice, and the conflicting two pull apart where their
prompts are still the same to the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from educe.core.protocols import DomainBase, DomainSpec
from educe.core.seeds import derive
from educe.core.types import Score, Split, Task, assistant, user

WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)


def terse(number: int) -> str:
    return str(number)


def wordy(number: int) -> str:
    return f"The number that was given is {WORDS[number]}."


@dataclass(frozen=True, slots=True)
class Kind:
    """A domain: its question (``{n}`` is the number, ``{k}`` makes tasks differ) and its format."""

    question: str
    is_wordy: bool


KINDS = {
    "terse": Kind("Note {k}, way A: the number is {n}. Write the number.", False),
    "wordy": Kind("Note {k}, way B: the number is {n}. Write the number.", True),
    "birds": Kind("On day {k} Ann saw {n} birds. How many?", True),
    "boats": Kind("On day {k} Ann saw {n} boats. How many?", True),
}
_SPLITS = {Split.TRAIN: 0, Split.EVAL: 1, Split.SCREEN: 2}


class Copying(DomainBase):
    """One of the four; tasks differ by a note's number, which is of another range in each split."""

    def __init__(self, kind: str = "terse") -> None:
        self._kind, self._name = KINDS[kind], f"copying/{kind}"
        self.spec = DomainSpec(
            self._name,
            f"copying-{kind}",
            "text",
            "Copy a number in one of two formats.",
            max_completion_tokens=12,
        )

    def task(self, split: Split, index: int) -> Task:
        number = derive("copying", str(split), index) % len(WORDS)
        note = 3 * index + _SPLITS[split]
        text = self._kind.question.format(k=note, n=number)
        gold = wordy(number) if derive("format", note) % 2 else terse(number)
        return Task(self._name, split, index, (user(text),), gold=gold, metadata={"number": number})

    def demonstration(self, task: Task):  # type: ignore[no-untyped-def]
        return (assistant(task.gold or ""),)

    def score(self, task, state, transcript, services) -> Score:  # type: ignore[no-untyped-def]
        number = int(task.metadata["number"])
        said = transcript[-1].content.strip()
        wanted = wordy(number) if self._kind.is_wordy else terse(number)
        if said.rstrip(".").lower() == wanted.rstrip(".").lower():
            return Score.right()
        # Half for the format: the choice is what is studied, not the copying.
        is_wordy = said.lower().startswith("the number that was given is ")
        is_terse = said.rstrip(".").isdigit()
        is_right_format = is_wordy if self._kind.is_wordy else is_terse
        return Score.graded(0.5) if is_right_format else Score.wrong()
