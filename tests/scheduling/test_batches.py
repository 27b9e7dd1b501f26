"""Rollout batches by tokens: as many prompts as are predicted to fill them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from educe.core.types import Split, TaskRequest
from educe.scheduling.batches import BatchSize, TokenForecast, limit_of

LIMITS = {"short": 20, "long": 400}


def order(number: int, domain: str) -> TaskRequest:
    return TaskRequest(
        number, domain, Split.TRAIN, number, num_samples=4, max_completion_tokens=LIMITS[domain]
    )


def planned(size: BatchSize, domains: list[str]) -> list[TaskRequest]:
    orders: list[TaskRequest] = []
    while not size.is_full(orders):
        orders.append(order(len(orders), domains[len(orders) % len(domains)]))
    return orders


def seen(tokens: Mapping[str, int], groups: int = 40) -> TokenForecast:
    forecast = TokenForecast()
    forecast.observe([(d, n, 4 * LIMITS[d]) for _ in range(groups) for d, n in tokens.items()])
    return forecast


def test_prompts_are_the_default() -> None:
    assert len(planned(BatchSize(7), ["short", "long"])) == 7


def test_before_anything_is_seen_half_of_the_limits_count() -> None:
    assert limit_of(order(0, "long")) == 1600
    assert TokenForecast().tokens("long", 1600) == 800
    assert len(planned(BatchSize(99, 2400), ["long"])) == 3


def test_the_batch_ends_with_the_prompt_that_reaches_its_tokens() -> None:
    forecast = seen({"short": 50, "long": 500})
    size = BatchSize(99, 1100, forecast=forecast)
    assert len(planned(size, ["short"])) == pytest.approx(1100 / 50, abs=1)
    assert len(planned(size, ["long"])) == 3
    mixed = planned(size, ["short", "long"])
    assert size.planned(mixed[:-1]) < 1100 <= size.planned(mixed)


def test_prompts_bound_it_and_every_update_has_one() -> None:
    forecast = seen({"short": 50, "long": 500})
    assert len(planned(BatchSize(5, 10**6, forecast=forecast), ["short"])) == 5
    assert len(planned(BatchSize(5, 1, least=2, forecast=forecast), ["long"])) == 2


def test_it_follows_what_groups_take_now() -> None:
    """Answers grow during a run; the last groups say so."""
    forecast = seen({"long": 100})
    forecast.observe([("long", 1000, 1600)] * 64)
    assert forecast.tokens("long", 1600) == pytest.approx(1000, rel=0.15)


def test_an_unseen_domain_is_read_through_the_run() -> None:
    """The others fill a quarter of their limits."""
    assert seen({"long": 400}).tokens("short", 80) == pytest.approx(20, rel=0.05)


def test_groups_without_a_token_still_fill_a_batch() -> None:
    """Nothing was sampled of any group: the bound ends the batch, not an endless loop."""
    forecast = TokenForecast()
    forecast.observe([("short", 0, 80)] * 2000)
    assert forecast.tokens("short", 80) == 1.0
    assert len(planned(BatchSize(12, 50, forecast=forecast), ["short"])) == 12


def test_it_resumes_exactly_and_domains_come_and_go() -> None:
    one = seen({"short": 33, "long": 771}, groups=7)
    two = TokenForecast()
    two.restore(json.loads(json.dumps(one.state())))
    for forecast in (one, two):
        forecast.observe([("long", 601, 1600), ("new", 5, 40)])
    assert one.state() == two.state()
    assert one.tokens("long", 1600) == two.tokens("long", 1600)
    fresh = TokenForecast()
    fresh.restore({})
    assert fresh.tokens("long", 1600) == 800
