"""Drains: which deployment is to come to an end, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass

from tracker.contract.values import DrainState

UNDER_WAY = (DrainState.DRAINING, DrainState.TIMED_OUT)


@dataclass(slots=True)
class DrainRecord:
    """One deployment's drain.

    Attributes:
        deadline: when it times out (ns); None: never, or it has already.
    """

    state: DrainState = DrainState.NOT_DRAINING
    drain_id: str = ""
    deadline: int | None = None

    @property
    def under_way(self) -> bool:
        """Asked for, and neither done nor cancelled; a drain that timed out goes on."""
        return self.state in UNDER_WAY
