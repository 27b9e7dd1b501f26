"""Names, globs, weights, functions and plugins of the domain registry."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError
from educe.core.protocols import Services
from educe.core.types import Split, assistant
from educe.domains import registry
from educe.domains.check import check_domain
from educe.domains.registry import expand, get_spec, list_specs, load_domain, resolve

EXAMPLES = Path(__file__).parents[2] / "examples" / "domains"


def test_listing_imports_no_heavy_library() -> None:
    code = (
        "import sys; from educe.domains.registry import list_specs; specs = list_specs();"
        "print(len(specs), [m for m in ('torch', 'reasoning_gym', 'sympy', 'transformers', "
        "'datasets') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    count, _, loaded = done.stdout.strip().partition(" ")
    assert int(count) >= 300
    assert loaded == "[]"


def test_every_listed_provider_is_there_and_has_domains() -> None:
    sources = {entry.source for entry in registry._registered().values()}
    assert set(registry.PROVIDERS) <= sources


def test_specs_are_sane() -> None:
    specs = list_specs()
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        assert spec.name.startswith(spec.family), spec
        assert 0 <= spec.floor < 1, spec
        assert spec.description and spec.kind and spec.licence, spec
        assert spec.max_turns >= 1 and 1 <= spec.max_completion_tokens <= 4096, spec


def test_globs() -> None:
    assert expand("rg/gcd/tiny") == ["rg/gcd/tiny"]
    assert expand("rg/gcd/*") == [f"rg/gcd/{level}" for level in ("easy", "hard", "medium", "tiny")]
    assert len(expand("rg/*/tiny")) >= 60
    assert len(expand("rg/*")) >= 300


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rg/gdc/tiny", "rg/gcd/tiny"),
        ("rg/rubiks_cube/easy", "excluded: the generator gives no gold"),
        ("rg/nothing-like-this-*", "no domain matches"),
        ("qqqqqqqqq", "educe domains search"),
    ],
)
def test_unknown_names_say_what_is_near(name: str, told: str) -> None:
    with pytest.raises(DomainError) as caught:
        expand(name)
    assert told in str(caught.value)
    if "*" not in name:
        with pytest.raises(DomainError):
            get_spec(name)


def test_a_globs_weight_is_shared_among_its_matches() -> None:
    resolved = resolve(
        {
            "rg/*/tiny": DomainSettings(weight=2.0, temperature=0.7),
            "rg/gcd/hard": DomainSettings(weight=1.0),
        }
    )
    tiny = [name for name in resolved if name.endswith("/tiny")]
    assert sum(resolved[name].weight for name in tiny) == pytest.approx(2.0)
    assert len({resolved[name].weight for name in tiny}) == 1
    assert all(resolved[name].temperature == 0.7 for name in tiny)
    assert resolved["rg/gcd/hard"].weight == 1.0


def test_the_more_specific_entry_wins_and_totals_stay() -> None:
    resolved = resolve(
        {
            "rg/gcd/*": DomainSettings(weight=3.0),
            "rg/gcd/tiny": DomainSettings(weight=0.5),
        }
    )
    assert resolved["rg/gcd/tiny"].weight == 0.5
    assert [resolved[f"rg/gcd/{level}"].weight for level in ("easy", "medium", "hard")] == [1.0] * 3


def test_of_two_globs_the_one_with_more_letters_wins() -> None:
    resolved = resolve(
        {"rg/*cd/*": DomainSettings(weight=4.0), "rg/gcd/*y": DomainSettings(weight=1.0)}
    )
    assert resolved["rg/gcd/tiny"].weight == resolved["rg/gcd/easy"].weight == 0.5
    assert resolved["rg/gcd/hard"].weight == 2.0


def test_equally_specific_globs_are_refused() -> None:
    with pytest.raises(DomainError, match="equally specific"):
        resolve({"rg/gc?/tiny": DomainSettings(), "rg/?cd/tiny": DomainSettings()})


def test_an_entry_without_any_domain_left_is_refused() -> None:
    with pytest.raises(DomainError, match="more specific entry"):
        resolve({"rg/gcd/t*": DomainSettings(), "rg/gcd/tiny": DomainSettings()})


def test_tiny_and_zero_weights_survive_resolving() -> None:
    resolved = resolve(
        {"rg/gcd/tiny": DomainSettings(weight=0.99), "rg/lcm/tiny": DomainSettings(weight=0.0)}
    )
    assert resolved["rg/lcm/tiny"].weight == 0.0
    assert len(resolved) == 2


def test_a_data_domain_must_have_a_plain_name() -> None:
    with pytest.raises(DomainError, match="plain name"):
        resolve({"mine/*": DomainSettings(path="rows.jsonl")})


def test_loading_is_shared_and_ignores_what_does_not_change_the_domain() -> None:
    first = load_domain("rg/gcd/tiny")
    assert load_domain("rg/gcd/tiny", DomainSettings(weight=7.0, temperature=0.5)) is first
    assert load_domain("rg/gcd/tiny", DomainSettings(options={"max_value": 9})) is not first


def test_options_reach_the_family_and_wrong_ones_are_told() -> None:
    domain = load_domain(
        "rg/gcd/tiny", DomainSettings(options={"min_numbers": 4, "max_numbers": 4})
    )
    assert domain.task(Split.TRAIN, 0).messages[0].content.count(",") == 3
    with pytest.raises(DomainError, match="max_nubmers"):
        load_domain("rg/gcd/tiny", DomainSettings(options={"max_nubmers": 4}))


def test_reward_without_path_is_refused() -> None:
    with pytest.raises(DomainError, match="path"):
        load_domain("rg/gcd/tiny", DomainSettings(reward="math:sqrt"))


def test_a_function_domain_from_a_file_takes_the_recipes_name() -> None:
    settings = DomainSettings(function=f"{EXAMPLES / 'vowels.py'}:create", options={"length": 5})
    domain = load_domain("my/vowels", settings)
    task = domain.task(Split.EVAL, 3)
    assert domain.spec.name == task.domain == "my/vowels"
    score = domain.score(task, None, [*task.messages, assistant(task.gold or "")], Services())
    assert score.value == 1
    report = check_domain(domain, num_tasks=200)
    assert report.is_ok, report.problems


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("vowels", "module:function"),
        ("no_such_module_anywhere:create", "was not found"),
        ("json:dumpz", "Did you mean 'dump"),
        ("educe:__version__", "not a function"),
        ("missing/file.py:create", "there is no file"),
        ("json:dumps", "did not accept the options"),
        ("builtins:dict", "not a Domain"),
    ],
)
def test_wrong_functions_are_told(reference: str, told: str) -> None:
    with pytest.raises(DomainError) as caught:
        load_domain("mine", DomainSettings(function=reference))
    assert told in str(caught.value)
    assert "mine" in str(caught.value)


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed distribution with entry points, as pip would leave it."""
    (tmp_path / "plugin_domains.py").write_text((EXAMPLES / "vowels.py").read_text())
    info = tmp_path / "plugin_domains-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-domains\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[educe.domains]\nplugin/vowels = plugin_domains:create\nbroken = plugin_domains:absent\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._registered.cache_clear()
    yield tmp_path
    registry._registered.cache_clear()
    registry._load.cache_clear()
    sys.modules.pop("plugin_domains", None)


def test_plugins_add_domains_and_a_broken_one_is_told(plugins: Path) -> None:
    with pytest.warns(RuntimeWarning, match="broken = plugin_domains:absent is left out"):
        names = [spec.name for spec in list_specs()]
    assert "plugin/vowels" in names
    assert load_domain("plugin/vowels").task(Split.TRAIN, 0).domain == "plugin/vowels"
