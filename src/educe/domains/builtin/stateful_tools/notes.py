"""Notes under keys."""

from __future__ import annotations

import random

from educe.domains.builtin.stateful_tools.tools import (
    Arguments,
    Section,
    Tool,
    ToolFailure,
    need,
)
from educe.domains.builtin.stateful_tools.world import Request, World, pick

_KEYS = [
    "milk",
    "rent",
    "gym",
    "visa",
    "book",
    "taxi",
    "cake",
    "dentist",
    "wifi",
    "train",
    "piano",
    "bread",
    "shoes",
    "lamp",
    "party",
    "trip",
    "soup",
    "bike",
    "code",
    "plan",
    "garden",
    "paint",
    "phone",
    "tax",
]
_TEXTS = (
    "buy two",
    "pay monday",
    "call ana",
    "room 12",
    "at noon",
    "ask tom",
    "very late",
    "use red",
    "gate 7",
    "half price",
    "for mia",
    "on friday",
    "bring cash",
    "not today",
    "size 40",
    "too hot",
)


def _save(notes: Section, args: Arguments) -> str:
    notes[args["key"]] = args["text"]
    return "saved"


def _read(notes: Section, args: Arguments) -> str:
    return str(need(notes, args["key"], "note"))


def _append(notes: Section, args: Arguments) -> str:
    notes[args["key"]] = f"{need(notes, args['key'], 'note')}, {args['text']}"
    return "appended"


def _delete(notes: Section, args: Arguments) -> str:
    need(notes, args["key"], "note")
    del notes[args["key"]]
    return "deleted"


def _rename(notes: Section, args: Arguments) -> str:
    text = need(notes, args["key"], "note")
    if args["new_key"] in notes:
        raise ToolFailure(f"there already is a note '{args['new_key']}'")
    del notes[args["key"]]
    notes[args["new_key"]] = text
    return "renamed"


def _list(notes: Section, args: Arguments) -> str:
    return ", ".join(sorted(notes)) or "no notes"


def _clear(notes: Section, args: Arguments) -> str:
    notes.clear()
    return "all notes deleted"


def _draw(rng: random.Random) -> Section:
    return {key: _text(rng) for key in rng.sample(_KEYS, rng.randint(3, 5))}


def _text(rng: random.Random) -> str:
    return rng.choice(_TEXTS)


def _new_key(rng: random.Random, notes: Section) -> str:
    return rng.choice([key for key in _KEYS if key not in notes])


def _old_key(rng: random.Random, notes: Section) -> str:
    return rng.choice(sorted(notes))


def make_save(rng: random.Random, notes: Section) -> Request:
    key, text = _new_key(rng, notes), f"{_text(rng)} {rng.randint(2, 60)}"
    wording = pick(
        rng,
        f"Save a note '{key}' with the text '{text}'",
        f"Make a note called '{key}' that says '{text}'",
        f"Write '{text}' into a note '{key}'",
    )
    return Request(wording, (("save_note", {"key": key, "text": text}),))


def make_append(rng: random.Random, notes: Section) -> Request:
    key, text = _old_key(rng, notes), f"{_text(rng)} {rng.randint(2, 60)}"
    wording = pick(rng, f"Append '{text}' to the note '{key}'", f"Add '{text}' to note '{key}'")
    return Request(wording, (("append_note", {"key": key, "text": text}),))


def make_rename(rng: random.Random, notes: Section) -> Request:
    key, new = _old_key(rng, notes), _new_key(rng, notes)
    wording = pick(rng, f"Rename the note '{key}' to '{new}'", f"Call the note '{key}' '{new}' now")
    return Request(wording, (("rename_note", {"key": key, "new_key": new}),))


def make_delete(rng: random.Random, notes: Section) -> Request:
    key = _old_key(rng, notes)
    wording = pick(rng, f"Delete the note '{key}'", f"Remove the note '{key}'")
    return Request(wording, (("delete_note", {"key": key}),))


def make_copy(rng: random.Random, notes: Section) -> Request:
    key, new = _old_key(rng, notes), _new_key(rng, notes)
    wording = pick(
        rng,
        f"Make a second note '{new}' with the same text as the note '{key}'",
        f"Copy the note '{key}' to '{new}'",
    )
    return Request(
        wording,
        (("read_note", {"key": key}), ("save_note", {"key": new, "text": notes[key]})),
    )


def make_join(rng: random.Random, notes: Section) -> Request:
    first, second = rng.sample(sorted(notes), 2) if len(notes) > 1 else (min(notes), min(notes))
    wording = f"Append the text of the note '{first}' to the note '{second}'"
    return Request(
        wording,
        (("read_note", {"key": first}), ("append_note", {"key": second, "text": notes[first]})),
    )


def make_delete_by_rank(rng: random.Random, notes: Section) -> Request:
    rank = rng.randint(1, len(notes))
    wording = f"Delete the note that is number {rank} in the alphabetical list of keys"
    return Request(wording, (("list_notes", {}), ("delete_note", {"key": sorted(notes)[rank - 1]})))


NOTES = World(
    "notes",
    (
        Tool("save_note", "write a note", {"key": "string", "text": "string"}, _save),
        Tool("read_note", "read a note", {"key": "string"}, _read),
        Tool("append_note", "add to a note", {"key": "string", "text": "string"}, _append),
        Tool("rename_note", "change a key", {"key": "string", "new_key": "string"}, _rename),
        Tool("delete_note", "delete one note", {"key": "string"}, _delete),
        Tool("list_notes", "list all keys", {}, _list),
        Tool("clear_notes", "delete ALL notes", {}, _clear, is_destructive=True),
    ),
    _draw,
    (make_save, make_append, make_rename, make_delete),
    (make_copy, make_join, make_delete_by_rank),
)
