"""Names for packages, folders, modules and functions. None is a module of the standard library,
a keyword, a builtin or a local variable of a template.
"""

from __future__ import annotations

PACKAGES = (
    "airfield", "bakery", "boatyard", "brewery", "campsite", "clinic", "creamery", "dairy",
    "depot", "farmstead", "ferryport", "festival", "foundry", "gallery", "greenhouse", "harbour",
    "hostel", "laundry", "lighthouse", "market", "millhouse", "museum", "nursery", "orchard",
    "pottery", "quarry", "railyard", "sawmill", "shipyard", "stadium", "theatre", "vineyard",
)  # fmt: skip
FOLDERS = ("office", "floor", "yard", "shop", "stores", "intake")
MODULES = (
    "accounts", "badges", "batches", "bills", "bookings", "crates", "desks", "fares", "fees",
    "grades", "guests", "labels", "leases", "loads", "lots", "meters", "notices", "offers",
    "orders", "passes", "permits", "plans", "plots", "prices", "quotas", "racks", "ranks",
    "rates", "records", "refunds", "reports", "rooms", "routes", "scores", "seats", "shelves",
    "shifts", "signs", "stocks", "stops", "tables", "tallies", "tanks", "teams", "tickets",
    "tolls", "tours", "trips", "wages", "zones",
)  # fmt: skip
NOUNS = (
    "barrel", "basket", "berth", "bottle", "bundle", "cabin", "cart", "chest", "cradle", "crew",
    "ferry", "flask", "group", "guide", "hall", "jar", "kettle", "lamp", "lane", "loaf", "lorry",
    "meal", "pallet", "parcel", "party", "pier", "plank", "pot", "ramp", "reel", "sack", "sail",
    "stall", "team", "tent", "tool", "tray", "van", "wagon", "winch",
)  # fmt: skip
WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "frost", "grove", "hazel", "iris", "juniper",
    "kelp", "linden", "maple", "north", "ochre", "pearl", "quartz", "river", "slate", "thistle",
    "umber", "violet", "willow", "yarrow",
)  # fmt: skip
CLASSES = ("Book", "Board", "Desk", "File", "Log", "Register")
