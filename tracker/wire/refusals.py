"""End of a refused call: a gRPC status with a text, and the reason in its details for programs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from tracker.wire import ERROR_DOMAIN
from tracker.wire.codec import write_length

_MESSAGE_BYTES = 1500  # the longest text of a refusal: it travels in headers, which have room for little more


async def refuse(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    reason: str,
    text: str,
    retry_after: float | None = None,
) -> NoReturn:
    """End a call with a refusal.

    Args:
        reason: one of the contract's reasons, or of the relay's.
        text: for people; it begins with the reason, and is cut where it is too long for a header.
        retry_after: the seconds after which the caller may try again; None: nothing is known of that.

    Raises:
        grpc.aio.AbortError: always, for gRPC, which ends the call with it.
        asyncio.CancelledError: instead, if the caller has left.
    """
    if len(text.encode()) > _MESSAGE_BYTES:
        text = text.encode()[:_MESSAGE_BYTES].decode(errors="ignore") + " …"
    detail = AnyMessage()
    detail.Pack(ErrorInfo(reason=reason, domain=ERROR_DOMAIN))
    details = [detail]
    if retry_after is not None:
        details.append(AnyMessage())
        details[1].Pack(RetryInfo(retry_delay=write_length(timedelta(seconds=retry_after))))
    status = Status(code=code.value[0], message=text, details=details)
    await end(context, code, text, (("grpc-status-details-bin", status.SerializeToString()),))


async def end(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    text: str,
    metadata: Sequence[tuple[str, str | bytes]],
) -> NoReturn:
    """End a call with a status and its metadata; see `refuse` for what is raised."""
    try:
        await context.abort(code, text, tuple(metadata))
    except grpc.aio.InternalError:
        # The connection broke in this moment: gRPC has not cancelled the call yet, and would log an error.
        raise asyncio.CancelledError from None
