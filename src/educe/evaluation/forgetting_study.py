"""The forgetting board as a procedure: screen all domains, confirm suspects afresh, keep the trend.

Each checkpoint gets a screen of its own (tasks rotate), on which the base is asked as well: tasks
that every checkpoint has seen would be overfitted by choosing among them. Suspects are confirmed on
the evaluation split, which shares no content with the screen's. All rows lie in the board's folder
and are not asked again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from educe.core.errors import EduceError
from educe.core.protocols import Domain
from educe.core.seeds import derive
from educe.core.types import JSON, Group, Score, Split, Task, TaskRequest, Trajectory
from educe.evaluation.forgetting import ForgettingBoard, screen_and_confirm
from educe.evaluation.records import EvalResult, EvalRow, outcome_of, rows_of
from educe.evaluation.report.board import board_to_html, board_to_markdown
from educe.evaluation.report.files import to_json_text, write_whole
from educe.evaluation.runner import Limits, Progress, evaluate_requests
from educe.evaluation.sessions import EvalSession

OpenModel = Callable[[str], AbstractContextManager[EvalSession]]
ReadLeniently = Callable[[Task, Trajectory], Score]
_CONFIRM_FROM = 10_000
_LENIENT = "lenient"


@dataclass(frozen=True, slots=True)
class BoardPlan:
    """How much is asked, and how bold the claims are.

    Attributes:
        screen_tasks, confirm_tasks: a domain.
        screen_level: one-sided p-value up to which a domain is a suspect.
        is_rotating: whether each checkpoint has screen tasks of its own.
    """

    screen_tasks: int = 50
    confirm_tasks: int = 200
    samples: int = 1
    temperature: float = 0.0
    screen_level: float = 0.1
    false_discovery_rate: float = 0.1
    relevant_difference: float = 0.05
    is_rotating: bool = True


@dataclass(frozen=True, slots=True)
class BoardRun:
    """A board with the screens of all checkpoints so far, and the pages that were written."""

    board: ForgettingBoard
    history: tuple[EvalResult, ...]
    html: Path
    markdown: Path
    json: Path


def run_board(
    open_model: OpenModel,
    before: str,
    after: str,
    plan: BoardPlan,
    out: Path,
    *,
    read: ReadLeniently | None = None,
    progress: Callable[[str, Progress], None] | None = None,
) -> BoardRun:
    """Compare two checkpoints over all domains of their sessions, and write the board.

    Args:
        open_model: opens a checkpoint's session; one is open at a time.
        read: judges a wrong answer by every plausible reading; tells a lost format from lost
            knowledge. Without it the kind of loss stays unclear.

    Raises:
        EduceError: no domain in common, or rows in ``out`` of other settings.
    """
    book = _Book(out)
    place = book.place_of(after) if plan.is_rotating else 0
    first = place * plan.screen_tasks
    ask = _Asker(open_model, plan, out, read, progress)
    screens = [
        ask.rows(model, f"screen-{place}", Split.SCREEN, first, plan.screen_tasks)
        for model in (before, after)
    ]
    lenient: list[EvalResult] = []

    def fresh(names: Sequence[str]) -> tuple[EvalResult, EvalResult]:
        start = _CONFIRM_FROM + place * plan.confirm_tasks
        pair = [
            ask.rows(model, f"confirm-{place}", Split.EVAL, start, plan.confirm_tasks, names)
            for model in (before, after)
        ]
        if read is not None:
            lenient.extend(_leniently(r) for r in pair)
        return pair[0], pair[1]

    board = screen_and_confirm(
        screens[0],
        screens[1],
        fresh,
        lenient=lambda: (lenient[0], lenient[1]) if lenient else None,
        screen_level=plan.screen_level,
        false_discovery_rate=plan.false_discovery_rate,
        relevant_difference=plan.relevant_difference,
    )
    history = book.add(before, after, screens[0], screens[1])
    paths = [out / f"board.{kind}" for kind in ("html", "md", "json")]
    write_whole(paths[0], board_to_html(board, history))
    write_whole(paths[1], board_to_markdown(board, history))
    write_whole(paths[2], to_json_text({**board.to_json(), "before": before, "after": after}))
    return BoardRun(board, tuple(history), *paths)


class _Asker:
    """Asks one model at a time and keeps what came."""

    def __init__(
        self,
        open_model: OpenModel,
        plan: BoardPlan,
        out: Path,
        read: ReadLeniently | None,
        progress: Callable[[str, Progress], None] | None,
    ) -> None:
        self.open_model, self.plan, self.out = open_model, plan, out
        self.read, self.progress = read, progress

    def rows(
        self,
        model: str,
        name: str,
        split: Split,
        first: int,
        count: int,
        names: Sequence[str] | None = None,
    ) -> EvalResult:
        """Return a model's rows on ``count`` tasks of every domain from index ``first`` on."""
        with self.open_model(model) as session:
            domains = {n: d for n, d in session.domains.items() if names is None or n in names}
            if not domains:
                raise EduceError(f"{model}: the recipe has no domain to look at")
            requests = [
                request
                for domain, own in domains.items()
                for request in self._requests(session, domain, own, split, first, count)
            ]
            if not requests:
                raise EduceError(f"{model}: no domain has {split} tasks")
            settings: dict[str, JSON] = {
                "split": str(split),
                "first": first,
                "samples": self.plan.samples,
                "temperature": self.plan.temperature,
                "identity": session.identity,
                "lenient": self.read is not None,
            }
            label = session.label if session.label == model else Path(model).name
            return evaluate_requests(
                session,
                domains,
                requests,
                settings=settings,
                to_rows=self._to_rows,
                label=label,
                journal=self.out / "rows" / f"{name}-{_file_name(model)}.jsonl",
                progress=None if self.progress is None else lambda p: self._tell(label, p),
            )

    def _tell(self, label: str, progress: Progress) -> None:
        if self.progress is not None:
            self.progress(label, progress)

    def _requests(
        self,
        session: EvalSession,
        name: str,
        domain: Domain,
        split: Split,
        first: int,
        count: int,
    ) -> list[TaskRequest]:
        """Return the requests of one domain; finite splits wrap around, each task once."""
        size = domain.size(split)
        indices = list(range(first, first + count))
        if size is not None:
            indices = [(first + i) % size for i in range(min(size, count))] if size else []
        own = session.limits.get(name, Limits())
        return [
            TaskRequest(
                request_id=derive("board", name, str(split), index) >> 1,
                domain=name,
                split=split,
                index=index,
                num_samples=self.plan.samples,
                temperature=self.plan.temperature,
                max_completion_tokens=own.max_completion_tokens
                or domain.spec.max_completion_tokens,
                max_turns=own.max_turns or domain.spec.max_turns,
            )
            for index in indices
        ]

    def _to_rows(self, group: Group) -> list[EvalRow]:
        rows = rows_of(group)
        if self.read is None:
            return rows
        return [
            replace(row, parts={**row.parts, _LENIENT: self._lenient_value(group.task, t, row)})
            for row, t in zip(rows, group.trajectories, strict=True)
        ]

    def _lenient_value(self, task: Task, trajectory: Trajectory, row: EvalRow) -> float | None:
        if self.read is None or row.value is None or row.value >= 1:
            return row.value
        return self.read(task, trajectory).value


