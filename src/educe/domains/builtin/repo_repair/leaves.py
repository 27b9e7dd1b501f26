"""Functions that call no other: what the packages compute with."""

from __future__ import annotations

from educe.domains.builtin.repo_repair.templates import Template, bug

OF_NUMBERS = (
    Template(
        "tiered",
        "n->n",
        ("fee", "charge", "toll"),
        '''
def $name(amount):
    """Return $a for an amount of at most $b, else $c."""
    if amount <= $b:
        return $a
    return $c
''',
        (
            bug("wrong-comparison", "amount <= $b", "amount < $b"),
            bug("off-by-one", "amount <= $b", "amount <= $b + 1"),
        ),
        {"a": (2, 9), "b": (5, 40), "c": (10, 30)},
    ),
    Template(
        "clamped",
        "n->n",
        ("clamped", "limited", "bounded"),
        '''
def $name(number, low=$a, high=$b):
    """Return the number, but at least low ($a by default) and at most high (default $b)."""
    return max(low, min(high, number))
''',
        (
            bug("wrong-default", "high=$b", "high=$c"),
            bug("wrong-default", "low=$a", "low=-$a"),
            bug("swapped-functions", "max(low, min(high, number))", "min(low, max(high, number))"),
        ),
        {"a": (1, 9), "b": (20, 45), "c": (46, 60)},
    ),
    Template(
        "rounded",
        "n->n",
        ("rounded", "filled", "padded"),
        '''
def $name(amount):
    """Return the amount rounded up to a multiple of $a."""
    return (amount + $a - 1) // $a * $a
''',
        (
            bug("off-by-one", "amount + $a - 1", "amount + $a"),
            bug("missing-step", "// $a * $a", "// $a"),
            bug("wrong-operator", "amount + $a - 1", "amount - $a - 1"),
        ),
        {"a": (3, 25)},
    ),
    Template(
        "digits",
        "n->n",
        ("digits", "digit_sum", "check_sum"),
        '''
def $name(number):
    """Return the sum of the digits of a number plus $a; its sign does not count."""
    total = $a
    for digit in str(abs(number)):
        total += int(digit)
    return total
''',
        (
            bug("missing-edge-case", "str(abs(number))", "str(number)"),
            bug("early-return", "\n    return total", "\n        return total"),
            bug("wrong-operator", "total += int", "total -= int"),
        ),
        {"a": (1, 40)},
    ),
    Template(
        "halvings",
        "n->n",
        ("halvings", "splits", "rounds"),
        '''
def $name(amount):
    """Return how often an amount can be halved until it is below $a."""
    count = 0
    while amount >= $a:
        amount //= 2
        count += 1
    return count
''',
        (
            bug("wrong-comparison", "amount >= $a", "amount > $a"),
            bug("off-by-one", "count = 0", "count = 1"),
        ),
        {"a": (2, 30)},
    ),
    Template(
        "discounted",
        "nn->n",
        ("discounted", "reduced", "net"),
        '''
def $name(price, percent):
    """Return the price less a percentage, rounded up, and at least $a."""
    lowered = price - price * percent // 100
    return max(lowered, $a)
''',
        (
            bug("wrong-operator", "price - price *", "price + price *"),
            bug("missing-edge-case", "return max(lowered, $a)", "return lowered"),
            bug("swapped-functions", "max(lowered, $a)", "min(lowered, $a)"),
        ),
        {"a": (1, 30)},
    ),
    Template(
        "needed",
        "nn->n",
        ("needed", "required", "wanted"),
        '''
def $name(count, size):
    """Return how many boxes of a size hold count + $a things; a size below 1 counts as 1."""
    size = max(1, size)
    return (count + $a + size - 1) // size
''',
        (
            bug("missing-edge-case", "    size = max(1, size)\n", ""),
            bug("off-by-one", "+ size - 1) //", "+ size) //"),
            bug("wrong-operator", "(count + $a", "(count - $a"),
        ),
        {"a": (1, 30)},
    ),
    Template(
        "overdue",
        "nn->n",
        ("overdue", "late", "extra"),
        '''
def $name(days, rate):
    """Return the rate for each day after the first $a days."""
    return max(0, days - $a) * rate
''',
        (
            bug("off-by-one", "days - $a", "days - $a - 1"),
            bug("wrong-operator", "days - $a", "days + $a"),
            bug("missing-edge-case", "max(0, days - $a)", "(days - $a)"),
            bug("wrong-variable", "max(0, days - $a) * rate", "max(0, rate - $a) * days"),
        ),
        {"a": (1, 20)},
    ),
    Template(
        "known",
        "nn->n",
        ("weight", "load", "effort"),
        '''
_known_$name = {}


def $name(count, step):
    """Return count times $a, plus step; what was computed before is remembered."""
    key = (count, step)
    if key not in _known_$name:
        _known_$name[key] = count * $a + step
    return _known_$name[key]
''',
        (
            bug("stale-cache", "key = (count, step)", "key = count"),
            bug("stale-cache", "key = (count, step)", "key = step"),
            bug("wrong-operator", "$a + step", "$a - step"),
        ),
        {"a": (2, 30)},
    ),
    Template(
        "behind",
        "nn->n",
        ("behind", "missing", "short"),
        '''
def $name(goal, reached):
    """Return $a for each whole step that reached is below the goal, else 0."""
    return max(0, goal - reached) * $a
''',
        (
            bug("swapped-arguments", "goal - reached", "reached - goal"),
            bug("missing-edge-case", "max(0, goal - reached)", "(goal - reached)"),
        ),
        {"a": (1, 30)},
    ),
    Template(
        "turned",
        "nn->n",
        ("turned", "moved", "next_place"),
        '''
def $name(place, steps):
    """Return the place reached after some steps on a ring of places 1 to $a."""
    return (place - 1 + steps) % $a + 1
''',
        (
            bug("off-by-one", "place - 1 + steps", "place + steps"),
            bug("off-by-one", "% $a + 1", "% $a"),
            bug("wrong-operator", "1 + steps", "1 - steps"),
        ),
        {"a": (5, 40)},
    ),
)

