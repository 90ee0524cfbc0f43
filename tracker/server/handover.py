"""Hand-over of the journal to a standby, so that no call fails when the server ends."""

from __future__ import annotations

import asyncio
import logging

from tracker.contract.refusal import Refusal
from tracker.core import Refused
from tracker.journal import FollowableJournal, Journal, JournalError, MovableJournal

from .sequencer import Sequencer

log = logging.getLogger("tracker.server")

_GRACE_S = 10.0  # the time that calls under way get when the server stops
_SHORT_GRACE_S = 2.0  # the same if another server waits to serve their callers
_NOBODY = (
    "no standby follows the journal: start one with `tracker serve --standby` on the same journal, and wait until its "
    "/readyz tells that it is a standby"
)


class HandOver:
    """Hand-over of the journal, if it is asked for.

    Args:
        stop: set to stop the server.

    Attributes:
        asked: whether it was asked for, and there is a standby.
    """

    def __init__(self, journal: Journal, sequencer: Sequencer, stop: asyncio.Event) -> None:
        self._journal = journal
        self._sequencer = sequencer
        self._stop = stop
        self.asked = False

    @property
    def grace_s(self) -> float:
        """The seconds that calls under way get when the server stops."""
        return _SHORT_GRACE_S if self.asked else _GRACE_S

    async def begin(self) -> str:
        """Stop the server, and return who gets the journal.

        Raises:
            Refused: ``NO_STANDBY``, ``JOURNAL_FAILED``.
        """
        standby = await self._standby()
        if not isinstance(self._journal, FollowableJournal):
            # The standby reads the journal only when it has it: the less there is to read, the sooner it serves.
            await self._sequencer.keep_snapshot()
            standby = await self._standby()
        self.asked = True
        log.info("handing over", extra={"to": standby})
        self._stop.set()
        return standby

    async def _standby(self) -> str:
        if not isinstance(self._journal, MovableJournal):
            raise Refused(
                Refusal.NO_STANDBY,
                f"a journal of the kind {self._journal.name!r} cannot be handed over; stop this server instead, and "
                "another one can start on its journal",
            )
        try:
            standby = await asyncio.to_thread(self._journal.standby)
        except JournalError as error:
            raise Refused(Refusal.JOURNAL_FAILED, f"{error}; nothing was changed; retry") from error
        if not standby:
            raise Refused(Refusal.NO_STANDBY, _NOBODY)
        return standby

    async def finish(self) -> None:
        """Give the journal to the standby, if that was asked for. Nothing may be written any more."""
        if self.asked and isinstance(self._journal, MovableJournal):
            await asyncio.to_thread(self._journal.hand_over)
