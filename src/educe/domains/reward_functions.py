"""Users' reward functions, in the signatures of TRL and verl, told apart by parameter names.

TRL: ``f(prompts, completions, <columns>, **kwargs) -> list[float | None]``, called with lists of
one, because every sample is scored on its own in a worker that can be killed; where a recipe says
``batch = "group"``, with all completions of a prompt. Prompts that are message lists give
message-list completions. ``log_metric(name, value)`` becomes a part of the
score, ``log_extra(column, values)`` is kept with it. Token ids and the trainer's state do not exist
where rewards are computed: a function that uses them makes the sample unscored, with that reason.

verl: ``compute_score(data_source, solution_str, ground_truth, extra_info) -> float | dict``; of a
dict, ``score`` counts and other numbers become parts.

Either may be ``async``. None means unscored by this function; see :class:`RewardFunctions`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from educe.core.errors import DomainError, UnscoredError, did_you_mean
from educe.core.types import JSON, Fault, Message, Score
from educe.domains.references import load_reference
from educe.rewards.compose import first_match, gate, product

COMBINATIONS = ("sum", "gate", "product", "first")
"""How several rewards become one score."""

_PROVIDED = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
)
_TRL = frozenset({"prompts", "completions", "completion_ids"})
_VERL = frozenset({"solution_str", "ground_truth"})


@dataclass(frozen=True, slots=True)
class Sample:
    """What a reward function may know about one completion.

    Attributes:
        domain: name of the domain.
        prompt: the task's messages.
        is_conversational: whether the row's prompt was a list of messages.
        completion: text of the last assistant message.
        gold: the answer as text, None if the row has none.
        columns: the other columns of the row.
    """

    domain: str
    prompt: Sequence[Message]
    is_conversational: bool
    completion: str
    gold: str | None
    columns: Mapping[str, JSON]


_Parts = dict[str, float | None]


@dataclass(slots=True)
class _Log:
    """What functions log about a batch of ``size`` completions."""

    size: int = 1
    metrics: dict[str, float] = field(default_factory=dict)
    extras: dict[str, Sequence[JSON]] = field(default_factory=dict)

    def log_metric(self, name: str, value: float) -> None:
        self.metrics[name] = float(value)

    def log_extra(self, column: str, values: Sequence[JSON]) -> None:
        self.extras[column] = values

    def proof_of(self, index: int) -> dict[str, JSON]:
        """Return the extras of one completion: its own entry of a list with one for each."""
        extras: dict[str, JSON] = {
            name: values[index] if len(values) == self.size else list(values)
            for name, values in self.extras.items()
        }
        return {"log_extra": extras} if extras else {}


class RewardFunctions:
    """One or several reward functions, combined into one score; each is logged as a part.

    ``combine`` is one of

    * ``sum``: weighted. A function that returns None is left out, as in TRL (a reward for another
      kind of task); when all return None the sample is unscored.
    * ``gate``: the last function's value where all before it reach the threshold, else 0.
    * ``product``: of all values; 0 decides.
    * ``first``: the first value that is not None, as in exact match, then a judge.

    All but the sum ask the functions in their order and stop where the score is decided, so the
    costly one stands last; what was not asked is a part of None. A function that raises, or returns
    NaN or infinity, leaves the whole sample unscored: what it would have said is unknown.

    Args:
        name: the domain, for errors.
        references: ``module:function`` each.
        weights: of the sum, one for each function; all 1 when empty.
        threshold: of the gates; None is 1.

    Raises:
        DomainError: options that do not go together, or a function that cannot be used.
    """

    def __init__(
        self,
        name: str,
        references: Sequence[str],
        weights: Sequence[float] = (),
        *,
        combine: str = "sum",
        threshold: float | None = None,
    ) -> None:
        _check_combination(name, len(references), weights, combine, threshold)
        self._weights = [float(w) for w in weights] or [1.0] * len(references)
        self._combine, self._threshold = combine, 1.0 if threshold is None else float(threshold)
        purpose = f'domains."{name}".reward'
        self._functions = [
            _Function(reference, load_reference(reference, purpose=purpose))
            for reference in references
        ]
        labels = [f.label for f in self._functions]
        for function, reference in zip(self._functions, references, strict=True):
            if labels.count(function.label) > 1:
                function.label = reference  # two modules' functions of one name are two parts

    def required_columns(self, prompt_column: str) -> dict[str, str]:
        """Return the columns that the functions cannot do without: column to function."""
        return {
            column: function.label
            for function in self._functions
            for column in function.required_columns()
            if column != prompt_column
        }

    def score(self, sample: Sample) -> Score:
        """Return the combined score; its parts are the functions' own values."""
        return self.score_group([sample])[0]

    def score_group(self, samples: Sequence[Sample]) -> list[Score]:
        """Return the score of each completion of a group, which a TRL function sees as a whole.

        Functions are asked in order while any of the scores is not decided.
        """
        log = _Log(len(samples))
        parts: list[_Parts] = [{} for _ in samples]
        said: list[list[float | None]] = [[] for _ in samples]
        undecided = set(range(len(samples)))
        for function in self._functions:
            for index, value in enumerate(function(samples, log, parts)):
                if index in undecided:
                    said[index].append(value)
            undecided -= {index for index in undecided if self._is_decided(said[index][-1])}
            if not undecided:
                break
        combined = self._summed if self._combine == "sum" else self._decided
        return [
            combined(values, own, log, index)
            for index, (values, own) in enumerate(zip(said, parts, strict=True))
        ]

    def _summed(
        self, values: Sequence[float | None], parts: _Parts, log: _Log, index: int
    ) -> Score:
        total, reasons = 0.0, list[str]()
        for weight, function, value in zip(self._weights, self._functions, values, strict=True):
            parts[function.label] = value
            if value is None:
                reasons.append(f"{function.label} returned None")
            else:
                total += weight * value
        proof = log.proof_of(index)
        if all(value is None for value in values):
            return Score(None, None, Fault.GRADER, "; ".join(reasons), parts, proof)
        return Score(total, reason="; ".join(reasons), parts={**parts, **log.metrics}, proof=proof)

    def _decided(
        self, values: Sequence[float | None], parts: _Parts, log: _Log, index: int
    ) -> Score:
        """Combine what the functions said until one decided."""
        names = [function.label for function in self._functions]
        scores = {name: Score(None) for name in names}
        for name, value in zip(names, values, strict=False):
            scores[name] = (
                Score.unscored(Fault.GRADER, f"{name} returned None")
                if value is None
                else Score.graded(value)
            )
        if self._combine == "gate":
            made = gate(scores, gates=names[:-1], then=names[-1], threshold=self._threshold)
        else:
            made = (product if self._combine == "product" else first_match)(scores, names)
        parts = {**parts, **made.parts, **log.metrics}
        return replace(made, parts=parts, proof=log.proof_of(index))

    def _is_decided(self, value: float | None) -> bool:
        if self._combine == "sum":
            return False
        if self._combine == "first":
            return value is not None
        if self._combine == "gate":
            return value is None or value < self._threshold
        return value == 0


