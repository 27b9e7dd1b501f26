"""Generators of functions that need a real algorithm: grids, graphs, dynamic programming."""

from __future__ import annotations

import random

from educe.domains.builtin.python_functions import inputs
from educe.domains.builtin.python_functions.pieces import (
    about,
    int_operation,
    int_predicate,
    list_reduction,
    put,
)
from educe.domains.builtin.python_functions.problem import Problem, program
from educe.domains.builtin.python_functions.registry import generator


@generator("matrix", "medium")
def matrix_lines(rng: random.Random) -> Problem:
    last, piece = list_reduction(rng), int_operation(rng)
    lines, said = rng.choice(
        (
            ("a_", "row"),
            ("[list(v) for v in zip(*a_)]", "column"),
            (
                "[v[::2] for v in a_]",
                "row, of which only every second element counts (from the first)",
            ),
            ("[v for v in a_ if v[0] % 2 == 0]", "row that starts with an even number"),
        )
    )
    body = f"""
        lines = {lines}
        return [{put(piece.code, put(last.code, "u"))} for u in lines]
    """
    return program(
        "summarise_lines",
        ["grid"],
        f"a list with one number for each {said} of the matrix a_ (a list of rows): "
        f"{about(piece.phrase, about(last.phrase, 'it'))}",
        body,
        lambda r: (inputs.draw_grid(r, -9, 15),),
        [([[1]],), ([[0, -1]],), ([[2], [3]],)],
    )


@generator("matrix", "hard")
def transform_matrix(rng: random.Random) -> Problem:
    piece, keep = int_operation(rng), int_predicate(rng)
    turn, said = rng.choice(
        (
            ("[list(r) for r in zip(*a_[::-1])]", "rotated clockwise by a quarter turn"),
            ("[list(r) for r in zip(*a_)][::-1]", "rotated counter-clockwise by a quarter turn"),
            ("[list(r) for r in zip(*a_)]", "transposed"),
            ("[r[::-1] for r in a_[::-1]]", "rotated by a half turn"),
        )
    )
    body = f"""
        out, turned = [], {turn}
        while turned:
            out += [{put(piece.code, "v")} for v in turned[0] if {put(keep.code, "v")}]
            turned = [list(r) for r in zip(*turned[1:])][::-1]
        return out
    """
    return program(
        "spiral",
        ["grid"],
        f"a list: read the matrix a_, {said}, in a clockwise spiral from the top left inwards; "
        f"keep the values that are {keep.step}; replace each v by {about(piece.phrase, 'v')}",
        body,
        lambda r: (inputs.draw_grid(r, -9, 20),),
        [([[4]],), ([[1, 2, 3, 4]],), ([[1], [2], [3]],)],
    )


@generator("grid-neighbours", "hard")
def neighbours(rng: random.Random) -> Problem:
    centre, near, least = int_predicate(rng), int_predicate(rng), rng.randint(1, 3)
    diagonal = rng.choice((True, False))
    test = "(i, j) != (p, q)" if diagonal else "abs(i - p) + abs(j - q) == 1"
    how, text = rng.choice(
        (
            ("1", "the number of cells"),
            ("a_[i][j]", "the sum of the cells"),
            ("i + j", "the sum of row index plus column index over the cells"),
        )
    )
    body = f"""
        total, height, width = 0, len(a_), len(a_[0])
        for i in range(height):
            for j in range(width):
                around = 0
                for p in range(max(0, i - 1), min(height, i + 2)):
                    for q in range(max(0, j - 1), min(width, j + 2)):
                        if {test} and {put(near.code, "a_[p][q]")}:
                            around += 1
                if {put(centre.code, "a_[i][j]")} and around >= {least}:
                    total += {how}
        return total
    """
    kind = "eight neighbours (diagonals too)" if diagonal else "four neighbours (no diagonals)"
    return program(
        "count_cells",
        ["grid"],
        f"{text} of the grid a_ that are {centre.step} and of whose {kind} at least {least} "
        f"{'is' if least == 1 else 'are'} {near.step}",
        body,
        lambda r: (inputs.draw_grid(r, -6, 16, (3, 5)),),
        [([[4]],), ([[1, 2], [3, 4]],), ([[6, 6, 6]],)],
    )


