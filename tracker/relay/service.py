"""The tracker's calls as a relay answers them: reports are gathered, everything else is passed on as it is.

What is passed on is never read, so a call that this relay does not know is passed on like the others, with its
metadata, its deadline, its errors, and its end: a caller who goes away ends the call at the tracker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final, Never, TypeAlias

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from tracker.wire import ERROR_DOMAIN, SERVER_KEY
from tracker.wire.gen import tracker_pb2 as wire

from .gathering import FullError, Gatherer

log = logging.getLogger("tracker.relay")

SERVICE: Final = wire.DESCRIPTOR.services_by_name["Tracker"].full_name
_REPORT: Final = f"/{SERVICE}/Report"
_LASTING: Final = frozenset({f"/{SERVICE}/{name}" for name in ("Watch", "Await", "ReportStream")})

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
_Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"


class Relay(grpc.GenericRpcHandler):
    """All calls of the tracker's service.

    Args:
        server: the tracker's address, as its clients know it.
        channel: to the tracker.
        max_delay: as for `Gatherer`.
        max_pending_bytes: as for `Gatherer`.
    """

    def __init__(self, server: str, channel: grpc.aio.Channel, max_delay: float, max_pending_bytes: int) -> None:
        self._server = server
        self._channel = channel
        send: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_REPORT, None, None)
        self.gatherer = Gatherer(lambda request, timeout: send(request, timeout=timeout), max_delay, max_pending_bytes)
        self._lasting: set[_Call] = set()
        self._stopping = False
        self._strangers: set[str] = set()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = handler_call_details.method
        if method == _REPORT:
            return grpc.unary_unary_rpc_method_handler(self._report)
        if not method.startswith(f"/{SERVICE}/"):
            return None

        async def pass_on(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async for message in self._pass_on(method, requests, context):
                yield message

        # On the wire, every kind of call is a stream both ways.
        return grpc.stream_stream_rpc_method_handler(pass_on)

    def stop(self) -> None:
        """End the calls that would not end by themselves; the others are answered."""
        self._stopping = True
        for call in self._lasting:
            call.cancel()

    async def _report(self, request: bytes, context: Context) -> bytes:
        await self._check_meant(context)
        try:
            return await self.gatherer.report(request, context.time_remaining())
        except grpc.aio.AioRpcError as error:
            await _abort_like(context, error)
        except FullError as full:
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT", str(full))

    async def _check_meant(self, context: Context) -> None:
        """A report that is meant for another tracker must not get to this one: it may have a job of that name, too."""
        meant = str(dict(context.invocation_metadata() or ()).get(SERVER_KEY, self._server))
        if meant != self._server:
            if meant not in self._strangers and len(self._strangers) < 100:
                self._strangers.add(meant)
                log.warning("callers mean another tracker and have to go there directly", extra={"server": meant})
            await _abort(
                context,
                grpc.StatusCode.UNAVAILABLE,
                "ANOTHER_TRACKER",
                f"this relay speaks to {self._server}, not to {meant}",
            )

    async def _pass_on(self, method: str, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        open_call: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(method, None, None)
        call = open_call(requests, timeout=context.time_remaining(), metadata=_metadata(context))
        if method in _LASTING:
            self._lasting.add(call)
        try:
            # It says that the caller is heard, so it is not kept until there is a message.
            await context.send_initial_metadata(tuple(await call.initial_metadata()))
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            await _abort_like(context, error)
        except asyncio.CancelledError:
            if self._stopping:
                await _abort(context, grpc.StatusCode.UNAVAILABLE, "STOPPING", "the relay is stopping; try again")
            raise
        finally:
            self._lasting.discard(call)
            call.cancel()


def _metadata(context: Context) -> tuple[tuple[str, str | bytes], ...]:
    """What the caller sent along, but for what gRPC sends by itself."""
    sent = context.invocation_metadata() or ()
    return tuple((key, value) for key, value in sent if key != "user-agent" and not key.startswith("grpc-"))


async def _abort_like(context: Context, error: grpc.aio.AioRpcError) -> Never:
    """End a call as the tracker's ended, with all that the tracker said about it."""
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))


async def _abort(context: Context, code: grpc.StatusCode, reason: str, message: str) -> Never:
    """End a call with a reason of the relay's own."""
    detail = AnyMessage()
    detail.Pack(ErrorInfo(reason=reason, domain=ERROR_DOMAIN))
    status = Status(code=code.value[0], message=f"{reason}: {message}", details=[detail])
    await context.abort(code, f"{reason}: {message}", (("grpc-status-details-bin", status.SerializeToString()),))
