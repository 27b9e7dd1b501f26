"""From a TOML file and overrides to a :class:`Recipe` that knows where each value came from.

>>> loaded = load_recipe("recipes/quickstart.toml", ["rl.steps=5"])   # doctest: +SKIP
>>> loaded.recipe.rl.steps, str(loaded.origins["rl.steps"])           # doctest: +SKIP
(5, 'override rl.steps=5')

A recipe may start with ``extends = "other.toml"`` (beside it): it then holds only what differs.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from educe.config.positions import KeyPath, format_key, parse_key, scan_positions
from educe.config.schema import (
    default_of,
    describe_expected,
    describe_given,
    format_value,
    keys_named,
    lookup,
    python_types,
)
from educe.config.settings import Recipe
from educe.core.errors import Origin, RecipeError, did_you_mean

_SHIPPED = Path(__file__).resolve().parent.parent / "recipes"
_PATH_KEYS = re.compile(
    r"(domains|sft\.data|preference\.data)\..+\.(path|eval_path)"
    r"|model\.chat_template|model\.name|distillation\.teacher|review\.(words|classifier)"
)
_REFERENCE_KEYS = re.compile(r"domains\..+\.(function|reward)")


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A validated recipe with its provenance.

    Attributes:
        recipe: the settings, defaults filled in.
        origins: dotted key (see ``format_key``) to the place that set it; a key that is missing
            here has its default.
        path: the recipe file, None when the recipe was made in Python.
    """

    recipe: Recipe
    origins: Mapping[str, Origin] = field(default_factory=dict)
    path: Path | None = None

    def where(self, key: str) -> Origin | None:
        """Return the origin of a key or of the nearest table around it, for error messages."""
        path, _ = parse_key(key)
        for size in range(len(path), 0, -1):
            found = self.origins.get(format_key(path[:size]))
            if found is not None:
                return found
        return Origin(str(self.path)) if self.path else None


