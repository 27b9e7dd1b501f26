"""Accounts with money."""

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

_OWNERS = [
    "ana",
    "ben",
    "cleo",
    "dan",
    "eva",
    "finn",
    "gus",
    "hana",
    "ivan",
    "jane",
    "kai",
    "lena",
    "max",
    "nina",
    "otto",
    "pia",
    "quinn",
    "rosa",
    "sam",
    "tess",
]


def _positive(args: Arguments) -> int:
    amount = int(args["amount"])
    if amount <= 0:
        raise ToolFailure("the amount must be above 0")
    return amount


def _balance(bank: Section, args: Arguments) -> str:
    return str(need(bank, args["account"], "account"))


def _deposit(bank: Section, args: Arguments) -> str:
    need(bank, args["account"], "account")
    bank[args["account"]] += _positive(args)
    return f"new balance {bank[args['account']]}"


def _withdraw(bank: Section, args: Arguments) -> str:
    held, amount = need(bank, args["account"], "account"), _positive(args)
    if held < amount:
        raise ToolFailure(f"insufficient funds: {args['account']} has {held}")
    bank[args["account"]] -= amount
    return f"new balance {bank[args['account']]}"


def _transfer(bank: Section, args: Arguments) -> str:
    source, target = args["source"], args["target"]
    held, amount = need(bank, source, "account"), _positive(args)
    need(bank, target, "account")
    if held < amount:
        raise ToolFailure(f"insufficient funds: {source} has {held}")
    if source == target:
        raise ToolFailure("source and target are the same account")
    bank[source] -= amount
    bank[target] += amount
    return "transferred"


def _open(bank: Section, args: Arguments) -> str:
    if args["account"] in bank:
        raise ToolFailure(f"there already is an account '{args['account']}'")
    bank[args["account"]] = 0
    return "opened with balance 0"


def _list(bank: Section, args: Arguments) -> str:
    return ", ".join(sorted(bank))


def _close(bank: Section, args: Arguments) -> str:
    need(bank, args["account"], "account")
    del bank[args["account"]]
    return "closed, the money is gone"


def _draw(rng: random.Random) -> Section:
    return {owner: rng.randint(20, 200) for owner in rng.sample(_OWNERS, rng.randint(2, 4))}


def make_deposit(rng: random.Random, bank: Section) -> Request:
    owner, amount = rng.choice(sorted(bank)), rng.randint(1, 99)
    wording = pick(
        rng, f"Deposit {amount} into the account of {owner}", f"Put {amount} on {owner}'s account"
    )
    return Request(wording, (("deposit", {"account": owner, "amount": amount}),))


def make_withdraw(rng: random.Random, bank: Section) -> Request:
    rich = [owner for owner in sorted(bank) if bank[owner] > 1]
    if not rich:
        return make_deposit(rng, bank)
    owner = rng.choice(rich)
    amount = rng.randint(1, bank[owner])
    wording = pick(
        rng, f"Withdraw {amount} from {owner}'s account", f"Take {amount} out of {owner}'s account"
    )
    return Request(wording, (("withdraw", {"account": owner, "amount": amount}),))


def make_transfer(rng: random.Random, bank: Section) -> Request:
    source, target = rng.sample(sorted(bank), 2)
    if bank[source] < 2:
        return make_deposit(rng, bank)
    amount = rng.randint(1, bank[source])
    wording = pick(
        rng,
        f"Transfer {amount} from {source} to {target}",
        f"Send {amount} from {source} to {target}",
        f"{source} pays {target} {amount}; make the transfer",
    )
    call = ("transfer", {"source": source, "target": target, "amount": amount})
    return Request(wording, (call,))


def make_open(rng: random.Random, bank: Section) -> Request:
    owner = rng.choice([o for o in _OWNERS if o not in bank])
    return Request(f"Open an account for {owner}", (("open_account", {"account": owner}),))


def make_move_all(rng: random.Random, bank: Section) -> Request:
    source, target = rng.sample(sorted(bank), 2)
    if bank[source] < 1:
        return make_top_up(rng, bank)
    wording = pick(
        rng,
        f"Transfer all the money of {source} to {target}",
        f"Send everything {source} has to {target}",
    )
    call = ("transfer", {"source": source, "target": target, "amount": bank[source]})
    return Request(wording, (("get_balance", {"account": source}), call))


def make_top_up(rng: random.Random, bank: Section) -> Request:
    owner = rng.choice(sorted(bank))
    goal = bank[owner] + rng.randint(1, 80)
    wording = pick(
        rng,
        f"Deposit as much as {owner} needs to have exactly {goal}",
        f"Raise {owner}'s balance to {goal} by a deposit",
    )
    call = ("deposit", {"account": owner, "amount": goal - bank[owner]})
    return Request(wording, (("get_balance", {"account": owner}), call))


def make_pay_what_is_there(rng: random.Random, bank: Section) -> Request:
    source, target = rng.sample(sorted(bank), 2)
    amount = max(1, bank[source] + rng.choice((-15, -5, 5, 15, 40)))
    real = min(amount, bank[source])
    if real < 1:
        return make_top_up(rng, bank)
    wording = f"Transfer {amount} from {source} to {target}, or all there is if that is less"
    call = ("transfer", {"source": source, "target": target, "amount": real})
    return Request(wording, (("get_balance", {"account": source}), call))


BANK = World(
    "bank",
    (
        Tool("get_balance", "money in an account", {"account": "string"}, _balance),
        Tool("deposit", "put money in", {"account": "string", "amount": "integer"}, _deposit),
        Tool("withdraw", "take money out", {"account": "string", "amount": "integer"}, _withdraw),
        Tool(
            "transfer",
            "move money",
            {"source": "string", "target": "string", "amount": "integer"},
            _transfer,
        ),
        Tool("open_account", "new account", {"account": "string"}, _open),
        Tool("list_accounts", "names of all accounts", {}, _list),
        Tool("close_account", "close it FOR GOOD", {"account": "string"}, _close, True),
    ),
    _draw,
    (make_deposit, make_withdraw, make_transfer, make_transfer, make_open),
    (make_move_all, make_top_up, make_pay_what_is_there),
)