def _check_combination(
    name: str, count: int, weights: Sequence[float], combine: str, threshold: float | None
) -> None:
    if combine not in COMBINATIONS:
        raise DomainError(
            f"{name}: combine must be one of {', '.join(COMBINATIONS)}, got {combine!r}."
            + did_you_mean(combine, COMBINATIONS)
        )
    if combine != "sum" and count < 2:
        raise DomainError(f"{name}: combine = {combine!r} needs several rewards, there is {count}")
    if combine != "sum" and len(weights):
        raise DomainError(
            f"{name}: reward_weights are of a sum, and combine is {combine!r}. Remove one of them."
        )
    if combine != "gate" and threshold is not None:
        raise DomainError(f"{name}: gate_threshold does nothing unless combine is 'gate'")
    if len(weights) and len(weights) != count:
        raise DomainError(f"{name}: {count} rewards but {len(weights)} reward_weights")


class _Function:
    def __init__(self, reference: str, function: Callable[..., Any]) -> None:
        self.label = reference.rpartition(":")[2]
        self._function = function
        self._parameters = inspect.signature(function).parameters
        self._takes_any = any(
            p.kind is inspect.Parameter.VAR_KEYWORD for p in self._parameters.values()
        )
        self.is_verl = set(self._parameters) >= _VERL
        is_trl = bool(_TRL & set(self._parameters)) or not self.required_columns()
        if not self.is_verl and not is_trl:
            raise DomainError(
                f"{reference}: expected a reward function with the parameters of TRL (prompts, "
                f"completions, …) or of verl (data_source, solution_str, ground_truth, "
                f"extra_info), got ({', '.join(self._parameters)})"
            )

    def required_columns(self) -> list[str]:
        if self.is_verl:
            return []
        return [
            name
            for name, parameter in self._parameters.items()
            if name not in _PROVIDED
            and parameter.default is inspect.Parameter.empty
            and parameter.kind
            not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        ]

    def __call__(
        self, samples: Sequence[Sample], log: _Log, parts: Sequence[_Parts]
    ) -> list[float | None]:
        """Return a value for each completion; a verl function is called once for each."""
        if self.is_verl:
            return [self._verl(sample, own) for sample, own in zip(samples, parts, strict=True)]
        result = self._call(_trl_arguments(samples, log))
        count = len(samples)
        if isinstance(result, str) or not isinstance(result, Sequence) or len(result) != count:
            what = (
                "one number or None for one completion"
                if count == 1
                else (f"{count} numbers or None for {count} completions")
            )
            raise UnscoredError(
                f"{self.label} must return a list with {what}, it returned {result!r:.200}"
            )
        return [self._number(value) for value in result]

    def _verl(self, sample: Sample, parts: _Parts) -> float | None:
        result = self._call(_verl_arguments(sample))
        if isinstance(result, Mapping):
            parts |= _numbers(result)
            if "score" not in result:
                raise UnscoredError(f"{self.label} returned a dict without 'score': {result}")
            result = result["score"]
        return self._number(result)

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        known = {k: v for k, v in arguments.items() if self._takes_any or k in self._parameters}
        return _settle(self._function(**known))

    def _number(self, value: Any) -> float | None:
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise UnscoredError(f"{self.label} returned {value!r:.100}, not a number") from error
        if not math.isfinite(number):
            raise UnscoredError(f"{self.label} returned {number}")
        return number


