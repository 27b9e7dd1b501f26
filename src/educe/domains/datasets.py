"""A user's rows as a domain: columns ``prompt`` and ``answer``, and a reward function if wanted.

Without a reward function the answer column decides: by the checker that the recipe names
(``answer_checkers``), else numbers are compared as numbers, other text after folding case, white
space and closing punctuation (``rewards.outcome.text``).

Which split a row belongs to follows from its content, so duplicates never meet across splits; the
share of ``eval`` is ``eval_fraction``, a third of it more is ``screen``. Rows come in an order
shuffled once by the domain's name, because the order of files often means something.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import DomainBase, DomainSpec, Services
from educe.core.splits import split_of
from educe.core.types import JSON, Message, Score, Split, Task, user
from educe.domains.answer_checkers import POLICY_COLUMN, Checker, check_policy, named_checker
from educe.domains.extraction import extract_answer, parse_number
from educe.domains.reward_functions import RewardFunctions, Sample
from educe.domains.rows import Row, Rows, lookup, offsets, open_rows

_ROLES = ("system", "user", "assistant", "tool")
_DEFAULT_TOKENS = 256
_REWARD_OPTIONS = ("reward_weights", "combine", "gate_threshold", "batch")
_OPTIONS = (*_REWARD_OPTIONS, "checker", "policy", "split", "floor")
_KEPT_GROUPS = 64


@dataclass(frozen=True, slots=True)
class RowsSummary:
    """What the first rows of a data set showed.

    ``is_complete`` tells whether all rows were looked at; ``splits`` counts the rows seen by split.
    """

    num_rows: int
    is_complete: bool
    splits: Mapping[Split, int]
    has_gold: bool


def preflight_rows(name: str, settings: DomainSettings, limit: int = 10_000) -> RowsSummary:
    """Check the reward functions and the first rows of a domain with a ``path``, without torch.

    Raises:
        DomainError: an unusable path, reward or row (naming file, line and column), no rows at
            all, or no row left for training.
        MissingExtraError: the folder needs the package ``datasets``.
    """
    domain = RowsDomain(name, settings)
    counts = dict.fromkeys(Split, 0)
    scanned = domain.rows.scan()
    for key, place, row in itertools.islice(scanned, limit):
        counts[domain.split_of_row(domain.as_task(row, key, place))] += 1
    is_complete = next(scanned, None) is None
    if is_complete and not counts[Split.TRAIN]:
        raise DomainError(
            f"{name}: none of the {sum(counts.values())} rows of {settings.path} falls into the "
            f"train split; give more rows or a smaller eval_fraction"
        )
    return RowsSummary(sum(counts.values()), is_complete, counts, domain.spec.has_gold)


class RowsDomain(DomainBase):
    """Tasks from rows of a file; made from ``DomainSettings`` with a ``path``.

    The rows are indexed when the first task or size is asked for: one pass that validates every row
    and keeps its offset (8 bytes). Scoring alone needs no index.

    Options: ``reward_weights``, ``combine`` and ``gate_threshold`` of several rewards (see
    :class:`RewardFunctions`); ``batch = "group"`` hands reward functions all completions of a
    prompt at once; ``checker`` and ``policy`` (see ``answer_checkers``); ``split`` of a saved
    ``DatasetDict``; ``floor``, the score of the best constant answer (``educe domains check``
    measures it).
    """

    def __init__(self, name: str, settings: DomainSettings) -> None:
        self._settings = settings
        unknown = set(settings.options) - set(_OPTIONS)
        if unknown:
            raise DomainError(
                f"{name}: a domain with a path has the options {', '.join(_OPTIONS)}, not "
                f"{', '.join(sorted(unknown))}"
            )
        self.rows: Rows = open_rows(settings.path, split=str(settings.options.get("split", "")))
        references = (settings.reward,) if isinstance(settings.reward, str) else settings.reward
        references = tuple(r for r in references if r)
        options = settings.options
        idle = [option for option in _REWARD_OPTIONS if option in options]
        if idle and not references:
            raise DomainError(f"{name}: {idle[0]} is about rewards, and none is named")
        self._rewards = (
            RewardFunctions(
                name,
                references,
                options.get("reward_weights", ()),
                combine=str(options.get("combine", "sum")),
                threshold=options.get("gate_threshold"),
            )
            if references
            else None
        )
        self._required = (
            self._rewards.required_columns(settings.prompt_field) if self._rewards else {}
        )
        self._checker = _checker_of(name, settings, has_rewards=bool(references))
        self._groups: OrderedDict[tuple[str, ...], list[Score]] = OrderedDict()
        first = next(self.rows.scan(), None)
        if first is None:
            raise DomainError(f"{name}: {settings.path} has no rows")
        has_gold = _has(first[2], settings.answer_field)
        has_gold = has_gold and (self._checker is None or self._checker.has_gold)
        self.spec = DomainSpec(
            name=name,
            family=name,
            kind="rows",
            description=f"Rows of {settings.path}.",
            licence="the user's own data",
            floor=float(settings.options.get("floor", 0.0)),
            max_completion_tokens=settings.max_completion_tokens or _DEFAULT_TOKENS,
            has_gold=has_gold,
            scores_groups=_sees_groups(name, settings),
        )

    def size(self, split: Split) -> int | None:
        return len(self._index[split])

    def task(self, split: Split, index: int) -> Task:
        keys = self._index[split]
        if not 0 <= index < len(keys):
            raise IndexError(f"{self.spec.name}: {split} has {len(keys)} tasks, no task {index}")
        key = int(keys[index])
        task = self.as_task(self.rows.read(key), key, f"{self._settings.path}, {split} {index}")
        return Task(task.domain, split, index, task.messages, task.gold, task.metadata)

    def score(
        self, task: Task, state: JSON, transcript: Sequence[Message], services: Services
    ) -> Score:
        completion = transcript[-1].content
        if self._rewards is None:
            return self._by_answer(completion, task)
        if isinstance(state, Mapping) and "group" in state:
            return self._scored_group(task, state["group"])[state["index"]]
        return self._rewards.score(self._sample(task, completion))

    def _by_answer(self, completion: str, task: Task) -> Score:
        if self._checker is None:
            return _match(completion, task.metadata["answers"])
        declared = task.metadata["columns"].get(POLICY_COLUMN) or {}
        policy = {**self._settings.options.get("policy", {}), **declared}
        return self._checker.check(completion, task.metadata["answers"], policy)

    def _sample(self, task: Task, completion: str) -> Sample:
        return Sample(
            domain=self.spec.name,
            prompt=task.messages,
            is_conversational=task.metadata["is_conversational"],
            completion=completion,
            gold=task.gold,
            columns=task.metadata["columns"],
        )

    def _scored_group(self, task: Task, transcripts: JSON) -> list[Score]:
        """Return the scores of a group. Each of its completions asks for them: they are kept."""
        assert self._rewards is not None
        texts = [transcript[-1]["content"] for transcript in transcripts]
        key = (task.content_hash, *texts)
        scores = self._groups.get(key)
        if scores is None:
            scores = self._rewards.score_group([self._sample(task, text) for text in texts])
            self._groups[key] = scores
            while len(self._groups) > _KEPT_GROUPS:
                self._groups.popitem(last=False)
        return scores

    def as_task(self, row: Row, key: int, place: str) -> Task:
        """Return the task of a row (its split and index are not known yet).

        Raises:
            DomainError: a column is missing or has the wrong type; starts with ``place``.
        """
        settings = self._settings
        prompt = _column(row, settings.prompt_field, place, "prompt_field")
        for column, function in self._required.items():
            if column not in row:
                raise DomainError(
                    f"{place}: column {column!r} is missing, the reward function {function} needs "
                    f"it.{did_you_mean(column, row)} The row has {', '.join(row)}."
                )
        answers: list[str] = []
        if self.spec.has_gold or self._rewards is None:
            value = _column(row, settings.answer_field, place, "answer_field")
            answers = _answers(value, place, settings.answer_field)
        columns = {k: v for k, v in row.items() if k != settings.prompt_field}
        if self._checker is not None and columns.get(POLICY_COLUMN):
            check_policy(settings.options["checker"], columns[POLICY_COLUMN], place)
        metadata: dict[str, JSON] = {
            "answers": answers,
            "columns": columns,
            "is_conversational": not isinstance(prompt, str),
        }
        return Task(
            self.spec.name,
            Split.TRAIN,
            0,
            _messages(prompt, place, settings.prompt_field),
            self._gold(answers),
            metadata=metadata,
        )

    def _gold(self, answers: Sequence[str]) -> str | None:
        """Return a right completion, None where the answers are none (a schema, a pattern)."""
        if not answers or not self.spec.has_gold:
            return None
        return ", ".join(answers) if self._settings.options.get("checker") == "set" else answers[0]

    def split_of_row(self, task: Task) -> Split:
        """Return the split that a row's content belongs to."""
        return split_of(task.content_hash, self._settings.eval_fraction)

    @functools.cached_property
    def _index(self) -> dict[Split, Any]:
        """Row keys by split, in their shuffled order."""
        import numpy as np

        from educe.core.seeds import numpy_random

        found = {split: offsets() for split in Split}
        for key, place, row in self.rows.scan():
            found[self.split_of_row(self.as_task(row, key, place))].append(key)
        return {
            split: numpy_random("rows", self.spec.name, str(split)).permutation(
                np.frombuffer(keys, dtype=np.uint64) if keys else np.zeros(0, np.uint64)
            )
            for split, keys in found.items()
        }


