"""The calls of the contract: each reads its request, asks the sequencer or the state, and writes the answer.

Handlers get a request as bytes: a command is journaled as it came, and a request that cannot be read is refused like
any other instead of failing in the transport.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

import tracker
from tracker.core import Refused, Tracker
from tracker.core.commands import Answer, Commit, DefineJob, OpenProducer, Report
from tracker.wire import ERROR_DOMAIN
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire

from . import translation
from .limits import Limits
from .sequencer import Sequencer, stopping
from .translation import Method, parse
from .watching import Readers

log = logging.getLogger("tracker.service")

SERVICE = wire.DESCRIPTOR.services_by_name["Tracker"].full_name

_MESSAGE_BYTES = 1500  # of a refusal: it travels in headers, which have room for little more
_AHEAD = 64  # reports of one stream that may wait for the journal
_PAGE = 1000

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, Message]"


class _Stop:
    """The end of a stream, from the server's side."""


_STOP = _Stop()
_Streamed: TypeAlias = Answer | asyncio.Future[Answer] | Exception | _Stop


class Service:
    """The service `substream.tracker.v1.Tracker`."""

    def __init__(self, state: Tracker, sequencer: Sequencer, readers: Readers, limits: Limits, journal: str) -> None:
        self._tracker = state
        self._sequencer = sequencer
        self._readers = readers
        self._limits = limits
        self._journal = journal
        self._report_streams: set[asyncio.Queue[_Streamed]] = set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """All calls, for `grpc.aio.Server.add_generic_rpc_handlers`."""
        carried_out: dict[str, tuple[Method, Callable[[Any], Message]]] = {
            "DefineJob": (Method.DEFINE_JOB, translation.job_defined),
            "DeleteJob": (Method.DELETE_JOB, lambda _: wire.DeleteJobResponse()),
            "OpenProducer": (Method.OPEN_PRODUCER, translation.opened),
            "CloseProducer": (Method.CLOSE_PRODUCER, lambda _: wire.CloseProducerResponse()),
            "ForgetProducer": (Method.FORGET_PRODUCER, lambda _: wire.ForgetProducerResponse()),
            "FinishFront": (Method.FINISH_FRONT, lambda _: wire.FinishFrontResponse()),
            "Report": (Method.REPORT, translation.reported),
            "Commit": (Method.COMMIT, lambda answer: wire.CommitResponse(last_seq=answer.last_seq)),
            "Drain": (Method.DRAIN, translation.drain_status),
            "CancelDrain": (Method.CANCEL_DRAIN, translation.drain_status),
            "Abandon": (Method.ABANDON, lambda _: wire.AbandonResponse()),
        }
        looked_up: dict[str, Callable[[bytes], Awaitable[Message]]] = {
            "GetServerInfo": self._get_server_info,
            "GetJob": self._get_job,
            "ListJobs": self._list_jobs,
            "ListEvents": self._list_events,
            "Await": self._await,
            "ListSubstreams": self._list_substreams,
            "GetDrain": self._get_drain,
        }
        calls = {name: self._unary(self._commander(*how)) for name, how in carried_out.items()}
        calls |= {name: self._unary(look_up) for name, look_up in looked_up.items()}
        calls["Watch"] = self._streaming(grpc.unary_stream_rpc_method_handler, self._watch)
        calls["ReportStream"] = self._streaming(grpc.stream_stream_rpc_method_handler, self._report_stream)
        return grpc.method_handlers_generic_handler(SERVICE, calls)

    # ---------------------------------------------------------------- how calls are answered and refused

    def _unary(self, handle: Callable[[bytes], Awaitable[Message]]) -> Any:
        async def call(data: bytes, context: Context) -> Message:
            try:
                return await handle(data)
            except Exception as error:
                await _abort(context, error)
                raise

        return grpc.unary_unary_rpc_method_handler(call, None, _serialize)

    def _streaming(self, kind: Callable[..., Any], handle: Callable[..., AsyncIterator[Message]]) -> Any:
        async def call(request: Any, context: Context) -> AsyncIterator[Message]:
            try:
                await context.send_initial_metadata(())  # so that the caller knows that it is heard
                async for message in handle(request):
                    yield message
            except Exception as error:
                await _abort(context, error)

        return kind(call, None, _serialize)

    # ---------------------------------------------------------------- commands

    def _commander(self, method: Method, translate: Callable[[Any], Message]) -> Callable[[bytes], Awaitable[Message]]:
        async def handle(data: bytes) -> Message:
            answer = self._take(method, data)
            return translate(await answer if isinstance(answer, asyncio.Future) else answer)

        return handle

    def _take(self, method: Method, data: bytes) -> Answer | asyncio.Future[Answer]:
        self._limits.check("max_message_bytes", len(data), "say it in several messages")
        command = translation.command(method, data)
        match command:
            case Report():
                self._check_report(command)
            case Commit():
                self._check_promises(len(command.promises))
                self._limits.check("max_report_units", len(command.units or ()), "make the epochs smaller")
            case DefineJob():
                self._check_spec(command)
            case OpenProducer():
                self._check_producers(command)
        return self._sequencer.take(method, data, command)

    def _check_report(self, report: Report) -> None:
        check = self._limits.check
        check("max_report_entries", len(report.xor), "report in several pieces, each a unit")
        check("max_report_substreams", len(report.names) + len(report.substream_ids), "report in several pieces")
        check("max_report_units", len(report.units), "report in several pieces")
        self._check_promises(len(report.promises))
        if report.names:
            there = self._tracker.open_substreams(report.job)
            check("max_open_substreams", there + 1, "report known substreams by id, close and abandon what is over")

    def _check_promises(self, count: int) -> None:
        self._limits.check("max_promises", count, "promise a frontier instead of closing by name, or in several pieces")

    def _check_spec(self, command: DefineJob) -> None:
        spec = command.spec
        self._limits.check("max_segments", len(spec.segments), "combine segments")
        self._limits.check("max_fronts", len(spec.fronts), "combine fronts")
        jobs = self._tracker.jobs()
        if spec.job not in jobs:
            self._limits.check("max_jobs", len(jobs) + 1, "delete jobs that are over")

    def _check_producers(self, command: OpenProducer) -> None:
        producers = self._tracker.job_status(command.job).producers
        if all(producer.producer != command.producer for producer in producers):
            self._limits.check("max_producers", len(producers) + 1, "forget producers that will not come back")

    async def _report_stream(self, requests: AsyncIterator[bytes]) -> AsyncIterator[Message]:
        """One answer for each report, in order; the next ones are taken while the first wait for the journal."""
        answers: asyncio.Queue[_Streamed] = asyncio.Queue()
        room = asyncio.Semaphore(_AHEAD)

        async def read() -> None:
            try:
                async for data in requests:
                    await room.acquire()
                    await self._sequencer.room(len(data))
                    try:
                        answers.put_nowait(self._take(Method.REPORT, data))
                    except Exception as error:
                        answers.put_nowait(error)
            finally:
                answers.put_nowait(None)

        reader = asyncio.create_task(read())
        self._report_streams.add(answers)
        try:
            while (answer := await answers.get()) is not None:
                if answer is _STOP:
                    raise stopping()
                yield await _stream_answer(answer)
                room.release()
        finally:
            self._report_streams.discard(answers)
            reader.cancel()

    def stop(self) -> None:
        """End the streams of reports, after the answers that they still owe."""
        for answers in self._report_streams:
            answers.put_nowait(_STOP)

    # ---------------------------------------------------------------- look-ups

    async def _get_server_info(self, data: bytes) -> wire.ServerInfo:
        parse(wire.GetServerInfoRequest, data)
        return wire.ServerInfo(
            version=tracker.__version__, journal=self._journal, leader=True, limits=self._limits.by_name()
        )

    async def _get_job(self, data: bytes) -> wire.JobStatus:
        return translation.job_status(self._tracker.job_status(parse(wire.GetJobRequest, data).job))

    async def _list_jobs(self, data: bytes) -> wire.ListJobsResponse:
        parse(wire.ListJobsRequest, data)
        return wire.ListJobsResponse(jobs=self._tracker.jobs())

    async def _get_drain(self, data: bytes) -> wire.DrainStatus:
        request = parse(wire.GetDrainRequest, data)
        return translation.drain_status(self._tracker.drain_status(request.job, request.deployment))

    async def _list_events(self, data: bytes) -> wire.ListEventsResponse:
        request = parse(wire.ListEventsRequest, data)
        wanted = translation.EventFilter(request.segments, request.scopes)
        log_id = request.log_id or self._tracker.job_status(request.job).log_id
        events, last = self._tracker.events(
            request.job, request.after_seq, request.up_to_seq, self._page(request.limit), log_id
        )
        return wire.ListEventsResponse(
            events=[translation.event(event) for event in events if wanted.passes(event)],
            last_seq=last,
            log_id=log_id,
        )

    async def _list_substreams(self, data: bytes) -> wire.ListSubstreamsResponse:
        request = parse(wire.ListSubstreamsRequest, data)
        substreams, following = self._tracker.substreams(
            request.job,
            tuple(request.scopes),
            request.include_ended,
            request.only_stalled,
            self._page(request.page_size),
            _after(request.page_token),
        )
        return wire.ListSubstreamsResponse(
            substreams=[translation.substream(substream) for substream in substreams],
            next_page_token="" if following is None else str(following),
        )

    def _page(self, asked: int) -> int:
        return min(asked or _PAGE, self._limits.max_page)

    async def _await(self, data: bytes) -> wire.AwaitResponse:
        ended = await self._readers.ended(parse(wire.AwaitRequest, data))
        return wire.AwaitResponse(ended=translation.ended(ended))

    async def _watch(self, data: bytes) -> AsyncIterator[Message]:
        async for event in self._readers.watch(parse(wire.WatchRequest, data)):
            yield event


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _after(page_token: str) -> int:
    if not page_token:
        return -1
    if not page_token.isdecimal():
        raise Refused.malformed(f"page_token is {page_token!r}; it is the next_page_token of the page before")
    return int(page_token)


def _refusal(error: Exception) -> Refused:
    """What a caller is told of an error: the refusal that it is, or that there is a fault here."""
    if isinstance(error, Refused):
        return error
    log.error("a call failed", exc_info=error)
    return Refused("INTERNAL", "FAULT", f"a fault in the server ({type(error).__name__}); its log tells more")


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


async def _stream_answer(answer: Any) -> columns_pb2.ReportResponse:
    try:
        if isinstance(answer, Exception):
            raise answer
        return translation.reported(await answer if isinstance(answer, asyncio.Future) else answer)
    except Exception as error:
        return _rejected(error)


def _rejected(error: Exception) -> columns_pb2.ReportResponse:
    refused = _refusal(error)
    return columns_pb2.ReportResponse(
        outcome=wire.ReportResponse.REJECTED,
        error_code=grpc.StatusCode[refused.code].value[0],
        error_reason=refused.reason,
        error_message=str(refused),
    )