OF_LISTS = (
    Template(
        "total_from",
        "v->n",
        ("total", "sum_from", "income"),
        '''
def $name(values):
    """Return the sum of the values that are at least $a."""
    total = 0
    for value in values:
        if value >= $a:
            total += value
    return total
''',
        (
            bug("wrong-comparison", "value >= $a", "value > $a"),
            bug("early-return", "\n    return total", "\n        return total"),
            bug("off-by-one", "total = 0", "total = 1"),
            bug("wrong-variable", "total += value", "total = value"),
        ),
        {"a": (1, 20)},
    ),
    Template(
        "spread",
        "v->n",
        ("spread", "span", "width"),
        '''
def $name(values):
    """Return the largest value less the smallest, plus $a; 0 for no values."""
    if not values:
        return 0
    return max(values) - min(values) + $a
''',
        (
            bug("missing-edge-case", "    if not values:\n        return 0\n", ""),
            bug("wrong-operator", "max(values) - min", "max(values) + min"),
            bug("wrong-variable", "max(values) - min(values)", "max(values) - values[0]"),
        ),
        {"a": (1, 40)},
    ),
    Template(
        "longest_run",
        "v->n",
        ("longest", "streak", "series"),
        '''
def $name(values):
    """Return $a times the length of the longest run of equal neighbours."""
    best = run = 0
    previous = None
    for value in values:
        run = run + 1 if value == previous else 1
        previous = value
        best = max(best, run)
    return best * $a
''',
        (
            bug("off-by-one", "else 1", "else 0"),
            bug("missing-step", "        previous = value\n", ""),
            bug("wrong-variable", "best = max(best, run)", "best = run"),
        ),
        {"a": (1, 30)},
    ),
    Template(
        "from_end",
        "v->n",
        ("recent", "latest", "lately"),
        '''
def $name(values, back=$a):
    """Return the value that is back ($a by default) places from the end, $b if there is none.

    The last value is 1 place from the end.
    """
    if len(values) < back:
        return $b
    return values[-back]
''',
        (
            bug("wrong-default", "back=$a", "back=$a + 1"),
            bug("wrong-comparison", "len(values) < back", "len(values) <= back"),
            bug("missing-edge-case", "    if len(values) < back:\n        return $b\n", ""),
        ),
        {"a": (1, 3), "b": (0, 40)},
    ),
    Template(
        "mean",
        "v->n",
        ("mean", "average", "typical"),
        '''
def $name(values):
    """Return the mean of the values, rounded down; $a for no values."""
    if not values:
        return $a
    return sum(values) // len(values)
''',
        (
            bug("missing-edge-case", "    if not values:\n        return $a\n", ""),
            bug("off-by-one", "// len(values)", "// (len(values) + 1)"),
            bug("wrong-default", "return $a", "return -$a"),
        ),
        {"a": (1, 60)},
    ),
    Template(
        "running",
        "v->v",
        ("running", "levels", "progress"),
        '''
def $name(values):
    """Return what there is after each value is added to $a at the start."""
    levels = []
    level = $a
    for value in values:
        level += value
        levels.append(level)
    return levels
''',
        (
            bug(
                "wrong-order",
                "        level += value\n        levels.append(level)\n",
                "        levels.append(level)\n        level += value\n",
            ),
            bug("early-return", "\n    return levels", "\n        return levels"),
            bug("wrong-operator", "level += value", "level -= value"),
            bug("wrong-variable", "levels.append(level)", "levels.append(value)"),
        ),
        {"a": (0, 60)},
    ),
    Template(
        "changes",
        "v->v",
        ("changes", "steps", "jumps"),
        '''
def $name(values):
    """Return how much each value is above the one before it, plus $a."""
    return [after - before + $a for before, after in zip(values, values[1:])]
''',
        (
            bug("swapped-arguments", "after - before", "before - after"),
            bug("off-by-one", "values[1:]", "values[2:]"),
            bug("wrong-operator", "before + $a", "before - $a"),
        ),
        {"a": (1, 40)},
    ),
    Template(
        "largest",
        "v->v",
        ("largest", "leaders", "top"),
        '''
def $name(values, count=$a):
    """Return the largest values, the largest first: $a of them by default."""
    return sorted(values, reverse=True)[:count]
''',
        (
            bug("wrong-default", "count=$a", "count=$a + 1"),
            bug("wrong-order", "sorted(values, reverse=True)", "sorted(values)"),
            bug("off-by-one", "[:count]", "[: count - 1]"),
            bug("missing-step", "sorted(values, reverse=True)[:count]", "values[:count]"),
        ),
        {"a": (2, 4)},
    ),
    Template(
        "distinct",
        "v->v",
        ("distinct", "unique", "first_seen"),
        '''
def $name(values):
    """Return the values above $a without repeats, in the order of their first places."""
    seen = []
    for value in values:
        if value > $a and value not in seen:
            seen.append(value)
    return seen
''',
        (
            bug("wrong-order", "return seen", "return sorted(seen)"),
            bug("wrong-comparison", "value > $a", "value >= $a"),
            bug("wrong-comparison", "value not in seen", "value in seen"),
            bug("early-return", "\n    return seen", "\n        return seen"),
        ),
        {"a": (-4, 10)},
    ),
    Template(
        "picked",
        "v->v",
        ("picked", "highlights", "best_of"),
        '''
def $name(values, picked=None):
    """Return a new list: picked, if given, then the largest value, if any, plus $a."""
    picked = [] if picked is None else list(picked)
    if values:
        picked.append(max(values) + $a)
    return picked
''',
        (
            bug(
                "shared-state",
                "picked=None):",
                "picked=[]):",
                "    picked = [] if picked is None else list(picked)\n",
                "",
            ),
            bug("missing-edge-case", "    if values:\n        picked.app", "    picked.app"),
            bug("swapped-functions", "max(values)", "min(values)"),
        ),
        {"a": (0, 40)},
    ),
    Template(
        "windows",
        "v->v",
        ("windows", "moving", "blocks"),
        '''
def $name(values):
    """Return the sum of each $a neighbours plus $b, from first to last."""
    return [sum(values[i : i + $a]) + $b for i in range(len(values) - $a + 1)]
''',
        (
            bug("off-by-one", "- $a + 1)", "- $a)"),
            bug("off-by-one", "[i : i + $a]", "[i : i + $a - 1]"),
            bug("wrong-operator", "$a]) + $b", "$a]) - $b"),
        ),
        {"a": (2, 3), "b": (1, 30)},
    ),
)

