"""The calls of those who wait: watches, events, subscriptions, and ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import cast

import grpc

from tracker.client import forking
from tracker.client.calls import Backoff, Routing, refusal
from tracker.client.waiting import LONGEST_WAIT_S, ONE_LOOK_S, Following, Passed, Token, end_of, passed_of, progress_of
from tracker.client.watch import Subscription, Watch
from tracker.contract.events import Ended, EventPage
from tracker.contract.spec import check_texts
from tracker.contract.status import SubscriptionStatus
from tracker.wire import codec
from tracker.wire.gen import tracker_pb2


class EventCalls(Routing):
    """Calls that read jobs' events and wait for them."""

    def watch(
        self,
        job: str,
        after_seq: int = 0,
        segments: Sequence[str] = (),
        scopes: Sequence[str] = (),
        log_id: str = "",
        own_position: bool = False,
    ) -> Watch:
        """Watch the job's events: first those that are kept, then new ones as they happen; each once, in order.

        Args:
            after_seq: the number of the last event that the caller has; 0: from the oldest that is kept.
            segments: only `Ended`, `Late`, `Excess` and `Advanced` on these; other kinds always. Empty: on all.
            scopes: only `Ended`, `Late` and `Excess` in these. Empty: in all.
            log_id: the log to which `after_seq` belongs; empty: the current one.
            own_position: `after_seq` is a position that the caller has reached, even if it is 0: the watch is refused
                with ``EVENTS_EXPIRED`` if retention has dropped an event after it that the filters pass.

        Returns:
            An iterator that reconnects by itself. Errors are raised during the iteration: see `Watch.__next__`.

        >>> def print_ends(client):
        ...     with client.watch("shop", segments=["orders"]) as events:
        ...         for event in events:
        ...             print(event.seq, event.kind)
        """

        request = tracker_pb2.WatchRequest(
            job=job,
            after_seq=after_seq,
            segments=codec.names_of(segments),
            scopes=codec.names_of(scopes),
            log_id=log_id,
            own_position=own_position,
        )
        return self._watch(request)

    def _watch(self, request: tracker_pb2.WatchRequest) -> Watch:
        calls = self._to(request.job)

        def find_log(sleep: Callable[[float], object]) -> tuple[str, int]:
            page = tracker_pb2.ListEventsRequest(
                job=request.job, limit=1, segments=request.segments, scopes=request.scopes
            )
            answer = calls.repeat(lambda connection: connection.stubs.ListEvents, page, sleep=sleep)
            return answer.log_id, answer.first_seq

        return Watch(calls, find_log, request)

    def list_events(
        self,
        job: str,
        after_seq: int = 0,
        up_to_seq: int = 0,
        limit: int = 0,
        segments: Sequence[str] = (),
        scopes: Sequence[str] = (),
        log_id: str = "",
        own_position: bool = False,
    ) -> EventPage:
        """Return a range of the job's events.

        Args:
            after_seq: the number of the last event that the caller has; 0: from the oldest that is kept.
            up_to_seq: the number of the last event to return; 0: the newest.
            limit: the most events to return; 0: the server's page size. Continue after `EventPage.last_seq`.
            segments, scopes, log_id, own_position: what passes, and whose numbers count, as for `watch`.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``EVENTS_EXPIRED``, ``LOG_CHANGED``.
        """
        request = tracker_pb2.ListEventsRequest(
            job=job,
            after_seq=after_seq,
            up_to_seq=up_to_seq,
            limit=limit,
            segments=codec.names_of(segments),
            scopes=codec.names_of(scopes),
            log_id=log_id,
            own_position=own_position,
        )
        page = self._to(job).repeat(lambda connection: connection.stubs.ListEvents, request)
        events = tuple(event for event in map(codec.read_event, page.events) if event is not None)
        return EventPage(events, page.last_seq, page.log_id, page.first_seq)

    # ---------------------------------------------------------------- subscriptions

    def subscribe(
        self,
        job: str,
        name: str,
        segments: Sequence[str] = (),
        scopes: Sequence[str] = (),
        after_seq: int | None = None,
        max_age: timedelta | None = None,
        max_events: int | None = None,
        log_id: str = "",
    ) -> Subscription:
        """Make a durable reader, or continues an existing one.

        The tracker keeps a subscription's events until the reader has acknowledged them.

        An existing subscription continues where it was; if the filter differs from its own, the new one replaces it.

        Args:
            name: the subscription's name: 1 to 512 bytes, unique in the job.
            segments, scopes: the reader's filter, as for `watch`; empty: everything.
            after_seq: a new subscription gets the events after this number, and is refused if some of them were
                dropped; None: it starts at the oldest event from which none is missing, the one after
                `Subscription.acknowledged`.
            max_age: the subscription expires if it leaves an event unacknowledged for so long, and retention does not
                keep the event either; None: 30 days.
            max_events: the subscription expires if more events are kept for it beyond retention; None: 1,000,000.
            log_id: the log to which `after_seq` belongs; empty: the current one.

        Raises:
            TrackerError: ``SUBSCRIPTION_EXPIRED`` (some of its events may be gone: unsubscribe it, subscribe again, and
                decide what to do about those events), ``EVENTS_EXPIRED`` (an event after `after_seq`, or after the
                position at which a new filter begins, was dropped), ``UNKNOWN_SEGMENT``, ``UNKNOWN_JOB``,
                ``LOG_CHANGED``, ``MALFORMED``, ``LIMIT``.

        >>> def release(client):
        ...     with client.subscribe("flights", "mailer", segments=["clean"]) as ends:
        ...         for event in ends:
        ...             print("done:", event.kind)  # after a crash, this may be done again
        ...             ends.ack(event)
        """
        calls = self._to(job)
        request = tracker_pb2.SubscribeRequest(
            job=job,
            name=name,
            segments=codec.names_of(segments),
            scopes=codec.names_of(scopes),
            after_seq=after_seq,
            max_age=codec.write_length(max_age),
            max_events=max_events or 0,
            log_id=log_id,
        )
        answer = calls.repeat(lambda connection: connection.stubs.Subscribe, request)

        def watch(place: int) -> Watch:
            return self._watch(
                tracker_pb2.WatchRequest(
                    job=job, after_seq=place, log_id=answer.log_id, own_position=True, subscription=name
                )
            )

        return Subscription(calls, watch, job, name, answer)

    def unsubscribe(self, job: str, name: str) -> None:
        """Remove a subscription, even an expired one: the tracker keeps no more events for it. Not repeated.

        Raises:
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_SUBSCRIPTION``.
        """
        request = tracker_pb2.UnsubscribeRequest(job=job, name=name)
        self._to(job).once(lambda connection: connection.stubs.Unsubscribe, request)

    def subscriptions(self, job: str) -> list[SubscriptionStatus]:
        """Describe a job's subscriptions, by name, including expired ones.

        Raises:
            TrackerError: ``UNKNOWN_JOB``.
        """
        request = tracker_pb2.ListSubscriptionsRequest(job=job)
        answer = self._to(job).repeat(lambda connection: connection.stubs.ListSubscriptions, request)
        return [codec.read(each, SubscriptionStatus) for each in answer.subscriptions]

    def wait_for_end(
        self,
        job: str,
        segment: str,
        scope: str,
        name: str,
        end_time: int | None = None,
        timeout: float | None = None,
    ) -> Ended:
        """Wait until a substream has ended on a segment, even across restarts of the tracker.

        Args:
            name: the substream's. If no report has named it yet, this waits for it, too.
            end_time: the substream's; with it, the call does not wait for ever for a substream that has ended and is
                forgotten.
            timeout: seconds; None: for ever.

        Returns:
            How the substream ended; at once if it has ended before.

        Raises:
            TimeoutError: the substream has not ended in time.
            TrackerError: ``UNKNOWN_JOB``, ``UNKNOWN_SEGMENT``, ``EVENTS_EXPIRED`` (the substream has ended, and the
                tracker has forgotten how).
            TrackerUnavailable: the tracker could not be reached for `retry_for`.
        """
        check_texts(job=job, segment=segment, scope=scope, name=name)
        request = tracker_pb2.AwaitRequest(job=job, segment=segment, scope=scope, name=name, end_time=end_time)
        until = math.inf if timeout is None else time.monotonic() + timeout
        backoff = Backoff()
        while True:
            left = max(ONE_LOOK_S, until - time.monotonic())
            try:
                return codec.read_ended(self._await(request, min(left, LONGEST_WAIT_S)).ended)
            except grpc.RpcError as error:
                refused = refusal(error)
                if refused is not None:
                    raise refused from None
                waited = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                pause = backoff.after(error)
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{name!r} of scope {scope!r} has not ended on {segment!r} within {timeout} s")
            if waited:
                backoff.reset()
            else:
                time.sleep(min(left, pause))
            # A deadline that has passed does not show whether the tracker is reachable.
            calls = self._to(job).with_patience(min(left, self._timeout), min(left, self._retry_for))
            calls.wait_until_reachable()

    async def await_end(
        self,
        job: str,
        segment: str,
        scope: str,
        name: str,
        end_time: int | None = None,
        timeout: float | None = None,
    ) -> Ended:
        """Wait in an event loop until a substream has ended, as `wait_for_end` does, and without a thread.

        >>> async def both(client):
        ...     days = [client.await_end("flights", "clean", airport, "2013-01-01") for airport in ("JFK", "LGA")]
        ...     return await asyncio.gather(*days)
        """
        check_texts(job=job, segment=segment, scope=scope, name=name)
        request = tracker_pb2.AwaitRequest(job=job, segment=segment, scope=scope, name=name, end_time=end_time)
        return await end_of(self._to(job), request, timeout)

    def wait_for(self, token: Token | str, timeout: float | None = None) -> Passed:
        """Wait until all that a report has sent is through everything: nothing of it is in flight on any segment.

        Each substream of the report is followed until it is quiet once, or has ended. So a token needs substreams that
        do come to rest: sessions, orders, minutes. An element that travels on under another substream is that one's.

        Args:
            token: of `Report.token`, or its text.
            timeout: seconds; None: for ever.

        Returns:
            The losses on the way, if any: look at `Passed.complete`.

        Raises:
            TimeoutError: something is still in flight, or the report's epoch was not committed in time.
            ValueError: the text is no token's.
            TrackerError: ``LOG_CHANGED`` (the tracker may have lost the report), ``UNKNOWN_JOB``, ``UNKNOWN_PRODUCER``.
            TrackerUnavailable: the tracker could not be reached for `retry_for`.
        """
        token = Token.of(token)
        calls = self._to(token.job)
        following = Following(token, timeout, calls.timeout / 2)
        while (question := following.question()) is not None:
            following.learn(calls.repeat(lambda connection: connection.stubs.AwaitThrough, question))
        return following.passed

    async def await_token(self, token: Token | str, timeout: float | None = None) -> Passed:
        """Wait for a token in an event loop, as `wait_for` does, and without a thread."""
        token = Token.of(token)
        return await passed_of(self._to(token.job), token, timeout)

    async def await_progress(self, job: str, segment: str, end_time: int, timeout: float | None = None) -> int:
        """Wait in an event loop until a segment has come up to a time, as `wait_for_progress` does, and without a
        thread."""
        return await progress_of(self._to(job), job, segment, end_time, timeout)

    def _await(self, request: tracker_pb2.AwaitRequest, seconds: float) -> tracker_pb2.AwaitResponse:
        with forking.using_grpc():
            connection = self._to(request.job).waiting_connection()  # without a reference it would be closed
            call = connection.stubs.Await.future(request, timeout=seconds)
            forking.may_last(call, call.cancel)
            try:
                if call.code() is not grpc.StatusCode.OK:
                    raise cast(grpc.RpcError, call)
                answer: tracker_pb2.AwaitResponse = call.result()
                return answer
            finally:
                call.cancel()
                forking.is_over(call)
