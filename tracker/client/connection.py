"""This process's channels to trackers: one for each address with its credentials, shared by all clients.

None is used across a fork.
"""

from __future__ import annotations

import os
import threading
import weakref
from queue import SimpleQueue
from typing import Any, Final, cast

import grpc

from tracker.client import forking
from tracker.client.credentials import Bearer, Credentials
from tracker.client.ids import SubstreamIds
from tracker.wire.addresses import is_local
from tracker.wire.gen import columns_pb2, tracker_pb2, tracker_pb2_grpc

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

#: What a channel has besides on which a caller only waits, if the tracker may be at another address by now.
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
        address: the tracker's, `host:port`, or a relay's.
        credentials: what it shows there.
        watchful: whether it notices soon that the server's machine does not answer.
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

    Args:
        credentials: what it shows there.
        watchful: as for `channel_options`.

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