@dataclass(slots=True)
class _Draft:
    """Values and origins while files and overrides are laid over each other."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)

    def lay(self, values: Mapping[str, Any], origins: Mapping[KeyPath, Origin]) -> None:
        _merge(self.values, values)
        self.origins.update(origins)


def shipped_recipes() -> list[Path]:
    """Return the recipes that come with the package, by name."""
    return sorted(_SHIPPED.glob("*.toml"))


def find_recipe(name: str | Path) -> Path:
    """Return the file of a recipe: a path, or the name of one that ships with educe.

    Raises:
        RecipeError: there is no such file; the shipped recipes are named.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    # `recipes/NAME.toml` is how the documents write it; a wheel has the same file inside.
    if not path.is_absolute() and path.parent.name in ("", "recipes"):
        shipped = _SHIPPED / path.with_suffix(".toml").name
        if shipped.is_file():
            return shipped
    known = [p.name for p in shipped_recipes()]
    what = "is a folder, not a recipe file" if path.is_dir() else "does not exist"
    raise RecipeError(
        f"recipe '{name}' {what}.{did_you_mean(path.name, known)} "
        f"Give the path of a TOML file, or one of the shipped recipes: {', '.join(known)}."
    )


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Read a recipe and lay ``section.key=value`` overrides over it.

    Args:
        path: a TOML file, or the name of a shipped recipe (``quickstart``).
        overrides: values are TOML; text needs no quotes, a list is written ``["a", "b"]``.

    Raises:
        RecipeError: unreadable, not TOML, unknown key, wrong type or out of range; with file:line.
    """
    file = find_recipe(path)
    draft = _Draft()
    _read_file(file, draft, seen=())
    for override in overrides:
        _apply_override(draft, override)
    return _finish(draft, file)


def recipe_from_values(
    values: Mapping[str, Any], overrides: Sequence[str] = (), source: str = "python"
) -> LoadedRecipe:
    """Validate a nested mapping as if it had been a recipe file; ``source`` names it in errors."""
    origins = {path: Origin(source) for path in _all_paths(values, ())}
    draft = _Draft()
    draft.lay(values, origins)
    for override in overrides:
        _apply_override(draft, override)
    return _finish(draft, None)


def _read_file(file: Path, draft: _Draft, seen: tuple[Path, ...]) -> None:
    resolved = file.resolve()
    if resolved in seen:
        raise RecipeError(f"recipes extend each other in a circle: {file}", Origin(str(file)))
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the recipe: {error}", Origin(str(file))) from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        origin = Origin(str(file), int(line.group(1)) if line else None)
        raise RecipeError(f"this is not TOML: {error}", origin) from error
    lines = scan_positions(text)
    origins = {path: Origin(str(file), line) for path, line in lines.items()}
    parent = values.pop("extends", None)
    if parent is not None:
        _read_file(_parent_file(file, parent, origins[("extends",)]), draft, (*seen, resolved))
    draft.lay(values, {p: o for p, o in origins.items() if p != ("extends",)})


def _parent_file(file: Path, parent: object, origin: Origin) -> Path:
    if not isinstance(parent, str):
        given = describe_given(parent)
        raise RecipeError(f"extends: expected the name of a recipe file, got {given}", origin)
    beside = file.parent / parent
    if beside.is_file():
        return beside
    raise RecipeError(f"extends: there is no recipe '{beside}' beside this one", origin)


def _apply_override(draft: _Draft, override: str) -> None:
    origin = Origin(f"override {override}")
    try:
        path, end = parse_key(override)
        key_only, rest = override[:end], override[end:].lstrip()
    except ValueError:
        key_only, rest, path = override, "", ()
    if not rest.startswith("="):
        raise RecipeError(
            f"expected section.key=value, got {override!r}; for example rl.steps=50 or "
            f"'domains.\"rg/gcd/tiny\".weight=2'",
            origin,
        )
    value = _override_value(path, rest[1:].strip(), origin)
    nested: dict[str, Any] = {path[-1]: value}
    for key in reversed(path[:-1]):
        nested = {key: nested}
    _check_reachable(draft.values, path, key_only, origin)
    below = {p: origin for p in _all_paths(nested, ()) if len(p) >= len(path)}
    tables = {p: origin for p in _prefixes(path) if p not in draft.origins}
    draft.lay(nested, tables | below)


def _override_value(path: KeyPath, raw: str, origin: Origin) -> Any:
    node = lookup(path)
    wanted = python_types(node.annotation) if node is not None else {object}
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError as error:
        if raw[:1] in ("[", "{", '"', "'"):
            raise RecipeError(
                f"'{raw}' is not a TOML value ({error}); a list of texts is written "
                f'["a", "b"], with the whole override in quotes for the shell',
                origin,
            ) from error
        return raw
    # A name that looks like a number or a date (run.name=2026) is still a name.
    return raw if str in wanted and type(value) not in wanted else value


def _check_reachable(values: Mapping[str, Any], path: KeyPath, key: str, origin: Origin) -> None:
    inner: Any = values
    for part in path[:-1]:
        inner = inner.get(part, {})
        if not isinstance(inner, dict):
            raise RecipeError(f"{key}: '{part}' holds {describe_given(inner)}, no table", origin)


def _finish(draft: _Draft, file: Path | None) -> LoadedRecipe:
    problems = list(_unknown_keys(draft))
    problems += _bad_values(draft) if not problems else []
    if problems:
        raise join_problems(problems)
    _anchor_paths(draft)
    recipe = Recipe.model_validate_json(json.dumps(draft.values), strict=True)
    origins = {format_key(path): origin for path, origin in draft.origins.items()}
    return LoadedRecipe(recipe, origins, file)


def join_problems(problems: Sequence[RecipeError]) -> RecipeError:
    """Return one error that tells all problems, each with its own place."""
    if len(problems) == 1:
        return problems[0]
    lines = "\n".join(f"  {p}" for p in problems)
    joined = RecipeError(f"{len(problems)} problems in the recipe:\n{lines}")
    joined.origin = problems[0].origin
    return joined


def _unknown_keys(draft: _Draft) -> Iterable[RecipeError]:
    for path in _all_paths(draft.values, ()):
        parent = lookup(path[:-1])
        if parent is None or parent.section is None or lookup(path) is not None:
            continue
        known = list(parent.section.model_fields)
        where = f"[{format_key(path[:-1])}]" if len(path) > 1 else "the recipe"
        hint = did_you_mean(path[-1], known) or _elsewhere(path[-1])
        hint = hint or f" Known keys: {', '.join(known)}."
        yield RecipeError(f"unknown key '{path[-1]}' in {where}.{hint}", _origin(draft, path))


def _elsewhere(name: str) -> str:
    places = [format_key(path[:-1]) for path in keys_named(name) if len(path) > 1]
    return f" There is a '{name}' in [{'], ['.join(places)}]." if places else ""


def _bad_values(draft: _Draft) -> list[RecipeError]:
    problems = [
        RecipeError(
            f"{format_key(path)}: a date, a time or an infinite number fits no setting; got "
            f"{describe_given(value)}",
            _origin(draft, path),
        )
        for path, value in _leaves(draft.values, ())
        if isinstance(value, (datetime.date, datetime.time))
        or (isinstance(value, float) and not math.isfinite(value))
    ]
    if problems:
        return problems
    try:
        Recipe.model_validate_json(json.dumps(draft.values), strict=True)
    except ValidationError as error:
        told: dict[KeyPath, RecipeError] = {}
        for detail in error.errors():
            path = _setting_path(detail)
            told.setdefault(path, _explain_value(draft, path, detail))
        return list(told.values())
    return []


def _setting_path(detail: ErrorDetails) -> KeyPath:
    """Return the setting an error belongs to, without union members and list positions."""
    path: KeyPath = ()
    for part in detail["loc"]:
        longer = (*path, str(part))
        if isinstance(part, int) or lookup(longer) is None:
            break
        path = longer
    return path


def _explain_value(draft: _Draft, path: KeyPath, detail: ErrorDetails) -> RecipeError:
    node = lookup(path)
    value: Any = draft.values
    for key in path:
        value = value[key]
    expected = describe_expected(node) if node is not None else detail["msg"]
    text = f"{format_key(path)}: expected {expected}, got {describe_given(value)}."
    setting = node.field if node is not None else None
    if isinstance(value, str) and node is not None and expected.startswith("one of"):
        text += did_you_mean(value, [part.strip(' "') for part in expected[6:].split(",")])
    if setting is not None:
        default = default_of(setting)
        told = "" if default is None or node.section else f" Default: {format_value(default)}."  # type: ignore[union-attr]
        text += f" {setting.description or ''}{told}".rstrip()
    return RecipeError(text, _origin(draft, path))


def _anchor_paths(draft: _Draft) -> None:
    """A file named in a recipe stands beside the recipe, or else below the working folder."""
    for path, value in _leaves(draft.values, ()):
        origin = draft.origins.get(path)
        if not value or origin is None or origin.line is None:
            continue
        key, folder = format_key(path), Path(origin.file).parent
        found: Any = None
        if isinstance(value, str) and _PATH_KEYS.fullmatch(key):
            beside = folder / Path(value).expanduser()
            found = str(beside) if beside.exists() else None
        elif _REFERENCE_KEYS.fullmatch(key):
            found = _anchored(value, folder)
        if found is not None:
            holder = draft.values
            for part in path[:-1]:
                holder = holder[part]
            holder[path[-1]] = found


def _anchored(reference: Any, folder: Path) -> Any:
    """Return ``module:function`` (or a list of them) with the file that lies beside the recipe.

    A file's path is looked for there first, like all files; a module only where it is neither
    installed nor in the working folder.
    """
    if isinstance(reference, list):
        return [_anchored(one, folder) for one in reference]
    module, _, name = str(reference).rpartition(":")
    if module.endswith(".py"):
        beside = folder / Path(module).expanduser()
        return f"{beside}:{name}" if beside.is_file() else reference
    file = module.replace(".", "/") + ".py"
    if not module or not (folder / file).is_file() or Path(file).is_file():
        return reference
    return reference if _is_installed(module) else f"{folder / file}:{name}"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):  # a package that cannot be looked into
        return False


def _origin(draft: _Draft, path: KeyPath) -> Origin | None:
    for size in range(len(path), 0, -1):
        if path[:size] in draft.origins:
            return draft.origins[path[:size]]
    return None


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = _copy(value)


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _all_paths(values: Mapping[str, Any], prefix: KeyPath) -> Iterable[KeyPath]:
    for key, value in values.items():
        yield (*prefix, key)
        if isinstance(value, Mapping):
            yield from _all_paths(value, (*prefix, key))


def _leaves(values: Mapping[str, Any], prefix: KeyPath) -> Iterable[tuple[KeyPath, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _prefixes(path: KeyPath) -> list[KeyPath]:
    return [path[:size] for size in range(1, len(path))]
