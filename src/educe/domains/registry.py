"""Which domains there are, by name; torch-free, and listing imports no generator library.

Domains come from *providers*: modules with ``specs() -> tuple[DomainSpec, ...]`` and
``create(name, **options) -> Domain``. The built-in ones are listed in :data:`PROVIDERS`; installed
packages add theirs through the entry point group ``educe.domains``, whose entries name either such
a module (or object) or a function that returns one Domain. A recipe adds one-off domains with
``path`` (rows in a file) or ``function`` (``module:function``).
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, did_you_mean
from educe.core.protocols import Domain, DomainSpec
from educe.domains.references import load_reference
from educe.domains.renamed import RenamedDomain

ENTRY_POINT_GROUP = "educe.domains"

PROVIDERS: tuple[str, ...] = (
    "educe.domains.reasoning_gym",
    "educe.domains.builtin.arithmetic",
    "educe.domains.builtin.instructions",
    "educe.domains.builtin.long_dialogue",
    "educe.domains.builtin.long_document",
    "educe.domains.builtin.python_functions",
    "educe.domains.builtin.repo_repair",
    "educe.domains.builtin.stateful_tools",
)

_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class _Registered:
    spec: DomainSpec
    source: str
    create: Callable[..., Domain]


def list_specs() -> list[DomainSpec]:
    """Return the specs of all registered domains, sorted by name."""
    return [_registered()[name].spec for name in sorted(_registered())]


def get_spec(name: str) -> DomainSpec:
    """Return the spec of a registered domain; raises DomainError with the nearest names."""
    return _entry(name).spec


def excluded() -> dict[str, str]:
    """Return families that are known but not offered, with the reason."""
    found: dict[str, str] = {}
    for provider in PROVIDERS:
        found |= getattr(importlib.import_module(provider), "EXCLUDED", {})
    return dict(sorted(found.items()))


def is_pattern(text: str) -> bool:
    """Return whether a recipe key is a glob rather than a name."""
    return any(c in _WILDCARDS for c in text)


def expand(pattern: str) -> list[str]:
    """Return the registered names that a glob matches, sorted; a plain name gives itself.

    ``*`` matches any text, slashes included: ``rg/*`` is every level of every family.

    Raises:
        DomainError: nothing matches; the message names what is near.
    """
    names = _registered()
    if not is_pattern(pattern):
        return [_entry(pattern).spec.name]
    matches = sorted(n for n in names if fnmatch.fnmatchcase(n, pattern))
    if not matches:
        raise DomainError(f"no domain matches {pattern!r}.{_hint(pattern)}")
    return matches


def resolve(domains: Mapping[str, DomainSettings]) -> dict[str, DomainSettings]:
    """Return settings by domain name, with the globs of a recipe's ``[domains]`` expanded.

    The weight of an entry belongs to the entry: a glob's weight is shared equally among its
    matches, so ``"rg/*/easy"`` at weight 1 and ``"my/data"`` at weight 1 get half of the prompts
    each, however many families there are. An exact name beats a glob; of two globs, the one with
    more literal characters does. What another entry takes does not shrink a glob's total.

    Raises:
        DomainError: unknown names, globs without a match or left with none, two globs equally
            specific for one domain, a glob with ``path`` or ``function``.
    """
    owner: dict[str, str] = {}
    for key, settings in domains.items():
        for name in _claimed(key, settings):
            held = owner.get(name)
            if held is not None and _specificity(held) == _specificity(key):
                raise DomainError(
                    f"domains: {name!r} is matched by both {held!r} and {key!r}, which are "
                    f"equally specific; give {name!r} an entry of its own or narrow one glob"
                )
            if held is None or _specificity(key) > _specificity(held):
                owner[name] = key
    counts: dict[str, int] = {}
    for key in owner.values():
        counts[key] = counts.get(key, 0) + 1
    for key in domains:
        if key not in counts:
            raise DomainError(
                f"domains: every match of {key!r} belongs to a more specific entry; remove it"
            )
    resolved: dict[str, DomainSettings] = {}
    for name, key in sorted(owner.items()):
        settings = domains[key]
        if counts[key] > 1:
            settings = settings.model_copy(update={"weight": settings.weight / counts[key]})
        resolved[name] = settings
    return resolved


def load_domain(name: str, settings: DomainSettings | None = None) -> Domain:
    """Return the domain called ``name``, importing what it needs; repeated calls share it.

    ``settings.path`` makes a domain of rows in a file, ``settings.function`` calls
    ``module:function(**options)``; otherwise ``name`` must be registered.

    Raises:
        DomainError: unknown name, wrong options, unusable data or function.
    """
    settings = settings or DomainSettings()
    return _load(name, _cache_key(settings))


def _cache_key(settings: DomainSettings) -> str:
    """What changes a domain itself; weight, temperature and the like do not."""
    kept = {"path", "function", "reward", "prompt_field", "answer_field", "eval_fraction"}
    return settings.model_dump_json(include=kept | {"options"})


@functools.lru_cache(maxsize=1024)
def _load(name: str, settings_json: str) -> Domain:
    settings = DomainSettings.model_validate_json(settings_json)
    if settings.path and settings.function:
        raise DomainError(f"{name}: give either path or function, not both")
    if settings.path:
        from educe.domains.datasets import RowsDomain

        return RowsDomain(name, settings)
    if settings.reward:
        raise DomainError(
            f"{name}: 'reward' belongs to domains with a 'path'; a registered domain and a "
            f"'function' domain bring their own score"
        )
    if settings.function:
        function = load_reference(settings.function, purpose=f'domains."{name}".function')
        return _build(name, settings.function, function, settings.options)
    entry = _entry(name)
    return _build(name, entry.source, functools.partial(entry.create, name), settings.options)


def _build(
    name: str, source: str, create: Callable[..., Any], options: Mapping[str, Any]
) -> Domain:
    try:
        domain = create(**options)
    except TypeError as error:
        raise DomainError(
            f"{name}: {source} did not accept the options {dict(options)}: {error}"
        ) from error
    if not isinstance(domain, Domain):
        raise DomainError(
            f"{name}: {source} returned a {type(domain).__name__}, which is not a Domain; it "
            f"needs spec, task, size, demonstration, initial_state, respond and score "
            f"(educe.core.protocols.Domain)"
        )
    return domain if domain.spec.name == name else RenamedDomain(domain, name)


def _claimed(key: str, settings: DomainSettings) -> list[str]:
    if not (settings.path or settings.function):
        return expand(key)
    if is_pattern(key):
        raise DomainError(f"domains: {key!r} has a path or function, so it must be a plain name")
    return [key]


def _specificity(key: str) -> int:
    """Exact names first, then globs by their number of literal characters."""
    return sum(c not in _WILDCARDS for c in key) + (0 if is_pattern(key) else 10_000)


def _entry(name: str) -> _Registered:
    found = _registered().get(name)
    if found is None:
        raise DomainError(f"there is no domain {name!r}.{_hint(name)}")
    return found


def _hint(name: str) -> str:
    for family, reason in excluded().items():
        if name == family or name.startswith(family + "/"):
            return f" {family} is excluded: {reason}"
    hint = did_you_mean(name, _registered())
    return hint or " `educe domains` lists all names; `educe domains search WORD` looks for one."


@functools.cache
def _registered() -> dict[str, _Registered]:
    found: dict[str, _Registered] = {}
    for module_name in PROVIDERS:
        _add(found, module_name, importlib.import_module(module_name))
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        source = f"entry point {point.name} = {point.value}"
        try:
            _add(found, source, _as_provider(point.name, point.load()))
        except Exception as error:  # a broken plugin must not hide the other domains
            warnings.warn(
                f"educe.domains: {source} is left out: {type(error).__name__}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
    return found


def _add(found: dict[str, _Registered], source: str, provider: Any) -> None:
    fresh: dict[str, _Registered] = {}
    for spec in provider.specs():
        if spec.name in found or spec.name in fresh:
            other = found.get(spec.name, fresh.get(spec.name))
            raise DomainError(
                f"the domain name {spec.name!r} of {source} is taken by "
                f"{other.source if other else source}"
            )
        fresh[spec.name] = _Registered(spec, source, provider.create)
    found |= fresh


def _as_provider(name: str, loaded: Any) -> Any:
    if hasattr(loaded, "specs") and hasattr(loaded, "create"):
        return loaded
    if callable(loaded):
        return _SingleDomain(name, loaded)
    raise DomainError("expected a module with specs() and create(), or a function")


class _SingleDomain:
    """A function that returns one Domain, as a provider; the entry point's name is the domain's."""

    def __init__(self, name: str, function: Callable[..., Domain]) -> None:
        self._name, self._function = name, function

    def specs(self) -> tuple[DomainSpec, ...]:
        return (replace(self._function().spec, name=self._name),)

    def create(self, name: str, **options: Any) -> Domain:
        return self._function(**options)
