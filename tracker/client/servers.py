"""Servers that a client calls: the one that has a job, and, of several addresses, the leader's.

A job's server is the one whose name, hashed together with the job's, gives the highest value (rendezvous hashing). So
all clients with the same list agree, whatever its order; a server that is away keeps its jobs; and an additional server
takes its share from the others and moves no job among them.

This module works with names only. It never considers which servers answer: if the choice depended on that, two servers
could have the same job.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from functools import cache
from typing import Final

from tracker.client.errors import TrackerUnavailable
from tracker.client.labels import label
from tracker.wire.addresses import check_target

_RANGE: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")
_RESOLVED: Final = re.compile(r"(?P<count>\d+)@(?P<host>[^@]+):(?P<port>\d+)")


def names(servers: str) -> tuple[str, ...]:
    """Return the servers that an address stands for, sorted; each name once.

    Args:
        servers: an address, or several, separated by commas. ``{0..2}`` stands for 0, 1 and 2, like the names of a
            StatefulSet's pods. ``3@HOST:PORT`` stands for the three addresses that a host's name resolves to now.
            ``HOST:PORT+HOST:PORT`` is one server that may be at either address: see `tracker.client.servers`.

    Raises:
        ValueError: a server is named twice, or a name is empty.
        TrackerUnavailable: a host's name does not resolve to the given number of addresses.

    >>> names("b:7654,a:7654")
    ('a:7654', 'b:7654')
    >>> names("tracker-{0..2}.tracker:7654")
    ('tracker-0.tracker:7654', 'tracker-1.tracker:7654', 'tracker-2.tracker:7654')
    """
    found = [name for part in servers.split(",") for each in _expanded(part.strip()) for name in _resolved(each)]
    if "" in found or len(set(found)) < len(found):
        raise ValueError(f"servers={servers!r} is not valid; name each server once, as HOST:PORT, with commas between")
    for name in found:
        alternatives(name)
    return tuple(sorted(found))


def choose(servers: Sequence[str], job: str) -> str:
    """Return the server that has a job.

    >>> [choose(("a:7654", "b:7654", "c:7654"), job) for job in ("flights", "shop", "mail")]
    ['b:7654', 'a:7654', 'b:7654']
    """
    if len(servers) == 1:
        return servers[0]
    return max(servers, key=lambda server: (label(server, job), server))


def _expanded(name: str) -> list[str]:
    found = _RANGE.search(name)
    if found is None:
        return [name]
    first, last = int(found[1]), int(found[2])
    numbered = (f"{name[: found.start()]}{number}{name[found.end() :]}" for number in range(first, last + 1))
    return [each for name in numbered for each in _expanded(name)]


def _resolved(name: str) -> list[str]:
    asked = _RESOLVED.fullmatch(name)
    if asked is None:
        return [name]
    host, port, count = asked["host"], int(asked["port"]), int(asked["count"])
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise TrackerUnavailable(f"{host} does not resolve: {error}") from error
    old = {f"{address[0]}:{port}" for family, *_, address in answers if family == socket.AF_INET}
    new = {f"[{address[0]}]:{port}" for family, *_, address in answers if family == socket.AF_INET6}
    addresses = old or new  # a host with addresses of both kinds has each server twice
    if len(addresses) != count:
        raise TrackerUnavailable(
            f"{host} resolves to {len(addresses)} addresses ({', '.join(sorted(addresses))}), not to {count}. A "
            "missing server must not leave its jobs to another; if the number of servers has changed, change the "
            "number here"
        )
    return sorted(addresses)


# A tracker can run on several machines with the same journal. One of them leads; the others are standbys, which
# accept no calls. Their addresses are joined by ``+``. A client calls one of them for as long as it answers, and then
# the next.

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
    """Choice of a tracker's address to call.

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

    Raises:
        ValueError: an address is empty, has no port, or is named twice.
    """
    return Finder(alternatives(server))
