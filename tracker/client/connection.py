"""This process's channels to trackers: one for each address, shared by all clients, and never used across a fork."""

from __future__ import annotations

import ipaddress
import os
import re
import threading
import weakref
from typing import Final

import grpc

from tracker.client import forking
from tracker.client.ids import SubstreamIds
from tracker.wire.gen import columns_pb2, tracker_pb2, tracker_pb2_grpc

_REPORT_METHOD: Final = f"/{tracker_pb2.DESCRIPTOR.services_by_name['Tracker'].full_name}/Report"

#: The options of a channel to a tracker.
CHANNEL_OPTIONS: Final = (
    # This package repeats calls itself, and only those that are safe to repeat.
    ("grpc.enable_retries", 0),
    # Find a restarted server again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # The server decides how large pages of events and of substreams are.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Notice a peer that vanished silently, even while a watcher only waits.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


def channel_options(address: str) -> list[tuple[str, int]]:
    """Returns the options of a channel to a tracker or a relay.

    A proxy that the environment names (`grpc_proxy`, `https_proxy`, `http_proxy`) cannot reach this machine's own
    addresses: it would take them for its own. So these addresses never use it, whatever `no_proxy` contains.

    >>> ("grpc.enable_http_proxy", 0) in channel_options("127.0.0.1:7654")
    True
    >>> ("grpc.enable_http_proxy", 0) in channel_options("tracker.shop:7654")
    False
    """
    return [*CHANNEL_OPTIONS, *([("grpc.enable_http_proxy", 0)] if is_local(address) else [])]


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


class Connection:
    """A channel with its stubs, and the ids that were learnt over it. It is closed when its last reference is gone.

    Attributes:
        address: the tracker's, `host:port`, or a relay's.
        pid: the process that may use the connection.
        stubs: the contract's calls, except Report.
        report: the call Report, whose requests hold columns.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.pid = os.getpid()
        # Channels with equal targets and options share a connection, even one that a parent process opened.
        options = [("substream.tracker.pid", self.pid), *channel_options(address)]
        with forking.using_grpc():
            self._channel = grpc.insecure_channel(address, options=options)
            self.stubs = tracker_pb2_grpc.TrackerStub(self._channel)
            self.report: grpc.UnaryUnaryMultiCallable[columns_pb2.ReportRequest, tracker_pb2.ReportResponse] = (
                self._channel.unary_unary(
                    _REPORT_METHOD,
                    request_serializer=columns_pb2.ReportRequest.SerializeToString,
                    response_deserializer=tracker_pb2.ReportResponse.FromString,
                )
            )
        self._ids: dict[str, SubstreamIds] = {}
        weakref.finalize(self, self._channel.close).atexit = False

    def ids(self, job: str) -> SubstreamIds:
        """Returns the ids that this process knows of a job's substreams."""
        return self._ids.setdefault(job, SubstreamIds())


_lock = threading.Lock()
_connections: weakref.WeakValueDictionary[str, Connection] = weakref.WeakValueDictionary()


def connect(address: str) -> Connection:
    """Returns this process's connection to an address. Nothing is sent before the first call."""
    with _lock:
        connection = _connections.get(address)
        if connection is None:
            connection = _connections[address] = Connection(address)
        return connection


def _reset_in_child() -> None:
    global _lock, _connections
    forking.keep_in_child(list(_connections.values()))
    _lock = threading.Lock()
    _connections = weakref.WeakValueDictionary()


forking.after_fork_in_child(_reset_in_child)
