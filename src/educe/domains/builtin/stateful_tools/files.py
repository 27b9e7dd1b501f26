"""Files in folders; a path is ``folder/name``."""

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

_FOLDERS = ("docs", "work", "home", "music", "photos", "notes", "temp", "mail")
_NAMES = [
    "todo",
    "plan",
    "bill",
    "map",
    "list",
    "draft",
    "log",
    "idea",
    "menu",
    "song",
    "poem",
    "code",
    "data",
    "mix",
]
_TEXTS = [
    "red",
    "blue",
    "nine",
    "open",
    "done",
    "later",
    "maybe",
    "never",
    "ready",
    "empty",
    "full",
    "north",
]


def _split(files: Section, path: str) -> tuple[Section, str]:
    folder, slash, name = path.partition("/")
    if not slash or not name or "/" in name:
        raise ToolFailure("a path looks like folder/name")
    found: Section = need(files, folder, "folder")
    return found, name


def _write(files: Section, args: Arguments) -> str:
    folder, name = _split(files, args["path"])
    folder[name] = args["text"]
    return "written"


def _read(files: Section, args: Arguments) -> str:
    folder, name = _split(files, args["path"])
    return str(need(folder, name, "file"))


def _move(files: Section, args: Arguments) -> str:
    source, name = _split(files, args["path"])
    target, new = _split(files, args["new_path"])
    text = need(source, name, "file")
    if new in target:
        raise ToolFailure(f"there already is a file '{args['new_path']}'")
    del source[name]
    target[new] = text
    return "moved"


def _delete(files: Section, args: Arguments) -> str:
    folder, name = _split(files, args["path"])
    need(folder, name, "file")
    del folder[name]
    return "deleted"


def _make(files: Section, args: Arguments) -> str:
    name = args["folder"]
    if name in files:
        raise ToolFailure(f"there already is a folder '{name}'")
    if not name or "/" in name:
        raise ToolFailure("a folder's name has no slash")
    files[name] = {}
    return "made"


def _list(files: Section, args: Arguments) -> str:
    folder = need(files, args["folder"], "folder")
    return ", ".join(sorted(folder)) or "empty"


def _remove_folder(files: Section, args: Arguments) -> str:
    need(files, args["folder"], "folder")
    del files[args["folder"]]
    return "folder and files removed"


def _draw(rng: random.Random) -> Section:
    return {
        folder: {name: _text(rng) for name in rng.sample(_NAMES, rng.randint(1, 3))}
        for folder in rng.sample(_FOLDERS, rng.randint(2, 3))
    }


def _text(rng: random.Random) -> str:
    return f"{rng.choice(_TEXTS)} {rng.randint(1, 40)}"


def _paths(files: Section) -> list[str]:
    return [f"{folder}/{name}" for folder in sorted(files) for name in sorted(files[folder])]


def _free(rng: random.Random, files: Section) -> str:
    taken = set(_paths(files))
    return rng.choice(
        [f"{f}/{n}" for f in sorted(files) for n in _NAMES if f"{f}/{n}" not in taken]
    )


def make_write(rng: random.Random, files: Section) -> Request:
    path, text = _free(rng, files), _text(rng)
    wording = pick(
        rng, f"Write '{text}' into a new file {path}", f"Make {path} with '{text}' in it"
    )
    return Request(wording, (("write_file", {"path": path, "text": text}),))


def make_move(rng: random.Random, files: Section) -> Request:
    if not _paths(files):
        return make_write(rng, files)
    path, new = rng.choice(_paths(files)), _free(rng, files)
    wording = pick(rng, f"Move {path} to {new}", f"Move the file {path} so that it is {new}")
    return Request(wording, (("move_file", {"path": path, "new_path": new}),))


def make_delete(rng: random.Random, files: Section) -> Request:
    if not _paths(files):
        return make_write(rng, files)
    path = rng.choice(_paths(files))
    return Request(
        pick(rng, f"Delete {path}", f"Remove the file {path}"), (("delete_file", {"path": path}),)
    )


def make_folder(rng: random.Random, files: Section) -> Request:
    name = f"{rng.choice(_FOLDERS)}{rng.randint(2, 40)}"
    if name in files:
        return make_write(rng, files)
    return Request(f"Make a folder {name}", (("make_folder", {"folder": name}),))


def make_copy(rng: random.Random, files: Section) -> Request:
    if not _paths(files):
        return make_write(rng, files)
    path, new = rng.choice(_paths(files)), _free(rng, files)
    folder, _, name = path.partition("/")
    text = files[folder][name]
    wording = f"Copy {path} to {new}; keep the old file"
    calls = (("read_file", {"path": path}), ("write_file", {"path": new, "text": text}))
    return Request(wording, calls)


def make_only_file(rng: random.Random, files: Section) -> Request:
    """Rename a file whose name only a listing tells."""
    single = [folder for folder in sorted(files) if len(files[folder]) == 1]
    if not single:
        return make_copy(rng, files)
    folder, target = rng.choice(single), rng.choice(sorted(files))
    (name,) = files[folder]
    new = rng.choice([n for n in _NAMES if n not in files[target] and n != name])
    wording = f"Move the only file in the folder {folder} to {target}/{new}"
    call = ("move_file", {"path": f"{folder}/{name}", "new_path": f"{target}/{new}"})
    return Request(wording, (("list_files", {"folder": folder}), call))


def make_archive(rng: random.Random, files: Section) -> Request:
    """Into a folder that does not exist yet: the tool's error says so."""
    if not _paths(files):
        return make_write(rng, files)
    path = rng.choice(_paths(files))
    folder = f"old{rng.randint(2, 60)}"
    if folder in files:
        return make_copy(rng, files)
    name = path.partition("/")[2]
    wording = f"Move {path} into a new folder {folder}"
    call = ("move_file", {"path": path, "new_path": f"{folder}/{name}"})
    return Request(wording, (("make_folder", {"folder": folder}), call))


FILES = World(
    "files",
    (
        Tool("write_file", "write a file", {"path": "string", "text": "string"}, _write),
        Tool("read_file", "read a file", {"path": "string"}, _read),
        Tool("move_file", "move or rename", {"path": "string", "new_path": "string"}, _move),
        Tool("delete_file", "delete one file", {"path": "string"}, _delete),
        Tool("make_folder", "make a folder", {"folder": "string"}, _make),
        Tool("list_files", "files in a folder", {"folder": "string"}, _list),
        Tool(
            "remove_folder", "remove it WITH its files", {"folder": "string"}, _remove_folder, True
        ),
    ),
    _draw,
    (make_write, make_write, make_move, make_delete, make_folder),
    (make_copy, make_only_file, make_archive),
)