def _trl_arguments(samples: Sequence[Sample], log: _Log) -> dict[str, Any]:
    prompts, completions = zip(*(_trl_texts(sample) for sample in samples), strict=True)
    columns = {
        name: [sample.columns.get(name) for sample in samples] for name in samples[0].columns
    }
    return columns | {
        "prompts": list(prompts),
        "completions": list(completions),
        "completion_ids": _Unavailable("completion_ids", "rewards are computed from text"),
        "trainer_state": _Unavailable("trainer_state", "rewards do not depend on the step"),
        "log_extra": log.log_extra,
        "log_metric": log.log_metric,
    }


def _trl_texts(sample: Sample) -> tuple[Any, Any]:
    """Return prompt and completion as the row's prompt is: text, or lists of messages."""
    if sample.is_conversational:
        completion = [{"role": "assistant", "content": sample.completion}]
        return [m.to_json() for m in sample.prompt], completion
    return sample.prompt[-1].content, sample.completion


def _verl_arguments(sample: Sample) -> dict[str, Any]:
    return {
        "data_source": sample.columns.get("data_source", sample.domain),
        "solution_str": sample.completion,
        "ground_truth": sample.gold,
        "extra_info": sample.columns.get("extra_info") or {},
    }


def _numbers(result: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        str(name): float(value)
        for name, value in result.items()
        if name != "score" and isinstance(value, int | float) and math.isfinite(value)
    }


class _Unavailable:
    """Stands for an argument of TRL that educe does not have; ignoring it is fine, using it not."""

    def __init__(self, name: str, why: str) -> None:
        self._message = f"the reward function uses {name}, which educe does not provide: {why}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnscoredError(self._message)

    def __len__(self) -> int:
        raise UnscoredError(self._message)

    def __iter__(self) -> Any:
        raise UnscoredError(self._message)

    def __getitem__(self, index: Any) -> Any:
        raise UnscoredError(self._message)

    def __bool__(self) -> bool:
        return False


def _settle(result: Any) -> Any:
    """Return the result of an async function, also inside a running event loop."""
    if not inspect.isawaitable(result):
        return result
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_await(result))
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, _await(result)).result()


async def _await(result: Awaitable[Any]) -> Any:
    return await result
