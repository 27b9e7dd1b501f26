"""Options of the built-in dimensions, checked: their names and kinds, and how often to sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from educe.core.errors import EduceError, did_you_mean
from educe.core.types import JSON

_COUNTS = frozenset({"tasks", "samples", "templates", "max_tokens", "control_length"})
_COUNT_LISTS = frozenset({"lengths"})
_NUMBERS = frozenset({"temperature"})
_SHARES = frozenset({"depths"})


def checked_options(
    dimension: str, options: Mapping[str, JSON], known: Sequence[str]
) -> Mapping[str, JSON]:
    """Return the options of a dimension.

    Raises:
        EduceError: one that the dimension does not have, or a value that cannot be.
    """
    for name, value in options.items():
        if name not in known:
            raise EduceError(
                f"the dimension {dimension} has no option {name!r}; it has {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )
        wanted = _mistake(name, value)
        if wanted:
            raise EduceError(f"{dimension}.{name} must be {wanted}, got {value!r}")
    return options


def _mistake(name: str, value: JSON) -> str:
    """Return what was wanted instead of a value; empty where it is right."""
    values = value if isinstance(value, list | tuple) else [value]
    if name in _COUNTS and not _is_count(value):
        return "an integer of at least 1"
    if name in _COUNT_LISTS and not (values and all(_is_count(v) for v in values)):
        return "an integer of at least 1, or a list of them"
    if name in _NUMBERS and not (_is_number(value) and value >= 0):
        return "a number of at least 0"
    if name in _SHARES and not (values and all(_is_number(v) and 0 <= v <= 1 for v in values)):
        return "a number from 0 to 1, or a list of them"
    return ""


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: JSON) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def sampling(dimension: str, options: Mapping[str, JSON], samples: int) -> tuple[int, float]:
    """Return samples a task and their temperature: greedy for one, 0.8 for several by default.

    Raises:
        EduceError: several samples at temperature 0, which are one text several times.
    """
    count = int(options.get("samples", samples))
    temperature = float(options.get("temperature", 0.0 if count == 1 else 0.8))
    if count > 1 and temperature == 0:
        raise EduceError(
            f"{dimension}: {count} samples a task at temperature 0 are {count} times the same "
            f"text; give {dimension}.temperature or {dimension}.samples=1"
        )
    return count, temperature
