"""Calls that concern a whole tracker: backups, and handing over to its standby."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from tracker.client import forking
from tracker.client.calls import Calls, refusal
from tracker.client.errors import TrackerUnavailable
from tracker.wire.gen import tracker_pb2


def backup(calls: Calls) -> Iterator[bytes]:
    """Yield a backup's file, in parts.

    Raises:
        TrackerError: the tracker refuses it.
        TrackerUnavailable: the tracker cannot be reached, or has ended it.
    """
    calls.wait_until_reachable()
    with forking.using_grpc():
        stream = calls.connection().stubs.Backup(tracker_pb2.BackupRequest())
        forking.may_last(stream, stream.cancel)
    try:
        while True:
            with forking.using_grpc():
                part = next(stream, None)
            if part is None:
                return
            yield part.data
    except grpc.RpcError as error:
        raise refusal(error) or TrackerUnavailable(
            f"the tracker at {calls.address} has not sent the whole backup ({error.code().name}: {error.details()}); "
            "make it again"
        ) from error
    finally:
        stream.cancel()
        forking.is_over(stream)
