"""Owners of relays' sockets: a client uses a socket only if a user that its process trusts listens there.

Anyone who can write in the socket's directory could listen there, and answer APPLIED to reports that never reach the
tracker. So before a client uses a relay, it asks the kernel which user listens (`SO_PEERCRED`). It trusts its own user,
root, and the users that `TRACKER_RELAY_UIDS` names. A socket file belongs to one listener as long as it exists, so the
kernel's answer holds for the file. The client connects to that file, not to its path: replacing the file gains an
attacker nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tracker.client import forking

VARIABLE: Final = "TRACKER_RELAY_UIDS"

_ROOT: Final = 0
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid

log = logging.getLogger("tracker.client.relay")


@dataclass(frozen=True, slots=True)
class _Socket:
    """A socket file that was checked."""

    descriptor: int  #: the file's; -1: the file is not kept open
    file: tuple[int, int]  #: device and inode
    address: str | None  #: where to connect to it; None: do not use it


_known: dict[tuple[str, frozenset[int]], _Socket] = {}  # by the path and the trusted users
_lock = threading.Lock()


def trusted_users() -> frozenset[int]:
    """Return the users whose relays this process uses: its own, root, and those that `TRACKER_RELAY_UIDS` names.

    Raises:
        ValueError: the variable holds anything but numbers.
    """
    named = os.environ.get(VARIABLE, "")
    try:
        others = {int(uid) for uid in named.split(",") if uid.strip()}
    except ValueError:
        raise ValueError(
            f"{VARIABLE}={named!r} is not valid; give user ids with commas between, such as 1001,1002"
        ) from None
    return frozenset({os.geteuid(), _ROOT, *others})


def trusted(path: str) -> str | None:
    """Return the gRPC address of the socket at a path if a trusted user listens there; else None.

    Raises:
        ValueError: `TRACKER_RELAY_UIDS` is malformed.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return None
    users = trusted_users()
    with _lock:
        known = _known.get((path, users))
        if known is None or known.file != (found.st_dev, found.st_ino) or (known.address and not _is_open(known)):
            asked = _ask(path, users)
            if asked is None:  # no process listens, or not yet: check again the next time
                return None
            if known is not None and _is_open(known):
                os.close(known.descriptor)
            known = _known[path, users] = asked
        return known.address


def _is_open(known: _Socket) -> bool:
    """Return whether the descriptor is still the file's: a daemon, for example, closes all descriptors it inherits."""
    with suppress(OSError):
        now = os.fstat(known.descriptor)
        return (now.st_dev, now.st_ino) == known.file
    return False


def _ask(path: str, users: frozenset[int]) -> _Socket | None:
    """Check which user listens at a socket file; returns None if no process does."""
    if not hasattr(os, "O_PATH"):
        there = os.stat(path)
        log.warning("the relay's socket %s is not used: its owner can only be checked on Linux", path)
        return _Socket(-1, (there.st_dev, there.st_ino), None)
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(descriptor)
    file = (found.st_dev, found.st_ino)
    address = f"/proc/self/fd/{descriptor}"
    try:
        listener = _listener(address)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.ENOENT:
            log.warning("the relay's socket %s is not used: its owner cannot be checked without /proc", path)
            return _Socket(-1, file, None)
        return None
    if listener in users:
        return _Socket(descriptor, file, f"unix:{address}")
    os.close(descriptor)
    log.warning(
        "the relay's socket %s is not used: user %d listens there, and this process runs as user %d; if you trust "
        "that user, set %s=%d",
        path,
        listener,
        os.geteuid(),
        VARIABLE,
        listener,
    )
    return _Socket(-1, file, None)


def _reset_in_child() -> None:
    global _lock
    _lock = threading.Lock()


forking.after_fork_in_child(_reset_in_child)


def _listener(path: str) -> int:
    """Return the id of the user who listens at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        probe.connect(path)
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(credentials)[1])
