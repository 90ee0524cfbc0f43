"""Look-ups: the calls that read a tracker's state and change nothing.

Each reads its request, and asks for a turn to read the job's state; a large answer is put together beside other work.

`PageSource` has the same look-ups for the status page, without the wire, each in its job's lane.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from google.protobuf.message import Message

import tracker
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.status import EventTail, Explained, Found, FrontStatus, JobStatus, Surveyed, Wanted
from tracker.contract.values import EVERY_SCOPE
from tracker.core import JobView, Tracker
from tracker.security.guard import Caller
from tracker.wire import COMMITTED_ENDS, HAND_OVER, IDENTITIES, UNPROMISED, codec
from tracker.wire.gen import tracker_pb2 as wire

from .calls import Handler
from .intake import Intake
from .inventory import Surveys
from .limits import Limits
from .owning import RECOVERING
from .watching import Readers, wanted_by

_PAGE = 1000
_PAGE_CELLS = 10_000  # cells on one page of substreams: in a job of many segments, a page has fewer substreams
_PIECE = 200  # events or substreams that are made and written in one step
_FRONTIER_BYTES = 20  # bytes that a frontier takes in a message, at most, in addition to its scope
_TOKEN = 20  # the most digits of a page token


_T = TypeVar("_T")


class Lookups:
    """Handler of look-ups."""

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
            "ListJobs": self._list_jobs,
            "GetJob": self._of_job(wire.GetJobRequest, self._status, _status_cost),
            "GetDrain": self._of_job(wire.GetDrainRequest, self._drain, _status_cost),
            "ListEvents": self._of_job(wire.ListEventsRequest, self._events, self._events_cost),
            "ListSubscriptions": self._of_job(wire.ListSubscriptionsRequest, _subscriptions),
            "Explain": self._of_job(wire.ExplainRequest, _explained),
            "ListSubstreams": self._of_job(wire.ListSubstreamsRequest, self._substreams, self._substreams_cost),
        }

    def _of_job(
        self,
        kind: type[Message],
        look: Callable[[JobView, Any], bytes],
        weight: Callable[[JobView, Any], int] = lambda *_: 0,
    ) -> Handler:
        """Return the handler of a look-up in one job.

        Args:
            weight: returns how many rows `look` may touch.
        """

        async def handle(data: bytes, caller: Caller) -> bytes:
            request = self._intake.asked(kind, data, caller)
            job, view = request.job, self._tracker.view
            return await self._readers.ask(job, lambda: look(view(job), request), lambda: weight(view(job), request))

        return handle

    async def _get_server_info(self, data: bytes, _: Caller) -> bytes:
        self._intake.question(wire.GetServerInfoRequest, data)
        return wire.ServerInfo(
            version=tracker.__version__,
            journal=self._journal,
            leader=True,
            limits=self._limits.by_name(),
            instance=self._instance,
            features=[HAND_OVER, COMMITTED_ENDS, UNPROMISED, IDENTITIES],
        ).SerializeToString()

    async def _list_jobs(self, data: bytes, caller: Caller) -> bytes:
        self._intake.question(wire.ListJobsRequest, data)
        jobs = filter(caller.identity.may_touch, self._tracker.jobs())
        return wire.ListJobsResponse(jobs=jobs).SerializeToString()

    def _status(self, view: JobView, _: Any) -> bytes:
        return codec.write(self._shortened(view.status()), wire.JobStatus).SerializeToString()

    def _shortened(self, status: JobStatus) -> JobStatus:
        """Leave out frontiers that do not fit into half a message."""
        limit = self._limits.max_message_bytes // 2
        if sum(_FRONTIER_BYTES + len(scope.encode()) for front in status.fronts for scope in front.frontiers) <= limit:
            return status
        return replace(status, fronts=tuple(_slowest(front, limit // len(status.fronts)) for front in status.fronts))

    def _drain(self, _: JobView, request: Any) -> bytes:
        status = self._tracker.drain_status(request.job, request.deployment)
        return codec.write(status, wire.DrainStatus).SerializeToString()

    def _events(self, view: JobView, request: Any) -> bytes:
        wanted, subscription = wanted_by(self._tracker, request), request.subscription
        log_id = request.log_id or view.log_id
        first_seq = view.first_seq(wanted, subscription)
        limit, own = self._page(request.limit), request.own_position
        events, last = view.events(request.after_seq, request.up_to_seq, limit, log_id, wanted, own, subscription)
        return _in_pieces(
            wire.ListEventsResponse(last_seq=last, log_id=log_id, first_seq=first_seq),
            [event for event in events if wanted.passes(event)],
            lambda some: wire.ListEventsResponse(events=map(codec.write_event, some)),
        )

    def _events_cost(self, view: JobView, request: Any) -> int:
        ahead = view.last_seq - int(request.after_seq)
        return 20 * min(self._page(request.limit), max(0, ahead)) + len(request.segments) + len(request.scopes)

    def _substreams(self, view: JobView, request: Any) -> bytes:
        after, limit = _after(request.page_token), self._substreams_page(view, request)
        substreams, following = view.substreams(
            tuple(request.scopes), request.include_ended, request.only_stalled, limit, after
        )
        return _in_pieces(
            wire.ListSubstreamsResponse(next_page_token="" if following is None else str(following)),
            substreams,
            lambda some: wire.ListSubstreamsResponse(
                substreams=[codec.write(each, wire.SubstreamStatus) for each in some]
            ),
        )

    def _substreams_page(self, view: JobView, request: Any) -> int:
        return max(1, min(self._page(request.page_size), _PAGE_CELLS // len(view.segments)))

    def _substreams_cost(self, view: JobView, request: Any) -> int:
        cells = 20 * self._substreams_page(view, request) * len(view.segments)
        return min(cells, 20 * view.scan_cells) + view.scan_cost + len(request.scopes)

    def _page(self, asked: int) -> int:
        return min(asked or _PAGE, self._limits.max_page)


def _status_cost(view: JobView, _: Any) -> int:
    return view.status_cost


def _explained(view: JobView, request: Any) -> bytes:
    return codec.write(view.explained(request.scope, request.name), wire.ExplainResponse).SerializeToString()


def _subscriptions(view: JobView, _: Any) -> bytes:
    subscriptions = [codec.write(each, wire.SubscriptionStatus) for each in view.subscriptions()]
    return wire.ListSubscriptionsResponse(subscriptions=subscriptions, last_seq=view.last_seq).SerializeToString()


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


_SHARE = 20  # a job that somebody looks at is surveyed at most for one part in so many of the time


class PageSource:
    """Source of the page. Until `attach`, while the journal is recovered, it refuses."""

    def __init__(self, journal: str) -> None:
        self.version = tracker.__version__
        self.journal = journal
        self._attached: tuple[Tracker, Readers, Surveys] | None = None

    def attach(self, state: Tracker, readers: Readers, surveys: Surveys) -> None:
        """Read from here on."""
        self._attached = state, readers, surveys

    def _parts(self) -> tuple[Tracker, Readers, Surveys]:
        if self._attached is None:
            raise Refused(Refusal.RECOVERING, RECOVERING)
        return self._attached

    async def _ask(self, job: str, work: Callable[[JobView], _T], weight: Callable[[JobView], int]) -> _T:
        state, readers, _ = self._parts()
        state.view(job)  # refuses an unknown job, which shall not have a lane
        return await readers.ask(job, lambda: work(state.view(job)), lambda: weight(state.view(job)))

    def jobs(self) -> Sequence[str]:
        return self._parts()[0].jobs()

    async def status(self, job: str, describe: Callable[[JobStatus], _T]) -> _T:
        return await self._ask(job, lambda view: describe(view.status()), lambda view: 20 * view.status_cost)

    async def survey(self, job: str) -> Surveyed:
        state, _, surveys = self._parts()
        state.view(job)  # refuses an unknown job
        made = await surveys.survey(job, _SHARE)
        return Surveyed(made.survey, made.at // 1_000_000)

    async def search(self, job: str, wanted: Wanted, limit: int, after: int) -> Found:
        return await self._ask(
            job,
            lambda view: view.search(wanted, limit, after),
            lambda view: view.search_cost + 20 * limit,
        )

    async def explain(self, job: str, scope: str, name: str) -> tuple[JobStatus, Explained]:
        def look(view: JobView) -> tuple[JobStatus, Explained]:
            explained, status = view.explained(scope, name), view.status()
            # Promises for other scopes explain nothing, and may be many.
            fronts = tuple(
                replace(
                    front, frontiers={at: front.frontiers[at] for at in (EVERY_SCOPE, scope) if at in front.frontiers}
                )
                for front in status.fronts
            )
            return replace(status, fronts=fronts), explained

        def weight(view: JobView) -> int:
            return 20 * (view.status_cost + len(view.segments)) + view.counts().staged_entries // 10

        return await self._ask(job, look, weight)

    async def tail(self, job: str, before: int, limit: int) -> EventTail:
        def look(view: JobView) -> EventTail:
            first, last = view.first_seq(), view.last_seq
            up_to = min(before - 1, last) if before else last
            after = max(first - 1, up_to - limit)
            events = view.events(after, up_to, limit, own=True)[0] if up_to > after else []
            return EventTail(first, last, events)

        return await self._ask(job, look, lambda _: 20 * limit)
