"""A shop's stock: counts and prices of items."""

from __future__ import annotations

import random

from educe.domains.builtin.stateful_tools.tools import (
    Arguments,
    Section,
    Tool,
    ToolFailure,
    need,
)
from educe.domains.builtin.stateful_tools.world import Request, World, pick

_ITEMS = [
    "apples",
    "pens",
    "cups",
    "nails",
    "lamps",
    "books",
    "socks",
    "ropes",
    "bolts",
    "candles",
    "plates",
    "towels",
    "brushes",
    "jars",
    "keys",
    "tiles",
    "bags",
    "hats",
]


def _item(shop: Section, args: Arguments) -> Section:
    item: Section = need(shop, args["item"], "item")
    return item


def _check(shop: Section, args: Arguments) -> str:
    item = _item(shop, args)
    return f"count {item['count']}, price {item['price']}"


def _add(shop: Section, args: Arguments) -> str:
    item = _item(shop, args)
    if args["count"] <= 0:
        raise ToolFailure("count must be above 0")
    item["count"] += args["count"]
    return f"now {item['count']}"


def _remove(shop: Section, args: Arguments) -> str:
    item = _item(shop, args)
    if args["count"] <= 0:
        raise ToolFailure("count must be above 0")
    if args["count"] > item["count"]:
        raise ToolFailure(f"only {item['count']} {args['item']} in stock")
    item["count"] -= args["count"]
    return f"now {item['count']}"


def _price(shop: Section, args: Arguments) -> str:
    item = _item(shop, args)
    if args["price"] <= 0:
        raise ToolFailure("price must be above 0")
    item["price"] = args["price"]
    return "price set"


def _new(shop: Section, args: Arguments) -> str:
    if args["item"] in shop:
        raise ToolFailure(f"there already is an item '{args['item']}'")
    if args["price"] <= 0:
        raise ToolFailure("price must be above 0")
    shop[args["item"]] = {"count": 0, "price": args["price"]}
    return "added with count 0"


def _list(shop: Section, args: Arguments) -> str:
    return ", ".join(sorted(shop))


def _drop(shop: Section, args: Arguments) -> str:
    _item(shop, args)
    del shop[args["item"]]
    return "item dropped"


def _draw(rng: random.Random) -> Section:
    items = rng.sample(_ITEMS, rng.randint(2, 4))
    return {i: {"count": rng.randint(1, 60), "price": rng.randint(1, 30)} for i in items}


def make_add(rng: random.Random, shop: Section) -> Request:
    item, count = rng.choice(sorted(shop)), rng.randint(1, 99)
    wording = pick(rng, f"Add {count} {item} to the stock", f"{count} {item} arrived; add them")
    return Request(wording, (("add_stock", {"item": item, "count": count}),))


def make_remove(rng: random.Random, shop: Section) -> Request:
    there = [item for item in sorted(shop) if shop[item]["count"] > 0]
    if not there:
        return make_add(rng, shop)
    item = rng.choice(there)
    count = rng.randint(1, shop[item]["count"])
    wording = pick(
        rng, f"Remove {count} {item} from the stock", f"{count} {item} were sold; remove them"
    )
    return Request(wording, (("remove_stock", {"item": item, "count": count}),))


def make_price(rng: random.Random, shop: Section) -> Request:
    item = rng.choice(sorted(shop))
    price = rng.choice([p for p in range(1, 60) if p != shop[item]["price"]])
    wording = pick(
        rng, f"Set the price of {item} to {price}", f"From now on {item} cost {price}; set that"
    )
    return Request(wording, (("set_price", {"item": item, "price": price}),))


def make_new(rng: random.Random, shop: Section) -> Request:
    item, price = rng.choice([i for i in _ITEMS if i not in shop]), rng.randint(1, 40)
    wording = f"Add a new item '{item}' with the price {price}"
    return Request(wording, (("new_item", {"item": item, "price": price}),))


def make_refill(rng: random.Random, shop: Section) -> Request:
    item = rng.choice(sorted(shop))
    goal = shop[item]["count"] + rng.randint(1, 40)
    wording = pick(
        rng,
        f"Add as many {item} as are needed to have exactly {goal}",
        f"Fill up the stock of {item} to {goal}",
    )
    call = ("add_stock", {"item": item, "count": goal - shop[item]["count"]})
    return Request(wording, (("check_item", {"item": item}), call))


def make_raise_price(rng: random.Random, shop: Section) -> Request:
    item, change = rng.choice(sorted(shop)), rng.randint(1, 20)
    wording = f"Raise the price of {item} by {change}"
    call = ("set_price", {"item": item, "price": shop[item]["price"] + change})
    return Request(wording, (("check_item", {"item": item}), call))


def make_sell_out(rng: random.Random, shop: Section) -> Request:
    item = rng.choice(sorted(shop))
    if shop[item]["count"] < 1:
        return make_refill(rng, shop)
    wording = f"Remove all {item} from the stock, but keep the item"
    call = ("remove_stock", {"item": item, "count": shop[item]["count"]})
    return Request(wording, (("check_item", {"item": item}), call))


STOCK = World(
    "stock",
    (
        Tool("check_item", "count and price", {"item": "string"}, _check),
        Tool("add_stock", "put in stock", {"item": "string", "count": "integer"}, _add),
        Tool("remove_stock", "take from stock", {"item": "string", "count": "integer"}, _remove),
        Tool("set_price", "change a price", {"item": "string", "price": "integer"}, _price),
        Tool("new_item", "start an item", {"item": "string", "price": "integer"}, _new),
        Tool("list_items", "names of all items", {}, _list),
        Tool("drop_item", "drop an item FOR GOOD", {"item": "string"}, _drop, True),
    ),
    _draw,
    (make_add, make_remove, make_price, make_new),
    (make_refill, make_raise_price, make_sell_out),
)
