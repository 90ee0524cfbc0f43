"""The frame of every call: who makes it, within which bounds it is answered, and how it is refused, recorded, counted.

Handlers get a request as bytes. So the server journals a command exactly as it arrived, and can refuse a malformed
request with a reason, while the transport would only fail. All calls are registered as streams, so that `intake`
receives each message and bounds the memory; on the wire this makes no difference.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio

from tracker.contract.commands import Command
from tracker.contract.refusal import Refusal
from tracker.core import Refused
from tracker.security.audit import AUDITED, Audit
from tracker.security.guard import Caller, Guard
from tracker.security.identities import DeniedError
from tracker.wire.refusals import refuse

from .intake import Context, Intake
from .limits import Limits
from .measures import Measures
from .owning import Leadership

log = logging.getLogger("tracker.service")

_OK, _CANCELLED = "OK", "CANCELLED"  # codes of calls that were answered, or left by their callers

#: Answers a request of a caller; both are bytes.
Handler: TypeAlias = Callable[[bytes, Caller], Awaitable[bytes]]
#: Answers a call of a caller by a stream of messages.
StreamHandler: TypeAlias = Callable[[Context, Caller], AsyncIterator[bytes]]


def refusal(error: Exception) -> Refused:
    """Return the answer to a caller for an error: the refusal itself, or that the server has a fault."""
    if isinstance(error, Refused):
        # Its frames hold the request, and gRPC keeps the error until the next garbage collection.
        error.__traceback__ = None
        return error
    log.error("a call failed", exc_info=error)
    error.__traceback__ = None
    return Refused(Refusal.FAULT, f"an internal error in the server ({type(error).__name__}); see the server's log")


async def abort(context: Context, error: Exception) -> NoReturn:
    """End a call with the answer for an error."""
    refused = refusal(error)
    await refuse(context, grpc.StatusCode[refused.code], refused.reason, str(refused), refused.retry_after)


class Calls:
    """Frame of the calls of one server.

    Args:
        audit: records what operators do; None: nothing does.
    """

    def __init__(
        self, limits: Limits, guard: Guard, audit: Audit | None, leadership: Leadership, measures: Measures
    ) -> None:
        self._guard = guard
        self._audit = audit
        self.intake = Intake(limits, abort)
        self.leadership = leadership
        self.measures = measures

    def unary(self, name: str, handle: Handler, looks_up: bool = False, lasts: bool = False) -> Any:
        """Return the handler of a call with one answer.

        Args:
            looks_up: the answer comes from the state, so it counts only if this server led when the call began.
            lasts: the call may wait for long, and does not count as one that is under way.
        """

        async def answer(context: Context) -> bytes:
            caller = await self._caller(name, context)
            async with caller.usage.calling(lasts=lasts):
                data = await self.intake.receive(context)
                if data is None:
                    return b""  # no caller is left to read it
                with self.intake.held(data):
                    answered = await handle(data, caller)
                    if looks_up:
                        await self.leadership.confirm()
                    return answered
            raise AssertionError  # no error is held back

        async def call(_: Any, context: Context) -> bytes:
            async with _Answering(self, name, context):
                with nullcontext() if lasts else self.intake.call():
                    return await answer(context)
            raise AssertionError  # no error leaves the block: it ends the call

        return grpc.stream_unary_rpc_method_handler(call)

    def streaming(self, name: str, handle: StreamHandler) -> Any:
        """Return the handler of a call with a stream of answers."""

        async def call(_: Any, context: Context) -> AsyncIterator[bytes]:
            async with _Answering(self, name, context):
                caller = await self._caller(name, context)
                async with caller.usage.calling(lasts=True):
                    async for message in handle(context, caller):
                        yield message

        return grpc.stream_stream_rpc_method_handler(call)

    async def _caller(self, call: str, context: Context) -> Caller:
        """Return who makes a call, before anything of it is read; record who may not make a call of operators."""
        try:
            return self._guard.caller(call, context.invocation_metadata(), context.auth_context, context.peer)
        except DeniedError as denied:
            if self._audit is not None and call in AUDITED:
                await self._audit.record(denied.client, context.peer(), call, None, denied.reason)
            raise

    def recorded(self, name: str, caller: Caller, command: Command | None) -> AbstractAsyncContextManager[None]:
        """Record a call of operators while the context lasts, with its outcome.

        Raises:
            Refused: ``AUDIT``: it could not be recorded, so it must not be carried out.
        """
        if self._audit is None or name not in AUDITED:
            return nullcontext()
        return self._audit.recording(caller.identity.name, caller.peer(), name, command)

    def refused(self, error: Exception) -> Refused:
        """Return the answer to a caller for an error, and count it."""
        refused = refusal(error)
        self.measures.refused(refused.reason)
        return refused


class _Answering:
    """A context in which a call is answered: it times the call, refuses it where it fails, and counts how it ended."""

    __slots__ = ("_call", "_calls", "_name", "_started")

    def __init__(self, calls: Calls, name: str, call: Context) -> None:
        self._calls = calls
        self._name = name
        self._call = call
        self._started = time.perf_counter()

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        del traceback  # its frames hold the request, and gRPC keeps what is raised here until the next collection
        code = _OK if error is None else _CANCELLED
        try:
            if isinstance(error, Exception):
                refused = self._calls.refused(await self._calls.leadership.checked(error))
                code = refused.code
                await abort(self._call, refused)
        finally:
            self._calls.measures.called(self._name, code, time.perf_counter() - self._started)
