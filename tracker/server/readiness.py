"""Readiness of the server for its work, and what is missing."""

from __future__ import annotations

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
        """The server has the journal, and recovers its state."""
        self._reason = RECOVERING

    def serving(self) -> None:
        """The server accepts calls from now on."""
        self._reason = ""

    def stopping(self) -> None:
        """The server accepts no new calls from now on."""
        self._reason = "the server is stopping"

    def journal_works(self, works: bool) -> None:
        """The journal fails, or works again."""
        self._journal_works = works

    def missing(self) -> str:
        """Return why the server is not ready; "" if it is."""
        if self._reason or self._journal_works:
            return self._reason
        return "the journal fails, so commands are refused; the server's log has the error"
