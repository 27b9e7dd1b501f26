"""Weights that arrive changed are not sampled with (SkyRL 1680, TRL 5312)."""

from __future__ import annotations

import pytest
import torch

from educe.core.errors import InfrastructureError
from educe.rollout.published_weights import checksums, load_checked


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(300, 7, generator=generator).to(dtype),
        "b": torch.randn(5, generator=generator).to(dtype),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_arrives_as_it_was_sent_is_taken(dtype):
    sent = tensors(dtype)
    own = {n: torch.zeros_like(t) for n, t in sent.items()} | {"head": torch.ones(2)}
    load_checked(own, sent, checksums(sent))
    assert all(torch.equal(own[n], t) for n, t in sent.items()) and own["head"].sum() == 2


@pytest.mark.parametrize("change", ["one value", "swapped", "stale", "cast"])
def test_any_change_on_the_way_is_refused(change):
    sent = tensors()
    expected = checksums(sent)
    arrived = {n: t.clone() for n, t in sent.items()}
    own = {n: torch.zeros_like(t) for n, t in sent.items()}
    if change == "one value":
        arrived["a"][123, 4] += 1e-6
    elif change == "swapped":
        arrived["b"] = arrived["b"].flip(0)
    elif change == "stale":
        arrived["a"] *= 0.999
    else:
        own["a"] = own["a"].to(torch.bfloat16)
    with pytest.raises(InfrastructureError, match="1 of 2 tensors differ"):
        load_checked(own, arrived, expected)


def test_checksums_do_not_depend_on_threads_or_layout():
    sent = {"a": torch.arange(10_000, dtype=torch.float32).reshape(100, 100)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    one = checksums(sent)
    torch.set_num_threads(max(threads, 2))
    assert checksums({"a": sent["a"].t().contiguous().t()}) == one
    torch.set_num_threads(threads)


def test_tensors_that_are_not_on_all_sides_are_named():
    sent = tensors()
    with pytest.raises(InfrastructureError, match="'b' is not on all sides"):
        load_checked({"a": sent["a"]}, sent, checksums(sent))
