"""Classes with state: where caches go stale and objects share what they must not share."""

from __future__ import annotations

import random
from collections.abc import Mapping

from educe.domains.builtin.repo_repair.templates import Script, Step, Template, bug
from educe.domains.builtin.repo_repair.vocabulary import WORDS

_Constants = Mapping[str, int]


def _do(statement: str) -> Step:
    return statement, False


def _see(expression: str) -> Step:
    return expression, True


def _ledger(rng: random.Random, name: str, constants: _Constants) -> Script:
    first, second, third = rng.sample(WORDS, 3)
    amounts = [rng.randint(1, 40) for _ in range(3)]
    return (
        _do(f"it = {name}()"),
        _see("it.total()"),
        _do(f"it.add({first!r}, {amounts[0]})"),
        _see("it.total()"),
        _do(f"it.add({second!r}, {amounts[1]})"),
        _do(f"it.add({first!r}, {amounts[2]})"),
        _see("it.total()"),
        _see(f"it.amount({first!r})"),
        _do(f"it.drop({second!r})"),
        _see("it.total()"),
        _do(f"it.drop({third!r})"),
        _see(f"it.amount({third!r})"),
        _see(f"{name}().total()"),
    )


def _history(rng: random.Random, name: str, constants: _Constants) -> Script:
    values = [rng.randint(-9, 60) for _ in range(constants["a"] + rng.randint(1, 3))]
    return (
        _do(f"it, other = {name}(), {name}()"),
        _see("it.newest()"),
        *(_do(f"it.put({value})") for value in values[: constants["a"]]),
        _see("it.values()"),
        *(_do(f"it.put({value})") for value in values[constants["a"] :]),
        _see("it.values()"),
        _see("it.newest()"),
        _see("other.values()"),
    )


def _schedule(rng: random.Random, name: str, constants: _Constants) -> Script:
    length, start = constants["a"], rng.randint(0, 9)
    end = start + length + rng.randint(1, 4)
    late = end + length + rng.randint(1, 3)
    later = late + length
    return (
        _do(f"it = {name}()"),
        _see(f"it.take({late}, {later})"),
        _see(f"it.take({start}, {end})"),
        _see(f"it.gap({start})"),
        _see(f"it.take({end - 1}, {late})"),
        _see(f"it.take({end}, {late})"),
        _see(f"it.gap({start})"),
        _see(f"it.gap({later + 9})"),
        _see(f"it.take({later + 5}, {later + 4 + length})"),
        _see("it.taken()"),
    )


def _queue(rng: random.Random, name: str, constants: _Constants) -> Script:
    names = rng.sample(WORDS, 4)
    ranks = [rng.randint(1, 3) for _ in range(3)] + [constants["a"]]
    joins = [_do(f"it.join({n!r}, {r})") for n, r in zip(names, ranks, strict=True)]
    return (
        _do(f"it = {name}()"),
        _see("it.call()"),
        *joins[:2],
        _see("it.waiting()"),
        *joins[2:],
        _do(f"it.join({names[0]!r})"),
        *[_see("it.call()")] * 3,
        _see("it.waiting()"),
    )