def _checker_of(name: str, settings: DomainSettings, *, has_rewards: bool) -> Checker | None:
    options = settings.options
    wanted, policy = options.get("checker"), options.get("policy", {})
    if wanted is None and not policy:
        return None
    if has_rewards or wanted is None:
        why = "a reward function judges alone" if has_rewards else "a policy needs a checker"
        raise DomainError(f"{name}: options.checker and options.policy: {why}")
    return named_checker(wanted, policy, name)


def _sees_groups(name: str, settings: DomainSettings) -> bool:
    batch = settings.options.get("batch", "one")
    if batch not in ("one", "group"):
        raise DomainError(f"{name}: options.batch must be 'one' or 'group', got {batch!r}")
    return bool(batch == "group")


def _column(row: Row, column: str, place: str, setting: str) -> Any:
    try:
        value = lookup(row, column)
    except KeyError:
        raise DomainError(
            f"{place}: column {column!r} is missing.{did_you_mean(column, row)} The row has "
            f"{', '.join(row) or 'no columns'}; set {setting} to the right one."
        ) from None
    if value is None or value == "" or value == []:
        raise DomainError(f"{place}: column {column!r} is empty ({value!r})")
    return value


def _has(row: Row, column: str) -> bool:
    try:
        return lookup(row, column) not in (None, "", [])
    except KeyError:
        return False


