"""Rows of a user's data: JSONL files and Hugging Face dataset folders, by random access.

A JSONL file of a million rows costs 8 bytes a row in memory: its line offsets. Nothing is read
before it is needed.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from educe.core.errors import DomainError, MissingExtraError

Row = dict[str, Any]


class Rows(Protocol):
    """Rows that can be read in order and by key."""

    def scan(self, start: int = 0) -> Iterator[tuple[int, str, Row]]:
        """Yield (key, place, row) in order, from the row with the key ``start`` on.

        ``place`` is ``file:line`` for error messages.
        """
        ...

    def read(self, key: int) -> Row:
        """Return the row with a key that ``scan`` gave."""
        ...

    def count(self) -> int:
        """Return the number of rows, without reading what is in them."""
        ...


def open_rows(path: str, *, split: str = "") -> Rows:
    """Return the rows at ``path``: a JSONL file, a folder of them, or a dataset folder.

    A folder that ``Dataset.save_to_disk`` wrote, or one of parquet files, needs the package
    ``datasets``. ``split`` chooses among the splits of a saved ``DatasetDict`` (default train).

    Raises:
        DomainError: there is nothing at the path, or nothing that can be read.
        MissingExtraError: the folder needs ``datasets``.
    """
    place = Path(path).expanduser()
    if place.is_file():
        if place.suffix == ".parquet":
            return HuggingFaceRows(place, split)
        return JsonlRows([place])
    if not place.is_dir():
        raise DomainError(f"there is no file or folder {place.absolute()}")
    is_saved = (place / "dataset_dict.json").exists() or (place / "state.json").exists()
    if not is_saved:
        files = sorted(place.glob("**/*.jsonl"))
        if files:
            return JsonlRows(files)
    if is_saved or any(place.glob("**/*.parquet")):
        return HuggingFaceRows(place, split)
    raise DomainError(
        f"{place} holds no *.jsonl or *.parquet files and no dataset written by save_to_disk"
    )


class JsonlRows:
    """Lines of one or several JSONL files. A key is file number * 2**44 + byte offset."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._stamps = [_stamp(file) for file in files]

    def scan(self, start: int = 0) -> Iterator[tuple[int, str, Row]]:
        for number, file in enumerate(self._files):
            if number < start >> 44:
                continue
            offset = start & ((1 << 44) - 1) if number == start >> 44 else 0
            middle = bool(offset)
            with file.open("rb") as stream:
                stream.seek(offset)
                for line_number, line in enumerate(stream, start=1):
                    if line.strip():
                        # Line numbers are not known where the reading begins in the middle.
                        place = f"{file}:{line_number}" if not middle else f"{file} at {offset}"
                        yield (number << 44) + offset, place, _parse(line, place)
                    offset += len(line)

    def read(self, key: int) -> Row:
        file, offset = self._files[key >> 44], key & ((1 << 44) - 1)
        if _stamp(file) != self._stamps[key >> 44]:
            raise DomainError(f"{file} changed while it was in use; start the run again")
        with file.open("rb") as stream:
            stream.seek(offset)
            return _parse(stream.readline(), f"{file} at byte {offset}")

    def count(self) -> int:
        total = 0
        for file in self._files:
            with file.open("rb") as stream:
                total += sum(1 for line in stream if line.strip())
        return total


class HuggingFaceRows:
    """Rows of an Arrow or parquet dataset on this machine; keys are row numbers."""

    def __init__(self, path: Path, split: str) -> None:
        try:
            import datasets
        except ImportError as error:
            raise MissingExtraError("datasets", "datasets", f"reading {path}") from error
        self._path = path
        if path.is_file() or not any((path / n).exists() for n in ("state.json", _DICT_FILE)):
            files = [str(path)] if path.is_file() else [str(f) for f in path.glob("**/*.parquet")]
            self._data = datasets.load_dataset("parquet", data_files=sorted(files), split="train")
            return
        loaded = datasets.load_from_disk(str(path))
        if isinstance(loaded, datasets.DatasetDict):
            wanted = split or ("train" if "train" in loaded else next(iter(loaded)))
            if wanted not in loaded:
                raise DomainError(f"{path} has the splits {list(loaded)}, not {wanted!r}")
            loaded = loaded[wanted]
        self._data = loaded

    def scan(self, start: int = 0) -> Iterator[tuple[int, str, Row]]:
        data = self._data.select(range(start, len(self._data))) if start else self._data
        for number, row in enumerate(data, start):
            yield number, f"{self._path}: row {number}", _as_json(row)

    def read(self, key: int) -> Row:
        return _as_json(self._data[key])

    def count(self) -> int:
        return len(self._data)


_DICT_FILE = "dataset_dict.json"


def lookup(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column; ``a.b`` looks inside a nested one. KeyError if absent."""
    if column in row:
        return row[column]
    found: Any = row
    for part in column.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise KeyError(column)
        found = found[part]
    return found


def offsets() -> array[int]:
    """Return an empty array of row keys (8 bytes each)."""
    return array("Q")


def _parse(line: bytes, place: str) -> Row:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DomainError(f"{place}: not a JSON object on one line: {error}") from error
    if not isinstance(row, dict):
        raise DomainError(f"{place}: expected a JSON object, got {type(row).__name__}")
    return row


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _as_json(row: Mapping[str, Any]) -> Row:
    """Return the row with what JSON does not know (dates, bytes, arrays) as text."""
    return {k: json.loads(json.dumps(v, default=str)) for k, v in row.items()}
