"""The relay of this node: what it could combine with others' reports goes to it first.

A relay is a convenience, never a condition. Where there is none, where it is another tracker's, and where it does not
answer, the tracker itself is asked; it knows each unit of an epoch, so it does not matter whether the relay had
passed the report on before it went away.
"""

from __future__ import annotations

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
from tracker.wire import SERVER_KEY
from tracker.wire.gen import columns_pb2, tracker_pb2

VARIABLE: Final = "TRACKER_RELAY"

_UNIX: Final = "unix:"

_SHORTEST_REST: Final = 0.2
_REST: Final = 10  #: a relay that did not answer is left alone for so many times what the attempt took

_rests: dict[tuple[str, str], float] = {}  #: by its address and the tracker's, until when (monotonic) it is left alone


def sockets(server: str) -> Iterator[Path]:
    """Where a relay for a tracker listens if nobody says otherwise, the first choice first.

    Args:
        server: the tracker's address, as both its clients and the relay are told it.

    >>> str(list(sockets("tracker.shop:7654"))[-1])
    '/run/substream-tracker/tracker.shop:7654.sock'
    """
    own = os.environ.get("XDG_RUNTIME_DIR")
    name = re.sub(r"[^A-Za-z0-9.:_-]", "_", server)
    for directory in filter(None, (own, "/run")):
        yield Path(directory, "substream-tracker", f"{name}.sock")


def find(server: str) -> str | None:
    """The address of this node's relay for a tracker; None: there is none.

    The environment variable `TRACKER_RELAY` names it (empty: use none); without it, its socket is where `sockets` says.
    A socket is used only if a user that this process trusts listens at it: see `tracker.client.peers`. A port cannot be
    asked whose it is: who names one answers for it.

    Raises:
        ValueError: `TRACKER_RELAY_UIDS` is malformed.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        if not named.startswith(_UNIX):
            return named if named not in ("", server) else None
        # An address of gRPC's: unix:PATH or unix:///PATH.
        return peers.trusted(re.sub("^//(?=/)", "", named.removeprefix(_UNIX)))
    return next(filter(None, (peers.trusted(str(path)) for path in sockets(server))), None)


def report(calls: Calls, message: columns_pb2.ReportRequest) -> tracker_pb2.ReportResponse:
    """Delivers a report: over this node's relay if there is one and it helps, else to the tracker.

    Raises:
        TrackerError: the tracker refuses it.
        TrackerUnavailable: no answer in time.
    """
    alone = message.keep_apart or message.commit or message.promises
    relay = None if alone else find(calls.address)
    if relay and time.monotonic() >= _rests.get((relay, calls.address), 0.0):
        started = time.monotonic()
        try:
            return calls.nearby(relay).repeat(partial(_to_relay, calls.address), message)
        except TrackerUnavailable:
            pass
        except TrackerError as refused:
            if refused.reason != refused.code:
                raise
            # Not the tracker's word: whatever listens there is no relay, or cannot take this.
        ended = time.monotonic()
        _rests[relay, calls.address] = ended + max(_SHORTEST_REST, _REST * (ended - started))
    return calls.repeat(lambda connection: connection.report, message)


def _to_relay(
    server: str, connection: Connection
) -> grpc.UnaryUnaryMultiCallable[columns_pb2.ReportRequest, tracker_pb2.ReportResponse]:
    """Report, saying which tracker it is meant for."""
    return cast(
        "grpc.UnaryUnaryMultiCallable[columns_pb2.ReportRequest, tracker_pb2.ReportResponse]",
        partial(connection.report, metadata=((SERVER_KEY, server),)),
    )
