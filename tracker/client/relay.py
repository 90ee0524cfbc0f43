"""The relay of this node: a report that it could combine with others goes to it first.

A relay is never required. If there is none, if it belongs to another tracker, or if it does not answer, the client
calls the tracker itself. The tracker recognises each unit of an epoch, so it does not matter whether the relay had
passed the report on before it failed.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, cast

import grpc

from tracker.client import peers
from tracker.client.calls import Calls
from tracker.client.connection import Connection
from tracker.client.errors import TrackerError, TrackerUnavailable
from tracker.client.servers import SEPARATOR
from tracker.wire import SERVER_KEY
from tracker.wire.gen import columns_pb2, tracker_pb2

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
    `tracker.client.peers`. The owner of a port cannot be checked; whoever sets the variable to one is responsible for
    it.

    Raises:
        ValueError: `TRACKER_RELAY_UIDS` is malformed.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        if not named.startswith(_UNIX):
            return named if named not in ("", server) else None
        # gRPC writes such an address unix:PATH or unix:///PATH.
        return peers.trusted(re.sub("^//(?=/)", "", named.removeprefix(_UNIX)))
    return next(filter(None, (peers.trusted(str(path)) for path in sockets(server))), None)


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