@generator("grid-paths", "hard")
def grid_paths(rng: random.Random) -> Problem:
    moves = rng.sample(((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (2, 1), (1, 2), (-1, 1)), 4)
    moves = sorted({(0, 1), (1, 0), *moves})
    wall, missing, scale = int_predicate(rng), rng.choice((-1, 99, 0)), rng.randint(1, 4)
    body = f"""
        height, width = len(a_), len(a_[0])
        reached, front, count = {{(0, 0)}}, [(0, 0)], 0
        while front:
            if (height - 1, width - 1) in front:
                return count * {scale}
            after = []
            for i, j in front:
                for p, q in {moves}:
                    p, q = i + p, j + q
                    if 0 <= p < height and 0 <= q < width and (p, q) not in reached:
                        v = a_[p][q]
                        if not ({put(wall.code, "v")}):
                            reached.add((p, q))
                            after.append((p, q))
            front, count = after, count + 1
        return {missing}
    """
    times = f"{scale} times " if scale > 1 else ""
    return program(
        "shortest_path",
        ["grid"],
        f"{times}the least number of moves from the top left to the bottom right cell of the grid "
        f"a_, or {missing} if there is no way; a move adds one of {moves} to (row, column), and "
        f"cells that are {wall.step} may not be entered",
        body,
        lambda r: (inputs.draw_grid(r, -6, 16, (3, 5)),),
        [([[4]],), ([[1, 2], [3, 4]],), ([[9, 9, 9, 9]],)],
    )


@generator("coins", "hard")
def coins(rng: random.Random) -> Problem:
    values = sorted(rng.sample(range(1, 16), rng.randint(2, 4)))
    once = rng.choice((True, False))
    order = "range({}, a_ + 1)" if not once else "range(a_, {} - 1, -1)"
    least = rng.choice((True, False))
    bad = rng.choice((-1, 0, 1000))
    piece = int_operation(rng)
    if least:
        start, rule = "[0] + [10**9] * a_", "best[v] = min(best[v], best[v - coin] + 1)"
        end = f"return {put(piece.code, 'best[a_]')} if best[a_] < 10**9 else {bad}"
        text, tail = "the least number of coins that pay", f" ({bad} if that is impossible)"
    else:
        start, rule = "[1] + [0] * a_", "best[v] += best[v - coin]"
        end = f"return {put(piece.code, 'best[a_]')}"
        text, tail = "the number of ways (order not counting) to pay", ""
    body = f"""
        best = {start}
        for coin in {values}:
            for v in {order.format("coin")}:
                {rule}
        {end}
    """
    use = "each at most once" if once else "each as often as needed"
    return program(
        "pay",
        ["int"],
        f"{about(piece.phrase, 'k')}, where k is {text} exactly a_ with coins of {values}, "
        f"{use}{tail}",
        body,
        inputs.integer(1, sum(values) + 2 if once else 60),
        [(0,), (values[0],), (sum(values),)],
    )


@generator("stairs", "hard")
def stairs(rng: random.Random) -> Problem:
    jumps = sorted(rng.sample(range(1, 7), rng.randint(2, 3)))
    broken, weight = int_predicate(rng), rng.randint(1, 3)
    body = f"""
        ways = [1] + [0] * a_
        for i in range(1, a_ + 1):
            if not ({put(broken.code, "i")}):
                ways[i] = sum({weight} * ways[i - j] for j in {jumps} if j <= i)
        return ways[a_]
    """
    paint = (
        f"; each jump can be made in {weight} styles, which count as different"
        if weight > 1
        else ""
    )
    return program(
        "climb",
        ["int"],
        f"the number of ways to climb from step 0 to step a_ with jumps of {jumps} steps, never "
        f"standing on a step whose number is {broken.step}{paint}",
        body,
        inputs.integer(1, 22),
        [(0,), (1,), (2,)],
    )


@generator("subsequences", "hard")
def longest_subsequence(rng: random.Random) -> Problem:
    k, keep = rng.randint(1, 6), int_predicate(rng)
    text, test = rng.choice(
        (
            (f"each value exceeds the one before by at least {k}", f"v - w >= {k}"),
            (f"each value exceeds the one before by 1 to {k}", f"1 <= v - w <= {k}"),
            (f"neighbouring values differ by at most {k}", f"abs(v - w) <= {k}"),
            (f"neighbouring values differ by at least {k}", f"abs(v - w) >= {k}"),
            (f"the sum of neighbouring values is divisible by {k + 1}", f"(v + w) % {k + 1} == 0"),
        )
    )
    gain, said = rng.choice(
        (("1", "greatest length"), ("max(v, 0)", "greatest sum (negative values counting as 0)"))
    )
    body = f"""
        chosen, best = [v for v in a_ if {put(keep.code, "v")}], []
        for i, v in enumerate(chosen):
            before = [best[j] for j, w in enumerate(chosen[:i]) if {test}]
            best.append({gain} + max(before, default=0))
        return max(best, default=0)
    """
    return program(
        "longest",
        ["ints"],
        f"the {said} of a subsequence of a_ (elements in order, adjacent or not) that only has "
        f"values that are {keep.step} and in which {text}; 0 if there is none",
        body,
        inputs.int_list(-10, 25, 4, 10),
        [([],), ([5],), ([3, 3, 3],), ([1, 2, 3, 4],)],
    )


@generator("alignments", "hard")
def common_subsequence(rng: random.Random) -> Problem:
    swap, skip, add = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 3)
    free = rng.choice(("aeiou", "xyz", "lmn", "st", "ing", "abc"))
    body = f"""
        row = [{add} * j for j in range(len(b_) + 1)]
        for i, c in enumerate(a_):
            cost = 0 if c in '{free}' else {skip}
            after = [row[0] + cost]
            for j, e in enumerate(b_):
                change = 0 if c == e else {swap}
                after.append(min(row[j] + change, row[j + 1] + cost, after[j] + {add}))
            row = after
        return row[-1]
    """
    return program(
        "edit_cost",
        ["str", "other"],
        f"the least total cost of turning a_ into b_, where each character of a_ is either kept "
        f"(cost 0), replaced (cost {swap}) or deleted (cost {skip}, but 0 for one in '{free}'), "
        f"and each inserted character costs {add}",
        body,
        inputs.both(inputs.word, inputs.word),
        [("", ""), ("abc", ""), ("", "abc"), ("stone", "stone")],
    )


