"""A week of events, one an hour at most."""

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

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
_TITLES = [
    "lunch",
    "review",
    "demo",
    "call",
    "yoga",
    "exam",
    "visit",
    "chess",
    "budget",
    "talk",
    "dentist",
    "meeting",
    "party",
    "walk",
    "interview",
]
_HOURS = range(8, 19)


def _slot(week: Section, args: Arguments, ignore: str = "") -> None:
    if args["day"] not in _DAYS:
        raise ToolFailure("day must be monday to friday, in small letters")
    if args["hour"] not in _HOURS:
        raise ToolFailure("hour must be from 8 to 18")
    for key, event in week.items():
        if key != ignore and (event["day"], event["hour"]) == (args["day"], args["hour"]):
            raise ToolFailure(f"{args['day']} at {args['hour']} is taken by '{event['title']}'")


def _add(week: Section, args: Arguments) -> str:
    _slot(week, args)
    number = 1
    while f"e{number}" in week:
        number += 1
    week[f"e{number}"] = {"day": args["day"], "hour": args["hour"], "title": args["title"]}
    return f"added as e{number}"


def _move(week: Section, args: Arguments) -> str:
    event = need(week, args["id"], "event")
    _slot(week, args, ignore=args["id"])
    event.update(day=args["day"], hour=args["hour"])
    return "moved"


def _rename(week: Section, args: Arguments) -> str:
    need(week, args["id"], "event")["title"] = args["title"]
    return "renamed"


def _cancel(week: Section, args: Arguments) -> str:
    need(week, args["id"], "event")
    del week[args["id"]]
    return "cancelled"


def _list(week: Section, args: Arguments) -> str:
    if args["day"] not in _DAYS:
        raise ToolFailure("day must be monday to friday, in small letters")
    found = sorted((e["hour"], k, e["title"]) for k, e in week.items() if e["day"] == args["day"])
    return ", ".join(f"{key} at {hour}: {title}" for hour, key, title in found) or "free all day"


def _find(week: Section, args: Arguments) -> str:
    for key, event in sorted(week.items()):
        if event["title"] == args["title"]:
            return f"{key} on {event['day']} at {event['hour']}"
    raise ToolFailure(f"there is no event '{args['title']}'")


def _clear(week: Section, args: Arguments) -> str:
    week.clear()
    return "all events cancelled"


def _draw(rng: random.Random) -> Section:
    count = rng.randint(2, 4)
    slots = rng.sample([(d, h) for d in _DAYS for h in _HOURS], count)
    ids = rng.sample(range(1, 90), count)
    return {
        f"e{number}": {"day": day, "hour": hour, "title": title}
        for number, (day, hour), title in zip(ids, slots, rng.sample(_TITLES, count), strict=True)
    }


def _free_slot(rng: random.Random, week: Section) -> tuple[str, int]:
    taken = {(event["day"], event["hour"]) for event in week.values()}
    return rng.choice([(d, h) for d in _DAYS for h in _HOURS if (d, h) not in taken])


def _event(rng: random.Random, week: Section) -> tuple[str, Section]:
    key = rng.choice(sorted(week))
    return key, week[key]


def make_add(rng: random.Random, week: Section) -> Request:
    used = {event["title"] for event in week.values()}
    (day, hour), title = _free_slot(rng, week), rng.choice([t for t in _TITLES if t not in used])
    wording = pick(
        rng,
        f"Add '{title}' on {day} at {hour}",
        f"Put '{title}' into the calendar on {day} at {hour}",
    )
    return Request(wording, (("add_event", {"day": day, "hour": hour, "title": title}),))


def make_move_id(rng: random.Random, week: Section) -> Request:
    if not week:
        return make_add(rng, week)
    key, _ = _event(rng, week)
    day, hour = _free_slot(rng, week)
    wording = pick(rng, f"Move event {key} to {day} at {hour}", f"Shift {key} to {day}, {hour} h")
    return Request(wording, (("move_event", {"id": key, "day": day, "hour": hour}),))


def make_cancel_id(rng: random.Random, week: Section) -> Request:
    if not week:
        return make_add(rng, week)
    key, _ = _event(rng, week)
    return Request(f"Cancel event {key}", (("cancel_event", {"id": key}),))


def make_rename_id(rng: random.Random, week: Section) -> Request:
    if not week:
        return make_add(rng, week)
    key, event = _event(rng, week)
    title = rng.choice([t for t in _TITLES if t != event["title"]])
    return Request(
        f"Rename event {key} to '{title}'", (("rename_event", {"id": key, "title": title}),)
    )


def make_move_title(rng: random.Random, week: Section) -> Request:
    if not week or _has_double_titles(week):
        return make_add(rng, week)
    key, event = _event(rng, week)
    day, hour = _free_slot(rng, week)
    wording = f"Move the event '{event['title']}' to {day} at {hour}"
    call = ("move_event", {"id": key, "day": day, "hour": hour})
    return Request(wording, (("find_event", {"title": event["title"]}), call))


def make_cancel_title(rng: random.Random, week: Section) -> Request:
    if not week or _has_double_titles(week):
        return make_add(rng, week)
    key, event = _event(rng, week)
    wording = pick(
        rng, f"Cancel the event '{event['title']}'", f"Take '{event['title']}' off the calendar"
    )
    calls = (("find_event", {"title": event["title"]}), ("cancel_event", {"id": key}))
    return Request(wording, calls)


def make_next_free(rng: random.Random, week: Section) -> Request:
    """Book an hour that may be taken; then the next free one on that day."""
    used = {event["title"] for event in week.values()}
    title, day = rng.choice([t for t in _TITLES if t not in used]), rng.choice(_DAYS)
    taken = {event["hour"] for event in week.values() if event["day"] == day}
    wanted = rng.choice([*taken, *taken, rng.choice(_HOURS)])
    hour = next((h for h in range(wanted, 19) if h not in taken), None)
    if hour is None:
        return make_add(rng, week)
    wording = f"Add '{title}' on {day} at {wanted}, or else at the next free hour after that"
    call = ("add_event", {"day": day, "hour": hour, "title": title})
    return Request(wording, (("list_events", {"day": day}), call))


def _has_double_titles(week: Section) -> bool:
    titles = [event["title"] for event in week.values()]
    return len(set(titles)) < len(titles)


def _view(week: Section) -> Section:
    """Events by slot: which id a new event got depends on the order of the calls."""
    return {f"{e['day']} {e['hour']}": e["title"] for e in week.values()}


CALENDAR = World(
    "calendar",
    (
        Tool(
            "add_event",
            "new event",
            {"day": "string", "hour": "integer", "title": "string"},
            _add,
        ),
        Tool("move_event", "move it", {"id": "string", "day": "string", "hour": "integer"}, _move),
        Tool("rename_event", "new title", {"id": "string", "title": "string"}, _rename),
        Tool("cancel_event", "cancel one event", {"id": "string"}, _cancel),
        Tool("list_events", "events of a day", {"day": "string"}, _list),
        Tool("find_event", "id of a title", {"title": "string"}, _find),
        Tool("clear_calendar", "cancel ALL events", {}, _clear, is_destructive=True),
    ),
    _draw,
    (make_add, make_add, make_move_id, make_cancel_id, make_rename_id),
    (make_move_title, make_cancel_title, make_next_free),
    _view,
)
