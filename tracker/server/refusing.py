"""What a caller is told about an error, and how: a status that ends its call, or an answer within a stream."""

from __future__ import annotations

import logging
from typing import NoReturn

import grpc

from tracker.contract.refusal import Refusal
from tracker.core import Refused
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.refusals import refuse

from .intake import Context

log = logging.getLogger("tracker.service")


def refusal(error: Exception) -> Refused:
    """Return what a caller is told about an error: the refusal itself, or that the server has a fault."""
    if isinstance(error, Refused):
        # Its frames hold the request, and gRPC keeps the error until the next garbage collection.
        error.__traceback__ = None
        return error
    log.error("a call failed", exc_info=error)
    error.__traceback__ = None
    return Refused(Refusal.FAULT, f"an internal error in the server ({type(error).__name__}); see the server's log")


async def abort(context: Context, error: Exception) -> NoReturn:
    """End a call with what its caller is told about an error."""
    refused = refusal(error)
    await refuse(context, grpc.StatusCode[refused.code], refused.reason, str(refused), refused.retry_after)


def rejected(refused: Refused) -> columns_pb2.ReportResponse:
    """Return the answer to a report of a stream that is refused, while the stream goes on."""
    return columns_pb2.ReportResponse(
        outcome=wire.ReportResponse.REJECTED,
        error_code=grpc.StatusCode[refused.code].value[0],
        error_reason=refused.reason,
        error_message=str(refused),
    )
