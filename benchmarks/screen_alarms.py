"""How often the screen guard alarms at a policy that stays as it is, and sees one that fell.

    python benchmarks/screen_alarms.py [--stages 1500]

Tasks differ in how often they are solved (Beta(0.6, 0.9)); a stage is ten looks at the same tasks,
each a draw. A false alarm is a stage in which some look is under the best one by more than 0.1 and
by more than so many standard errors (``educe.trainers.screen_falls``). Power: one look at a policy
whose every rate fell by the same part, such that the mean falls by 0.1 or 0.2, after one at the
policy before. Seconds on one core; no timing.
"""

from __future__ import annotations

import argparse
import random
import sys

from educe.trainers.screen_falls import mean_screen_score, screen_fall

ALLOWED, LOOKS, MEAN = 0.1, 10, 0.4
Look = dict[str, list[float | None]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--stages", type=int, default=1500)
    stages = parser.parse_args().stages
    draw = random.Random(1)
    print("| tasks | errors | false alarms, % | sees -0.1, % | sees -0.2, % |")
    print("|---|---|---|---|---|")
    for size in (32, 64, 128, 200):
        for errors in (0.0, 2.5, 3.0):
            shares = [sum(is_alarmed(draw, size, errors, f) for _ in range(stages)) / stages
                      for f in (0.0, 0.1, 0.2)]  # fmt: skip
            told = " | ".join(f"{100 * share:.0f}" for share in shares)
            print(f"| {size} | {errors:g} | {told} |", flush=True)
    return 0


def is_alarmed(draw: random.Random, size: int, errors: float, fall: float) -> bool:
    rates = [draw.betavariate(0.6, 0.9) for _ in range(size)]
    best = look(draw, rates)
    after = [r * (1 - fall / MEAN) for r in rates]
    for _ in range(1 if fall else LOOKS - 1):
        now = look(draw, after)
        lost, error = screen_fall(best, now)
        if lost > max(ALLOWED, errors * error):
            return True
        if mean_screen_score(now) > mean_screen_score(best):
            best = now
    return False


def look(draw: random.Random, rates: list[float]) -> Look:
    return {"screen": [float(draw.random() < rate) for rate in rates]}


if __name__ == "__main__":
    sys.exit(main())
