"""Drains: which deployment is to stop, how, and how far that is."""

from __future__ import annotations

from dataclasses import dataclass

from tracker.contract.values import DrainMode, DrainState

UNDER_WAY = (DrainState.DRAINING, DrainState.TIMED_OUT)


@dataclass(slots=True)
class DrainRecord:
    """One deployment's drain.

    Attributes:
        deadline: when it times out (ns); None: never, or it has already.
        mode: what becomes of what is open.
    """

    state: DrainState = DrainState.NOT_DRAINING
    drain_id: str = ""
    deadline: int | None = None
    mode: DrainMode = DrainMode.FINISH

    @property
    def under_way(self) -> bool:
        """Return whether the drain is neither done nor cancelled; one that timed out goes on."""
        return self.state in UNDER_WAY

    @property
    def finishes(self) -> bool:
        """Return whether it is under way, and a front that finishes now does so for it."""
        return self.under_way and self.mode is DrainMode.FINISH

    @property
    def finished(self) -> bool:
        """Return whether it is done, and the job starts afresh with its next deployment."""
        return self.state is DrainState.DRAINED and self.mode is DrainMode.FINISH

    @property
    def hands_over(self) -> bool:
        """Return whether the deployment stops, or has stopped, for the next one to go on with what is open."""
        return self.mode is DrainMode.HAND_OVER and (self.under_way or self.state is DrainState.DRAINED)

    @property
    def handed_over(self) -> bool:
        """Return whether the next deployment goes on with what is open."""
        return self.state is DrainState.DRAINED and self.mode is DrainMode.HAND_OVER
