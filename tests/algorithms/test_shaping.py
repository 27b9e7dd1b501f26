"""Length shaping, and that it never touches the metric that filters."""

from __future__ import annotations

import numpy as np
import pytest

from educe.algorithms.advantages import has_spread
from educe.algorithms.shaping import soft_overlong_penalty, without_truncated


def test_the_penalty_is_zero_then_a_line_then_one():
    got = soft_overlong_penalty([0, 16384, 18432, 20480, 30000], 20480, 4096)
    assert got == pytest.approx([0, 0, -0.5, -1, -1])
    assert soft_overlong_penalty([8], 10, 4, factor=0.5) == pytest.approx([-0.25])


@pytest.mark.parametrize("cache", [0, -1, 11])
def test_a_cache_that_does_not_fit_is_refused(cache):
    with pytest.raises(ValueError, match="0 < cache <= 10"):
        soft_overlong_penalty([1], 10, cache)


def test_an_all_wrong_group_is_filtered_though_its_lengths_differ():
    """Filtering on the shaped reward trains "be short and wrong" (NeMo-RL 2431)."""
    raw, everyone = np.zeros(4), np.ones(4, bool)
    shaped = raw + soft_overlong_penalty([5, 9, 10, 10], 10, 4)
    assert has_spread(shaped, everyone)
    assert not has_spread(raw, everyone)


def test_truncated_completions_leave_the_loss_only():
    assert without_truncated([True, True, False], [False, True, True]) == (True, False, False)
