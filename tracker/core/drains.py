"""Drains: which deployment is to end, and how far its drain is."""

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
        """Whether the drain is neither done nor cancelled; one that timed out goes on."""
        return self.state in UNDER_WAY
