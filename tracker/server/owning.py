"""Ways to get a server's journal: at once, or, as a standby, when the server that has it ends or hands it over.

`Readiness` has whether the server can do its work, and what is missing.

`Leadership` keeps a look-up from being answered from a state that another server has gone beyond. A command's answer
waits for the journal, which refuses a server that another one has replaced. A look-up writes nothing, so a server that
was cut off from the journal, or was stopped for a while, would answer it from an old state. Therefore it asks the
journal whether it is still the owner. Calls that arrive together share the question.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from tracker.contract.refusal import Refusal
from tracker.core import Refused
from tracker.journal import (
    FollowableJournal,
    Journal,
    JournalError,
    JournalGoneError,
    JournalLockedError,
    JournalLossError,
    LostTrackError,
    announce_standby,
    follow_journal,
    open_journal,
)

from .replayable import Followed, ReplayableState

_LOOK_S = 0.5  # seconds between two questions on behalf of those who only wait
_PATIENCE_S = 1.0  # seconds without an answer until those who wait are sent away
#: The status of refusals that do not come from the state.
_NOT_OF_THE_STATE = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED"})


def elsewhere() -> Refused:
    """Return the refusal that those get who wait for events at a server that may not lead any more."""
    return Refused(
        Refusal.JOURNAL_FAILED, "this server cannot find out whether it still leads; watch again at the leader"
    )


class Leadership:
    """Check with the journal that this server still owns it.

    Args:
        send_away: called for those who wait for events, once the journal has not answered for a while: another server
            may have the events for which they wait.
    """

    def __init__(self, journal: Journal, send_away: Callable[[], None]) -> None:
        self._journal = journal
        self._send_away = send_away
        self._thread = ThreadPoolExecutor(1, "leading")
        self._asking: asyncio.Task[Refused | None] | None = None
        self._next: asyncio.Task[Refused | None] | None = None

    async def confirm(self) -> None:
        """Make sure that this server led at some moment since the call began.

        Raises:
            Refused: ``JOURNAL_GONE``: it does not lead any more; ``JOURNAL_FAILED``: that cannot be found out now.
        """
        if self._journal.exclusive:
            return
        if self._next is None:  # a question that was asked before this call began proves nothing for it
            self._next = asyncio.create_task(self._ask(self._asking))
        if (refused := await asyncio.shield(self._next)) is not None:
            raise refused

    async def checked(self, error: Exception) -> Exception:
        """Return the error that a caller gets in place of one: this one, if it comes from the state of a leader."""
        if isinstance(error, Refused) and error.code not in _NOT_OF_THE_STATE:
            try:
                await self.confirm()
            except Refused as other:
                return other
        return error

    async def follow(self, somebody_waits: Callable[[], bool]) -> None:
        """Send those away who wait for events, whenever the journal does not answer. Run until cancelled.

        Args:
            somebody_waits: whether anybody does; else the journal is not asked.
        """
        loop = asyncio.get_running_loop()
        answered = loop.time()
        while not self._journal.exclusive:
            await asyncio.sleep(_LOOK_S)
            try:
                if somebody_waits():
                    await self.confirm()
                answered = loop.time()
            except Refused:
                if loop.time() > answered + _PATIENCE_S:
                    self._send_away()

    def close(self) -> None:
        """Ask nothing more."""
        self._thread.shutdown(wait=False)

    async def _ask(self, before: asyncio.Task[Refused | None] | None) -> Refused | None:
        if before is not None:
            await asyncio.wait([before])
        self._asking, self._next = self._next, None
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._journal.confirm)
        except JournalGoneError as error:
            return Refused(Refusal.JOURNAL_GONE, f"{error}; repeat the call at the server that leads now")
        except JournalError as error:
            return Refused(
                Refusal.JOURNAL_FAILED, f"this server cannot find out whether it still leads: {error}; retry"
            )
        return None


RECOVERING = "the server recovers its state from the journal; wait"
_STANDBY = "the server is a standby: another one uses the journal"


class Readiness:
    """Record of what the server is ready for, from recovery to the end.

    >>> readiness = Readiness()
    >>> readiness.missing()
    'the server recovers its state from the journal; wait'
    >>> readiness.serving()
    >>> readiness.missing()
    ''
    """

    def __init__(self) -> None:
        self._reason = RECOVERING
        self._journal_works = True

    def standby(self) -> bool:
        """Note that the server waits while another one has the journal, and return whether that is new."""
        before, self._reason = self._reason, _STANDBY
        return before != self._reason

    @property
    def is_standby(self) -> bool:
        """Return whether the server waits while another one has the journal."""
        return self._reason == _STANDBY

    def recovering(self) -> None:
        """Note that the server has the journal, and recovers its state."""
        self._reason = RECOVERING

    def serving(self) -> None:
        """Note that the server accepts calls from now on."""
        self._reason = ""

    def stopping(self) -> None:
        """Note that the server accepts no new calls from now on."""
        self._reason = "the server is stopping"

    def journal_works(self, works: bool) -> None:
        """Note that the journal fails, or works again."""
        self._journal_works = works

    def missing(self) -> str:
        """Return why the server is not ready; "" if it is."""
        if self._reason or self._journal_works:
            return self._reason
        return "the journal fails, so commands are refused; the server's log has the error"


log = logging.getLogger("tracker.server")

_FOLLOW_S = 0.05  # seconds between two looks of a standby at the log
_BEGIN_AGAIN_S = 0.5  # seconds until a standby begins again
_AGAIN_S = 0.1  # seconds between two attempts to get a journal that another server uses


async def own(
    where: str, standby: bool, stop: asyncio.Event, readiness: Readiness, accept_loss: bool = False
) -> tuple[Journal | None, Followed | None]:
    """Open a journal. A standby waits until it can, and reads what it can meanwhile.

    Args:
        where: the journal, as `open_journal` takes it.
        standby: wait while another server has it.
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


def stand_by(
    journal: FollowableJournal, is_stopped: Callable[[], bool], standing: Callable[[], object]
) -> Followed | None:
    """Replay what another server writes, until this one owns the journal.

    Args:
        standing: called while this server follows the log and its owner can find it.

    Returns:
        The journal as far as it was read; None: `is_stopped`.

    Raises:
        tracker.journal.JournalLossError: the store has lost what was read.
    """
    complaint = ""
    while not is_stopped():
        try:
            dump, following = journal.follow()
            state = ReplayableState(dump)
            while not is_stopped():
                for number, record in following.records():
                    state.replay(number, record)
                state.forget_news()
                if journal.try_to_own():
                    return Followed(journal, state, following.place)
                standing()
                time.sleep(_FOLLOW_S)
        except JournalLossError:
            raise  # what is lost is written down, and somebody has to decide
        except JournalError as error:
            if isinstance(error, LostTrackError):
                log.info("the standby begins again with the newest snapshot: %s", error)
            elif str(error) != complaint:
                log.warning("the standby cannot follow the journal; it tries again: %s", error)
                complaint = str(error)
            with suppress(JournalError):
                if journal.try_to_own():  # nobody leads: whoever recovers the log finds out what is wrong with it
                    return Followed(journal, ReplayableState(), None)
        time.sleep(_BEGIN_AGAIN_S)
    return None
