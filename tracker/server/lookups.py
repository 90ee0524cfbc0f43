"""Look-ups: the calls that read a tracker's state and change nothing.

Each reads its request, and asks for a turn to read the job's state; a large answer is put together beside other work.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

import tracker
from tracker.contract.refusal import Refusal
from tracker.contract.status import FrontStatus, JobStatus
from tracker.contract.values import EVERY_SCOPE
from tracker.core import Refused, Tracker
from tracker.security.guard import Caller
from tracker.wire import COMMITTED_ENDS, HAND_OVER, codec
from tracker.wire.gen import tracker_pb2 as wire

from .intake import Intake
from .limits import Limits
from .watching import Readers, wanted_by

_PAGE = 1000
_PAGE_CELLS = 10_000  # cells on one page of substreams: in a job of many segments, a page has fewer substreams
_PIECE = 200  # events or substreams that are made and written in one step
_FRONTIER_BYTES = 20  # bytes that a frontier takes in a message, at most, in addition to its scope
_TOKEN = 20  # the most digits of a page token


_T = TypeVar("_T")

#: Answers a request of a caller; both are bytes.
Handler: TypeAlias = Callable[[bytes, Caller], Awaitable[bytes]]


class Lookups:
    """Handler of look-ups.

    Args:
        state: the tracker that is read.
        readers: give each look-up its turn.
        journal: the journal's name, for `GetServerInfo`.
    """

    def __init__(self, state: Tracker, readers: Readers, intake: Intake, limits: Limits, journal: str) -> None:
        self._tracker = state
        self._readers = readers
        self._intake = intake
        self._limits = limits
        self._journal = journal
        self._instance = secrets.token_hex(8)

    def by_name(self) -> dict[str, Handler]:
        """Return the look-ups by the names of their calls."""
        return {
            "GetServerInfo": self._get_server_info,
            "GetJob": self._get_job,
            "ListJobs": self._list_jobs,
            "ListEvents": self._list_events,
            "ListSubscriptions": self._list_subscriptions,
            "Explain": self._explain,
            "ListSubstreams": self._list_substreams,
            "GetDrain": self._get_drain,
        }

    async def _get_server_info(self, data: bytes, _: Caller) -> bytes:
        self._intake.question(wire.GetServerInfoRequest, data)
        return wire.ServerInfo(
            version=tracker.__version__,
            journal=self._journal,
            leader=True,
            limits=self._limits.by_name(),
            instance=self._instance,
            features=[HAND_OVER, COMMITTED_ENDS],
        ).SerializeToString()

    async def _get_job(self, data: bytes, caller: Caller) -> bytes:
        job = asked_by(self._intake, wire.GetJobRequest, data, caller).job
        return await self._readers.ask(
            job,
            lambda: codec.write_job_status(self._shortened(self._tracker.view(job).status())).SerializeToString(),
            lambda: self._tracker.view(job).status_cost,
        )

    def _shortened(self, status: JobStatus) -> JobStatus:
        """Leave out frontiers that do not fit into half a message."""
        limit = self._limits.max_message_bytes // 2
        if sum(_FRONTIER_BYTES + len(scope.encode()) for front in status.fronts for scope in front.frontiers) <= limit:
            return status
        return replace(status, fronts=tuple(_slowest(front, limit // len(status.fronts)) for front in status.fronts))

    async def _list_jobs(self, data: bytes, caller: Caller) -> bytes:
        self._intake.question(wire.ListJobsRequest, data)
        jobs = filter(caller.identity.may_touch, self._tracker.jobs())
        return wire.ListJobsResponse(jobs=jobs).SerializeToString()

    async def _get_drain(self, data: bytes, caller: Caller) -> bytes:
        request = asked_by(self._intake, wire.GetDrainRequest, data, caller)
        job, deployment = request.job, request.deployment
        return await self._readers.ask(
            job,
            lambda: codec.write_drain_status(self._tracker.drain_status(job, deployment)).SerializeToString(),
            lambda: self._tracker.view(job).status_cost,
        )

    async def _list_events(self, data: bytes, caller: Caller) -> bytes:
        request = asked_by(self._intake, wire.ListEventsRequest, data, caller)
        limit = self._page(request.limit)

        def look() -> bytes:
            wanted = wanted_by(self._tracker, request)
            view = self._tracker.view(request.job)
            log_id = request.log_id or view.log_id
            first_seq = view.first_seq(wanted, request.subscription)
            events, last = view.events(
                request.after_seq,
                request.up_to_seq,
                limit,
                log_id,
                wanted,
                request.own_position,
                request.subscription,
            )
            passed = [event for event in events if wanted.passes(event)]
            return _in_pieces(
                wire.ListEventsResponse(last_seq=last, log_id=log_id, first_seq=first_seq),
                passed,
                lambda some: wire.ListEventsResponse(events=map(codec.write_event, some)),
            )

        def weight() -> int:
            ahead = self._tracker.view(request.job).last_seq - int(request.after_seq)
            return 20 * min(limit, max(0, ahead)) + len(request.segments) + len(request.scopes)

        return await self._readers.ask(request.job, look, weight)

    async def _explain(self, data: bytes, caller: Caller) -> bytes:
        request = asked_by(self._intake, wire.ExplainRequest, data, caller)
        return await self._readers.ask(
            request.job,
            lambda: codec.write_explained(
                self._tracker.view(request.job).explained(request.scope, request.name)
            ).SerializeToString(),
        )

    async def _list_subscriptions(self, data: bytes, caller: Caller) -> bytes:
        job = asked_by(self._intake, wire.ListSubscriptionsRequest, data, caller).job
        return await self._readers.ask(
            job,
            lambda: wire.ListSubscriptionsResponse(
                subscriptions=list(map(codec.write_subscription, self._tracker.view(job).subscriptions())),
                last_seq=self._tracker.view(job).last_seq,
            ).SerializeToString(),
        )

    async def _list_substreams(self, data: bytes, caller: Caller) -> bytes:
        request = asked_by(self._intake, wire.ListSubstreamsRequest, data, caller)
        job, after, asked = request.job, _after(request.page_token), self._page(request.page_size)

        def page() -> int:
            return max(1, min(asked, _PAGE_CELLS // len(self._tracker.view(job).segments)))

        def look() -> bytes:
            substreams, following = self._tracker.view(job).substreams(
                tuple(request.scopes), request.include_ended, request.only_stalled, page(), after
            )
            return _in_pieces(
                wire.ListSubstreamsResponse(next_page_token="" if following is None else str(following)),
                substreams,
                lambda some: wire.ListSubstreamsResponse(substreams=map(codec.write_substream, some)),
            )

        def weight() -> int:
            cells = 20 * page() * len(self._tracker.view(job).segments)
            view = self._tracker.view(job)
            return min(cells, 20 * view.scan_cells) + view.scan_cost + len(request.scopes)

        return await self._readers.ask(job, look, weight)

    def _page(self, asked: int) -> int:
        return min(asked or _PAGE, self._limits.max_page)


def asked_by(intake: Intake, kind: type[Any], data: bytes, caller: Caller) -> Any:
    """Return the message of a look-up about a job that its caller may read.

    Args:
        data: its bytes.

    Raises:
        Refused: ``LIMIT``, ``MALFORMED``, ``PERMISSION_DENIED``, ``UNAUTHENTICATED``.
    """
    request = intake.question(kind, data)
    caller.authorize(request.job)
    return request


def _slowest(front: FrontStatus, limit: int) -> FrontStatus:
    """Keep a front's frontier for every scope, and those of the scopes furthest behind that take up `limit` bytes."""
    kept: dict[str, int] = {}
    for scope, time in sorted(front.frontiers.items(), key=lambda each: (each[0] != EVERY_SCOPE, each[1])):
        limit -= _FRONTIER_BYTES + len(scope.encode())
        if limit < 0 and scope != EVERY_SCOPE:
            break
        kept[scope] = time
    return replace(front, frontiers=kept, more_frontiers=len(front.frontiers) - len(kept))


def _in_pieces(page: Message, items: Sequence[_T], write: Callable[[Sequence[_T]], Message]) -> bytes:
    """Write a page and its list, some of it at a time: no step takes long, so that other threads get their turns."""
    pieces = (write(items[start : start + _PIECE]) for start in range(0, len(items), _PIECE))
    return b"".join([page.SerializeToString(), *(piece.SerializeToString() for piece in pieces)])


def _after(page_token: str) -> int:
    if not page_token:
        return -1
    if not page_token.isdecimal() or not page_token.isascii() or len(page_token) > _TOKEN:
        raise Refused(
            Refusal.MALFORMED,
            f"page_token={page_token[:60]!r} is not valid; use the next_page_token of the page before",
        )
    return int(page_token)
