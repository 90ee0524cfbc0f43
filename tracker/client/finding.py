"""One tracker at several addresses: which of them has the leader now.

A tracker can run on several machines with the same journal. One of them leads; the others are standbys, which accept no
calls. Their addresses are joined by ``+``. A client calls one of them for as long as it answers, and then the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

from tracker.wire.addresses import check_target

SEPARATOR: Final = "+"


def alternatives(server: str) -> tuple[str, ...]:
    """Return the addresses at which one tracker may be.

    Raises:
        ValueError: one is empty, has no port, or is named twice.

    >>> alternatives("a:7654+b:7654")
    ('a:7654', 'b:7654')
    """
    if server.startswith("unix:"):
        return (server,)
    found = tuple(server.split(SEPARATOR))
    if "" in found or len(set(found)) < len(found):
        raise ValueError(f"{server!r} is not valid; name each address of a tracker once, as HOST:PORT+HOST:PORT")
    for address in found:
        check_target(address)
    return found


class Finder:
    """Which of a tracker's addresses is called.

    Args:
        addresses: all of them.

    >>> finder = Finder(("a:7654", "b:7654"))
    >>> finder.current
    'a:7654'
    >>> finder.failed("a:7654")
    >>> finder.current
    'b:7654'
    >>> finder.failed("a:7654")  # another thread's call failed there, and this one has moved on
    >>> finder.current
    'b:7654'
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._place = 0

    @property
    def current(self) -> str:
        """The address to call."""
        return self.addresses[self._place]

    def others(self, address: str) -> tuple[str, ...]:
        """Return the other addresses than this one, those first that are tried next."""
        place = self.addresses.index(address)
        return self.addresses[place + 1 :] + self.addresses[:place]

    def failed(self, address: str) -> None:
        """Note that an address has not answered: the next one is called, unless that is done already."""
        if address == self.current:
            self._place = (self._place + 1) % len(self.addresses)

    def found(self, address: str) -> None:
        """Note that the tracker answers at an address."""
        self._place = self.addresses.index(address)


@cache
def finder(server: str) -> Finder:
    """Return this process's finder of a tracker: what one call has found out, the next one uses.

    Args:
        server: the tracker's addresses, as `alternatives` takes them.

    Raises:
        ValueError: as `alternatives`.
    """
    return Finder(alternatives(server))
