"""Options of dimensions: what cannot be is said by name, not as a traceback."""

from __future__ import annotations

from typing import Any

import pytest

from educe.core.errors import EduceError
from educe.evaluation.dimensions import BUILT_IN, load_dimension
from educe.evaluation.dimensions.options import checked_options, sampling
from educe.evaluation.dimensions.protocol import PlanContext

KNOWN = ("tasks", "samples", "temperature", "lengths", "depths", "sets")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taks": 3}, "no option 'taks'; it has .* Did you mean 'tasks'"),
        ({"tasks": "abc"}, "d.tasks must be an integer of at least 1, got 'abc'"),
        ({"samples": 0}, "d.samples must be"),
        ({"samples": True}, "d.samples must be"),
        ({"tasks": 2.5}, "d.tasks must be"),
        ({"temperature": -1}, "d.temperature must be a number of at least 0"),
        ({"lengths": [512, "x"]}, "d.lengths must be .* list of them"),
        ({"lengths": []}, "d.lengths must be"),
        ({"depths": 50}, "d.depths must be a number from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EduceError, match=message):
        checked_options("d", options, KNOWN)


def test_what_can_be_passes() -> None:
    given = {"tasks": 3, "temperature": 0, "lengths": 512, "depths": [0, 0.5, 1], "sets": "free"}
    assert checked_options("d", given, KNOWN) is given


def test_samples_and_their_temperature() -> None:
    assert sampling("d", {}, 1) == (1, 0.0)
    assert sampling("d", {"samples": 4}, 1) == (4, 0.8)
    assert sampling("d", {"temperature": 0.5}, 1) == (1, 0.5)
    with pytest.raises(EduceError, match="4 times the same text"):
        sampling("d", {"samples": 4, "temperature": 0}, 1)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_dimension_checks_its_options(name: str) -> None:
    for options in ({"tasks": 0}, {"nonsense": 1}):
        with pytest.raises(EduceError, match=name):
            load_dimension(name).plan(PlanContext(tier="small", options=options))


def test_one_depth_need_not_be_a_list() -> None:
    options = {"depths": 0.5, "lengths": 512, "kinds": "near-keys", "controls": [], "tasks": 2}
    (part,) = load_dimension("long_context").plan(PlanContext(tier="small", options=options))
    assert part.facts["depths"] == [0.5]
