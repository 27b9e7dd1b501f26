"""Programs that attack the box, the machine or the limits, with what must come of each.

A row runs at every level that the host offers. ``verdicts`` are the endings allowed; ``prints``
must stand in the output and ``never`` must not. Everything is bounded in number and time, and
nothing leaves the machine (addresses are loopback, documentation ranges or link-local).
"""

from __future__ import annotations

from hostile.escapes import ESCAPE
from hostile.legitimate import LEGITIMATE
from hostile.outputs import OUTPUT
from hostile.resources import RESOURCE
from hostile.row import BOXED, CALM, COUNTED, FAST, SLEEPY, Row
from hostile.strangers import STRANGERS

ROWS = [*RESOURCE, *ESCAPE, *OUTPUT, *LEGITIMATE, *STRANGERS]

__all__ = [
    "BOXED",
    "CALM",
    "COUNTED",
    "ESCAPE",
    "FAST",
    "LEGITIMATE",
    "OUTPUT",
    "RESOURCE",
    "ROWS",
    "SLEEPY",
    "STRANGERS",
    "Row",
]
