"""What the mixture costs with hundreds of domains: a batch planned, its state, an exact resume.

    python benchmarks/mixture_planning.py [--domains 400] [--prompts 256] [--batches 40]

Prints one JSON line: milliseconds of processor time a batch (observing the last one, deciding the
shares, naming every prompt's domain), the bytes of the state as JSON, and whether a mixture that
was restored from that JSON half way decides bitwise the same from there on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence

from educe.core.seeds import python_random
from educe.scheduling.controller import ControlSettings
from educe.scheduling.mixture import AdaptiveMixture, MixedDomain
from educe.scheduling.results import GroupResult


def make(num_domains: int, strategy: str) -> AdaptiveMixture:
    domains = {
        f"family{i % (num_domains // 8 + 1)}/domain{i}": MixedDomain(1.0, f"family{i // 8}")
        for i in range(num_domains)
    }
    return AdaptiveMixture(domains, ControlSettings(strategy), seed=3)


def plan_batch(mixture: AdaptiveMixture, prompts: int) -> list[str]:
    return [mixture.next_domain() for _ in range(prompts)]


def results_of(names: Sequence[str], batch: int) -> list[GroupResult]:
    """Return groups with rewards that depend on the domain and the batch only."""
    found = []
    for place, name in enumerate(names):
        draw = python_random("planning", name, batch, place)
        rate = (hash_of(name) % 100) / 100
        rewards = tuple(float(draw.random() < rate) for _ in range(8))
        found.append(GroupResult(batch * len(names) + place, name, place, rewards, 400))
    return found


def hash_of(name: str) -> int:
    return sum(ord(c) * (i + 1) for i, c in enumerate(name))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--domains", type=int, default=400)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--strategy", default="expected_gain")
    given = parser.parse_args(arguments)
    mixture = make(given.domains, given.strategy)
    resumed: AdaptiveMixture | None = None
    times, is_same, state = [], True, ""
    for batch in range(given.batches):
        begin = time.process_time()
        names = plan_batch(mixture, given.prompts)
        planned = time.process_time() - begin
        if resumed is not None:
            is_same &= plan_batch(resumed, given.prompts) == names
        results = results_of(names, batch)
        begin = time.process_time()
        mixture.observe(results)
        times.append(planned + time.process_time() - begin)
        if resumed is not None:
            resumed.observe(results)
        if batch == given.batches // 2:
            state = json.dumps(mixture.state())
            resumed = make(given.domains, given.strategy)
            resumed.restore(json.loads(state))
    assert resumed is not None
    is_same &= json.dumps(mixture.state()) == json.dumps(resumed.state())
    told = {
        "domains": given.domains,
        "prompts": given.prompts,
        "batch_ms": round(1000 * statistics.median(times), 2),
        "worst_batch_ms": round(1000 * max(times), 2),
        "state_bytes": len(state),
        "resumes_bitwise": is_same,
    }
    print(json.dumps(told))
    return 0 if is_same else 1


if __name__ == "__main__":
    raise SystemExit(main())
