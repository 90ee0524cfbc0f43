"""The calls of the contract: each handler reads its request, asks the sequencer or the state, and writes the answer.

Handlers get a request as bytes. So the server journals a command exactly as it arrived, and can refuse a malformed
request with a reason, while the transport would only fail. All calls are registered as streams, so that `intake`
receives each message and bounds the memory; on the wire this makes no difference.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from tracker.contract.answers import Answer, Reported
from tracker.contract.commands import Command, DefineJob, Report
from tracker.contract.refusal import Refusal
from tracker.core import Prepared, Refused, Tracker
from tracker.security.audit import AUDITED, Audit
from tracker.security.guard import Caller, Guard
from tracker.security.identities import FORCE, DeniedError
from tracker.wire import codec
from tracker.wire.codec import Method
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.refusals import refuse

from .administration import Administration
from .admission import Admission
from .handover import HandOver
from .intake import Context, Intake
from .lanes import Lanes
from .leading import Leadership
from .limits import Limits
from .lookups import Handler, Lookups, asked_by
from .measures import Measures
from .notices import Notices
from .sequencer import Sequencer, stopping
from .watching import Readers

log = logging.getLogger("tracker.service")

SERVICE = wire.DESCRIPTOR.services_by_name["Tracker"].full_name

_LARGE_SPEC = 10_000  # bytes: the answer to the definition of a larger job is put together beside other work
_AHEAD = 64  # how many reports of one stream may wait for the journal
_OK, _CANCELLED = "OK", "CANCELLED"  # codes of calls that were answered, or left by their callers
_REFUSED = "REFUSED"  # the outcome of a report that was


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


class _Stop:
    """Mark at the point where the server ends a stream."""


_STOP = _Stop()
_Streamed: TypeAlias = tuple[Command | None, Answer | asyncio.Future[Answer] | Exception] | _Stop | None


class Service:
    """The service `substream.tracker.v1.Tracker`.

    Args:
        state: the tracker that look-ups read.
        sequencer: carries out commands in order.
        lanes: where each job's state may be read.
        journal: the journal's name, for `GetServerInfo`.
        measures: counts calls and reports.
        audit: records what operators do; None: nothing does.
        leadership: confirms that this server leads, before it answers from its state.
        hand_over: hands the journal to a standby.
    """

    def __init__(
        self,
        state: Tracker,
        sequencer: Sequencer,
        lanes: Lanes,
        readers: Readers,
        limits: Limits,
        notices: Notices,
        journal: str,
        measures: Measures,
        guard: Guard,
        audit: Audit | None,
        leadership: Leadership,
        hand_over: HandOver,
    ) -> None:
        self._audit = audit
        self._guard = guard
        self.leadership = leadership
        self._sequencer = sequencer
        self._lanes = lanes
        self._readers = readers
        self._limits = limits
        self._notices = notices
        self.measures = measures
        self._admission = Admission(state, limits)
        self._intake = Intake(limits, abort)
        self._lookups = Lookups(state, readers, self._intake, limits, journal)
        self._administration = Administration(sequencer, self._intake, journal, measures, audit, leadership, hand_over)
        self._report_streams: set[asyncio.Queue[_Streamed]] = set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all calls, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        carried_out: dict[str, tuple[Method, Callable[[Any], Message]]] = {
            "DefineJob": (Method.DEFINE_JOB, codec.write_job_defined),
            "DeleteJob": (Method.DELETE_JOB, lambda _: wire.DeleteJobResponse()),
            "OpenProducer": (Method.OPEN_PRODUCER, codec.write_opened),
            "CloseProducer": (Method.CLOSE_PRODUCER, lambda _: wire.CloseProducerResponse()),
            "ForgetProducer": (Method.FORGET_PRODUCER, lambda _: wire.ForgetProducerResponse()),
            "FinishFront": (Method.FINISH_FRONT, lambda _: wire.FinishFrontResponse()),
            "Report": (Method.REPORT, codec.write_reported),
            "Commit": (Method.COMMIT, lambda answer: wire.CommitResponse(last_seq=answer.last_seq)),
            "Drain": (Method.DRAIN, codec.write_drain_status),
            "CancelDrain": (Method.CANCEL_DRAIN, codec.write_drain_status),
            "Abandon": (Method.ABANDON, lambda _: wire.AbandonResponse()),
            "Subscribe": (Method.SUBSCRIBE, codec.write_subscribed),
            "Ack": (Method.ACK, lambda answer: wire.AckResponse(acknowledged=answer.acknowledged)),
            "Unsubscribe": (Method.UNSUBSCRIBE, lambda _: wire.UnsubscribeResponse()),
        }
        calls = {name: self._unary(name, self._commander(name, *how)) for name, how in carried_out.items()}
        calls |= {name: self._unary(name, self._of_leader(how)) for name, how in self._lookups.by_name().items()}
        calls["MoveLeader"] = self._unary("MoveLeader", self._administration.move)
        calls["Await"] = self._unary("Await", self._await, counted=False)
        calls["Watch"] = self._streaming("Watch", self._watch)
        calls["ReportStream"] = self._streaming("ReportStream", self._report_stream)
        calls["Backup"] = self._streaming("Backup", self._administration.backup)
        return grpc.method_handlers_generic_handler(SERVICE, calls)

    # ---------------------------------------------------------------- how calls are answered and refused

    def _unary(self, name: str, handle: Handler, counted: bool = True) -> Any:
        async def answer(context: Context) -> bytes:
            caller = await self._audited_caller(name, context)
            async with caller.within_quota(lasts=not counted):
                data = await self._intake.receive(context)
                if data is None:
                    return b""  # no caller is left to read it
                with self._intake.held(data):
                    return await handle(data, caller)
            raise AssertionError  # no error is held back

        async def call(_: Any, context: Context) -> bytes:
            async with _Answering(self, name, context):
                if not counted:
                    return await answer(context)
                with self._intake.call():
                    return await answer(context)
            raise AssertionError  # no error leaves the block: it ends the call

        return grpc.stream_unary_rpc_method_handler(call)

    def _streaming(self, name: str, handle: Callable[[Context, Caller], AsyncIterator[bytes]]) -> Any:
        async def call(_: Any, context: Context) -> AsyncIterator[bytes]:
            async with _Answering(self, name, context):
                caller = await self._audited_caller(name, context)
                async with caller.within_quota(lasts=True):
                    async for message in handle(context, caller):
                        yield message

        return grpc.stream_stream_rpc_method_handler(call)

    def _of_leader(self, look_up: Handler) -> Handler:
        async def handle(data: bytes, caller: Caller) -> bytes:
            answer = await look_up(data, caller)
            await self.leadership.confirm()
            return answer

        return handle

    def _caller(self, call: str, context: Context) -> Caller:
        """Return who makes a call, before anything of it is read."""
        return self._guard.caller(call, context.invocation_metadata(), context.auth_context, context.peer)

    async def _audited_caller(self, call: str, context: Context) -> Caller:
        """Return who makes a call; a client that may not make a call of operators is recorded."""
        try:
            return self._caller(call, context)
        except DeniedError as denied:
            if self._audit is not None and call in AUDITED:
                await self._audit.record(denied.client, context.peer(), call, None, denied.reason)
            raise

    def refused(self, error: Exception) -> Refused:
        """Return what a caller is told about an error, and count it."""
        refused = refusal(error)
        self.measures.refused(refused.reason)
        return refused

    # ---------------------------------------------------------------- commands

    def _commander(self, name: str, method: Method, translate: Callable[[Any], Message]) -> Handler:
        async def handle(data: bytes, caller: Caller) -> bytes:
            command = await self._intake.command(method, data)
            if self._audit is None or name not in AUDITED:
                return await carry_out(data, command, caller)
            async with self._audit.recording(caller.identity.name, caller.peer(), name, command):
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
                return await self._readers.long(lambda: translate(answer).SerializeToString())
            return translate(answer).SerializeToString()

        return handle

    def _count_report(self, command: Command | None, outcome: str) -> None:
        if type(command) is Report:
            self.measures.reported(command, outcome)

    async def _take(
        self, method: Method, data: bytes, command: Command, caller: Caller
    ) -> Answer | asyncio.Future[Answer]:
        """Admit a command and give it its place in the order. A command that would be refused leaves no record."""
        job = command.job
        if isinstance(command, Report):
            caller.take_entries(len(command.xor))
        try:
            prepared = await self._prepare(job, command)
        except Refused as refused:
            # An earlier command of the same caller may change that, except if the message itself is wrong.
            if refused.reason == Refusal.MALFORMED or not await self._admission.settled(job):
                raise
            prepared = await self._prepare(job, command)
        caller.take_names(prepared.new, partial(self._admission.count_substreams, job))
        answer = self._sequencer.submit(method, data, prepared)
        if isinstance(answer, asyncio.Future):
            self._admission.take(prepared, answer)
        return answer

    async def _prepare(self, job: str, command: Command) -> Prepared:
        found = self._lanes.run(job, partial(self._admission.prepare, command), partial(_size, command))
        return await found if isinstance(found, asyncio.Future) else found

    async def _report_stream(self, context: Context, caller: Caller) -> AsyncIterator[bytes]:
        """Answer each report, in order. Later reports are accepted while earlier ones wait for the journal."""
        self._limits.check("max_report_streams", len(self._report_streams) + 1, "use fewer report streams")
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
                            caller.take_call()
                            answers.put_nowait((command, await self._take(Method.REPORT, data, command, caller)))
                    except Exception as error:
                        if isinstance(error, Refused):
                            await caller.hold(error)
                        answers.put_nowait((command, error))
            finally:
                answers.put_nowait(None)

        reader: asyncio.Task[None] | None = None
        try:
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
            return rejected(self.refused(await self.leadership.checked(error)))
        self._count_report(command, reported.outcome)
        return codec.write_reported(reported)

    @property
    def under_way(self) -> tuple[int, int]:
        """Return how many calls are under way beside watches and waits, and how many streams of reports."""
        return self._intake.calls, len(self._report_streams)

    def stop(self) -> None:
        """End the report streams, after the answers to what they have accepted."""
        for answers in self._report_streams:
            answers.put_nowait(_STOP)

    async def _await(self, data: bytes, caller: Caller) -> bytes:
        request = asked_by(self._intake, wire.AwaitRequest, data, caller)
        ended = await self._readers.ended(request)
        caller.authorize(request.job)  # the wait may have lasted longer than the token
        return wire.AwaitResponse(ended=codec.write_ended(ended)).SerializeToString()

    async def _watch(self, context: Context, caller: Caller) -> AsyncIterator[bytes]:
        passing = await self._readers.passage.enter()
        try:
            data = await self._intake.receive(context)
            if data is None:
                return
            request = asked_by(self._intake, wire.WatchRequest, data, caller)
            await context.send_initial_metadata(())  # so that the caller knows that it is served
        finally:
            self._readers.passage.leave(passing)
        async for event in self._readers.watch(request):
            caller.authorize(request.job)
            yield event.SerializeToString()


class _Answering:
    """A context in which a call is answered: it times the call, refuses it where it fails, and counts how it ended."""

    __slots__ = ("_call", "_name", "_service", "_started")

    def __init__(self, service: Service, name: str, call: Context) -> None:
        self._service = service
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
                refused = self._service.refused(await self._service.leadership.checked(error))
                code = refused.code
                await abort(self._call, refused)
        finally:
            self._service.measures.called(self._name, code, time.perf_counter() - self._started)


def _authorize(caller: Caller, command: Command) -> None:
    caller.authorize(command.job, FORCE if isinstance(command, DefineJob) and command.force else None)


def _size(command: Command) -> int:
    """Return the cost of checking a command, in rows."""
    if isinstance(command, Report):
        return len(command.xor) // 10 + len(command.names) + len(command.substream_ids) + len(command.promises)
    if isinstance(command, DefineJob):
        return 4 * len(command.spec.segments) + len(command.spec.fronts)
    return 0
