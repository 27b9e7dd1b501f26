r"""From the text of a formula (LaTeX or plain) to a small expression tree, in bounded time.

The grammar is our own recursive descent over tokens: every token is read once, depth and size are
limited, nothing is evaluated here, and there are no signals, so it runs in any thread.

    sum     := [sign] product ((+ | - | ±) product)*
    product := power ((* | /) power | power)*          adjacent powers multiply
    power   := atom (! | % | ° | ^ exponent)*
    atom    := number | symbol | ( sum ) | { sum } | | sum | | \frac a b | \sqrt[n] a | f a | …
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 2000
MAX_DEPTH = 60
MAX_NODES = 800
# Of the tree: whoever walks it recurses, and a long chain of operators is a deep tree, too.
MAX_TREE_DEPTH = 150


class MathSyntaxError(ValueError):
    """The text is not a formula that we read."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of an expression.

    ``kind`` is num, sym, const, add, mul, div, neg, pow, call, pm, percent, degree or base.
    ``value`` and ``places`` (digits behind the point, None for integers) belong to num, ``name`` to
    sym, const, call and base (there the radix).
    """

    kind: str
    args: tuple[Node, ...] = ()
    value: Fraction = Fraction(0)
    places: int | None = None
    digits: int = 0
    name: str = ""


FUNCTIONS = {
    "sqrt": "sqrt",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "cot": "cot",
    "sec": "sec",
    "csc": "csc",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "ln": "ln",
    "log": "log",
    "lg": "log",
    "exp": "exp",
    "abs": "abs",
    "floor": "floor",
    "ceil": "ceil",
}
CONSTANTS = {"pi": "pi", "π": "pi", "infty": "inf", "∞": "inf", "infinity": "inf", "inf": "inf"}
_GREEK_TEXT = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi "
    "rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi "
    "Omega ell"
)
_GREEK = frozenset(_GREEK_TEXT.split())
_NAMES = sorted({*FUNCTIONS, *(c for c in CONSTANTS if c.isascii())}, key=len, reverse=True)

_REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr)(?![A-Za-z])\.?", " "),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|hline)(?![A-Za-z])", " "),
        (r"(?<!\\)\\(?:[,;:!> ]|quad(?![A-Za-z])|qquad(?![A-Za-z]))|~", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\(?:mathrm|mathit|mathbf|operatorname|rm|bf)\s?\{([A-Za-z]{1,12})\}", r" \1 "),
        (r"\\(?:cdot|times|ast)(?![A-Za-z])|[×·⋅]", "*"),
        (r"\*\*", "^"),
        (r"\\div(?![A-Za-z])|÷", "/"),
        (r"\\(?:leq?|leqslant)(?![A-Za-z])|≤|<=", "≤"),
        (r"\\(?:geq?|geqslant)(?![A-Za-z])|≥|>=", "≥"),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\neq?(?![A-Za-z])|≠|!=", "≠"),
        (r"\\pm(?![A-Za-z])", "±"),
        (r"[−–]", "-"),
        (r"\^\s?\{?\s?\\circ\s?\}?|\\degree(?![A-Za-z])|\^\s?°", "°"),
        (r"\\%", "%"),
        (r"√", r"\\sqrt"),
        (r"²", "^2"),
        (r"³", "^3"),
        (r"\\(?:dots|ldots|cdots|dotsc)(?![A-Za-z])|…|\.\.\.", " … "),
        (r"\\cup(?![A-Za-z])", "∪"),
        (r"\\in(?![A-Za-z])", "∈"),
        (r"\\(?:lbrace)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace)(?![A-Za-z])", r"\\}"),
    )
)


def clean(text: str) -> str:
    """Return the formula with delimiters, spacing commands and spelling variants unified."""
    text = text.strip()
    text = re.sub(r"(?<!\\)\\[()\[\]]", " ", text)
    text = re.sub(r"(?<!\\)\$", " ", text)
    for pattern, by in _REPLACEMENTS:
        text = pattern.sub(by, text)
    text = text.strip().strip("*").strip()
    return re.sub(r"(?<=[^.\s])[.;,]$", "", text).strip()


_TOKEN = re.compile(
    r"\s+"
    r"|(?P<mixed>\d{1,12}\s+\d{1,12}/\d{1,12}(?![\d.]))"
    r"|(?P<num>\d{1,3}(?:\{?,\}?\d{3})+(?!\d)(?:\.\d+)?"
    r"|\d{1,3}(?:[ ]\d{3})+(?![\d.])|\d+\.?\d*|\.\d+)"
    r"|(?P<cmd>\\[A-Za-z]+|\\[{}])"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<op>[-+*/^_!%°±(){}\[\]|])"
    r"|(?P<sym>[π∞])"
)


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise MathSyntaxError(f"unexpected {text[position]!r}")
        position = match.end()
        if match.lastgroup == "word":
            found.extend(_split_word(match.group()))
        elif match.lastgroup:
            found.append((match.lastgroup, match.group()))
        if len(found) > MAX_NODES:
            raise MathSyntaxError("formula too long")
    return found


def _split_word(word: str) -> list[tuple[str, str]]:
    """Split letters into known names and single-letter symbols."""
    parts: list[tuple[str, str]] = []
    while word:
        name = next((n for n in _NAMES if word.startswith(n)), word[0])
        parts.append(("cmd", "\\" + name) if len(name) > 1 else ("letter", name))
        word = word[len(name) :]
    return parts


def number_node(literal: str) -> Node:
    """Return the node of an unsigned literal; thousands separators are dropped."""
    plain = re.sub(r"[,{} ]", "", literal)
    whole, point, fraction = plain.partition(".")
    digits = len((whole + fraction).lstrip("0"))
    value = Fraction(plain if fraction else whole)
    return Node("num", value=value, places=len(fraction) if point else None, digits=digits)


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise MathSyntaxError("formula too long")
        self._tokens = _tokens(text)
        self._position = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._sum()
        if self._position < len(self._tokens):
            raise MathSyntaxError(f"unexpected {self._tokens[self._position][1]!r}")
        if _is_deep(node):
            raise MathSyntaxError("formula nested too deeply")
        return node

    def _peek(self) -> tuple[str, str]:
        if self._position < len(self._tokens):
            return self._tokens[self._position]
        return ("end", "")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        self._position += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._peek()[1] == text and self._peek()[0] != "end":
            self._position += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise MathSyntaxError(f"expected {text!r}, got {self._peek()[1]!r}")

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MathSyntaxError("formula nested too deeply")
        node = self._signed()
        while self._peek()[1] in {"+", "-", "±"}:
            sign = self._take()[1]
            right = self._product()
            if sign == "±":
                node = Node("pm", (node, right))
            else:
                node = Node("add", (node, right if sign == "+" else Node("neg", (right,))))
        self._depth -= 1
        return node

    def _signed(self) -> Node:
        sign = self._peek()[1]
        if sign not in {"+", "-", "±"}:
            return self._product()
        self._position += 1
        inner = self._product()
        if sign == "±":
            return Node("pm", (Node("num"), inner))
        return Node("neg", (inner,)) if sign == "-" else inner

    def _product(self) -> Node:
        node = self._power()
        while True:
            kind, text = self._peek()
            if text == "*":
                self._position += 1
                node = Node("mul", (node, self._signed_power()))
            elif text == "/":
                self._position += 1
                node = Node("div", (node, self._signed_power()))
            elif self._starts_atom(kind, text):
                right = self._power()
                # 1\frac{1}{2} is a mixed number, 2\frac{x}{3} a product.
                is_mixed = _is_integer(node) and right.kind == "div" and right.name == "frac"
                node = Node("add" if is_mixed and _is_fraction(right) else "mul", (node, right))
            else:
                return node

    def _signed_power(self) -> Node:
        if self._accept("-"):
            return Node("neg", (self._power(),))
        self._accept("+")
        return self._power()

    @staticmethod
    def _starts_atom(kind: str, text: str) -> bool:
        if kind == "cmd":
            return text not in {"\\}"}
        return kind in {"num", "mixed", "letter", "sym"} or text in {"(", "{"}

    def _power(self) -> Node:
        node = self._atom()
        while True:
            if self._accept("!"):
                node = Node("call", (node,), name="factorial")
            elif self._accept("%"):
                node = Node("percent", (node,))
            elif self._accept("°"):
                node = Node("degree", (node,))
            elif self._accept("^"):
                node = Node("pow", (node, self._exponent()))
            else:
                return node

    def _exponent(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MathSyntaxError("formula nested too deeply")
        if self._accept("-"):
            node = Node("neg", (self._exponent(),))
        else:
            node = self._argument()
            if self._accept("^"):
                node = Node("pow", (node, self._exponent()))
        self._depth -= 1
        return node

    def _argument(self) -> Node:
        """One braced group or one atom; an undelimited number gives its first digit in LaTeX, but
        models write x^12 for x^{12}, so the whole number is taken."""
        if self._accept("{"):
            node = self._sum()
            self._expect("}")
            return node
        return self._atom()

    def _fraction_argument(self) -> Node:
        r"""\frac12 is one half: here LaTeX's one-digit rule is what people mean."""
        kind, text = self._peek()
        if kind == "num" and text.isdigit() and len(text) > 1:
            self._tokens[self._position] = ("num", text[1:])
            return number_node(text[0])
        return self._argument()

    def _atom(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MathSyntaxError("formula nested too deeply")
        node = self._bare_atom()
        self._depth -= 1
        return node

    def _bare_atom(self) -> Node:
        kind, text = self._take()
        if kind == "num":
            if self._peek()[1] == "_":
                return self._based_number(text)
            return number_node(text)
        if kind == "mixed":
            whole, top, bottom = re.split(r"\s+|/", text)
            if int(bottom) == 0:
                raise MathSyntaxError("division by zero")
            return Node("num", value=Fraction(int(whole)) + Fraction(int(top), int(bottom)))
        if kind == "letter":
            return self._symbol(text)
        if kind == "sym":
            return Node("const", name=CONSTANTS[text])
        if kind == "cmd":
            return self._command(text[1:])
        if text == "(":
            return self._closed(")")
        if text == "{":
            return self._closed("}")
        if text == "[":
            return self._closed("]")
        if text == "|":
            return Node("call", (self._closed("|"),), name="abs")
        raise MathSyntaxError(f"unexpected {text or 'end of formula'!r}")

    def _closed(self, closing: str) -> Node:
        node = self._sum()
        self._expect(closing)
        return node

    def _symbol(self, name: str) -> Node:
        if self._accept("_"):
            name += "_" + self._subscript()
        if name == "e":
            return Node("const", name="e")
        if name == "i":
            return Node("const", name="i")
        return Node("sym", name=name)

    def _subscript(self) -> str:
        if not self._accept("{"):
            return self._take()[1]
        parts: list[str] = []
        while not self._accept("}"):
            kind, text = self._take()
            if kind == "end":
                raise MathSyntaxError("unclosed subscript")
            parts.append(text)
        return "".join(parts)

    def _based_number(self, literal: str) -> Node:
        self._expect("_")
        radix = self._subscript()
        if not radix.isdigit() or not 2 <= int(radix[:4]) <= 36:
            raise MathSyntaxError(f"radix {radix!r}")
        return Node("base", (number_node(literal),), name=radix)

    def _command(self, name: str) -> Node:
        if name == "frac":
            top = self._fraction_argument()
            return Node("div", (top, self._fraction_argument()), name="frac")
        if name == "binom":
            top = self._fraction_argument()
            return Node("call", (top, self._fraction_argument()), name="binom")
        if name in CONSTANTS:
            return Node("const", name=CONSTANTS[name])
        if name in FUNCTIONS:
            return self._function(FUNCTIONS[name])
        if name in {"text", "mbox", "boxed", "fbox", "mathrm", "textbf", "mathbf"}:
            self._expect("{")
            return self._closed("}")
        if name == "lfloor":
            node = self._sum()
            self._expect("\\rfloor")
            return Node("call", (node,), name="floor")
        if name == "lceil":
            node = self._sum()
            self._expect("\\rceil")
            return Node("call", (node,), name="ceil")
        if name in {"lvert", "vert"}:
            node = self._sum()
            self._expect("\\rvert" if name == "lvert" else "\\vert")
            return Node("call", (node,), name="abs")
        if name in _GREEK:
            return self._symbol(name)
        raise MathSyntaxError(f"unknown command \\{name}")

    def _function(self, name: str) -> Node:
        if name == "sqrt":
            if self._accept("["):
                index = self._closed("]")
                radicand = self._argument()
                one = Node("num", value=Fraction(1), digits=1)
                return Node("pow", (radicand, Node("div", (one, index))), name="root")
            return Node("call", (self._fraction_argument(),), name="sqrt")
        base: tuple[Node, ...] = ()
        if name == "log" and self._accept("_"):
            base = (self._argument(),)
        power: Node | None = self._exponent() if self._accept("^") else None
        node = Node("call", (self._function_argument(), *base), name=name)
        return node if power is None else Node("pow", (node, power))

    def _function_argument(self) -> Node:
        """sin 2x takes the product, sin(x) y only the bracket."""
        if self._peek()[1] in {"(", "{", "|", "["}:
            return self._atom()
        node = self._power()
        while self._peek()[0] in {"letter", "sym"}:
            node = Node("mul", (node, self._power()))
        return node


def _is_integer(node: Node) -> bool:
    return node.kind == "num" and node.places is None


def _is_fraction(node: Node) -> bool:
    return all(_is_integer(a) for a in node.args)


def _is_deep(node: Node) -> bool:
    level = [node]
    for _ in range(MAX_TREE_DEPTH):
        level = [child for parent in level for child in parent.args]
        if not level:
            return False
    return True


def parse_formula(text: str) -> Node:
    """Return the expression tree of one formula (see the module's grammar).

    Raises:
        MathSyntaxError: not a formula, or one beyond the limits of size and depth.
    """
    return _Parser(text).parse()


def symbols(node: Node) -> frozenset[str]:
    """Return the names of the free symbols."""
    names: set[str] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current.kind == "sym":
            names.add(current.name)
        stack.extend(current.args)
    return frozenset(names)