def _messages(prompt: Any, place: str, column: str) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        return (user(prompt),)
    if not isinstance(prompt, list):
        raise DomainError(
            f"{place}: column {column!r} must be text or a list of messages, got "
            f"{type(prompt).__name__}"
        )
    messages: list[Message] = []
    for raw in prompt:
        if not isinstance(raw, dict) or not isinstance(raw.get("content"), str):
            raise DomainError(
                f"{place}: column {column!r}: a message needs a role and a content of text, got "
                f"{raw!r:.120}"
            )
        if raw.get("role") not in _ROLES:
            raise DomainError(
                f"{place}: column {column!r}: role must be one of {', '.join(_ROLES)}, got "
                f"{raw.get('role')!r}"
            )
        messages.append(Message(raw["role"], raw["content"], name=raw.get("name") or ""))
    if messages[-1].role == "assistant":
        raise DomainError(
            f"{place}: column {column!r} ends with an assistant message; the prompt must stop "
            f"where the model begins, and the answer belongs into the answer column"
        )
    return tuple(messages)


def _answers(value: Any, place: str, column: str) -> list[str]:
    values = value if isinstance(value, list) else [value]
    for entry in values:
        if not isinstance(entry, str | int | float):
            raise DomainError(
                f"{place}: column {column!r} must be text, a number or a list of accepted answers, "
                f"got {type(entry).__name__}"
            )
    return [str(entry) for entry in values]


def _match(completion: str, answers: Sequence[str]) -> Score:
    from educe.rewards.outcome.text import exact_match

    numbers = [parse_number(answer) for answer in answers]
    if all(number is not None for number in numbers):
        answer = extract_answer(completion, is_numeric=True)
        if not answer:
            return Score.unparseable("no answer found")
        if parse_number(answer) in numbers:
            return Score.right()
        return Score.wrong(f"expected {answers[0]}, got {answer[:80]!r}")
    return exact_match(completion, answers)
