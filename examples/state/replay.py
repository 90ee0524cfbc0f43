"""Visits of six tenants over twelve hours, in the order in which they arrive: one is slow, one has an outage.

All are made up. A step is half an hour on the replay's clock.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

SCHEMA: Final = "tenant string, at timestamp, user string"
STEP: Final = 30  #: minutes
HOURS: Final = 12

Entry: TypeAlias = tuple[str, int, str]  #: a tenant, an hour and a user

_TENANTS: Final = ("one", "two", "three", "four", "slow", "outage")
_USERS: Final = 8
_ROWS: Final = 24  #: of a tenant's hour
_SLOW: Final = 180  #: minutes by which all rows of one tenant are late
_OUTAGE: Final = (240, 480)  #: minutes in which one tenant delivers nothing; then all of it at once
_START: Final = datetime(2026, 3, 2)


class Replay:
    """The rows, by the step in which they arrive."""

    def __init__(self) -> None:
        rng = random.Random(1)
        self.steps: dict[int, list[tuple[str, int, str]]] = {}
        for tenant in _TENANTS:
            for hour in range(HOURS):
                for _ in range(_ROWS):
                    minute = 60 * hour + rng.randrange(60)
                    row = (tenant, minute, f"user {rng.randrange(_USERS)}")
                    self.steps.setdefault(_arrives(tenant, minute) // STEP, []).append(row)
        self.last = max(self.steps)

    @property
    def truth(self) -> dict[Entry, int]:
        """Number of visits of each entry."""
        rows = [row for arriving in self.steps.values() for row in arriving]
        return dict(Counter((tenant, minute // 60, user) for tenant, minute, user in rows))

    def open_entries(self) -> list[int]:
        """Count after each step the entries that have begun whose tenant's hour is not complete; nobody keeps fewer."""
        last: dict[tuple[str, int], int] = {}
        first: dict[Entry, int] = {}
        for step, rows in sorted(self.steps.items()):
            for tenant, minute, user in rows:
                last[tenant, minute // 60] = step
                first.setdefault((tenant, minute // 60, user), step)
        return [
            sum(began <= step < last[tenant, hour] for (tenant, hour, _), began in first.items())
            for step in range(self.last + 1)
        ]

    def publish(self, directory: Path) -> Iterator[int]:
        """Write a file for each step that has rows, and yield the steps."""
        directory.mkdir()
        for step in range(self.last + 1):
            lines = [json.dumps(_shown(row)) for row in self.steps.get(step, [])]
            if lines:
                hidden = directory / f".{step}"
                hidden.write_text("\n".join(lines) + "\n")
                hidden.rename(directory / f"{step:04d}.json")
            yield step


def _arrives(tenant: str, minute: int) -> int:
    if tenant == "slow":
        return minute + _SLOW
    if tenant == "outage" and _OUTAGE[0] <= minute < _OUTAGE[1]:
        return _OUTAGE[1]
    return minute


def _shown(row: tuple[str, int, str]) -> dict[str, Any]:
    tenant, minute, user = row
    return {"tenant": tenant, "at": str(_START + timedelta(minutes=minute)), "user": user}


def hour_of(at: datetime) -> int:
    """Return the hour of a window that begins at a time."""
    return (at.replace(tzinfo=None) - _START) // timedelta(hours=1)
