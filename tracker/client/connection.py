"""This process's channels to trackers: one for each address with its credentials, shared by all clients.

None is used across a fork. A connection keeps the ids that the tracker assigned to substreams: to look up a name costs
the tracker ten times as much as an entry by id.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, cast

import grpc

from tracker.client import forking
from tracker.client.credentials import Bearer, Credentials
from tracker.contract.commands import Contents
from tracker.wire.addresses import is_local
from tracker.wire.gen import columns_pb2, tracker_pb2, tracker_pb2_grpc

Named: TypeAlias = tuple[str, str, int]  #: (scope, name, end time): an id is used only if all three agree


def named(contents: Contents) -> list[Named]:
    """Return the substreams of a report, in the form in which `SubstreamIds` keeps them."""
    times = contents.end_times.tolist()
    return [(scope, name, time) for (scope, name), time in zip(contents.substreams, times, strict=True)]


class SubstreamIds:
    """The known ids of one job: bounded, and dropped when they turn out to be invalid.

    Ids are valid for every run and producer of the job, so a process keeps them once. Many threads may share it.

    >>> ids = SubstreamIds()
    >>> ids.capacity = 2
    >>> ids.learn("log", [("JFK", "d1", 24), ("LGA", "d1", 24)], [0, 1])
    >>> ids.look_up([("LGA", "d1", 24), ("EWR", "d1", 24)])
    ('log', [1, None])
    """

    capacity = 100_000  #: the most ids to keep; beyond it the oldest are dropped: one takes about 300 bytes

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._log_id = ""
        self._ids: dict[Named, int] = {}

    def look_up(self, substreams: Iterable[Named]) -> tuple[str, list[int | None]]:
        """Return the log's id, and each substream's id in that log, or None."""
        with self._lock:
            return self._log_id, list(map(self._ids.get, substreams))

    def learn(self, log_id: str, substreams: Sequence[Named], ids: Sequence[int]) -> None:
        """Keep the ids of an answer, and drop those of another log."""
        with self._lock:
            if log_id != self._log_id:
                self._log_id = log_id
                self._ids.clear()
            self._ids.update(zip(substreams, ids, strict=True))
            excess = len(self._ids) - self.capacity
            if excess > 0:
                for oldest in list(islice(self._ids, excess)):
                    del self._ids[oldest]

    def forget(self) -> None:
        """Drop all ids, because the tracker does not know one or has another log."""
        with self._lock:
            self._log_id = ""
            self._ids.clear()


_REPORT_METHOD: Final = f"/{tracker_pb2.DESCRIPTOR.services_by_name['Tracker'].full_name}/Report"

#: The options of a channel to a tracker.
CHANNEL_OPTIONS: Final = (
    # This package repeats calls itself, and only those that are safe to repeat.
    ("grpc.enable_retries", 0),
    # Find a restarted server again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 200),
    # The server decides how large pages of events and of substreams are.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Notice a peer that vanished silently, even while a watcher only waits. gRPC goes by the second timeout only.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),  # as many as it takes
)

#: Further options of a channel on which a caller only waits, if the tracker may be at another address by now.
_WATCHFUL: Final = {
    "grpc.keepalive_time_ms": 1_000,
    "grpc.keepalive_timeout_ms": 1_000,
    "grpc.http2.ping_timeout_ms": 1_000,
}


class AuthorizingChannel:
    """Channel whose calls each have the token as it is then.

    It has what stubs and this package use of a channel. gRPC's own credentials of calls need TLS, and tokens are used
    without it on loopback; its interceptors change how calls behave that are cancelled.
    """

    def __init__(self, channel: grpc.Channel, bearer: Bearer) -> None:
        self._channel = channel
        self._bearer = bearer

    def unary_unary(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Return a call like that of `grpc.Channel`."""
        return _Call(self._channel.unary_unary(method, *arguments, **named), self._bearer)

    def unary_stream(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Return a call like that of `grpc.Channel`."""
        return _Call(self._channel.unary_stream(method, *arguments, **named), self._bearer)

    def stream_stream(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Return a call like that of `grpc.Channel`."""
        return _Call(self._channel.stream_stream(method, *arguments, **named), self._bearer)

    def close(self) -> None:
        """Close gRPC's channel."""
        self._channel.close()


class _Call:
    def __init__(self, call: Any, bearer: Bearer) -> None:
        self._call = call
        self._bearer = bearer

    def __call__(self, request: Any, timeout: float | None = None, metadata: Any = (), **named: Any) -> Any:
        return self._call(request, timeout=timeout, metadata=(*metadata, *self._bearer.metadata()), **named)

    def future(self, request: Any, timeout: float | None = None, metadata: Any = (), **named: Any) -> Any:
        return self._call.future(request, timeout=timeout, metadata=(*metadata, *self._bearer.metadata()), **named)


def channel_options(address: str, watchful: bool = False) -> list[tuple[str, int]]:
    """Return the options of a channel to a tracker or a relay.

    Args:
        watchful: notice within two seconds that the server's machine does not answer, by a ping each second while
            nothing else is received and a call is under way.

    A proxy that the environment names (`grpc_proxy`, `https_proxy`, `http_proxy`) cannot reach this machine's own
    addresses: it would take them for its own. So these addresses never use it, whatever `no_proxy` contains.

    >>> ("grpc.enable_http_proxy", 0) in channel_options("127.0.0.1:7654")
    True
    >>> ("grpc.enable_http_proxy", 0) in channel_options("tracker.shop:7654")
    False
    """
    options = dict(CHANNEL_OPTIONS) | (_WATCHFUL if watchful else {})
    return [*options.items(), *([("grpc.enable_http_proxy", 0)] if is_local(address) else [])]


class Connection:
    """A channel with its stubs, and the ids that were learnt over it. It is closed when its last reference is gone.

    Attributes:
        pid: the process that may use the connection.
        stubs: the contract's calls, except Report.
        report: the call Report, whose requests hold columns.
    """

    def __init__(self, address: str, credentials: Credentials, watchful: bool = False) -> None:
        self.address = address
        self.credentials = credentials
        self.watchful = watchful
        self.pid = os.getpid()
        self._stamp = credentials.stamp()
        transport = credentials.transport(address)
        # Channels with equal targets and options share a connection, even one that a parent process opened.
        options = [("substream.tracker.pid", self.pid), *channel_options(address, watchful)]
        with forking.using_grpc():
            if transport is None:
                self._channel = grpc.insecure_channel(address, options=options)
            else:
                self._channel = grpc.secure_channel(address, transport, options=options)
            channel = self._channel
            if credentials.token_file or credentials.token_variable:
                channel = cast(grpc.Channel, AuthorizingChannel(channel, Bearer(credentials, address)))
            self.stubs = tracker_pb2_grpc.TrackerStub(channel)
            self.report: grpc.UnaryUnaryMultiCallable[columns_pb2.ReportRequest, tracker_pb2.ReportResponse] = (
                channel.unary_unary(
                    _REPORT_METHOD,
                    request_serializer=columns_pb2.ReportRequest.SerializeToString,
                    response_deserializer=tracker_pb2.ReportResponse.FromString,
                )
            )
        self._ids: dict[str, SubstreamIds] = {}
        weakref.finalize(self, self._channel.close).atexit = False

    @property
    def is_outdated(self) -> bool:
        """Return whether a file of its certificates has changed since: then new connections need the new one."""
        return self.credentials.uses_tls and self.credentials.stamp() != self._stamp

    @property
    def is_made(self) -> bool:
        """Return whether a server holds it now. This is for errors: gRPC starts a thread to tell."""
        if self.pid != os.getpid():
            return False
        states: SimpleQueue[grpc.ChannelConnectivity] = SimpleQueue()
        with forking.using_grpc():
            self._channel.subscribe(states.put)
            state = states.get()
            self._channel.unsubscribe(states.put)
        return state is grpc.ChannelConnectivity.READY

    def ids(self, job: str) -> SubstreamIds:
        """Return the ids that this process knows of a job's substreams."""
        return self._ids.setdefault(job, SubstreamIds())


_lock = threading.Lock()
_connections: weakref.WeakValueDictionary[tuple[str, Credentials, bool], Connection] = weakref.WeakValueDictionary()


def connect(address: str, credentials: Credentials, watchful: bool = False) -> Connection:
    """Return this process's connection to an address. Nothing is sent before the first call.

    Raises:
        CredentialsError: a file of the credentials cannot be read.
    """
    with _lock:
        key = address, credentials, watchful
        connection = _connections.get(key)
        if connection is None or connection.is_outdated:
            connection = _connections[key] = Connection(address, credentials, watchful)
        return connection


def _reset_in_child() -> None:
    global _lock, _connections
    forking.keep_in_child(list(_connections.values()))
    _lock = threading.Lock()
    _connections = weakref.WeakValueDictionary()


forking.after_fork_in_child(_reset_in_child)
