"""Generated functions of some topics agree with what a second, plainer program computes."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence

from educe.domains.builtin.python_functions.problem import Case, instantiate
from educe.domains.builtin.python_functions.registry import GENERATORS


def cases_with(topic: str, words: Sequence[str], num_draws: int) -> Iterator[tuple[str, Case]]:
    """Yield (wording, case) of problems whose wording holds all the words."""
    rng = random.Random(topic)
    for _ in range(num_draws):
        problem = GENERATORS[topic, topic_level(topic)](rng)
        if all(word in problem.returns for word in words):
            instance = instantiate(problem, rng, 2, 10)
            for case in (*instance.shown, *instance.hidden) if instance else ():
                yield problem.returns, case


def topic_level(topic: str) -> str:
    """The hardest level of a topic."""
    return [level for name, level in GENERATORS if name == topic][-1]


def between(text: str, start: str, end: str) -> str:
    return text.split(start)[1].split(end)[0]


def climb(step: int, jumps: list[int], divisor: int) -> int:
    """Count by recursion from the top, unlike the reference's table from the bottom."""
    if step == 0:
        return 1
    if step < 0 or step % divisor == 0:
        return 0
    return sum(climb(step - jump, jumps, divisor) for jump in jumps)


def test_stairs_agree_with_plain_recursion() -> None:
    checked = 0
    for text, case in cases_with("stairs", ["divisible by"], 60):
        if "styles" in text or case.args[0] > 14:
            continue
        jumps = ast.literal_eval(between(text, "jumps of ", " steps"))
        divisor = int(between(text + " ", "divisible by ", " "))
        assert climb(case.args[0], jumps, divisor) == case.expected
        checked += 1
    assert checked > 5


def purses(amount: int, coins: list[int], is_once: bool) -> list[int]:
    """All ways to pay, as numbers of coins, by trying every number of each coin."""
    if not coins:
        return [0] if amount == 0 else []
    first, *rest = coins
    most = min(amount // first, 1) if is_once else amount // first
    return [k + n for k in range(most + 1) for n in purses(amount - k * first, rest, is_once)]


def test_coins_agree_with_trying_every_purse() -> None:
    kinds = set()
    for text, case in cases_with("coins", ["k plus "], 120):
        add = int(between(text, "k plus ", ","))
        coins = ast.literal_eval(between(text, "coins of ", ", each"))
        is_once, is_least = "at most once" in text, "least number" in text
        found = purses(case.args[0], coins, is_once)
        if is_least:
            impossible = int(between(text, "needed (" if not is_once else "once (", " if that"))
            assert case.expected == (min(found) + add if found else impossible)
        else:
            assert case.expected == len(found) + add
        kinds.add((is_once, is_least))
    assert len(kinds) >= 3


def test_numbers_written_in_a_base_read_back() -> None:
    checked = 0
    for text, case in cases_with("bases", ["padded on the left with '0'"], 150):
        if "digits written" not in text:
            base = int(between(text, "in base ", ","))
            assert int(case.expected, base) == case.args[0]
            assert len(case.expected) >= int(between(text, "at least ", " characters"))
            checked += 1
    assert checked > 5


def test_spirals_agree_with_walking() -> None:
    checked = 0
    for text, case in cases_with("matrix", ["transposed", "v plus ", "greater than "], 800):
        grid = [list(column) for column in zip(*case.args[0], strict=True)]
        add, bound = int(text.split("v plus ")[1]), int(between(text, "greater than ", ";"))
        assert case.expected == [v + add for v in walk(grid) if v > bound]
        checked += 1
    assert checked > 0


def walk(grid: list[list[int]]) -> list[int]:
    """Walk with a heading that turns right at visited cells and edges."""
    height, width = len(grid), len(grid[0])
    seen: set[tuple[int, int]] = set()
    row, column, down, right, out = 0, 0, 0, 1, []
    while len(seen) < height * width:
        seen.add((row, column))
        out.append(grid[row][column])
        ahead = (row + down, column + right)
        if ahead in seen or not (0 <= ahead[0] < height and 0 <= ahead[1] < width):
            down, right = right, -down
        row, column = row + down, column + right
    return out
