"""Ways to get a server's journal: at once, or, as a standby, when the server that has it ends or hands it over."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, suppress

from tracker.journal import Journal, JournalLockedError, announce_standby, follow_journal, open_journal

from .readiness import Readiness
from .replayable import Followed, stand_by

log = logging.getLogger("tracker.server")

_AGAIN_S = 0.1  # seconds between two attempts to get a journal that another server uses


async def own(
    where: str, standby: bool, stop: asyncio.Event, readiness: Readiness, accept_loss: bool = False
) -> tuple[Journal | None, Followed | None]:
    """Open a journal. A standby waits until it can, and reads what it can meanwhile.

    Args:
        where: the journal, as `open_journal` takes it.
        standby: wait while another server has it.
        readiness: is told that the server stands by.
        accept_loss: whether records may be lost: a log is not followed then, if nobody leads, but recovered at once.

    Returns:
        The journal, and what was read of it; None: it was stopped.

    Raises:
        ValueError, tracker.journal.JournalError: as `open_journal`.
    """
    if accept_loss:
        try:
            return await asyncio.to_thread(open_journal, where), None
        except JournalLockedError:
            if not standby:
                raise
    if standby and (followable := await asyncio.to_thread(follow_journal, where)) is not None:

        def standing() -> None:
            if readiness.standby():
                log.info("standing by")

        try:
            followed = await asyncio.to_thread(stand_by, followable, stop.is_set, standing)
        except BaseException:
            followable.close()
            raise
        if followed is None:
            followable.close()
            return None, None
        return followable, followed
    with ExitStack() as waiting:
        while not stop.is_set():
            try:
                # In a thread, so that the event loop answers meanwhile that the server lives, and is not ready.
                return await asyncio.to_thread(open_journal, where), None
            except JournalLockedError as error:
                if not standby:
                    raise
                if readiness.standby():
                    log.info("standing by: %s", error)
                    if (announced := announce_standby(where)) is not None:
                        waiting.callback(announced.release)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _AGAIN_S)
    return None, None