def _leniently(result: EvalResult) -> EvalResult:
    """Return the same completions with their lenient values."""

    def changed(row: EvalRow) -> EvalRow:
        value = row.parts.get(_LENIENT, row.value)
        outcome = outcome_of(Score(value) if value is not None else Score(None), row.is_truncated)
        return replace(row, value=value, outcome=outcome)

    return replace(result, rows=tuple(changed(r) for r in result.rows))


class _Book:
    """The screens of all checkpoints of a board, in the order they were looked at."""

    def __init__(self, out: Path) -> None:
        self.path = out / "history.json"
        self.entries: list[dict[str, JSON]] = []
        if self.path.is_file():
            self.entries = json.loads(self.path.read_text(encoding="utf-8"))["checkpoints"]

    def place_of(self, after: str) -> int:
        """Return the rotation of a checkpoint: its own if it is known, else the next."""
        for number, entry in enumerate(self.entries):
            if entry["name"] == after:
                return number
        return len(self.entries)

    def add(
        self, before: str, after: str, base: EvalResult, screen: EvalResult
    ) -> list[EvalResult]:
        """Keep a checkpoint's screen; return the base's and all checkpoints' screens."""
        entry = {"name": after, "base": _slim(base).to_json(), "screen": _slim(screen).to_json()}
        place = self.place_of(after)
        self.entries[place : place + 1] = [entry]
        write_whole(self.path, json.dumps({"base": before, "checkpoints": self.entries}))
        first = EvalResult.from_json(self.entries[0]["base"])
        return [first, *(EvalResult.from_json(e["screen"]) for e in self.entries)]


def _slim(result: EvalResult) -> EvalResult:
    """Return a result without texts: a trend over hundreds of domains needs numbers only."""
    rows = tuple(
        replace(r, prompt=(), completion=(), proof={}, gold=None, reason="", parts={})
        for r in result.rows
    )
    return replace(result, rows=rows)


def _file_name(model: str) -> str:
    plain = re.sub(r"[^\w.-]+", "-", model).strip("-.")[-60:] or "model"
    return f"{plain}-{derive('model', model) % 16**6:06x}"
