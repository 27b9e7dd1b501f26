"""Functions that call others: what makes a package hang together, and what an API change breaks."""

from __future__ import annotations

from educe.domains.builtin.repo_repair.templates import Template, bug

_ADDED = {"a": (1, 40)}

CALLERS = (
    # ---- of a function of one number ----
    Template(
        "sum_of_each",
        "v->n",
        ("bill", "sum", "amount"),
        '''
def $name(values):
    """Return the sum of {f} over the values, plus $a."""
    total = $a
    for value in values:
        total += <f: value>
    return total
''',
        (
            bug("wrong-operator", "total += ", "total -= "),
            bug("early-return", "\n    return total", "\n        return total"),
            bug("wrong-variable", "total += <f: value>", "total += <f: total>"),
        ),
        _ADDED,
        ("n->n",),
    ),
    Template(
        "each",
        "v->v",
        ("list", "column", "chart"),
        '''
def $name(values):
    """Return {f} of each value above $a, in their order."""
    return [<f: value> for value in values if value > $a]
''',
        (
            bug("wrong-comparison", "value > $a", "value >= $a"),
            bug("missing-step", "[<f: value> for", "[value for"),
            bug("wrong-order", "for value in values if", "for value in sorted(values) if"),
        ),
        {"a": (-3, 9)},
        ("n->n",),
    ),
    Template(
        "plus",
        "n->n",
        ("with_deposit", "with_tax", "final"),
        '''
def $name(number):
    """Return {f} of the number, plus $a, but never more than $b."""
    return min(<f: number> + $a, $b)
''',
        (
            bug("wrong-operator", "+ $a", "- $a"),
            bug("swapped-functions", "min(", "max("),
            bug("missing-edge-case", "min(<f: number> + $a, $b)", "<f: number> + $a"),
        ),
        {"a": (1, 40), "b": (45, 90)},
        ("n->n",),
    ),
    Template(
        "compared",
        "nn->n",
        ("gain", "lead", "excess"),
        '''
def $name(first, second):
    """Return {f} of first less the same of second, plus $a."""
    return <f: first> - <f: second> + $a
''',
        (
            bug("swapped-arguments", "<f: first> - <f: second>", "<f: second> - <f: first>"),
            bug("wrong-variable", "- <f: second>", "- <f: first>"),
            bug("wrong-operator", "<f: first> -", "<f: first> +"),
        ),
        _ADDED,
        ("n->n",),
    ),
    # ---- of a function of two numbers ----
    Template(
        "with_fixed",
        "n->n",
        ("usual", "standard", "ordinary"),
        '''
def $name(number):
    """Return {f} of the number and $a."""
    return <f: number; $a>
''',
        (
            bug("swapped-arguments", "<f: number; $a>", "<f: $a; number>"),
            bug("off-by-one", "<f: number; $a>", "<f: number; $a + 1>"),
        ),
        {"a": (2, 30)},
        ("nn->n",),
    ),
    Template(
        "sum_with_fixed",
        "v->n",
        ("season", "monthly", "yearly"),
        '''
def $name(values):
    """Return the sum of {f} over each value and $a; $b for no values."""
    if not values:
        return $b
    return sum(<f: value; $a> for value in values)
''',
        (
            bug("swapped-arguments", "<f: value; $a>", "<f: $a; value>"),
            bug("missing-edge-case", "    if not values:\n        return $b\n", ""),
            bug("swapped-functions", "return sum(", "return max("),
        ),
        {"a": (2, 30), "b": (1, 40)},
        ("nn->n",),
    ),
    Template(
        "both_ways",
        "nn->n",
        ("pair", "combined", "joint"),
        '''
def $name(first, second):
    """Return {f} of first and $a, plus {f} of $a and second."""
    return <f: first; $a> + <f: $a; second>
''',
        (
            bug("swapped-arguments", "<f: $a; second>", "<f: second; $a>"),
            bug("wrong-operator", "> + <", "> - <"),
            bug("wrong-variable", "<f: $a; second>", "<f: $a; first>"),
        ),
        {"a": (2, 30)},
        ("nn->n",),
    ),
    Template(
        "with_place",
        "v->v",
        ("schedule", "ladder", "series"),
        '''
def $name(values):
    """Return {f} of each value and its place in the list; places count from $a."""
    return [<f: value; place> for place, value in enumerate(values, $a)]
''',
        (
            bug("off-by-one", "enumerate(values, $a)", "enumerate(values, $a - 1)"),
            bug("swapped-arguments", "<f: value; place>", "<f: place; value>"),
            bug("wrong-default", "enumerate(values, $a)", "enumerate(values)"),
        ),
        {"a": (1, 9)},
        ("nn->n",),
    ),
    # ---- of a function of a list ----
    Template(
        "scaled_result",
        "v->n",
        ("budget", "estimate", "reserve"),
        '''
def $name(values):
    """Return $a times {f} of the values, and $b for no values."""
    if not values:
        return $b
    return $a * <f: values>
''',
        (
            bug("missing-edge-case", "    if not values:\n        return $b\n", ""),
            bug("wrong-operator", "$a * <f", "$a + <f"),
            bug("wrong-variable", "<f: values>", "<f: values[1:]>"),
        ),
        {"a": (2, 6), "b": (1, 40)},
        ("v->n",),
    ),
    Template(
        "of_three",
        "n->n",
        ("forecast", "outlook", "guess"),
        '''
def $name(number):
    """Return {f} of three values: the number, the number plus $a, and $b."""
    return <f: [number, number + $a, $b]>
''',
        (
            bug("wrong-operator", "number + $a", "number - $a"),
            bug("wrong-order", "[number, number + $a, $b]", "[$b, number + $a, number]"),
            bug("missing-step", "[number, number + $a, $b]", "[number, number + $a]"),
        ),
        {"a": (1, 20), "b": (1, 40)},
        ("v->n",),
    ),
    Template(
        "up_to",
        "v->v",
        ("modest", "usable", "regular"),
        '''
def $name(values):
    """Return the values, in their order, that are at most {f} of all values plus $a."""
    limit = <f: values> + $a
    return [value for value in values if value <= limit]
''',
        (
            bug("wrong-comparison", "value <= limit", "value < limit"),
            bug("wrong-comparison", "value <= limit", "value >= limit"),
            bug("wrong-operator", "> + $a", "> - $a"),
        ),
        {"a": (0, 9)},
        ("v->n",),
    ),
    Template(
        "last_of",
        "v->n",
        ("closing", "end", "outcome"),
        '''
def $name(values):
    """Return the last of {f} of the values, and $a if that is empty."""
    found = <f: values>
    return found[-1] if found else $a
''',
        (
            bug("off-by-one", "found[-1]", "found[0]"),
            bug("missing-edge-case", "found[-1] if found else $a", "found[-1]"),
            bug("wrong-default", "else $a", "else 0"),
        ),
        _ADDED,
        ("v->v",),
    ),
    Template(
        "of_raised",
        "v->v",
        ("raised", "adjusted", "shifted"),
        '''
def $name(values):
    """Return {f} of the values after $a is added to each that is above 0."""
    raised = [value + $a if value > 0 else value for value in values]
    return <f: raised>
''',
        (
            bug("wrong-comparison", "value > 0", "value < 0"),
            bug("wrong-operator", "value + $a", "value - $a"),
            bug("missing-edge-case", "value + $a if value > 0 else value", "value + $a"),
        ),
        _ADDED,
        ("v->v",),
    ),
    Template(
        "sum_of_list",
        "v->n",
        ("volume", "turnover", "sum_total"),
        '''
def $name(values):
    """Return the sum of {f} of the values, plus $a times its length."""
    found = <f: values>
    return sum(found) + $a * len(found)
''',
        (
            bug("wrong-variable", "len(found)", "len(values)"),
            bug("wrong-operator", "+ $a *", "- $a *"),
            bug("swapped-functions", "sum(found)", "max(found, default=0)"),
        ),
        {"a": (1, 9)},
        ("v->v",),
    ),
    # ---- of a function of a text ----
    Template(
        "marked",
        "t->t",
        ("marked", "stamped", "signed"),
        '''
def $name(text):
    """Return {f} of the text with '/$a' at its end, and '?' for an empty text."""
    if not text:
        return "?"
    return <f: text> + "/$a"
''',
        (
            bug("missing-edge-case", '    if not text:\n        return "?"\n', ""),
            bug("wrong-order", '<f: text> + "/$a"', '"/$a" + <f: text>'),
        ),
        {"a": (1, 90)},
        ("t->t",),
    ),
    Template(
        "length_of",
        "t->n",
        ("size", "length", "room_for"),
        '''
def $name(text):
    """Return how many characters {f} of the text has, plus $a."""
    return len(<f: text>) + $a
''',
        (
            bug("missing-step", "len(<f: text>)", "len(text)"),
            bug("wrong-operator", "+ $a", "- $a"),
        ),
        _ADDED,
        ("t->t",),
    ),
    Template(
        "scaled_text",
        "t->n",
        ("rating", "rank", "cost"),
        '''
def $name(text):
    """Return $a times {f} of the text, but at most $b."""
    return min($b, $a * <f: text>)
''',
        (
            bug("swapped-functions", "min(", "max("),
            bug("wrong-operator", "$a * <f", "$a + <f"),
        ),
        {"a": (2, 6), "b": (8, 40)},
        ("t->n",),
    ),
    # ---- of two functions ----
    Template(
        "list_then_number",
        "v->n",
        ("summary", "figure", "index"),
        '''
def $name(values):
    """Return {g} of what {f} of the values gives, plus $a."""
    return <g: <f: values>> + $a
''',
        (
            bug("missing-step", "<g: <f: values>>", "<g: values>"),
            bug("wrong-operator", "+ $a", "- $a"),
        ),
        _ADDED,
        ("v->v", "v->n"),
    ),
    Template(
        "number_then_pair",
        "v->n",
        ("quote", "price_for", "claim"),
        '''
def $name(values):
    """Return {g} of two numbers: {f} of the values, and $a."""
    return <g: <f: values>; $a>
''',
        (bug("swapped-arguments", "<g: <f: values>; $a>", "<g: $a; <f: values>>"),),
        {"a": (2, 30)},
        ("v->n", "nn->n"),
    ),
    Template(
        "pair_then_number",
        "nn->n",
        ("settled", "due", "payable"),
        '''
def $name(first, second):
    """Return {f} of what {g} of first and second gives, less $a."""
    return <f: <g: first; second>> - $a
''',
        (
            bug("swapped-arguments", "<g: first; second>", "<g: second; first>"),
            bug("wrong-operator", "> - $a", "> + $a"),
        ),
        _ADDED,
        ("n->n", "nn->n"),
    ),
    Template(
        "text_then_number",
        "t->n",
        ("worth", "points", "mark_for"),
        '''
def $name(text):
    """Return {g} of {f} of the text, plus $a."""
    return <g: <f: text>> + $a
''',
        (
            bug("missing-step", "<g: <f: text>>", "<g: text>"),
            bug("wrong-operator", "+ $a", "- $a"),
        ),
        _ADDED,
        ("t->t", "t->n"),
    ),
)
