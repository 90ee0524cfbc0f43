"""The calls of the contract: each handler reads its request, asks the sequencer or the state, and writes the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from tracker.contract.commands import Answer, Command, DefineJob, Report, Reported
from tracker.contract.refusal import Refusal
from tracker.core import Refused
from tracker.journal import FollowableJournal, Journal, JournalError, MovableJournal
from tracker.security.guard import Caller
from tracker.security.identities import FORCE
from tracker.wire import codec
from tracker.wire.codec import Method
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire

from . import backups
from .admission import Admission
from .calls import Calls, Handler
from .intake import Context
from .lookups import Lookups
from .notices import Notices
from .sequencer import Sequencer, stopping
from .watching import Readers

SERVICE = wire.DESCRIPTOR.services_by_name["Tracker"].full_name

_LARGE_SPEC = 10_000  # bytes: the answer to the definition of a larger job is put together beside other work
_AHEAD = 64  # how many reports of one stream may wait for the journal
_REFUSED = "REFUSED"  # the outcome of a report that was


def rejected(refused: Refused) -> columns_pb2.ReportResponse:
    """Return the answer to a report of a stream that is refused, while the stream goes on."""
    return columns_pb2.ReportResponse(
        outcome=wire.ReportResponse.REJECTED,
        error_code=grpc.StatusCode[refused.code].value[0],
        error_reason=refused.reason,
        error_message=str(refused),
    )


log = logging.getLogger("tracker.server")

_GRACE_S = 10.0  # the time that calls under way get when the server stops
_SHORT_GRACE_S = 2.0  # the same if another server waits to serve their callers
_NOBODY = (
    "no standby follows the journal: start one with `tracker serve --standby` on the same journal, and wait until its "
    "/readyz tells that it is a standby"
)


class HandOver:
    """Hand-over of the journal to a standby, if it is asked for, so that no call fails when the server ends.

    Args:
        stop: set to stop the server.

    Attributes:
        asked: whether it was asked for, and there is a standby.
    """

    def __init__(self, journal: Journal, sequencer: Sequencer, stop: asyncio.Event) -> None:
        self._journal = journal
        self._sequencer = sequencer
        self._stop = stop
        self.asked = False

    @property
    def grace_s(self) -> float:
        """The seconds that calls under way get when the server stops."""
        return _SHORT_GRACE_S if self.asked else _GRACE_S

    async def begin(self) -> str:
        """Stop the server, and return who gets the journal."""
        standby = await self._standby()
        if not isinstance(self._journal, FollowableJournal):
            # The standby reads the journal only when it has it: the less there is to read, the sooner it serves.
            await self._sequencer.keep_snapshot()
            standby = await self._standby()
        self.asked = True
        log.info("handing over", extra={"to": standby})
        self._stop.set()
        return standby

    async def _standby(self) -> str:
        if not isinstance(self._journal, MovableJournal):
            raise Refused(
                Refusal.NO_STANDBY,
                f"a journal of the kind {self._journal.name!r} cannot be handed over; stop this server instead, and "
                "another one can start on its journal",
            )
        try:
            standby = await asyncio.to_thread(self._journal.standby)
        except JournalError as error:
            raise Refused(Refusal.JOURNAL_FAILED, f"{error}; nothing was changed; retry") from error
        if not standby:
            raise Refused(Refusal.NO_STANDBY, _NOBODY)
        return standby

    async def finish(self) -> None:
        """Give the journal to the standby, if that was asked for. Nothing may be written any more."""
        if self.asked and isinstance(self._journal, MovableJournal):
            await asyncio.to_thread(self._journal.hand_over)


class Administration:
    """Handler of these calls."""

    def __init__(self, calls: Calls, sequencer: Sequencer, hand_over: HandOver, journal: str) -> None:
        self._calls = calls
        self._sequencer = sequencer
        self._hand_over = hand_over
        self._journal = journal
        self._backing_up = asyncio.Lock()  # each backup holds a copy of the state in memory

    async def backup(self, context: Context, caller: Caller) -> AsyncIterator[bytes]:
        """Send the state as a backup's file."""
        data = await self._calls.intake.receive(context)
        if data is None:
            return
        self._calls.intake.question(wire.BackupRequest, data)
        async with self._calls.recorded("Backup", caller, None):
            caller.authorize_all()
            async with self._backing_up:
                number, dump = await self._sequencer.copy()
                await self._calls.leadership.confirm()  # or another server has gone beyond this state
                made = time.time()
                backup = await asyncio.to_thread(backups.draft, self._journal, number, dump, made)
                del dump
                size = await asyncio.to_thread(backup.seal)
                for part in backup.parts():
                    caller.authorize_all()
                    yield wire.BackupPart(data=part, size=size).SerializeToString()
                self._calls.measures.backup_at = made

    async def move(self, data: bytes, caller: Caller) -> bytes:
        """Hand the journal to the standby."""
        self._calls.intake.question(wire.MoveLeaderRequest, data)
        async with self._calls.recorded("MoveLeader", caller, None):
            caller.authorize_all()
            to = await self._hand_over.begin()
        return wire.MoveLeaderResponse(to=to).SerializeToString()