CLASSES = (
    Template(
        "ledger",
        "class",
        ("Ledger", "Account"),
        '''
class $name:
    """Amounts by name. The total starts at $a; it is kept until an amount changes."""

    def __init__(self):
        self._amounts = {}
        self._total = None

    def add(self, name, amount):
        """Add to the amount of a name, which is 0 at first."""
        self._amounts[name] = self._amounts.get(name, 0) + amount
        self._total = None  # added

    def drop(self, name):
        """Forget a name; an unknown one is no error."""
        self._amounts.pop(name, None)
        self._total = None  # dropped

    def amount(self, name):
        """Return the amount of a name, 0 for an unknown one."""
        return self._amounts.get(name, 0)

    def total(self):
        """Return $a plus all amounts."""
        if self._total is None:
            self._total = $a + sum(self._amounts.values())
        return self._total
''',
        (
            bug("stale-cache", "        self._total = None  # added\n", ""),
            bug("stale-cache", "        self._total = None  # dropped\n", ""),
            bug(
                "wrong-operator",
                "= self._amounts.get(name, 0) + amount",
                "= self._amounts.get(name, 0) - amount",
            ),
            bug("missing-step", "= self._amounts.get(name, 0) + amount", "= amount"),
            bug("missing-edge-case", "pop(name, None)", "pop(name)"),
        ),
        {"a": (0, 60)},
        script=_ledger,
    ),
    Template(
        "history",
        "class",
        ("History", "Recent"),
        '''
class $name:
    """The last $a values that were put in, the oldest first."""

    def __init__(self):
        self._values = []

    def put(self, value):
        """Add a value; when there are more than $a, the oldest goes."""
        self._values.append(value)
        if len(self._values) > $a:
            self._values.pop(0)

    def values(self):
        """Return the values as a list."""
        return list(self._values)

    def newest(self):
        """Return the value that was put in last, $b when there is none."""
        return self._values[-1] if self._values else $b
''',
        (
            bug("off-by-one", "len(self._values) > $a:", "len(self._values) > $a + 1:"),
            bug("wrong-comparison", "len(self._values) > $a:", "len(self._values) >= $a:"),
            bug("wrong-order", "self._values.pop(0)", "self._values.pop()"),
            bug(
                "shared-state",
                "    def __init__(self):\n        self._values = []\n",
                "    _values = []\n",
            ),
            bug(
                "missing-edge-case", "self._values[-1] if self._values else $b", "self._values[-1]"
            ),
            bug("off-by-one", "self._values[-1] if", "self._values[0] if"),
        ),
        {"a": (3, 5), "b": (-20, 40)},
        script=_history,
    ),
    Template(
        "schedule",
        "class",
        ("Schedule", "Diary"),
        '''
class $name:
    """Times that are taken, each from a start up to, but not including, an end."""

    def __init__(self):
        self._taken = []

    def take(self, start, end):
        """Take a time of $a or more if all of it is free; return whether it was taken."""
        if end - start < $a or not self._is_free(start, end):
            return False
        self._taken.append([start, end])
        self._taken.sort()
        return True

    def gap(self, after):
        """Return the first start, not before a time, from which $a are free."""
        for start, end in self._taken:
            if after + $a <= start:
                break
            after = max(after, end)
        return after

    def taken(self):
        """Return [start, end] of all times that are taken, the earliest first."""
        return [list(times) for times in self._taken]

    def _is_free(self, start, end):
        return all(end <= first or last <= start for first, last in self._taken)
''',
        (
            bug("wrong-comparison", "end <= first or", "end < first or"),
            bug("wrong-comparison", "last <= start for", "last < start for"),
            bug("off-by-one", "end - start < $a", "end - start <= $a"),
            bug("missing-edge-case", "end - start < $a or ", ""),
            bug("missing-step", "        self._taken.sort()\n", ""),
            bug("wrong-variable", "after = max(after, end)", "after = end"),
            bug("swapped-functions", "all(end", "any(end"),
        ),
        {"a": (2, 6)},
        script=_schedule,
    ),
    Template(
        "queue",
        "class",
        ("Line", "Counter"),
        '''
class $name:
    """Names that wait: lower ranks first, and of equal ranks whoever came first."""

    def __init__(self):
        self._entries = []

    def join(self, name, rank=$a):
        """Add a name with a rank, $a by default."""
        self._entries.append((rank, name))
        self._entries.sort(key=lambda entry: entry[0])

    def call(self):
        """Remove the first name and return it, '' when nobody waits."""
        if not self._entries:
            return ""
        return self._entries.pop(0)[1]

    def waiting(self):
        """Return the names in the order in which they will be called."""
        return [name for _, name in self._entries]
''',
        (
            bug("wrong-default", "rank=$a", "rank=0"),
            bug("wrong-order", "self._entries.pop(0)[1]", "self._entries.pop()[1]"),
            bug("missing-edge-case", '        if not self._entries:\n            return ""\n', ""),
            bug(
                "missing-step",
                "        self._entries.sort(key=lambda entry: entry[0])\n",
                "",
            ),
            bug("wrong-order", "key=lambda entry: entry[0]", "key=lambda entry: -entry[0]"),
        ),
        {"a": (2, 5)},
        script=_queue,
    ),
)
