"""The calls of the contract: each handler reads its request, asks the sequencer or the state, and writes the answer.

Handlers get a request as bytes. So the server journals a command exactly as it arrived, and can refuse a malformed
request with a reason, while the transport would only fail. All calls are registered as streams, so that `intake`
receives each message and bounds the memory; on the wire this makes no difference.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

import tracker
from tracker.contract.answers import Answer, Reported
from tracker.contract.commands import Command, DefineJob, Report
from tracker.core import Refused, Tracker
from tracker.wire import ERROR_DOMAIN, codec
from tracker.wire.codec import Method
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire

from .admission import Admission
from .intake import Context, Intake
from .lanes import Lanes
from .limits import Limits
from .measures import Measures
from .notices import Notices
from .sequencer import Sequencer, stopping
from .watching import Readers, wanted_by

log = logging.getLogger("tracker.service")

SERVICE = wire.DESCRIPTOR.services_by_name["Tracker"].full_name

_MESSAGE_BYTES = 1500  # the longest text of a refusal: it travels in headers, which have room for little more
_AHEAD = 64  # how many reports of one stream may wait for the journal
_OK, _CANCELLED = "OK", "CANCELLED"  # codes of calls that were answered, or left by their callers
_REFUSED = "REFUSED"  # the outcome of a report that was
_PAGE = 1000
_PAGE_CELLS = 10_000  # cells on one page of substreams: in a job of many segments, a page has fewer substreams
_TOKEN = 20  # the most digits of a page token


class _Stop:
    """Marks the point at which the server ends a stream."""


_STOP = _Stop()
_Streamed: TypeAlias = tuple[Command | None, Answer | asyncio.Future[Answer] | Exception] | _Stop | None


class Service:
    """The service `substream.tracker.v1.Tracker`.

    Args:
        state: the tracker that look-ups read.
        sequencer: carries out commands in order.
        lanes: where each job's state may be read.
        readers: watches and waits.
        limits: the server's.
        notices: lines for operators.
        journal: the journal's name, for `GetServerInfo`.
        measures: counts calls and reports.
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
    ) -> None:
        self._tracker = state
        self._sequencer = sequencer
        self._lanes = lanes
        self._readers = readers
        self._limits = limits
        self._notices = notices
        self._journal = journal
        self._measures = measures
        self._admission = Admission(state, limits)
        self._intake = Intake(limits, _abort)
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
        looked_up: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "GetServerInfo": self._get_server_info,
            "GetJob": self._get_job,
            "ListJobs": self._list_jobs,
            "ListEvents": self._list_events,
            "ListSubscriptions": self._list_subscriptions,
            "Explain": self._explain,
            "ListSubstreams": self._list_substreams,
            "GetDrain": self._get_drain,
        }
        calls = {name: self._unary(name, self._commander(*how)) for name, how in carried_out.items()}
        calls |= {name: self._unary(name, look_up) for name, look_up in looked_up.items()}
        calls["Await"] = self._unary("Await", self._await, counted=False)
        calls["Watch"] = self._streaming("Watch", self._watch)
        calls["ReportStream"] = self._streaming("ReportStream", self._report_stream)
        return grpc.method_handlers_generic_handler(SERVICE, calls)

    # ---------------------------------------------------------------- how calls are answered and refused

    def _unary(self, name: str, handle: Callable[[bytes], Awaitable[bytes]], counted: bool = True) -> Any:
        async def answer(context: Context) -> bytes:
            data = await self._intake.receive(context)
            if data is None:
                return b""  # no caller is left to read it
            with self._intake.held(data):
                return await handle(data)

        async def call(_: Any, context: Context) -> bytes:
            started, code = time.perf_counter(), _CANCELLED
            try:
                if not counted:
                    answered = await answer(context)
                else:
                    with self._intake.call():
                        answered = await answer(context)
                code = _OK
                return answered
            except Exception as error:
                refused = self._refused(error)
                code = refused.code
                await _abort(context, refused)
                raise
            finally:
                self._measures.called(name, code, time.perf_counter() - started)

        return grpc.stream_unary_rpc_method_handler(call)

    def _streaming(self, name: str, handle: Callable[[Context], AsyncIterator[bytes]]) -> Any:
        async def call(_: Any, context: Context) -> AsyncIterator[bytes]:
            started, code = time.perf_counter(), _CANCELLED
            try:
                async for message in handle(context):
                    yield message
                code = _OK
            except Exception as error:
                refused = self._refused(error)
                code = refused.code
                await _abort(context, refused)
            finally:
                self._measures.called(name, code, time.perf_counter() - started)

        return grpc.stream_stream_rpc_method_handler(call)

    def _refused(self, error: Exception) -> Refused:
        """Return what a caller is told about an error, and count it."""
        refused = _refusal(error)
        self._measures.refused(refused.reason)
        return refused

    # ---------------------------------------------------------------- commands

    def _commander(self, method: Method, translate: Callable[[Any], Message]) -> Callable[[bytes], Awaitable[bytes]]:
        async def handle(data: bytes) -> bytes:
            command = await self._intake.command(method, data)
            notice = self._notices.about(command)
            try:
                answer = await self._take(method, data, command)
                answer = await answer if isinstance(answer, asyncio.Future) else answer
            except Exception:
                self._count_report(command, _REFUSED)
                raise
            notice(answer)
            if type(answer) is Reported:
                self._count_report(command, answer.outcome)
            if isinstance(command, DefineJob) and len(data) > _PAGE_CELLS:
                return await self._readers.long(lambda: translate(answer).SerializeToString())
            return translate(answer).SerializeToString()

        return handle

    def _count_report(self, command: Command | None, outcome: str) -> None:
        if type(command) is Report:
            self._measures.reported(command, outcome)

    async def _take(self, method: Method, data: bytes, command: Command) -> Answer | asyncio.Future[Answer]:
        """Admit a command and give it its place in the order. A command that would be refused leaves no record."""
        job = command.job
        try:
            new = await self._check(job, command)
        except Refused as refused:
            # An earlier command of the same caller may change that, except if the message itself is wrong.
            if refused.reason == "MALFORMED" or not await self._admission.settled(job):
                raise
            new = await self._check(job, command)
        answer = self._sequencer.submit(method, data, command)
        if isinstance(answer, asyncio.Future):
            self._admission.take(command, new, answer)
        return answer

    async def _check(self, job: str, command: Command) -> int:
        found = self._lanes.run(job, partial(self._admission.check, command), partial(_size, command))
        return await found if isinstance(found, asyncio.Future) else found

    async def _report_stream(self, context: Context) -> AsyncIterator[bytes]:
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
                            answers.put_nowait((command, await self._take(Method.REPORT, data, command)))
                    except Exception as error:
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
            return _rejected(self._refused(error))
        self._count_report(command, reported.outcome)
        return codec.write_reported(reported)

    @property
    def under_way(self) -> tuple[int, int]:
        """How many calls are under way beside watches and waits, and how many streams of reports."""
        return self._intake.calls, len(self._report_streams)

    def stop(self) -> None:
        """End the report streams, after the answers to what they have accepted."""
        for answers in self._report_streams:
            answers.put_nowait(_STOP)

    # ---------------------------------------------------------------- look-ups

    async def _get_server_info(self, data: bytes) -> bytes:
        self._intake.question(wire.GetServerInfoRequest, data)
        return wire.ServerInfo(
            version=tracker.__version__, journal=self._journal, leader=True, limits=self._limits.by_name()
        ).SerializeToString()

    async def _get_job(self, data: bytes) -> bytes:
        job = self._intake.question(wire.GetJobRequest, data).job
        return await self._readers.ask(
            job,
            lambda: codec.write_job_status(self._tracker.job_status(job)).SerializeToString(),
            lambda: self._tracker.status_cost(job),
        )

    async def _list_jobs(self, data: bytes) -> bytes:
        self._intake.question(wire.ListJobsRequest, data)
        return wire.ListJobsResponse(jobs=self._tracker.jobs()).SerializeToString()

    async def _get_drain(self, data: bytes) -> bytes:
        request = self._intake.question(wire.GetDrainRequest, data)
        job, deployment = request.job, request.deployment
        return await self._readers.ask(
            job,
            lambda: codec.write_drain_status(self._tracker.drain_status(job, deployment)).SerializeToString(),
            lambda: self._tracker.status_cost(job),
        )

    async def _list_events(self, data: bytes) -> bytes:
        request = self._intake.question(wire.ListEventsRequest, data)
        limit = self._page(request.limit)

        def look() -> bytes:
            wanted = wanted_by(self._tracker, request)
            log_id = request.log_id or self._tracker.log_id(request.job)
            first_seq = self._tracker.first_seq(request.job, wanted, request.subscription)
            events, last = self._tracker.events(
                request.job,
                request.after_seq,
                request.up_to_seq,
                limit,
                log_id,
                wanted,
                request.own_position,
                request.subscription,
            )
            return wire.ListEventsResponse(
                events=[codec.write_event(event) for event in events if wanted.passes(event)],
                last_seq=last,
                log_id=log_id,
                first_seq=first_seq,
            ).SerializeToString()

        def weight() -> int:
            ahead = (self._tracker.last_seq(request.job) or 0) - int(request.after_seq)
            return 20 * min(limit, max(0, ahead)) + len(request.segments) + len(request.scopes)

        return await self._readers.ask(request.job, look, weight)

    async def _explain(self, data: bytes) -> bytes:
        request = self._intake.question(wire.ExplainRequest, data)
        return await self._readers.ask(
            request.job,
            lambda: codec.write_explained(
                self._tracker.explained(request.job, request.scope, request.name)
            ).SerializeToString(),
        )

    async def _list_subscriptions(self, data: bytes) -> bytes:
        job = self._intake.question(wire.ListSubscriptionsRequest, data).job
        return await self._readers.ask(
            job,
            lambda: wire.ListSubscriptionsResponse(
                subscriptions=list(map(codec.write_subscription, self._tracker.subscriptions(job))),
                last_seq=self._tracker.last_seq(job) or 0,
            ).SerializeToString(),
        )

    async def _list_substreams(self, data: bytes) -> bytes:
        request = self._intake.question(wire.ListSubstreamsRequest, data)
        job, after, asked = request.job, _after(request.page_token), self._page(request.page_size)

        def page() -> int:
            return max(1, min(asked, _PAGE_CELLS // max(1, self._tracker.count_segments(job))))

        def look() -> bytes:
            substreams, following = self._tracker.substreams(
                job, tuple(request.scopes), request.include_ended, request.only_stalled, page(), after
            )
            return wire.ListSubstreamsResponse(
                substreams=[codec.write_substream(substream) for substream in substreams],
                next_page_token="" if following is None else str(following),
            ).SerializeToString()

        def weight() -> int:
            cells = 20 * page() * max(1, self._tracker.count_segments(job))
            return min(cells, 20 * self._tracker.scan_cells(job)) + self._tracker.scan_cost(job) + len(request.scopes)

        return await self._readers.ask(job, look, weight)

    def _page(self, asked: int) -> int:
        return min(asked or _PAGE, self._limits.max_page)

    async def _await(self, data: bytes) -> bytes:
        ended = await self._readers.ended(self._intake.question(wire.AwaitRequest, data))
        return wire.AwaitResponse(ended=codec.write_ended(ended)).SerializeToString()

    async def _watch(self, context: Context) -> AsyncIterator[bytes]:
        passing = await self._readers.passage.enter()
        try:
            data = await self._intake.receive(context)
            if data is None:
                return
            request = self._intake.question(wire.WatchRequest, data)
            await context.send_initial_metadata(())  # so that the caller knows that it is served
        finally:
            self._readers.passage.leave(passing)
        async for event in self._readers.watch(request):
            yield event.SerializeToString()


def _size(command: Command) -> int:
    """Return the cost of checking a command, in rows."""
    if isinstance(command, Report):
        return len(command.xor) // 10 + len(command.names) + len(command.substream_ids) + len(command.promises)
    if isinstance(command, DefineJob):
        return 4 * len(command.spec.segments) + len(command.spec.fronts)
    return 0


def _after(page_token: str) -> int:
    if not page_token:
        return -1
    if not page_token.isdecimal() or not page_token.isascii() or len(page_token) > _TOKEN:
        raise Refused.malformed(
            f"page_token={page_token[:60]!r} is not valid; use the next_page_token of the page before"
        )
    return int(page_token)


def _refusal(error: Exception) -> Refused:
    """Return what a caller is told about an error: the refusal itself, or that the server has a fault."""
    if isinstance(error, Refused):
        # Its frames hold the request, and gRPC keeps the error until the next garbage collection.
        error.__traceback__ = None
        return error
    log.error("a call failed", exc_info=error)
    error.__traceback__ = None
    return Refused(
        "INTERNAL", "FAULT", f"an internal error in the server ({type(error).__name__}); see the server's log"
    )


async def _abort(context: Context, error: Exception) -> None:
    refused = _refusal(error)
    code = grpc.StatusCode[refused.code]
    message = str(refused)
    if len(message.encode()) > _MESSAGE_BYTES:
        message = message.encode()[:_MESSAGE_BYTES].decode(errors="ignore") + " …"
    detail = AnyMessage()
    detail.Pack(ErrorInfo(reason=refused.reason, domain=ERROR_DOMAIN))
    status = Status(code=code.value[0], message=message, details=[detail])
    await context.abort(code, message, (("grpc-status-details-bin", status.SerializeToString()),))


def _rejected(refused: Refused) -> columns_pb2.ReportResponse:
    return columns_pb2.ReportResponse(
        outcome=wire.ReportResponse.REJECTED,
        error_code=grpc.StatusCode[refused.code].value[0],
        error_reason=refused.reason,
        error_message=str(refused),
    )
