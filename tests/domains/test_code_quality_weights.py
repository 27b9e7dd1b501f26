"""Quality parts of a program as parts of its score, with the recipe's weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from educe.config.settings import DomainSettings
from educe.core.errors import DomainError, MissingExtraError
from educe.core.protocols import Services
from educe.core.types import Score, Split, assistant
from educe.domains.code_quality import weighed, with_quality
from educe.domains.registry import load_domain
from educe.sandbox import open_sandbox

NAME = "python/string-edit/tiny"


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with open_sandbox(minimum="plain") as sandbox:
        yield Services(sandbox=sandbox)


def scored(services: Services, suffix: str = "", **options: Any) -> Score:
    domain = load_domain(NAME, DomainSettings(options=options))
    task = domain.task(Split.TRAIN, 0)
    text = (task.gold or "").replace("\n```", f"{suffix}\n```")
    return domain.score(task, None, [*task.messages, assistant(text)], services)


def test_weights_of_the_recipe_take_from_what_a_right_program_is_paid(services: Services) -> None:
    plain = scored(services)
    assert plain.value == 1.0 and not [p for p in plain.parts if p.startswith("quality:")]
    good = scored(services, quality={"secure": 1.0, "simple": 0.5})
    assert good.value == 1.0 and good.parts["quality:secure"] == 1.0
    bad = scored(services, "\n\n\ndef other(x):\n    return eval(x)\n", quality={"secure": 1.0})
    assert bad.parts["quality:secure"] == 0.5 and bad.parts["tests"] == 1.0
    assert bad.value == pytest.approx(0.75)
    assert any("eval" in finding for finding in bad.proof["quality_findings"])


def test_style_pays_nothing_for_what_is_wrong(services: Services) -> None:
    domain = load_domain(NAME, DomainSettings(options={"quality": {"tidy": 5.0, "compiles": 5.0}}))
    task = domain.task(Split.TRAIN, 0)
    name = task.metadata["entry_point"]
    tidy = f'```python\ndef {name}(x):\n    """Return nothing."""\n    return None\n```'
    for text in (tidy, "I do not know."):
        score = domain.score(task, None, [*task.messages, assistant(text)], services)
        assert score.value == 0.0


def test_each_part_of_the_issue_can_be_weighed(services: Services) -> None:
    """Executes, compiles, pass rate (all and fraction), lint, complexity, insecure patterns."""
    weights = dict.fromkeys(
        ("executes", "compiles", "pass_rate", "passes_all", "lint", "simple", "secure"), 1.0
    )
    score = scored(services, quality=weights)
    assert score.value is not None and 0.9 <= score.value <= 1.0
    values = [score.parts[f"quality:{name}"] for name in weights]
    assert all(value is not None for value in values)
    assert score.parts["quality:passes_all"] == score.parts["quality:pass_rate"] == 1.0
    half = with_quality(Score(0.5, parts={"cases": 0.5}), "x = 1\n", services)
    assert half.parts["quality:passes_all"] == 0.0 and half.parts["quality:pass_rate"] == 0.5


def test_a_weight_of_lint_needs_ruff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("educe.sandbox.quality.ruff_program", lambda: None)
    with pytest.raises(MissingExtraError, match=r"educe\[quality\]"):
        load_domain(NAME, DomainSettings(options={"quality": {"lint": 1.0}}))
    load_domain(NAME, DomainSettings(options={"quality": {"lint": 0.0, "tidy": 1.0}}))


def test_parts_without_a_value_leave_the_sum() -> None:
    score = Score(1.0, parts={"quality:lint": None, "quality:tidy": 0.0})
    assert weighed(score, {"lint": 1.0, "tidy": 1.0}).value == pytest.approx(0.5)
    assert weighed(Score(None), {"lint": 1.0}).value is None


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ({"lnt": 1.0}, "Did you mean 'lint'"),
        ({"lint": -1.0}, "0 or more"),
        ({"lint": float("nan")}, "0 or more"),
        ({"lint": True}, "0 or more"),
    ],
)
def test_bad_weights_are_refused(weights: dict[str, Any], told: str) -> None:
    with pytest.raises(DomainError, match=told):
        load_domain(NAME, DomainSettings(options={"quality": weights}))