OF_TEXTS = (
    Template(
        "slug",
        "t->t",
        ("slug", "tag", "file_name"),
        '''
def $name(text):
    """Return the words of the text in lower case, joined by '-', with '-$a' at the end."""
    return "-".join(text.lower().split()) + "-$a"
''',
        (
            bug("missing-step", "text.lower().split()", "text.split()"),
            bug("missing-edge-case", ".split())", '.split(" "))'),
        ),
        {"a": (1, 60)},
    ),
    Template(
        "initials",
        "t->t",
        ("initials", "short_form", "code"),
        '''
def $name(text):
    """Return the first letters of the first $a words in upper case."""
    return "".join(word[0].upper() for word in text.split()[:$a])
''',
        (
            bug("off-by-one", "word[0]", "word[-1]"),
            bug("missing-step", "word[0].upper()", "word[0]"),
            bug("off-by-one", "[:$a]", "[1:$a]"),
        ),
        {"a": (2, 6)},
    ),
    Template(
        "shortened",
        "t->t",
        ("shortened", "caption", "title"),
        '''
def $name(text):
    """Return a text of at most $a characters: what is longer is cut and ends with '.'."""
    if len(text) <= $a:
        return text
    return text[: $a - 1] + "."
''',
        (
            bug("off-by-one", "[: $a - 1]", "[:$a]"),
            bug("wrong-comparison", "len(text) <= $a", "len(text) < $a"),
            bug("missing-edge-case", "    if len(text) <= $a:\n        return text\n", ""),
        ),
        {"a": (4, 16)},
    ),
    Template(
        "long_words",
        "t->n",
        ("long_words", "key_words", "weighty"),
        '''
def $name(text):
    """Return how many words of the text have at least $a letters."""
    count = 0
    for word in text.split():
        if len(word) >= $a:
            count += 1
    return count
''',
        (
            bug("wrong-comparison", "len(word) >= $a", "len(word) > $a"),
            bug("early-return", "\n    return count", "\n        return count"),
            bug("missing-edge-case", "text.split()", 'text.split(" ")[1:]'),
            bug("off-by-one", "count = 0", "count = 1"),
        ),
        {"a": (4, 6)},
    ),
)

LEAVES = (*OF_NUMBERS, *OF_LISTS, *OF_TEXTS)
