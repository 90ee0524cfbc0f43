"""The relay's service: it combines reports, and passes all other calls of the tracker on as they are.

It does not read what it passes on. Metadata, deadlines and errors are passed on, too, and so is the end: if a caller
goes away, its call at the tracker ends.

Reports go to the tracker with the relay's own credentials, whoever may report to the relay: with one call for many
callers, the tracker cannot check each of them. All other calls go with the caller's token, and never with the relay's
own credentials: nobody can do by the relay what the tracker would refuse him.

The tracker may be at one of several addresses (`Upstream`). Calls go to one of them for as long as it answers, and then
to the next. A call that fails is not repeated here: its caller does that, and finds the tracker by itself if the relay
does not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

import tracker
from tracker.client.calls import refusal
from tracker.client.connection import channel_options
from tracker.client.credentials import Bearer, Credentials, CredentialsError
from tracker.client.servers import Finder, alternatives
from tracker.contract.refusal import Refused
from tracker.security.guard import Guard
from tracker.security.identities import unauthenticated
from tracker.wire import SERVER_KEY, codec
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.refusals import end, refuse

from .batching import Batcher, Budget, FullError

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RelayMetrics:
    """The relay's metrics. No label names a job or a caller, so the series are few whatever is relayed.

    docs/reference/metrics.md has a table of them, which a test compares with a relay's.

    Args:
        missing: returns why the relay cannot do its work now; "" while it can.
        pending: returns the bytes of requests that the tracker has not answered.
        limit: the most bytes that may be pending.
    """

    def __init__(self, missing: Callable[[], str], pending: Callable[[], int], limit: int) -> None:
        self._registry = CollectorRegistry()
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self._registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"tracker_relay_{name}", text, labels, registry=self._registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"tracker_relay_{name}", text, labels, registry=self._registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"tracker_relay_{name}_seconds", text, buckets=_SECONDS, registry=self._registry)

        gauge("ready", "1 while the relay accepts calls and can reach the tracker, else 0.").set_function(
            lambda: float(not missing())
        )
        gauge("build_info", "1; the label has the relay's version.", ("version",)).labels(tracker.__version__).set(1)
        self._reports = counter(
            "reports",
            "Reports of callers, by outcome: answered and refused by the tracker, not answered by it (unavailable), "
            "refused by the relay because it is full or serves another_tracker, given up by the caller (left), or "
            "failed by a fault in the relay.",
            ("outcome",),
        )
        self._report_seconds = seconds("report", "Time from when a report came to its answer, of those that were sent.")
        self._report_bytes = counter("report_bytes", "Bytes of callers' reports.")
        self._messages = counter(
            "messages", "Messages that were sent to the tracker for reports, by the code of its answer.", ("code",)
        )
        self._message_seconds = seconds("message", "Time from when a message was sent to the tracker's answer.")
        self._message_bytes = counter("message_bytes", "Bytes of messages that were sent to the tracker for reports.")
        self._calls = counter(
            "passed_calls", "Other calls that were passed on and have ended, by method and code.", ("method", "code")
        )
        self._open = gauge("open_calls", "Other calls that are passed on and have not ended, by method.", ("method",))
        gauge("pending_bytes", "Bytes of requests that the tracker has not answered.").set_function(pending)
        gauge("pending_bytes_limit", "The most bytes of requests that may be pending.").set(limit)

    async def scrape(self) -> Collector:
        """Return what a scrape shows."""
        return self._registry

    @contextmanager
    def report(self, size: int) -> Iterator[None]:
        """Count a report that is sent on while the context lasts."""
        self._report_bytes.inc(size)
        started = time.monotonic()
        outcome = "answered"
        try:
            yield
        except grpc.aio.AioRpcError as error:
            outcome = "refused" if refusal(error) else "unavailable"
            raise
        except FullError:
            outcome = "full"
            raise
        except asyncio.CancelledError:
            outcome = "left"
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            if outcome != "full":
                self._report_seconds.observe(time.monotonic() - started)
            self._reports.labels(outcome).inc()

    def report_for_another(self) -> None:
        """Count a report that is meant for another tracker."""
        self._reports.labels("another_tracker").inc()

    @contextmanager
    def message(self, size: int) -> Iterator[None]:
        """Count a message to the tracker, which answers while the context lasts."""
        self._message_bytes.inc(size)
        started = time.monotonic()
        with self._ended(lambda code: self._messages.labels(code).inc()):
            try:
                yield
            finally:
                self._message_seconds.observe(time.monotonic() - started)

    @contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Count another call, which is passed on while the context lasts."""
        self._open.labels(method).inc()
        with self._ended(lambda code: self._calls.labels(method, code).inc()):
            try:
                yield
            finally:
                self._open.labels(method).dec()

    def call_refused(self, method: str) -> None:
        """Count another call that was refused because too many bytes are pending."""
        self._calls.labels(method, grpc.StatusCode.RESOURCE_EXHAUSTED.name).inc()

    @staticmethod
    @contextmanager
    def _ended(count: Callable[[str], object]) -> Iterator[None]:
        """Count what is done in the context by the code with which it ends."""
        code = grpc.StatusCode.OK
        try:
            yield
        except grpc.aio.AioRpcError as error:
            code = error.code()
            raise
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except BaseException:
            code = grpc.StatusCode.UNKNOWN
            raise
        finally:
            count(code.name)


