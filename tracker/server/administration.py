"""The calls that concern the whole server: backups, and handing the journal over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from tracker.contract.refusal import Refusal
from tracker.core import Refused
from tracker.journal import FollowableJournal, Journal, JournalError, MovableJournal
from tracker.security.guard import Caller
from tracker.wire.gen import tracker_pb2 as wire

from . import backups
from .calls import Calls
from .intake import Context
from .sequencer import Sequencer

log = logging.getLogger("tracker.server")

_GRACE_S = 10.0  # the time that calls under way get when the server stops
_SHORT_GRACE_S = 2.0  # the same if another server waits to serve their callers
_NOBODY = (
    "no standby follows the journal: start one with `tracker serve --standby` on the same journal, and wait until its "
    "/readyz tells that it is a standby"
)


class HandOver:
    """Hand-over of the journal to a standby, if it is asked for, so that no call fails when the server ends.

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


class Administration:
    """Handler of these calls."""

    def __init__(self, calls: Calls, sequencer: Sequencer, hand_over: HandOver, journal: str) -> None:
        self._calls = calls
        self._sequencer = sequencer
        self._hand_over = hand_over
        self._journal = journal
        self._backing_up = asyncio.Lock()  # each backup holds a copy of the state in memory

    async def backup(self, context: Context, caller: Caller) -> AsyncIterator[bytes]:
        """Send the state as a backup's file."""
        data = await self._calls.intake.receive(context)
        if data is None:
            return
        self._calls.intake.question(wire.BackupRequest, data)
        async with self._calls.recorded("Backup", caller, None):
            caller.authorize_all()
            async with self._backing_up:
                number, dump = await self._sequencer.copy()
                await self._calls.leadership.confirm()  # or another server has gone beyond this state
                made = time.time()
                backup = await asyncio.to_thread(backups.draft, self._journal, number, dump, made)
                del dump
                size = await asyncio.to_thread(backup.seal)
                for part in backup.parts():
                    caller.authorize_all()
                    yield wire.BackupPart(data=part, size=size).SerializeToString()
                self._calls.measures.backup_at = made

    async def move(self, data: bytes, caller: Caller) -> bytes:
        """Hand the journal to the standby."""
        self._calls.intake.question(wire.MoveLeaderRequest, data)
        async with self._calls.recorded("MoveLeader", caller, None):
            caller.authorize_all()
            to = await self._hand_over.begin()
        return wire.MoveLeaderResponse(to=to).SerializeToString()
