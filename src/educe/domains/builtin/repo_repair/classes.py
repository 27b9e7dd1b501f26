"""Classes with state: where caches go stale and objects share what they must not share."""

from __future__ import annotations

import random
from collections.abc import Mapping

from educe.domains.builtin.repo_repair.templates import Script, Template, bug
from educe.domains.builtin.repo_repair.vocabulary import WORDS

_Constants = Mapping[str, int]


def _ledger(rng: random.Random, name: str, constants: _Constants) -> Script:
    first, second, third = rng.sample(WORDS, 3)
    amounts = [rng.randint(1, 40) for _ in range(3)]
    return (
        (f"it = {name}()", False),
        ("it.total()", True),
        (f"it.add({first!r}, {amounts[0]})", False),
        ("it.total()", True),
        (f"it.add({second!r}, {amounts[1]})", False),
        (f"it.add({first!r}, {amounts[2]})", False),
        ("it.total()", True),
        (f"it.amount({first!r})", True),
        (f"it.drop({second!r})", False),
        ("it.total()", True),
        (f"it.drop({third!r})", False),
        (f"it.amount({third!r})", True),
        (f"{name}().total()", True),
    )


def _history(rng: random.Random, name: str, constants: _Constants) -> Script:
    values = [rng.randint(-9, 60) for _ in range(constants["a"] + rng.randint(1, 3))]
    return (
        (f"it, other = {name}(), {name}()", False),
        ("it.newest()", True),
        *((f"it.put({value})", False) for value in values[: constants["a"]]),
        ("it.values()", True),
        *((f"it.put({value})", False) for value in values[constants["a"] :]),
        ("it.values()", True),
        ("it.newest()", True),
        ("other.values()", True),
    )


def _store(rng: random.Random, name: str, constants: _Constants) -> Script:
    first, second = rng.sample(WORDS, 2)
    amount = rng.randint(5, 40)
    return (
        (f"it = {name}()", False),
        (f"it.put({first!r}, {amount})", False),
        (f"it.take({first!r}, {amount - rng.randint(1, 4)})", True),
        (f"it.left({first!r})", True),
        (f"it.take({first!r}, {amount})", True),
        (f"it.left({first!r})", True),
        (f"it.take({second!r}, 3)", True),
        (f"it.put({second!r}, {constants['a'] - 1})", False),
        ("it.low()", True),
        (f"it.put({second!r}, 1)", False),
        ("it.low()", True),
    )


def _queue(rng: random.Random, name: str, constants: _Constants) -> Script:
    names = rng.sample(WORDS, 4)
    ranks = [rng.randint(1, 3) for _ in range(3)] + [constants["a"]]
    joins = [(f"it.join({n!r}, {r})", False) for n, r in zip(names, ranks, strict=True)]
    return (
        (f"it = {name}()", False),
        ("it.call()", True),
        *joins[:2],
        ("it.waiting()", True),
        *joins[2:],
        (f"it.join({names[0]!r})", False),
        *[("it.call()", True)] * 3,
        ("it.waiting()", True),
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
        "store",
        "class",
        ("Store", "Stock"),
        '''
class $name:
    """How many things there are of each name."""

    def __init__(self):
        self._counts = {}

    def put(self, name, count):
        """Add things of a name."""
        self._counts[name] = self.left(name) + count

    def take(self, name, count):
        """Take things of a name, at most what is left; return how many were taken."""
        taken = min(count, self.left(name))
        self._counts[name] = self.left(name) - taken
        return taken

    def left(self, name):
        """Return how many things of a name are left."""
        return self._counts.get(name, 0)

    def low(self):
        """Return the names of which fewer than $a are left, sorted."""
        return sorted(name for name, count in self._counts.items() if count < $a)
''',
        (
            bug("missing-edge-case", "taken = min(count, self.left(name))", "taken = count"),
            bug("swapped-functions", "min(count, self.left(name))", "max(count, self.left(name))"),
            bug("wrong-operator", "self.left(name) - taken", "self.left(name) + taken"),
            bug("wrong-variable", "self.left(name) - taken", "self.left(name) - count"),
            bug("wrong-comparison", "count < $a", "count <= $a"),
            bug("missing-step", "self.left(name) + count", "count"),
        ),
        {"a": (3, 9)},
        script=_store,
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