class _Stop:
    """Mark at the point where the server ends a stream."""


_STOP = _Stop()
_Streamed: TypeAlias = tuple[Command | None, Answer | asyncio.Future[Answer] | Exception] | _Stop | None

#: The commands that callers may give, and the message of each one's answer.
_ANSWERS: dict[Method, type[Message]] = {
    Method.DEFINE_JOB: wire.DefineJobResponse,
    Method.DELETE_JOB: wire.DeleteJobResponse,
    Method.OPEN_PRODUCER: wire.OpenProducerResponse,
    Method.CLOSE_PRODUCER: wire.CloseProducerResponse,
    Method.FORGET_PRODUCER: wire.ForgetProducerResponse,
    Method.FINISH_FRONT: wire.FinishFrontResponse,
    Method.REPORT: columns_pb2.ReportResponse,
    Method.COMMIT: wire.CommitResponse,
    Method.DRAIN: wire.DrainStatus,
    Method.CANCEL_DRAIN: wire.DrainStatus,
    Method.ABANDON: wire.AbandonResponse,
    Method.SUBSCRIBE: wire.SubscribeResponse,
    Method.ACK: wire.AckResponse,
    Method.UNSUBSCRIBE: wire.UnsubscribeResponse,
}


class Service:
    """The service `substream.tracker.v1.Tracker`."""

    def __init__(
        self,
        calls: Calls,
        admission: Admission,
        sequencer: Sequencer,
        readers: Readers,
        notices: Notices,
        lookups: Lookups,
        administration: Administration,
    ) -> None:
        self._calls = calls
        self._intake = calls.intake
        self._admission = admission
        self._sequencer = sequencer
        self._readers = readers
        self._notices = notices
        self._lookups = lookups
        self._administration = administration
        self._report_streams: set[asyncio.Queue[_Streamed]] = set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all calls, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        unary, streaming = self._calls.unary, self._calls.streaming
        handlers = {}
        for method, answer in _ANSWERS.items():
            name = method.name.title().replace("_", "")
            handlers[name] = unary(name, self._commander(name, method, answer))
        handlers |= {name: unary(name, how, looks_up=True) for name, how in self._lookups.by_name().items()}
        handlers["MoveLeader"] = unary("MoveLeader", self._administration.move)
        handlers["Await"] = unary("Await", self._await, lasts=True)
        handlers["AwaitThrough"] = unary("AwaitThrough", self._await_through, looks_up=True, lasts=True)
        handlers["Watch"] = streaming("Watch", self._watch)
        handlers["ReportStream"] = streaming("ReportStream", self._report_stream)
        handlers["Backup"] = streaming("Backup", self._administration.backup)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    # ---------------------------------------------------------------- commands

    def _commander(self, name: str, method: Method, kind: type[Message]) -> Handler:
        def translate(answer: Answer) -> bytes:
            message = codec.write_reported(answer) if type(answer) is Reported else codec.write(answer, kind)
            return message.SerializeToString()

        async def handle(data: bytes, caller: Caller) -> bytes:
            command = await self._intake.command(method, data)
            async with self._calls.recorded(name, caller, command):
                return await carry_out(data, command, caller)
            raise AssertionError  # no error is held back

        async def carry_out(data: bytes, command: Command, caller: Caller) -> bytes:
            _authorize(caller, command)
            notice = self._notices.about(command)
            try:
                answer = await self._take(method, data, command, caller)
                answer = await answer if isinstance(answer, asyncio.Future) else answer
            except Exception:
                self._count_report(command, _REFUSED)
                raise
            notice(answer)
            if type(answer) is Reported:
                self._count_report(command, answer.outcome)
            if isinstance(command, DefineJob) and len(data) > _LARGE_SPEC:
                return await self._readers.long(lambda: translate(answer))
            return translate(answer)

        return handle

    def _count_report(self, command: Command | None, outcome: str) -> None:
        if type(command) is Report:
            self._calls.measures.reported(command, outcome)

    async def _take(
        self, method: Method, data: bytes, command: Command, caller: Caller
    ) -> Answer | asyncio.Future[Answer]:
        """Admit a command and give it its place in the order. A command that would be refused leaves no record."""
        if isinstance(command, Report):
            caller.usage.take_entries(len(command.xor))
        prepared = await self._admission.prepare(command)
        caller.usage.take_names(prepared.new, partial(self._admission.count_substreams, command.job))
        answer = self._sequencer.submit(method, data, prepared)
        if isinstance(answer, asyncio.Future):
            self._admission.take(prepared, answer)
        return answer

    async def _report_stream(self, context: Context, caller: Caller) -> AsyncIterator[bytes]:
        """Answer each report, in order. Later reports are accepted while earlier ones wait for the journal."""
        answers: asyncio.Queue[_Streamed] = asyncio.Queue()
        self._report_streams.add(answers)
        ahead = asyncio.Semaphore(_AHEAD)

        async def read() -> None:
            try:
                while isinstance(data := await context.read(), bytes):
                    await ahead.acquire()
                    await self._sequencer.wait_for_capacity(len(data))
                    command = None
                    try:
                        with self._intake.held(data):
                            command = await self._intake.command(Method.REPORT, data)
                            _authorize(caller, command)
                            caller.usage.take_call()
                            answers.put_nowait((command, await self._take(Method.REPORT, data, command, caller)))
                    except Exception as error:
                        if isinstance(error, Refused):
                            await caller.usage.hold(error)
                        answers.put_nowait((command, error))
            finally:
                answers.put_nowait(None)

        reader: asyncio.Task[None] | None = None
        try:
            with self._intake.report_stream():
                await context.send_initial_metadata(())  # so that the caller knows that it is served
                reader = asyncio.create_task(read())
                while (answer := await answers.get()) is not None:
                    if answer is _STOP:
                        raise stopping()
                    assert isinstance(answer, tuple)
                    yield (await self._stream_answer(*answer)).SerializeToString()
                    ahead.release()
        finally:
            self._report_streams.discard(answers)
            if reader is not None:
                reader.cancel()

    async def _stream_answer(self, command: Command | None, answer: Any) -> columns_pb2.ReportResponse:
        try:
            if isinstance(answer, Exception):
                raise answer
            reported = await answer if isinstance(answer, asyncio.Future) else answer
        except Exception as error:
            self._count_report(command, _REFUSED)
            return rejected(self._calls.refused(await self._calls.leadership.checked(error)))
        self._count_report(command, reported.outcome)
        return codec.write_reported(reported)

    def stop(self) -> None:
        """End the report streams, after the answers to what they have accepted."""
        for answers in self._report_streams:
            answers.put_nowait(_STOP)

    async def _await(self, data: bytes, caller: Caller) -> bytes:
        request = self._intake.asked(wire.AwaitRequest, data, caller)
        ended = await self._readers.ended(request)
        caller.authorize(request.job)  # the wait may have lasted longer than the token
        return wire.AwaitResponse(ended=codec.write_ended(ended)).SerializeToString()

    async def _await_through(self, data: bytes, caller: Caller) -> bytes:
        request = self._intake.asked(wire.AwaitThroughRequest, data, caller)
        through = await self._readers.through(request)
        caller.authorize(request.job)
        return codec.write(through, wire.AwaitThroughResponse).SerializeToString()

    async def _watch(self, context: Context, caller: Caller) -> AsyncIterator[bytes]:
        async with self._readers.passage.turn():
            data = await self._intake.receive(context)
            if data is None:
                return
            request = self._intake.asked(wire.WatchRequest, data, caller)
        # The metadata tells the caller that it is served.
        async for event in self._readers.watch(request, lambda: context.send_initial_metadata(())):
            caller.authorize(request.job)
            yield event.SerializeToString()


def _authorize(caller: Caller, command: Command) -> None:
    caller.authorize(command.job, FORCE if isinstance(command, DefineJob) and command.force else None)
