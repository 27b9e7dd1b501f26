"""What a review is made of: findings of layers, their severities, and what could not be judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from educe.core.errors import InfrastructureError, UnscoredError
from educe.core.types import JSON, Message

MAX_FINDINGS = 50


@dataclass(frozen=True, slots=True)
class ReviewFinding:
    """One thing that one layer found.

    Attributes:
        layer, rule: who found it.
        severity: in [0, 1]; a classifier's is its probability scaled so that 0.7 is its threshold.
        start, end: characters of the text; both 0 where the finding is about the whole of it.
        detail: a few words for people. Never the secret itself.
    """

    layer: str
    rule: str
    severity: float
    start: int = 0
    end: int = 0
    detail: str = ""

    def to_json(self) -> dict[str, JSON]:
        return {
            "layer": self.layer,
            "rule": self.rule,
            "severity": round(self.severity, 4),
            "start": self.start,
            "end": self.end,
            "detail": self.detail,
        }

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> ReviewFinding:
        return ReviewFinding(**raw)


class Layer(Protocol):
    """Finds things of one kind.

    ``inspect`` may raise UnscoredError or InfrastructureError where it cannot judge: the review
    then says so, and never counts it as harmless.
    """

    @property
    def name(self) -> str: ...

    def inspect(self, text: str, prompt: Sequence[Message]) -> Sequence[ReviewFinding]: ...


@dataclass(frozen=True, slots=True)
class Review:
    """All findings on one text.

    Attributes:
        by_layer: the highest severity of every layer that judged.
        failed: layers that could not judge, with the reason.
        block_at: severity from which the text counts as unsafe.
    """

    findings: tuple[ReviewFinding, ...]
    by_layer: Mapping[str, float]
    failed: Mapping[str, str]
    block_at: float

    @property
    def severity(self) -> float:
        return max(self.by_layer.values(), default=0.0)

    @property
    def is_unsafe(self) -> bool:
        return self.severity >= self.block_at

    @property
    def is_complete(self) -> bool:
        return not self.failed

    @property
    def disagrees(self) -> bool:
        """Whether a trained layer and the judge reach opposite verdicts on the whole text."""
        votes = {n: v >= self.block_at for n, v in self.by_layer.items() if n in _WHOLE_TEXT}
        return len(set(votes.values())) > 1

    def reasons(self) -> str:
        """Return the rules behind the verdict, worst first, without any of the text."""
        worst = sorted(self.findings, key=lambda f: -f.severity)
        names = dict.fromkeys(f"{f.layer}/{f.rule}" for f in worst if f.severity >= self.block_at)
        return ", ".join(list(names)[:5])

    def to_json(self) -> dict[str, JSON]:
        return {
            "findings": [f.to_json() for f in self.findings],
            "by_layer": dict(self.by_layer),
            "failed": dict(self.failed),
            "block_at": self.block_at,
            "severity": self.severity,
            "is_unsafe": self.is_unsafe,
        }

    @staticmethod
    def from_json(raw: Mapping[str, JSON]) -> Review:
        return Review(
            tuple(ReviewFinding.from_json(f) for f in raw["findings"]),
            raw["by_layer"],
            raw["failed"],
            raw["block_at"],
        )


_WHOLE_TEXT = frozenset({"classifier", "judge"})


class Reviewer:
    """Runs layers over a text.

    Args:
        layers: in order of cost; names must differ.
        block_at: severity from which a text is unsafe.
        ask_all: ask later layers even when an earlier one has settled the verdict (for reports);
            otherwise a settled text does not cost a judge's call.
    """

    def __init__(
        self, layers: Sequence[Layer], *, block_at: float = 0.7, ask_all: bool = True
    ) -> None:
        names = [layer.name for layer in layers]
        if len(set(names)) != len(names):
            raise ValueError(f"review layers need different names, got {names}")
        if not 0 < block_at <= 1:
            raise ValueError(f"block_at must lie in (0, 1], got {block_at}")
        self.layers = tuple(layers)
        self.block_at = block_at
        self.ask_all = ask_all

    def review(self, text: str, prompt: Sequence[Message] = ()) -> Review:
        """Return what the layers find in ``text``; ``prompt`` is what it answers."""
        findings: list[ReviewFinding] = []
        by_layer: dict[str, float] = {}
        failed: dict[str, str] = {}
        for layer in self.layers:
            try:
                found = list(layer.inspect(text, prompt))
            except (UnscoredError, InfrastructureError) as error:
                failed[layer.name] = str(error)
                continue
            by_layer[layer.name] = max((f.severity for f in found), default=0.0)
            findings += found[:MAX_FINDINGS]
            if not self.ask_all and by_layer[layer.name] >= self.block_at:
                break
        return Review(tuple(findings), by_layer, failed, self.block_at)


def spoken_text(transcript: Sequence[Message], num_prompt_messages: int) -> str:
    """Return everything the assistant wrote after the prompt, tool calls included."""
    pieces = []
    for message in transcript[num_prompt_messages:]:
        if message.role == "assistant":
            pieces.append(message.content)
            pieces += [f"{c.name} {c.arguments}" for c in message.tool_calls]
    return "\n".join(pieces)
