"""Reading a range of a job's events page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tracker.contract.events import EventPage


def pages(read: Callable[[int, int], EventPage], after: int, up_to: int | None = None) -> Iterator[EventPage]:
    """Yield the pages of a range of one log, until nothing more is there.

    Args:
        read: reads a page: the events after a number, up to a number; 0: up to the newest.
        after: the events after it.
        up_to: the events up to it; None: up to the newest.

    >>> def every_event(client, job):
    ...     for page in pages(lambda after, up_to: client.list_events(job, after, up_to), 0):
    ...         yield from page.events
    """
    while up_to is None or after < up_to:
        page = read(after, up_to or 0)
        yield page
        if page.last_seq <= after:
            return
        after = page.last_seq
