"""Whether the server can do its work now, and if not, why."""

from __future__ import annotations


class Readiness:
    """Collects what the server is ready for, from recovery to the end.

    >>> readiness = Readiness()
    >>> readiness.missing()
    'the server recovers its state from the journal; wait'
    >>> readiness.serving()
    >>> readiness.missing()
    ''
    """

    def __init__(self) -> None:
        self._reason = "the server recovers its state from the journal; wait"
        self._journal_works = True

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
