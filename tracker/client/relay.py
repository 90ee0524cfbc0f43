"""The relay of this node: a report that it could combine with others goes to it first.

A relay is never required. If there is none, if it belongs to another tracker, or if it does not answer, the client
calls the tracker itself. The tracker recognises each unit of an epoch, so it does not matter whether the relay had
passed the report on before it failed.

A client uses a socket only if a user that its process trusts listens there. Anyone who can write in the socket's
directory could listen there, and answer APPLIED to reports that never reach the tracker. So the client asks the kernel
which user listens (`SO_PEERCRED`). It trusts its own user, root, and the users that `TRACKER_RELAY_UIDS` names. A
socket file belongs to one listener as long as it exists, so the kernel's answer holds for the file. The client connects
to that file, not to its path: replacing the file gains an attacker nothing.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

import grpc

from tracker.client import forking
from tracker.client.calls import Calls
from tracker.client.connection import Connection
from tracker.client.errors import TrackerError, TrackerUnavailable
from tracker.client.servers import SEPARATOR
from tracker.wire import SERVER_KEY
from tracker.wire.gen import columns_pb2, tracker_pb2

USERS_VARIABLE: Final = "TRACKER_RELAY_UIDS"

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
    named = os.environ.get(USERS_VARIABLE, "")
    try:
        others = {int(uid) for uid in named.split(",") if uid.strip()}
    except ValueError:
        raise ValueError(
            f"{USERS_VARIABLE}={named!r} is not valid; give user ids with commas between, such as 1001,1002"
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
        USERS_VARIABLE,
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


VARIABLE: Final = "TRACKER_RELAY"
_LONGEST_NAME, _HASH = 64, 16  # characters, of a name that is made of several addresses

_UNIX: Final = "unix:"

_SHORTEST_REST: Final = 0.2
_REST: Final = 10  #: a relay that did not answer is not called for so many times the length of the attempt

_rests: dict[
    tuple[str, str], float
] = {}  #: by the relay's and the tracker's address: not called before this monotonic time


def sockets(server: str) -> Iterator[Path]:
    """Yield the paths where a relay for a tracker listens by default, the preferred one first.

    A socket's path has at most 107 bytes, so a long list of addresses is shortened, with a hash of it at the end.

    Args:
        server: the tracker's address, in the form in which both its clients and the relay get it.

    >>> str(list(sockets("tracker.shop:7654"))[-1])
    '/run/substream-tracker/tracker.shop:7654.sock'
    """
    own = os.environ.get("XDG_RUNTIME_DIR")
    name = re.sub(r"[^A-Za-z0-9.:_-]", "_", server)
    if len(name) > _LONGEST_NAME and SEPARATOR in server:
        name = f"{name[: _LONGEST_NAME - _HASH]}{hashlib.sha256(server.encode()).hexdigest()[:_HASH]}"
    for directory in filter(None, (own, "/run")):
        yield Path(directory, "substream-tracker", f"{name}.sock")


def find(server: str) -> str | None:
    """Return the address of this node's relay for a tracker, or None.

    The environment variable `TRACKER_RELAY` gives the address (empty: use no relay). Without it, the relay's socket is
    at one of the paths of `sockets`. A socket is used only if a user that this process trusts listens there: see
    `tracker.client.relay`. The owner of a port cannot be checked; whoever sets the variable to one is responsible for
    it.

    Raises:
        ValueError: `TRACKER_RELAY_UIDS` is malformed.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        if not named.startswith(_UNIX):
            return named if named not in ("", server) else None
        # gRPC writes such an address unix:PATH or unix:///PATH.
        return trusted(re.sub("^//(?=/)", "", named.removeprefix(_UNIX)))
    return next(filter(None, (trusted(str(path)) for path in sockets(server))), None)


def report(calls: Calls, message: columns_pb2.ReportRequest) -> tracker_pb2.ReportResponse:
    """Deliver a report: through this node's relay if there is one and it can combine the report, else to the tracker.

    Raises:
        TrackerError: the tracker refuses it.
        TrackerUnavailable: no answer in time.
    """
    alone = message.keep_apart or message.commit or message.promises
    relay = None if alone else find(calls.address)
    if relay and time.monotonic() >= _rests.get((relay, calls.address), 0.0):
        started = time.monotonic()
        try:
            return _counted(calls, "relay", calls.nearby(relay).repeat(partial(_to_relay, calls.address), message))
        except TrackerUnavailable:
            pass
        except TrackerError as refused:
            if refused.reason != refused.code:
                raise
            # This is not the tracker's refusal: the listener is not a relay, or cannot accept this report.
        ended = time.monotonic()
        _rests[relay, calls.address] = ended + max(_SHORTEST_REST, _REST * (ended - started))
    return _counted(calls, "tracker", calls.repeat(lambda connection: connection.report, message))


def _counted(calls: Calls, over: str, answer: tracker_pb2.ReportResponse) -> tracker_pb2.ReportResponse:
    if calls.metrics is not None:
        calls.metrics.reported(tracker_pb2.ReportResponse.Outcome.Name(answer.outcome), over)
    return answer


def _to_relay(
    server: str, connection: Connection
) -> grpc.UnaryUnaryMultiCallable[columns_pb2.ReportRequest, tracker_pb2.ReportResponse]:
    """Return the call Report of a relay, with the tracker's address in its metadata."""
    return cast(
        "grpc.UnaryUnaryMultiCallable[columns_pb2.ReportRequest, tracker_pb2.ReportResponse]",
        partial(connection.report, metadata=((SERVER_KEY, server),)),
    )
