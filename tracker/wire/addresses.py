"""Addresses of servers: which of them are this machine's own."""

from __future__ import annotations

import ipaddress
import re


def is_local(address: str) -> bool:
    """Returns whether an address is this machine's own: a loopback address, `localhost`, or a socket file.

    >>> [is_local(each) for each in ("localhost:1", "[::1]:1", "dns:///127.0.0.9:1", "unix:/run/s", "10.0.0.1:1")]
    [True, True, True, True, False]
    """
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    target = re.sub(r"^(dns:(//[^/]*/)?|ipv4:|ipv6:)", "", address)
    host = target.rpartition(":")[0].strip("[]").lower() or target
    if host in ("localhost", "localhost.") or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
