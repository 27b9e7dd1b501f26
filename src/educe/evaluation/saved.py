"""Finished evaluations on disk: rows in NAME.jsonl, what they mean in NAME.json beside it."""

from __future__ import annotations

import json
from pathlib import Path

from educe.core.errors import EduceError
from educe.core.types import JSON
from educe.evaluation.records import FORMAT_VERSION, EvalResult, EvalRow


def save_meaning(result: EvalResult, journal: Path) -> Path:
    """Write NAME.json beside the journal that holds a result's rows; marks it as finished."""
    from educe.evaluation.report.files import to_json_text, write_whole

    raw = result.to_json()
    del raw["rows"]
    path = journal.with_suffix(".json")
    write_whole(path, to_json_text(raw))
    return path


def load_saved(path: Path) -> EvalResult:
    """Return a finished evaluation from NAME.json, NAME.jsonl, or a folder with one of ``after``.

    Raises:
        EduceError: nothing there, not finished, of another format, or rows are missing.
    """
    meaning = path / "after.json" if path.is_dir() else path.with_suffix(".json")
    journal = meaning.with_suffix(".jsonl")
    if not meaning.is_file() or not journal.is_file():
        hint = (
            "it was interrupted: run the same `educe eval … --out` again to finish it"
            if journal.is_file()
            else "expected a folder or file that `educe eval … --out` wrote"
        )
        raise EduceError(f"{path}: no finished evaluation here; {hint}")
    raw = json.loads(meaning.read_text(encoding="utf-8"))
    if raw.get("format_version") != FORMAT_VERSION:
        raise EduceError(
            f"{meaning}: format {raw.get('format_version')}, this version reads {FORMAT_VERSION}"
        )
    wanted = int(raw["settings"]["tasks_per_domain"])
    rows = [r for r in _rows(journal) if r.index < wanted and r.domain in raw["floors"]]
    if {r.domain for r in rows} != set(raw["floors"]):
        raise EduceError(f"{journal}: rows of some domains are missing; evaluate again")
    return EvalResult.from_json(
        {**raw, "rows": [r.to_json() for r in sorted(rows, key=lambda r: r.key)]}
    )


def _rows(journal: Path) -> list[EvalRow]:
    found: dict[tuple[str, int], list[EvalRow]] = {}
    for number, line in enumerate(journal.read_bytes().splitlines(), start=1):
        try:
            raw: JSON = json.loads(line)
            if "rows" in raw:
                found[raw["domain"], raw["index"]] = [EvalRow.from_json(r) for r in raw["rows"]]
        except (ValueError, KeyError, TypeError) as error:
            raise EduceError(f"{journal}:{number}: not evaluated rows ({error})") from error
    return [row for rows in found.values() for row in rows]
