"""Calls: to which servers and as whom, their deadlines, when they are repeated, and what a failure means.

Only this module handles gRPC's errors: the rest of the package sees `TrackerError` and `TrackerUnavailable`.

Metrics are for programs that have prometheus-client and a registry of their own: it is imported only when a registry is
given, so that executors and small programs need not have it. No label names a job, so the number of series does not
grow with what is tracked.
"""

from __future__ import annotations

import os
import random
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final, TypeVar, cast
from weakref import WeakKeyDictionary

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tracker.client import forking, servers
from tracker.client.connection import Connection, connect
from tracker.client.credentials import Credentials
from tracker.client.errors import TrackerError, TrackerUnavailable
from tracker.client.servers import finder
from tracker.contract.refusal import Refusal
from tracker.wire import ERROR_DOMAIN
from tracker.wire.addresses import is_local
from tracker.wire.gen import tracker_pb2

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ClientMetrics:
    """Metrics that the clients of one registry share.

    Args:
        registry: where the metrics are registered. A registry takes them once: `ClientMetrics.of` returns those that it
            has already.

    Raises:
        ImportError: prometheus-client is not installed.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        try:
            from prometheus_client import Counter, Histogram
        except ImportError as error:
            raise ImportError(
                "metrics need prometheus-client: pip install 'substream-tracker[metrics]', or give no metrics="
            ) from error
        self._calls = Histogram(
            "tracker_client_call_seconds",
            "Time from an attempt of a call to its end, by method and code; watches and waits are left out.",
            ("method", "code"),
            registry=registry,
            buckets=_SECONDS,
        )
        self._reports = Counter(
            "tracker_client_reports",
            "Reports that were answered, by outcome, and by the way they took: over a relay, or to the tracker.",
            ("outcome", "over"),
            registry=registry,
        )

    @staticmethod
    def of(registry: CollectorRegistry) -> ClientMetrics:
        """Return the metrics of a registry; the first call registers them.

        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> ClientMetrics.of(registry) is ClientMetrics.of(registry)
        True
        """
        with _lock:
            metrics = _by_registry.get(registry)
            if metrics is None:
                metrics = _by_registry[registry] = ClientMetrics(registry)
            return metrics

    @contextmanager
    def attempt(self, method: str) -> Iterator[None]:
        """Count an attempt of a call, which is made while the context lasts."""
        started, code = time.monotonic(), grpc.StatusCode.OK
        try:
            yield
        except grpc.RpcError as error:
            code = error.code()
            raise
        finally:
            self._calls.labels(method, code.name).observe(time.monotonic() - started)

    def reported(self, outcome: str, over: str) -> None:
        """Count a report that was answered.

        Args:
            over: the label of the count: ``relay`` or ``tracker``, as the report reached one of them.
        """
        self._reports.labels(outcome.lower(), over).inc()


_lock = threading.Lock()
_by_registry: WeakKeyDictionary[CollectorRegistry, ClientMetrics] = WeakKeyDictionary()


Request = TypeVar("Request")
Response = TypeVar("Response")

_UNCOUNTED: Final = nullcontext()

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_LONGEST_SEARCH: Final = 0.25  # the longest pause before another address of the same tracker is tried
_LOOK_ELSEWHERE: Final = 0.5  # without an answer for so long, the tracker is looked for at its other addresses
_LOOK_AGAIN: Final = 0.1  # seconds between two such looks

#: The status of a call that did not reach the tracker, or whose outcome is unknown. A refusal with one of these (the
#: journal's disk is full, the server is stopping) is not final either.
_PASSING: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})

#: The limits that a caller meets because of other callers, and only for a moment.
_PASSING_LIMITS: Final = ("max_pending_bytes",)

#: Parts of gRPC's texts when a server has closed a connection, as one with TLS does if the client uses none.
_CLOSED: Final = ("Socket closed", "Connection reset", "recvmsg", "GOAWAY", "Broken pipe")

#: A part of gRPC's text when a proxy has lost the tracker while an answer was under way. The code is INTERNAL.
_RESET: Final = "RST_STREAM"

#: A part of gRPC's text when it refuses a message.
_TOO_LARGE: Final = "larger than max"


def refusal(error: grpc.RpcError) -> TrackerError | None:
    """Return the refusal of a failed call; None if the tracker has not decided, and the call may be repeated."""
    code: grpc.StatusCode = error.code()
    details: str = error.details() or ""
    if code in _PASSING or (code is grpc.StatusCode.INTERNAL and _RESET in details):
        return None
    status = rpc_status.from_call(error)
    if retry_delay(error) is not None:
        return None
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN:
            if info.reason == "LIMIT" and any(limit in details for limit in _PASSING_LIMITS):
                return None
            return TrackerError(code.name, info.reason, details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details and not details.startswith("CLIENT"):
        # The transport refuses a message far above the limit, before the server sees it.
        remedy = "split the report (`report_in_pieces`), or ask for less in one call"
        return TrackerError(
            code.name, "LIMIT", f"LIMIT: limit max_message_bytes of the server exceeded; {remedy} ({details})"
        )
    return TrackerError(code.name, code.name, f"{code.name}: {details}")


def retry_delay(error: grpc.RpcError) -> float | None:
    """Return the seconds after which the tracker asks for another attempt; None if it does not."""
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            return float(info.retry_delay.seconds) + float(info.retry_delay.nanos) / 1e9
    return None


def out_of_quota(error: grpc.RpcError) -> TrackerError:
    """Return the error of a call that a quota refused until the end."""
    return TrackerError(error.code().name, Refusal.QUOTA, error.details() or "")


class Backoff:
    """Pauses between attempts.

    The longest pause doubles from 50 ms to 2 s. Each pause is drawn from the upper half of that range, so that many
    callers that lost the same server do not come back at the same moment.

    Args:
        longest: seconds that no pause exceeds.
    """

    def __init__(self, longest: float = _LONGEST_PAUSE) -> None:
        self.failures = 0
        self._longest = longest

    def after(self, error: grpc.RpcError) -> float:
        """Return the seconds to wait after one more failure: at least those for which the tracker asks."""
        told = retry_delay(error)
        if told is None:
            return self.next()
        self.failures += 1
        return told * random.uniform(1, 1.1) + _FIRST_PAUSE * random.random()

    def next(self) -> float:
        """Return the seconds to wait after one more failure."""
        longest = min(self._longest, _FIRST_PAUSE * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return longest * random.uniform(0.5, 1)

    def reset(self) -> None:
        """Start again with a short pause, after a success."""
        self.failures = 0


class Patience:
    """Consequence of failed attempts of a call: a refusal, a pause, or that the tracker has been away for too long.

    Args:
        since: the monotonic time from which the client's `retry_for` counts; None: the first failure.
    """

    def __init__(self, calls: Calls, request: object, since: float | None = None) -> None:
        self._calls = calls
        self._request = request
        self._since = since
        self._backoff = Backoff(_LONGEST_PAUSE if calls.addresses == 1 else _LONGEST_SEARCH)

    @property
    def failures(self) -> int:
        """Return how many attempts have failed in a row."""
        return self._backoff.failures

    def after(self, error: grpc.RpcError) -> float:
        """Return the seconds to wait before the next attempt: 0 if time is over, but not each address was tried.

        Raises:
            TrackerError: the tracker refuses the call.
            TrackerUnavailable: it has not answered for the client's `retry_for`.
        """
        refused = refusal(error)
        if refused is not None:
            raise refused from None
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        pause = self._backoff.after(error)
        if now + pause - self._since <= self._calls.retry_for:
            return pause
        if retry_delay(error) is not None:
            raise out_of_quota(error) from None
        if self.failures >= self._calls.addresses:
            raise self._calls.unavailable(self._request, error, self.failures) from error
        return 0.0

    def reset(self) -> None:
        """Start anew, since the tracker has answered."""
        self._backoff.reset()
        self._since = None


class Calls:
    """Calls to one tracker, with the caller's deadlines. Many threads may share it, it survives forks, and it is
    pickled by its options.

    Args:
        address: `host:port`, or several that one tracker may have, joined by ``+``.
        timeout: seconds that one attempt may take.
        retry_for: seconds within which a failed call is repeated; 0: never.
        metrics: what counts the calls; it stays in this process.
    """

    def __init__(
        self,
        address: str,
        timeout: float,
        retry_for: float,
        credentials: Credentials,
        metrics: ClientMetrics | None = None,
    ) -> None:
        self.address = address
        self.metrics = metrics
        self.credentials = credentials
        self.timeout = timeout
        self.retry_for = retry_for
        self._finder = finder(address)
        self._connection: Connection | None = None
        self._waiting: Connection | None = None
        self._nearby: Calls | None = None

    def __reduce__(self) -> tuple[type[Calls], tuple[str, float, float, Credentials]]:
        return Calls, (self.address, self.timeout, self.retry_for, self.credentials)

    def connection(self) -> Connection:
        """Return this process's connection."""
        connection = self._connection
        address = self._finder.current
        if connection is None or connection.pid != os.getpid() or connection.address != address:
            connection = self._connection = connect(address, self.credentials)
        return connection

    def waiting_connection(self) -> Connection:
        """Return this process's connection for a call that waits for the tracker to send something.

        A tracker with several addresses may be silent because it is at another one by now, so that has to be noticed.
        """
        if self.addresses == 1:
            return self.connection()
        waiting = self._waiting
        address = self._finder.current
        if waiting is None or waiting.pid != os.getpid() or waiting.address != address or waiting.is_outdated:
            waiting = self._waiting = connect(address, self.credentials, watchful=True)
        return waiting

    def failed_at(self, address: str) -> None:
        """Note that an attempt has failed at an address: the next one uses new certificates, if they were replaced, and
        another address, if the tracker has several."""
        self._drop_outdated()
        self._finder.failed(address)

    def _drop_outdated(self) -> None:
        """Release a connection whose certificates were replaced; the next call makes one with the new ones."""
        if self._connection is not None and self._connection.is_outdated:
            self._connection = None

    def disconnect(self) -> None:
        """Release the connection; the next call takes it again."""
        self._connection = None
        self._waiting = None
        self._nearby = None

    def nearby(self, address: str) -> Calls:
        """Return calls to a relay at `address`. They are not repeated: if one fails, the caller calls the tracker.

        A relay that listens at a socket file gets no token, since it reports with its own.
        """
        nearby = self._nearby
        if nearby is None or nearby.address != address:
            credentials = Credentials() if address.startswith("unix:") else self.credentials
            nearby = self._nearby = Calls(address, self.timeout, 0, credentials, self.metrics)
        return nearby

    def with_patience(self, timeout: float, retry_for: float) -> Calls:
        """Return calls to the same tracker, with the same credentials and other times in seconds."""
        return Calls(self.address, timeout, retry_for, self.credentials, self.metrics)

    def repeat(
        self,
        method: Callable[[Connection], grpc.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        *,
        in_doubt: Callable[[TrackerError], Response] | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> Response:
        """Make a call that is safe to repeat, until the tracker answers.

        Args:
            in_doubt: called with the refusal of a repeated call, which may be refused just because an earlier attempt
                was carried out. It returns the answer, or raises.

        Raises:
            TrackerError: the tracker refuses the call.
            TrackerUnavailable: no answer within `retry_for`.
        """
        patience = Patience(self, request, time.monotonic())
        while True:
            connection = self.connection()
            try:
                with forking.using_grpc(), self._counted(request):
                    return self._answer(connection.address, method(connection), request)
            except grpc.RpcError as error:
                refused = refusal(error)
                if refused is not None and in_doubt is not None and patience.failures:
                    return in_doubt(refused)
                if refused is None:
                    self._drop_outdated()
                    if retry_delay(error) is None:
                        self._finder.failed(connection.address)
                pause = patience.after(error)
            sleep(pause)

    def _answer(
        self, address: str, call: grpc.UnaryUnaryMultiCallable[Request, Response], request: Request
    ) -> Response:
        """Make one attempt. If the tracker turns out to be at another address meanwhile, the attempt fails at once."""
        if self.addresses == 1:
            return call(request, timeout=self.timeout)
        pending = call.future(request, timeout=self.timeout)
        wait = _LOOK_ELSEWHERE
        while not self._is_done(pending, wait) and not self._is_elsewhere(address):
            wait = _LOOK_AGAIN
        pending.cancel()
        if pending.cancelled():
            raise cast(grpc.RpcError, pending)
        return pending.result()

    def _is_done(self, pending: grpc.Future[Response], seconds: float) -> bool:
        """Wait for an attempt, and return whether it has ended."""
        with suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError, grpc.RpcError):
            pending.exception(seconds)
        return pending.done()

    def _is_elsewhere(self, address: str) -> bool:
        """Ask the other addresses, once, whether the tracker is there: then it will not answer where it was."""
        for other in self._finder.others(address):
            connection = connect(other, self.credentials)
            with suppress(grpc.RpcError):
                if connection.stubs.GetServerInfo(tracker_pb2.GetServerInfoRequest(), timeout=_LOOK_ELSEWHERE).leader:
                    self._finder.found(other)
                    return True
        return False

    def once(
        self,
        method: Callable[[Connection], grpc.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
    ) -> Response:
        """Make a call that must not be repeated: waits until the tracker is reachable, and then calls once.

        Raises:
            TrackerError: the tracker refuses the call.
            TrackerUnavailable: the tracker cannot be reached within `retry_for`; or it does not answer the call, and
                then the call may or may not have been carried out.
        """
        patience = Patience(self, request, time.monotonic())
        while True:
            self.wait_until_reachable()
            connection = self.connection()  # without a reference it would be closed
            try:
                with forking.using_grpc(), self._counted(request):
                    return method(connection)(request, timeout=self.timeout)
            except grpc.RpcError as error:
                if retry_delay(error) is None:
                    raise refusal(error) or self.unavailable(request, error, 1) from error
                pause = patience.after(error)  # a quota has refused it, so it was not carried out
            time.sleep(pause)

    def wait_until_reachable(self, sleep: Callable[[float], object] = time.sleep) -> None:
        """Wait until the tracker answers any call.

        Raises:
            TrackerUnavailable: it does not within `retry_for`.
        """
        request = tracker_pb2.GetServerInfoRequest()
        self.repeat(lambda connection: connection.stubs.GetServerInfo, request, sleep=sleep)

    def _counted(self, request: object) -> AbstractContextManager[None]:
        return _UNCOUNTED if self.metrics is None else self.metrics.attempt(_name(request))

    @property
    def addresses(self) -> int:
        """Return how many addresses the tracker may have."""
        return len(self._finder.addresses)

    def unavailable(self, request: object, error: grpc.RpcError, attempts: int) -> TrackerUnavailable:
        """Return the error of a call that the tracker has not answered in so many attempts, with what to do."""
        tried = "one attempt" if attempts == 1 else f"{attempts} attempts"
        tls = _tls(error, self.credentials)
        # A server that gives the reason itself is running, and so is one whose certificate is wrong.
        runs = rpc_status.from_call(error) is not None or (tls and self.credentials.uses_tls)
        advice = f" Check that it is running; `tracker serve --listen {self._finder.addresses[0]}` starts one."
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and any(
            each is not None and each.is_made for each in (self._connection, self._waiting)
        ):
            advice = " The connection to it stands, so look at its log and its journal, or allow the call more time."
        return TrackerUnavailable(
            f"the tracker at {self.address} has not answered {_name(request)} "
            f"({tried}; the last one failed with {error.code().name}: {error.details()})."
            f"{'' if runs else advice}{_proxy(self._finder.addresses[0])}{tls}"
        )


def _proxy(address: str) -> str:
    """Return a hint about the proxy that gRPC uses, if that may be the reason; else an empty text."""
    named = next((name for name in ("grpc_proxy", "https_proxy", "http_proxy") if os.environ.get(name)), None)
    if named is None or is_local(address):
        return ""
    host = address.rpartition(":")[0]
    return (
        f" {named}={os.environ[named]} is set, so gRPC goes over that proxy; if it is not meant for the tracker, add "
        f"{host} to no_proxy."
    )


def _tls(error: grpc.RpcError, credentials: Credentials) -> str:
    """Return a hint about TLS, if that may be the reason; else an empty text."""
    details = str(error.details())
    if credentials.uses_tls:
        if "WRONG_VERSION_NUMBER" in details:
            return (
                " It does not use TLS there, and this client does: leave the authorities out, or give it a certificate."
            )
        if "CERTIFICATE_VERIFY_FAILED" in details:
            return f" Its certificate is not of the authorities in {credentials.ca}, or of another name or time."
        if "is not in peer certificate" in details:
            return " Its certificate does not have this name: make one that has it as a subjectAltName."
        return ""
    if any(sign in details for sign in _CLOSED):
        return " If it uses TLS, name the authorities of its certificate: --tls-ca FILE, or TRACKER_TLS_CA."
    return ""


def _name(request: object) -> str:
    return type(request).__name__.removesuffix("Request")


class Routing:
    """The servers of a client: the calls about a job go to the one that has it."""

    def __init__(
        self,
        address: str,
        timeout: float = 10.0,
        retry_for: float = 60.0,
        credentials: Credentials | None = None,
        metrics: CollectorRegistry | None = None,
    ) -> None:
        self._address = address
        self._metrics = metrics
        self._credentials = Credentials.from_environment() if credentials is None else credentials
        self._timeout = timeout
        self._retry_for = retry_for
        self._calls: dict[str, Calls] = {}  # by server
        if "@" not in address:
            self._servers()

    def close(self) -> None:
        """Release the connections. A later call takes them again."""
        for calls in self._calls.values():
            calls.disconnect()

    @property
    def address(self) -> str:
        """The address of the tracker, or the trackers, as the caller gave it."""
        return self._address

    @property
    def command_options(self) -> str:
        """The options with which the commands of `tracker` call the same trackers, as a shell takes them."""
        return f"--server {shlex.quote(self._address)}"

    @property
    def credentials(self) -> Credentials:
        """Return what the client shows to the tracker."""
        return self._credentials

    @property
    def metrics(self) -> CollectorRegistry | None:
        """Return where the client counts."""
        return self._metrics

    def _only(self, call: str) -> Calls:
        """Return the calls to the only server."""
        found = self._servers()
        if len(found) > 1:
            raise ValueError(f"{call} concerns one tracker, and there are {len(found)}: {', '.join(found)}; name one")
        return next(iter(found.values()))

    def _servers(self) -> dict[str, Calls]:
        """Return the calls to each server, by name and in that order."""
        if not self._calls:
            counting = None if self._metrics is None else ClientMetrics.of(self._metrics)
            self._calls = {
                name: Calls(name, self._timeout, self._retry_for, self._credentials, counting)
                for name in servers.names(self._address)
            }
        return self._calls

    def _to(self, job: str) -> Calls:
        """Return the calls to the server that has the job."""
        calls = self._servers()
        return calls[servers.choose(tuple(calls), job)]
