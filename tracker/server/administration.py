"""The calls that concern the whole server: backups, and handing the journal over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tracker.core import Refused
from tracker.security.audit import Audit
from tracker.security.guard import Caller
from tracker.wire.gen import tracker_pb2 as wire

from . import backups
from .handover import HandOver
from .intake import Context, Intake
from .leading import Leadership
from .measures import Measures
from .sequencer import Sequencer


class Administration:
    """Handler of these calls.

    Args:
        audit: records the calls; None: nothing does.
        leadership: confirms that this server leads.
        hand_over: hands the journal to a standby.
    """

    def __init__(
        self,
        sequencer: Sequencer,
        intake: Intake,
        journal: str,
        measures: Measures,
        audit: Audit | None,
        leadership: Leadership,
        hand_over: HandOver,
    ) -> None:
        self._sequencer = sequencer
        self._intake = intake
        self._journal = journal
        self._measures = measures
        self._audit = audit
        self._leadership = leadership
        self._hand_over = hand_over
        self._backing_up = asyncio.Lock()  # each backup holds a copy of the state in memory

    async def backup(self, context: Context, caller: Caller) -> AsyncIterator[bytes]:
        """Send the state as a backup's file."""
        data = await self._intake.receive(context)
        if data is None:
            return
        self._intake.question(wire.BackupRequest, data)
        async with self._recorded(caller, "Backup"), self._backing_up:
            number, dump = await self._sequencer.copy()
            await self._leadership.confirm()  # or another server has gone beyond this state
            made = time.time()
            backup = await asyncio.to_thread(backups.draft, self._journal, number, dump, made)
            del dump
            size = await asyncio.to_thread(backup.seal)
            for part in backup.parts():
                caller.authorize_all()
                yield wire.BackupPart(data=part, size=size).SerializeToString()
            self._measures.backup_at = made

    async def move(self, data: bytes, caller: Caller) -> bytes:
        """Hand the journal to the standby."""
        self._intake.question(wire.MoveLeaderRequest, data)
        async with self._recorded(caller, "MoveLeader"):
            to = await self._hand_over.begin()
        return wire.MoveLeaderResponse(to=to).SerializeToString()

    @asynccontextmanager
    async def _recorded(self, caller: Caller, call: str) -> AsyncIterator[None]:
        """Refuse a caller that may not touch all jobs, and record the call with what comes of it."""
        if self._audit is not None:
            await self._audit.check()
        outcome = "CANCELLED"
        try:
            caller.authorize_all()
            yield
            outcome = "OK"
        except Exception as error:
            outcome = error.reason if isinstance(error, Refused) else "FAULT"
            raise
        finally:
            if self._audit is not None:
                name, peer = caller.identity.name, caller.peer()
                await asyncio.shield(self._audit.record(name, peer, call, None, outcome))
