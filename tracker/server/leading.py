"""Leadership of this server: a look-up must not be answered from a state that another server has gone beyond.

A command's answer waits for the journal, which refuses a server that another one has replaced. A look-up writes
nothing, so a server that was cut off from the journal, or was stopped for a while, would answer it from an old state.
Therefore it asks the journal whether it is still the owner. Calls that arrive together share the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tracker.contract.refusal import Refusal
from tracker.core import Refused
from tracker.journal import Journal, JournalError, JournalGoneError

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
        """Return what a caller is told in place of an error: this one, if it comes from the state of a leader."""
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