#: Milliseconds after which an address that accepts connections and does not answer is given up: its machine sleeps.
_CONNECTING: Final = ("grpc.min_reconnect_backoff_ms", 2_000)


class Upstream:
    """The tracker.

    Args:
        server: its address, or several joined by ``+``.

    Raises:
        ValueError: `server` has another form.
        CredentialsError: a file of the credentials cannot be read.
    """

    def __init__(self, server: str, credentials: Credentials) -> None:
        self._server = server
        self._finder = Finder(alternatives(server))
        self._bearers = {address: Bearer(credentials, address) for address in self._finder.addresses}
        self._channels = {address: _channel(address, credentials, self._is_one) for address in self._finder.addresses}
        self._stubs: dict[tuple[str, str], Any] = {}
        self._stack = AsyncExitStack()

    @property
    def _is_one(self) -> bool:
        return len(self._finder.addresses) == 1

    async def __aenter__(self) -> Upstream:
        for channel in self._channels.values():
            await self._stack.enter_async_context(channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def address(self) -> str:
        """The address that is called now."""
        return self._finder.current

    def stub(self, service: str, method: MethodDescriptor) -> Any:
        """Return a call of the tracker's at the address of now, for bytes."""
        key = self.address, method.name
        if key not in self._stubs:
            self._stubs[key] = _stub(self._channels[self.address], service, method)
        return self._stubs[key]

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata that carry the relay's own token to the address of now.

        Raises:
            CredentialsError: the token cannot be read, or TLS is missing to send it.
        """
        return self._bearers[self.address].metadata()

    def check_token(self) -> None:
        """Read the token for each address.

        Raises:
            CredentialsError: the token cannot be read, or TLS is missing to send it.
        """
        for bearer in self._bearers.values():
            bearer.metadata()

    def failed(self, address: str, error: grpc.aio.AioRpcError) -> None:
        """Note how a call has failed that went to an address: the next ones go elsewhere if nobody serves there."""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            self._finder.failed(address)

    def missing(self) -> str:
        """Return why the tracker cannot be reached; "" if it can be, or that is not known yet.

        A channel that nobody has used yet has no connection. Asking makes it connect, so that the next answer is
        certain.
        """
        failing = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        states = [channel.get_state(try_to_connect=True) for channel in self._channels.values()]
        if all(state is failing for state in states):
            return f"the tracker at {self._server} cannot be reached; check that it is running"
        return ""


def _stub(channel: grpc.aio.Channel, service: str, method: MethodDescriptor) -> Any:
    path = f"/{service}/{method.name}"
    if not method.server_streaming:
        return channel.unary_unary(path, None, None)
    return (channel.stream_stream if method.client_streaming else channel.unary_stream)(path, None, None)


def _channel(address: str, credentials: Credentials, is_one: bool) -> grpc.aio.Channel:
    transport = credentials.transport(address)
    options = channel_options(address, watchful=not is_one)
    if not is_one:
        options.append(_CONNECTING)
    if transport is None:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, transport, options)


log = logging.getLogger("tracker.relay")

_METHODS: Final = wire.DESCRIPTOR.services_by_name["Tracker"].methods_by_name
SERVICE: Final = wire.DESCRIPTOR.services_by_name["Tracker"].full_name
_REPORT: Final = f"/{SERVICE}/Report"
_LASTING: Final = frozenset({"Watch", "Await", "AwaitThrough", "ReportStream"})
#: gRPC's error for a stream that the tracker has ended while a message was being written, whatever the tracker's error.
_BROKEN: Final = (grpc.StatusCode.INTERNAL, "Internal error from Core")

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_Call: TypeAlias = "grpc.aio.Call"


class Relay(grpc.GenericRpcHandler):
    """Handler of all calls of the tracker's service.

    Args:
        server: the tracker's address, as its clients use it.
        max_delay: as for `Batcher`, in seconds.
        budget: bounds the bytes of requests, of all calls, that the tracker has not answered; a stream counts while it
            lasts.
        has_certificate: whether the relay shows the tracker a certificate of its own.
    """

    def __init__(
        self,
        server: str,
        upstream: Upstream,
        max_delay: float,
        budget: Budget,
        metrics: RelayMetrics,
        guard: Guard,
        has_certificate: bool,
    ) -> None:
        self._server = server
        self._guard = guard
        self._has_certificate = has_certificate
        self._upstream = upstream
        self._budget = budget
        self._metrics = metrics

        async def counted(request: bytes, timeout: float | None) -> bytes:
            address = upstream.address
            send = upstream.stub(SERVICE, _METHODS["Report"])
            try:
                with metrics.message(len(request)):
                    answer: bytes = await send(request, timeout=timeout, metadata=upstream.metadata())
                    return answer
            except grpc.aio.AioRpcError as error:
                upstream.failed(address, error)
                raise

        self.gatherer = Batcher(counted, max_delay, budget)
        self._handlers = {f"/{SERVICE}/{method.name}": self._passing_on(method) for method in _METHODS.values()}
        self._handlers[_REPORT] = grpc.unary_unary_rpc_method_handler(self._report)
        self._lasting: set[_Call] = set()
        self._stopping = False
        self._strangers: set[str] = set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(handler_call_details.method)

    def stop(self) -> None:
        """End the calls that would not end by themselves; the others still get their answers."""
        self._stopping = True
        for call in self._lasting:
            call.cancel()

    async def _report(self, request: bytes, context: Context) -> bytes:
        await self._check_meant(context)
        await self._check_caller(context, "Report", request)
        try:
            with self._metrics.report(len(request)):
                return await self.gatherer.report(request, context.time_remaining())
        except grpc.aio.AioRpcError as error:
            await _abort_like(context, error)
        except FullError as full:
            await _refuse(context, full)
        except CredentialsError as wrong:
            log.error("the relay cannot show its token", extra={"error": str(wrong)})
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "CREDENTIALS", "the relay has lost its own token")

    async def _check_caller(self, context: Context, call: str, report: bytes | None) -> None:
        """Refuse a caller that the relay's own tokens file does not allow to report, or to make this call.

        The tracker decides by the caller's token what else it may do.
        """
        metadata = context.invocation_metadata() or ()
        try:
            if not self._guard.is_open:
                caller = self._guard.caller(call, metadata, context.auth_context)
                if report is not None:
                    caller.authorize(codec.parse(columns_pb2.ReportRequest, report).job)
            if report is None and self._has_certificate and not any(key == "authorization" for key, _ in metadata):
                raise unauthenticated(
                    f"a relay passes {call} on only with a token of the caller, since its own certificate is for "
                    "reports; give the call a token, or call the tracker itself"
                )
        except Refused as refused:
            await _abort(context, grpc.StatusCode[refused.code], refused.reason, refused.detail)

    async def _check_meant(self, context: Context) -> None:
        """Refuse a report that is meant for another tracker: this relay's tracker may have a job of the same name."""
        meant = str(dict(context.invocation_metadata() or ()).get(SERVER_KEY, self._server))
        if meant != self._server:
            self._metrics.report_for_another()
            if meant not in self._strangers and len(self._strangers) < 100:
                self._strangers.add(meant)
                log.warning("the callers use another tracker and must call it directly", extra={"server": meant})
            await _abort(
                context,
                grpc.StatusCode.UNAVAILABLE,
                "ANOTHER_TRACKER",
                f"this relay sends to {self._server}, not to {meant}",
            )

    def _passing_on(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of a call that is passed on."""
        lasting = method.name in _LASTING
        if not method.server_streaming:

            async def unary(request: bytes, context: Context) -> bytes:
                await self._check_caller(context, method.name, None)
                async with self._pending(method.name, len(request), context):
                    ask, address = self._upstream.stub(SERVICE, method), self._upstream.address
                    call = ask(request, timeout=context.time_remaining(), metadata=_metadata(context))
                    async with self._under_way(call, address, lasting, context):
                        with self._metrics.call(method.name):
                            answer: bytes = await call
                return answer

            return grpc.unary_unary_rpc_method_handler(unary)

        async def stream(request: Any, context: Context) -> AsyncIterator[bytes]:
            await self._check_caller(context, method.name, None)
            full: list[FullError] = []

            async def counted() -> AsyncIterator[bytes]:
                # The relay reads a message only when it has passed on the one before: it holds one at a time.
                async for message in request:
                    try:
                        with self._budget.holding(len(message)):
                            yield message
                    except FullError as error:
                        full.append(error)
                        call.cancel()
                        return

            async with self._pending(method.name, 0 if method.client_streaming else len(request), context):
                passed = counted() if method.client_streaming else request
                open_stream, address = self._upstream.stub(SERVICE, method), self._upstream.address
                call = open_stream(passed, timeout=context.time_remaining(), metadata=_metadata(context))
                async with self._under_way(call, address, lasting, context, full):
                    with self._metrics.call(method.name):
                        # The metadata tell the caller that it is connected; they must not wait for the first message.
                        await context.send_initial_metadata(tuple(await call.initial_metadata()))
                        async for message in call:
                            yield message

        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_stream_rpc_method_handler(stream)

    @asynccontextmanager
    async def _pending(self, method: str, size: int, context: Context) -> AsyncIterator[None]:
        """Count a call's request as pending while the context lasts; refuse the call if the limit is reached."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._budget.holding(size))
            except FullError as full:
                self._metrics.call_refused(method)
                await _refuse(context, full)
            yield

    @asynccontextmanager
    async def _under_way(
        self, call: _Call, address: str, lasting: bool, context: Context, full: Sequence[FullError] = ()
    ) -> AsyncIterator[None]:
        """Make a caller's call and the relay's call to the tracker end together, and in the same way."""
        if lasting:
            self._lasting.add(call)
        try:
            yield
        except grpc.aio.AioRpcError as error:
            self._upstream.failed(address, error)
            await _abort_like(context, error)
        except asyncio.CancelledError:
            if full:
                await _refuse(context, full[0])
            if self._stopping:
                await _abort(context, grpc.StatusCode.UNAVAILABLE, "STOPPING", "the relay is stopping; retry")
            raise
        finally:
            self._lasting.discard(call)
            call.cancel()


def _metadata(context: Context) -> tuple[tuple[str, str | bytes], ...]:
    """Return the caller's metadata without those that gRPC sends by itself."""
    sent = context.invocation_metadata() or ()
    return tuple((key, value) for key, value in sent if key != "user-agent" and not key.startswith("grpc-"))


async def _abort_like(context: Context, error: grpc.aio.AioRpcError) -> NoReturn:
    """End a call with the tracker's error, including its details."""
    if (error.code(), error.details()) == _BROKEN:
        await _abort(context, grpc.StatusCode.UNAVAILABLE, "BROKEN", "the tracker ended the stream; retry")
    await end(context, error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))


async def _refuse(context: Context, full: FullError) -> NoReturn:
    await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT", str(full))


async def _abort(context: Context, code: grpc.StatusCode, reason: str, message: str) -> NoReturn:
    """End a call with a reason of the relay's own."""
    await refuse(context, code, reason, f"{reason}: {message}")