@generator("intervals", "hard")
def intervals(rng: random.Random) -> Problem:
    gap, least, piece = rng.randint(0, 4), rng.randint(0, 4), int_operation(rng)
    how, text = rng.choice(
        (
            ("out", "the list of the merged spans, sorted"),
            ("len(out)", "the number of merged spans"),
            (
                "sum(v - u for u, v in out)",
                "the total length (end minus start) of the merged spans",
            ),
            (
                "max([v - u for u, v in out], default=0)",
                "the greatest length of a merged span (0 if there is none)",
            ),
        )
    )
    final = how if how == "out" else put(piece.code, how)
    tail = "" if how == "out" else f", and applied to that: {piece.step}"
    body = f"""
        out = []
        for u, v in sorted(a_):
            if out and u - out[-1][1] <= {gap}:
                out[-1][1] = max(out[-1][1], v)
            else:
                out.append([u, v])
        out = [r for r in out if r[1] - r[0] >= {least}]
        return {final}
    """

    def draw(r: random.Random) -> tuple[list[list[int]]]:
        starts = [r.randint(0, 40) for _ in range(r.randint(2, 6))]
        return ([[s, s + r.randint(0, 9)] for s in starts],)

    return program(
        "merge_spans",
        ["pairs"],
        f"{text}{tail}; a_ is a list of spans [start, end], and two spans are merged when the "
        f"second starts at most {gap} after the end of the first; merged spans shorter than "
        f"{least} are dropped",
        body,
        draw,
        [([],), ([[3, 3]],), ([[0, 5], [2, 3]],), ([[5, 9], [0, 1]],)],
    )


@generator("stack-machine", "hard")
def stack_machine(rng: random.Random) -> Problem:
    one, two = int_operation(rng), rng.choice(("p + q", "p * q", "p - q", "max(p, q)", "q - p"))
    other = rng.choice(("2 * p - q", "p + 3 * q", "min(p, q) - 1", "abs(p - q)", "q * q - p"))
    bad = rng.choice((-1, 0, 999))
    body = f"""
        stack = []
        for part in a_.split():
            if part == 'u' and stack:
                stack.append({put(one.code, "stack.pop()")})
            elif part in ('+', '*') and len(stack) > 1:
                q, p = stack.pop(), stack.pop()
                stack.append({two} if part == '+' else {other})
            elif part not in ('u', '+', '*'):
                stack.append(int(part))
            else:
                return {bad}
        return stack[-1] if stack else {bad}
    """

    def draw(r: random.Random) -> tuple[str]:
        parts = [str(r.randint(0, 9)) for _ in range(r.randint(1, 3))]
        depth = len(parts)
        for _ in range(r.randint(1, 5)):
            sign = r.choice(("u", "+", "*", str(r.randint(0, 9))))
            if sign in "+*" and depth < 2 and r.random() < 0.85:
                sign = "u"
            depth += 0 if sign == "u" else -1 if sign in "+*" else 1
            parts.append(sign)
        return (" ".join(parts),)

    return program(
        "evaluate",
        ["str"],
        "the top of the stack after running the program a_ (words between spaces): a number is "
        f"pushed; 'u' pops p and pushes {about(one.phrase, 'p')}; '+' pops q, then p, and pushes "
        f"{two}; '*' pops q, then p, and pushes {other}; {bad} if a value is missing or the stack "
        "ends empty",
        body,
        draw,
        [("",), ("7",), ("u",), ("1 +",), ("2 3 + u",)],
    )


