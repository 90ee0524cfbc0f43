"""Parts of `tracker top`: looks at a tracker, the user's choices, a drawing of both, and the terminal.

The orders in which jobs are listed, and their keys, are here: they load no client, so help is quick.
"""

from __future__ import annotations

from typing import Final

from tracker.python310 import StrEnum


class Sort(StrEnum):
    """An order of the jobs."""

    NAME = "name"
    OPEN = "open"
    IN_FLIGHT = "in-flight"
    EVENTS = "events"
    EPOCHS = "epochs"
    LATE = "late"
    SILENT = "silent"


#: The key of each order.
KEYS: Final = {
    "n": Sort.NAME,
    "o": Sort.OPEN,
    "i": Sort.IN_FLIGHT,
    "e": Sort.EVENTS,
    "c": Sort.EPOCHS,
    "l": Sort.LATE,
    "s": Sort.SILENT,
}
