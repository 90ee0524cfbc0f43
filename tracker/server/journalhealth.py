"""Health of the journal: it may fail, be late with an answer, or no longer be this server's."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tracker.contract.refusal import Refusal, Refused
from tracker.journal import JournalError, JournalFullError, JournalGoneError

from .measures import Measures

log = logging.getLogger("tracker.sequencer")

LATE_S = 5.0  # seconds after which a group that is being made durable is late: then new commands are refused


class JournalHealth:
    """Health of the journal, as last seen.

    Args:
        works: called with False when the journal fails or is late, and with True when it works again.

    Attributes:
        failing: the last group was not made durable.
        late: the group that is being made durable takes long.
        gone: the journal is another server's, or whether the last group is durable will not be found out.
    """

    def __init__(self, works: Callable[[bool], None], measures: Measures) -> None:
        self._works = works
        self._measures = measures
        self.failing = False
        self.late = False
        self.gone = False

    def check(self) -> None:
        """Refuse a command that the journal could not take.

        Raises:
            Refused: the journal is late.
        """
        if self.late:
            raise Refused(Refusal.JOURNAL_FAILED, "the journal does not answer; nothing was changed; retry")

    def is_late(self) -> None:
        """Note that the journal has not answered for `LATE_S`."""
        log.error("the journal has not answered for %g s; new commands are refused until it does", LATE_S)
        self.late = True
        self._measures.sync_failures += 1
        self._works(False)

    def has_answered(self, error: Exception | None) -> Refused | None:
        """Note how the journal has answered.

        Args:
            error: with which; None: the group is durable.

        Returns:
            The refusal of the group's commands, if there was an error.
        """
        was_late, self.late = self.late, False
        if error is None:
            if self.failing or was_late:
                log.info("the journal works again")
                self.failing = False
                self._works(True)
            return None
        if isinstance(error, JournalGoneError):
            self.gone = True
            return Refused(Refusal.JOURNAL_GONE, f"{error}; repeat the call, it takes effect once")
        self._measures.sync_failures += 1
        if not self.failing:
            fault = None if isinstance(error, JournalError) else error
            log.error("the journal failed; commands are refused until it works again: %s", error, exc_info=fault)
            self.failing = True
            self._works(False)
        reason = Refusal.JOURNAL_FULL if isinstance(error, JournalFullError) else Refusal.JOURNAL_FAILED
        return Refused(reason, f"{error}; nothing was changed")
