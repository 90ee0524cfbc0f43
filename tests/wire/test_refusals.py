"""Ends of refused calls. The call is a stub: the moment in which its connection breaks cannot be chosen."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tracker.wire import ERROR_DOMAIN
from tracker.wire.refusals import refuse


class Call:
    """A call that ends as gRPC ends it."""

    def __init__(self, ends_with: Exception) -> None:
        self.ends_with = ends_with
        self.ended: tuple[Any, ...] = ()

    async def abort(self, *how: Any) -> NoReturn:
        self.ended = how
        raise self.ends_with


def refuse_with(call: Call, text: str) -> None:
    asyncio.run(refuse(call, grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED", text))  # type: ignore[arg-type]


def test_the_reason_is_in_the_details_and_a_long_text_is_cut() -> None:
    call = Call(grpc.aio.AbortError())
    with pytest.raises(grpc.aio.AbortError):
        refuse_with(call, "é" * 5000)
    code, text, [(key, packed)] = call.ended
    status = Status.FromString(packed)
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (code, key, status.code) == (grpc.StatusCode.INVALID_ARGUMENT, "grpc-status-details-bin", 3)
    assert (info.reason, info.domain) == ("MALFORMED", ERROR_DOMAIN)
    assert text == status.message
    assert text.endswith("é …")
    assert len(text.encode()) < 1600


def test_a_caller_that_leaves_while_refused_is_no_server_error() -> None:
    with pytest.raises(asyncio.CancelledError):
        refuse_with(Call(grpc.aio.InternalError("failed to send the status")), "no")
