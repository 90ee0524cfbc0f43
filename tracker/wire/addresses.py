"""Addresses of servers: their form, and which of them are this machine's own."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_RESOLVER: Final = re.compile(r"^(dns:(//[^/]*/)?|ipv4:|ipv6:)")
UNIX: Final = "unix:"  #: before the path of a socket file
_FILES: Final = (UNIX, "unix-abstract:")


class CannotListenError(Exception):
    """This process cannot listen on the address."""


def host_and_port(address: str, use: str = "use HOST:PORT, such as 127.0.0.1:7654", least: int = 0) -> tuple[str, int]:
    """Return the host, as it is given, and the port of an address.

    Args:
        address: ``HOST:PORT``, where an IPv6 host is in brackets.
        use: the form that is right here, for the message.
        least: the lowest port that is taken; 0 stands for any free one.

    Raises:
        ValueError: the address has another form.

    >>> host_and_port("[::1]:7654")
    ('[::1]', 7654)
    >>> host_and_port("http://tracker:7654")
    Traceback (most recent call last):
    ValueError: 'http://tracker:7654' is not an address; use HOST:PORT, such as 127.0.0.1:7654
    """
    host, _, port = address.rpartition(":")
    named = host not in ("", "[]") and "/" not in host and (":" not in host or (host[0], host[-1]) == ("[", "]"))
    if not named or not (port.isascii() and port.isdecimal()) or not least <= int(port) <= 65535:
        raise ValueError(f"{address!r} is not an address; {use}")
    return host, int(port)


def check_target(address: str) -> None:
    """Check that a client can call an address: gRPC would take port 443 where there is none.

    Raises:
        ValueError: it has no port, or another form.

    >>> for each in ("unix:/run/tracker", "dns:///tracker.shop:7654", "ipv4:10.0.0.1:1,10.0.0.2:1"):
    ...     check_target(each)
    """
    if not address.startswith((*_FILES, "xds:")):  # a name of xds has its ports there
        for each in _RESOLVER.sub("", address).split(","):
            host_and_port(each, "name the tracker as HOST:PORT, such as 127.0.0.1:7654", least=1)


def is_local(address: str) -> bool:
    """Return whether an address is this machine's own: a loopback address, `localhost`, or a socket file.

    >>> [is_local(each) for each in ("localhost:1", "[::1]:1", "dns:///127.0.0.9:1", "unix:/run/s", "10.0.0.1:1")]
    [True, True, True, True, False]
    """
    if address.startswith(_FILES):
        return True
    target = _RESOLVER.sub("", address)
    host = target.rpartition(":")[0].strip("[]").lower() or target
    if host in ("localhost", "localhost.") or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
