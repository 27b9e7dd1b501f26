"""Function calling: the calls that a completion makes against those that are accepted.

Calls are read from ``<tool_call>`` blocks, or from a completion that is one JSON call or a list of
them. Every expected call must be made exactly once and no other; order does not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from educe.core.protocols import Services
from educe.core.types import JSON, Message, Score, Split, Task, system
from educe.evaluation.sets.items import Item, Loaded, without_repetitions
from educe.evaluation.sets.packages import PackageFiles
from educe.evaluation.sets.questions import Reader, json_lines
from educe.models.chat import parse_tool_calls
from educe.rewards.outcome.extraction import strip_reasoning

Call = tuple[str, dict[str, Any]]

_DATA = "bfcl_eval/data/BFCL_v4_{}.json"
_GOLD = "bfcl_eval/data/possible_answer/BFCL_v4_{}.json"
_SYSTEM = (
    "You can call functions. To call one, write\n"
    '<tool_call>{{"name": "NAME", "arguments": {{"PARAMETER": VALUE}}}}</tool_call>\n'
    "with one block for every call, and nothing else. If no function fits, or something that a "
    "function needs is not said, call none and say so in a sentence.\n\nFunctions:\n{}"
)
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
# Case, white space and these marks do not make a text argument another one.
_MARKS = re.compile(r"[\s,./\-_*^'\"]")
_MAX_CALLS = 64


def calls_of(*categories: str) -> Reader:
    """Return a reader of categories whose prompts all want calls."""

    def read(files: PackageFiles) -> Loaded:
        items: list[Item] = []
        num_rows = 0
        for category in categories:
            golds = {r["id"]: r["ground_truth"]
                     for r in json_lines(files.read(_GOLD.format(category)))}  # fmt: skip
            for row in json_lines(files.read(_DATA.format(category))):
                num_rows += 1
                item = _item(row, golds.get(row["id"]))
                if item is not None and _gold_is_right(item):
                    items.append(item)
        kept, repeated = without_repetitions(items)
        dropped = {"no usable gold": num_rows - len(items), "repeated": repeated}
        return Loaded(kept, {k: v for k, v in dropped.items() if v})

    return read


def _gold_is_right(item: Item) -> bool:
    """Some answers lack what their function requires, or accept nothing: no completion is right."""
    task = Task("", Split.EVAL, 0, item.messages, item.gold, metadata=dict(item.metadata))
    return grade_calls(task, item.gold or "", Services()).value == 1.0


def relevance(files: PackageFiles) -> Loaded:
    """As many prompts that no offered function fits as prompts that want a call, so that never
    calling anything scores one half and not everything."""
    wanted = calls_of("multiple")(files)
    rows = json_lines(files.read(_DATA.format("irrelevance")))
    others = [item for row in rows if (item := _item(row, [])) is not None]
    kept, repeated = without_repetitions(others)
    size = min(len(kept), len(wanted.items))
    dropped = {**wanted.dropped, "irrelevant ones beyond half": len(kept) - size}
    return Loaded(
        (*wanted.items[:size], *kept[:size]), {k: v for k, v in dropped.items() if v or repeated}
    )


def _item(row: Mapping[str, Any], gold: Sequence[Mapping[str, Any]] | None) -> Item | None:
    if gold is None or len(row["question"]) != 1:
        return None
    messages = [Message(m["role"], m["content"]) for m in row["question"][0]]
    functions = [_schema(f) for f in row["function"]]
    listed = "\n".join(json.dumps(f, ensure_ascii=False) for f in functions)
    head = system(_SYSTEM.format(listed))
    # A system message of the row itself goes behind ours, into one.
    if messages and messages[0].role == "system":
        head = system(f"{head.content}\n\n{messages[0].content}")
        messages = messages[1:]
    if not messages or messages[-1].role != "user":
        return None
    required = {f["name"]: list(f["parameters"].get("required", ())) for f in functions}
    accepted = [[name, dict(values)] for call in gold for name, values in call.items()]
    if any(name not in required for name, _ in accepted):
        return None
    text = gold_text(accepted, required) if accepted else "None of the functions fits."
    return Item((head, *messages), text, {"accepted": accepted, "required": required})


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(function).replace('"type": "dict"', '"type": "object"')))


def gold_text(accepted: Sequence[Sequence[Any]], required: Mapping[str, Sequence[str]]) -> str:
    """Return the first accepted value of every argument as calls, without optional ones.

    The answers call some arguments optional that their function requires: those are given.
    """
    blocks = []
    for name, values in accepted:
        arguments = {
            k: _first(allowed)
            for k, allowed in values.items()
            if "" not in _accepted(allowed) or k in required.get(name, ())
        }
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        blocks.append(f"<tool_call>{call}</tool_call>")
    return "\n".join(blocks)


def _first(allowed: Any) -> Any:
    value = next((v for v in _accepted(allowed) if v != ""), "")
    return [_inside(v) for v in value] if isinstance(value, list) else _inside(value)


def _inside(value: Any) -> Any:
    """A dictionary within a value lists, again, what is accepted of each of its keys."""
    if isinstance(value, dict):
        return {k: _first(v) for k, v in value.items() if "" not in _accepted(v)}
    return value


def _accepted(allowed: Any) -> list[Any]:
    return allowed if isinstance(allowed, list) else [allowed]


def read_calls(text: str) -> list[Call] | None:
    """Return the calls of a completion: empty when it makes none, None when it tries and fails."""
    visible = strip_reasoning(text)
    num_blocks = visible.count("<tool_call>")
    if num_blocks:
        blocks = parse_tool_calls(visible)
        if len(blocks) != num_blocks or num_blocks > _MAX_CALLS:
            return None
        calls = [_call({"name": b.name, "arguments": json.loads(b.arguments)}) for b in blocks]
        return None if None in calls else [c for c in calls if c is not None]
    fences = _FENCE.findall(visible)
    source = (fences[-1] if fences else visible).strip()
    if not source.startswith(("{", "[")):
        return []
    try:
        raw = json.loads(source)
    except (ValueError, RecursionError):
        return None
    listed = raw if isinstance(raw, list) else [raw]
    found = [_call(entry) for entry in listed[: _MAX_CALLS + 1]]
    return None if None in found else [c for c in found if c is not None]


def _call(raw: Any) -> Call | None:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        return None
    arguments = raw.get("arguments", {})
    return (raw["name"], arguments) if isinstance(arguments, dict) else None


def grade_calls(task: Task, text: str, services: Services) -> Score:
    """Score 1 when exactly the accepted calls are made (``metadata``: accepted, required)."""
    accepted: list[list[JSON]] = task.metadata["accepted"]
    required: dict[str, list[str]] = task.metadata["required"]
    calls = read_calls(text)
    if calls is None:
        return Score.unparseable("a call is not well-formed")
    if not accepted:
        if not strip_reasoning(text).strip():
            return Score.unparseable("nothing was said")
        return (
            Score.wrong(f"no function fits, {calls[0][0]} was called") if calls else Score.right()
        )
    if not calls:
        return Score.unparseable("no call was made")
    if len(calls) != len(accepted):
        return Score.wrong(f"expected {len(accepted)} calls, got {len(calls)}")
    left = [(str(name), dict(values)) for name, values in accepted]
    for call in calls:
        place = next((i for i, want in enumerate(left) if _matches(call, want, required)), None)
        if place is None:
            return Score.wrong(f"{call[0]} with these arguments is not expected"[:200])
        left.pop(place)
    return Score.right()


def _matches(call: Call, want: tuple[str, dict[str, Any]], required: Mapping[str, Any]) -> bool:
    name, given = call
    if name != want[0] or not set(given) <= set(want[1]):
        return False
    if not set(required.get(name, ())) <= set(given):
        return False
    return _object_matches(given, want[1])


def _object_matches(given: Mapping[str, Any], allowed: Mapping[str, Any]) -> bool:
    for name, values in allowed.items():
        if name not in given:
            if "" not in _accepted(values):
                return False
        elif not any(_equal(given[name], value) for value in _accepted(values)):
            return False
    return set(given) <= set(allowed)


def _equal(given: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(given, bool):
        return given is wanted
    if isinstance(wanted, int | float):
        return isinstance(given, int | float) and float(given) == float(wanted)
    if isinstance(wanted, str):
        return isinstance(given, str) and _fold(given) == _fold(wanted)
    if isinstance(wanted, dict):
        return isinstance(given, dict) and _object_matches(given, wanted)
    if isinstance(wanted, list):
        return (
            isinstance(given, list)
            and len(given) == len(wanted)
            and all(_equal(a, b) for a, b in zip(given, wanted, strict=True))
        )
    return bool(given == wanted)


def _fold(text: str) -> str:
    return _MARKS.sub("", text).casefold()
