"""Rooms with lights, heaters and doors."""

from __future__ import annotations

import random

from educe.domains.builtin.stateful_tools.tools import (
    Arguments,
    Section,
    Tool,
    ToolFailure,
    need,
)
from educe.domains.builtin.stateful_tools.world import Call, Request, World, pick

_ROOMS = [
    "kitchen",
    "hall",
    "bedroom",
    "office",
    "garage",
    "attic",
    "cellar",
    "bathroom",
    "porch",
    "studio",
    "library",
    "nursery",
    "gym",
    "lounge",
    "pantry",
    "sauna",
]


def _room(home: Section, args: Arguments) -> Section:
    room: Section = need(home, args["room"], "room")
    return room


def _set_light(home: Section, args: Arguments) -> str:
    room = _room(home, args)
    room["light"] = args["on"]
    return f"the light is {'on' if args['on'] else 'off'}"


def _set_brightness(home: Section, args: Arguments) -> str:
    room = _room(home, args)
    if not 1 <= args["percent"] <= 100:
        raise ToolFailure("percent must be from 1 to 100")
    if not room["light"]:
        raise ToolFailure("the light is off; turn it on first")
    room["brightness"] = args["percent"]
    return "brightness set"


def _set_heater(home: Section, args: Arguments) -> str:
    room = _room(home, args)
    if not 5 <= args["degrees"] <= 30:
        raise ToolFailure("degrees must be from 5 to 30")
    room["heater"] = args["degrees"]
    return "heater set"


def _set_door(home: Section, args: Arguments) -> str:
    room = _room(home, args)
    room["locked"] = args["locked"]
    return "locked" if args["locked"] else "unlocked"


def _get_room(home: Section, args: Arguments) -> str:
    room = _room(home, args)
    light = "on" if room["light"] else "off"
    door = "locked" if room["locked"] else "unlocked"
    return f"light {light}, brightness {room['brightness']}, heater {room['heater']}, door {door}"


def _list_rooms(home: Section, args: Arguments) -> str:
    return ", ".join(sorted(home))


def _reset(home: Section, args: Arguments) -> str:
    for room in home.values():
        room.update(light=False, brightness=50, heater=15, locked=True)
    return "all rooms reset"


def _draw(rng: random.Random) -> Section:
    return {
        room: {
            "light": rng.random() < 0.5,
            "brightness": 5 * rng.randint(1, 20),
            "heater": rng.randint(10, 25),
            "locked": rng.random() < 0.5,
        }
        for room in rng.sample(_ROOMS, rng.randint(3, 5))
    }


def make_light(rng: random.Random, home: Section) -> Request:
    room = rng.choice(sorted(home))
    on = not home[room]["light"]
    state = "on" if on else "off"
    wording = pick(rng, f"Turn {state} the light in the {room}", f"Switch the {room} light {state}")
    return Request(wording, (("set_light", {"room": room, "on": on}),))


def make_heater(rng: random.Random, home: Section) -> Request:
    room = rng.choice(sorted(home))
    degrees = rng.choice([d for d in range(5, 31) if d != home[room]["heater"]])
    wording = pick(
        rng,
        f"Set the heater in the {room} to {degrees} degrees",
        f"Heat the {room} to {degrees} degrees",
    )
    return Request(wording, (("set_heater", {"room": room, "degrees": degrees}),))


def make_door(rng: random.Random, home: Section) -> Request:
    room = rng.choice(sorted(home))
    locked = not home[room]["locked"]
    wording = f"{'Lock' if locked else 'Unlock'} the door of the {room}"
    return Request(wording, (("set_door", {"room": room, "locked": locked}),))


def make_brightness(rng: random.Random, home: Section) -> Request:
    lit = [room for room in sorted(home) if home[room]["light"]]
    if not lit:
        return make_heater(rng, home)
    room, percent = rng.choice(lit), rng.randint(1, 100)
    wording = pick(
        rng,
        f"Set the brightness in the {room} to {percent} percent",
        f"Dim the {room} light to {percent} percent",
    )
    return Request(wording, (("set_brightness", {"room": room, "percent": percent}),))


def make_warmer(rng: random.Random, home: Section) -> Request:
    room = rng.choice(sorted(home))
    now = home[room]["heater"]
    change = rng.choice([c for c in (-4, -3, -2, 2, 3, 4) if 5 <= now + c <= 30])
    way = "warmer" if change > 0 else "cooler"
    degrees = now + change
    wording = f"Set the heater in the {room} {abs(change)} degrees {way} than it is now"
    return Request(
        wording,
        (("get_room", {"room": room}), ("set_heater", {"room": room, "degrees": degrees})),
    )


def make_match(rng: random.Random, home: Section) -> Request:
    first, second = rng.sample(sorted(home), 2)
    if home[first]["heater"] == home[second]["heater"]:
        return make_warmer(rng, home)
    wording = f"Set the heater in the {first} to the same degrees as in the {second}"
    degrees = home[second]["heater"]
    return Request(
        wording,
        (("get_room", {"room": second}), ("set_heater", {"room": first, "degrees": degrees})),
    )


def make_dim_any(rng: random.Random, home: Section) -> Request:
    """Brightness of a room whose light may be off: the tool's error says what to do first."""
    room, percent = rng.choice(sorted(home)), rng.randint(1, 100)
    look: Call = ("get_room", {"room": room})
    if not home[room]["light"]:
        look = ("set_light", {"room": room, "on": True})
    dim: Call = ("set_brightness", {"room": room, "percent": percent})
    wording = f"Make sure that the light in the {room} is on, with brightness {percent}"
    return Request(wording, (look, dim))


HOME = World(
    "home",
    (
        Tool("set_light", "light on or off", {"room": "string", "on": "boolean"}, _set_light),
        Tool("set_brightness", "dim", {"room": "string", "percent": "integer"}, _set_brightness),
        Tool("set_heater", "heat a room", {"room": "string", "degrees": "integer"}, _set_heater),
        Tool("set_door", "lock or unlock", {"room": "string", "locked": "boolean"}, _set_door),
        Tool("get_room", "state of a room", {"room": "string"}, _get_room),
        Tool("list_rooms", "names of all rooms", {}, _list_rooms),
        Tool("reset_home", "reset ALL rooms", {}, _reset, is_destructive=True),
    ),
    _draw,
    (make_light, make_heater, make_heater, make_door, make_brightness, make_brightness),
    (make_warmer, make_match, make_dim_any),
)