@generator("graphs", "hard")
def graphs(rng: random.Random) -> Problem:
    directed, keep, start = rng.choice((True, False)), int_predicate(rng), rng.randint(0, 3)
    limit = rng.choice((2, 3, 4, 99))
    back = "" if directed else "\n            near.setdefault(v, []).append(u)"
    how, text = rng.choice(
        (
            ("sorted(found)", "the sorted list"),
            ("len(found)", "the number"),
            ("sum(found)", "the sum"),
            ("max(found, default=-1)", "the largest (-1 if there is none)"),
        )
    )
    body = f"""
        near = {{}}
        for u, v in a_:
            near.setdefault(u, []).append(v){back}
        far, queue = {{{start}: 0}}, [{start}]
        for u in queue:
            for v in near.get(u, []):
                if v not in far and far[u] < {limit}:
                    far[v] = far[u] + 1
                    queue.append(v)
        found = [v for v in far if {put(keep.code, "v")}]
        return {how}
    """

    def draw(r: random.Random) -> tuple[list[list[int]]]:
        ends = [start, *r.sample(range(12), 6)]
        return ([[r.choice(ends), r.choice(ends)] for _ in range(r.randint(3, 9))],)

    way = "from u to v" if directed else "between u and v"
    within = f" in at most {limit} steps" if limit < 99 else ""
    return program(
        "reachable",
        ["pairs"],
        f"{text} of the nodes that are {keep.step} and can be reached from node {start}{within} "
        f"({start} itself counts), where a_ lists edges [u, v] {way}",
        body,
        draw,
        [([],), ([[start, 8]],), ([[8, start]],), ([[start, start]],)],
    )


@generator("robots", "hard")
def robots(rng: random.Random) -> Problem:
    size, forward, back = rng.randint(5, 12), rng.randint(1, 3), rng.randint(1, 2)
    wrap = rng.choice((True, False))
    x, y = rng.randrange(size), rng.randrange(size)
    rule = f"% {size}" if wrap else ""
    how, text = rng.choice(
        (
            ("[x, y]", "the final [x, y]"),
            ("x * y", "x times y at the end"),
            (
                "len(seen)",
                "the number of different positions at which it stood, the start included,",
            ),
            (
                "abs(x - START_X) + abs(y - START_Y)",
                "the sum of how far x and y are from the start at the end",
            ),
        )
    )
    how = how.replace("START_X", str(x)).replace("START_Y", str(y))
    fix = (
        f"x, y = x {rule}, y {rule}"
        if wrap
        else f"x, y = min(max(x, 0), {size - 1}), min(max(y, 0), {size - 1})"
    )
    body = f"""
        x, y, dx, dy = {x}, {y}, 0, 1
        seen = {{(x, y)}}
        for c in a_:
            if c == 'L':
                dx, dy = -dy, dx
            elif c == 'R':
                dx, dy = dy, -dx
            elif c == 'F':
                x, y = x + {forward} * dx, y + {forward} * dy
            elif c == 'B':
                x, y = x - {back} * dx, y - {back} * dy
            {fix}
            seen.add((x, y))
        return {how}
    """
    edge = (
        "wraps around at the edges"
        if wrap
        else "is stopped at the edges (each coordinate stays within them)"
    )
    return program(
        "drive",
        ["str"],
        f"{text} of a robot that starts at x={x}, y={y} facing up (y grows) on a {size} by {size} "
        f"board with coordinates from 0 and obeys a_: 'L' and 'R' turn it left and right, 'F' "
        f"moves it {forward} forwards, 'B' {back} backwards; it {edge}; other "
        "characters do nothing",
        body,
        inputs.letters("LRFFFB", 4, 14),
        [("",), ("F",), ("LF",), ("FFFFFFFF",)],
    )


@generator("knapsack", "hard")
def knapsack(rng: random.Random) -> Problem:
    capacity, keep, most = rng.randint(8, 25), int_predicate(rng), rng.choice((2, 3, 9))
    bonus = rng.randint(0, 5)
    body = f"""
        best = {{(0, 0): 0}}
        for weight, value in a_:
            if {put(keep.code, "value")}:
                for (w, k), total in list(best.items()):
                    if w + weight <= {capacity} and k < {most}:
                        state = (w + weight, k + 1)
                        best[state] = max(best.get(state, 0), total + value + {bonus})
        return max(best.values())
    """
    extra = f" plus {bonus}" if bonus else ""
    return program(
        "fill_bag",
        ["pairs"],
        f"the greatest total gain of choosing at most {most} of the items [weight, value] in a_ "
        f"with total weight at most {capacity}; an item gains its value{extra}, and only items "
        f"whose value is {keep.step} may be chosen",
        body,
        lambda r: ([[r.randint(1, 12), r.randint(1, 20)] for _ in range(r.randint(2, 6))],),
        [([],), ([[1, 1]],), ([[30, 9]],), ([[4, 6], [4, 6]],)],
    )
