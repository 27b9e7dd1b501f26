from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from educe.sandbox import values
from educe.sandbox.inside import typed

_ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
)
_KEYS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary())
_VALUES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(_KEYS, inner, max_size=4),
        st.sets(_KEYS, max_size=4),
        st.frozensets(_KEYS, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(_VALUES)
def test_values_survive_the_border(value: Any) -> None:
    text = json.dumps(typed.encode(value))
    assert text == json.dumps(values.encode(value))
    assert values.equal(value, values.decode(json.loads(text)))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, 1.0),
        ((1,), [1]),
        ({1}, frozenset({1})),
        ("1", 1),
        ({1: 2}, {True: 2}),
        ([1], [True]),
        (None, 0),
        (b"a", "a"),
        (math.nan, 1.0),
        ({1: 1}, {1: 1.0}),
        ({1, 2}, {1}),
        (0.1, 0.2),
        ([1, 2], [2, 1]),
        (1j, 1.0),
        (math.inf, -math.inf),
    ],
)
def test_different_values_or_types_are_not_equal(a: Any, b: Any) -> None:
    assert not values.equal(a, b)
    assert not values.equal(b, a)


def test_nan_matches_only_nan_and_tolerance_is_relative() -> None:
    assert values.equal(math.nan, math.nan)
    assert values.equal(1e9, 1e9 + 1, tolerance=1e-8)
    assert not values.equal(1e9, 1e9 + 100, tolerance=1e-8)
    assert not values.equal(math.inf, 1e300, tolerance=1.0)
    assert not values.equal(1, 1.0, tolerance=1.0)


@pytest.mark.parametrize(
    "node",
    [
        {"x": 1},
        {"t": 1},
        {"d": [[1]]},
        {"s": [[]]},
        {"i": 5},
        {"b": "!"},
        {"c": [1]},
        {"t": [], "d": []},
        {"d": [[{"d": []}, 1]]},
        {"i": "zz"},
    ],
)
def test_forged_values_are_refused(node: Any) -> None:
    with pytest.raises(values.ValueFormatError):
        values.decode(node)


def test_deep_and_huge_values_are_bounded() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(values.ValueFormatError):
        values.decode(deep)
    with pytest.raises(RecursionError):
        typed.encode(deep)
    huge = 1 << 100_000
    assert values.decode(json.loads(json.dumps(typed.encode(huge)))) == huge
    assert len(values.show([huge])) < 400


def test_subclasses_do_not_cross() -> None:
    class I(int):  # noqa: E742
        pass

    for encode, error in ((typed.encode, TypeError), (values.encode, values.ValueFormatError)):
        with pytest.raises(error):
            encode([I(1)])
