"""What a query reads of its job at the tracker: events, fronts, and what has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from datetime import timedelta

from spark_client.advice import explained
from spark_client.errors import TrackingError
from spark_client.trackers.eventlogs import EventLogs, Subscriptions, newest
from spark_client.trackers.jobclient import JobClient
from spark_client.trackers.places import Place
from spark_client.windows.substreams import Substream
from tracker.client import DrainState, Event, Expected, TrackerError, TrackerUnavailable
from tracker.contract.promises import CommitPromise

_DRAINS = frozenset({DrainState.DRAINING, DrainState.TIMED_OUT, DrainState.DRAINED})
ONE_ATTEMPT = 5.0  #: seconds that an attempt may take that its caller makes again


class JobReader:
    """Reads a job for one of its queries.

    Args:
        client: of the job; it repeats a call that gets no answer for as long as its `retry_for` says.
        job: that is tracked.
        query: the query's id.
    """

    def __init__(self, client: JobClient, job: str, query: str) -> None:
        self.job = job
        self.query = query
        self._client = client
        # For what is tried again by its caller, so that nobody waits for a lock while the tracker is away.
        self._impatient = client.with_patience(ONE_ATTEMPT, 0)
        self._logs = EventLogs(client, job)

    def subscribe(
        self, after: Place, segments: Sequence[str], max_age: timedelta | None, name: str | None = None
    ) -> Subscriptions:
        """Has the trackers keep the query's events until they are acknowledged; under the query's id.

        Args:
            after: the place of a query that has no subscription yet.
            segments: whose events.
            max_age: for how long at most; None: as the tracker likes.
            name: of the subscription; None: the query's id.

        Raises:
            TrackingError: a log is another one, or a tracker cannot be reached.
        """
        try:
            return self._logs.subscribe(name or self.query, after, segments, max_age)
        except (TrackerError, TrackerUnavailable) as error:
            raise self._explained(error) from error

    def acknowledged(self, name: str) -> Place | None:
        """Return up to where a subscription is acknowledged; None: there is none.

        Raises:
            TrackingError: a tracker cannot be reached.
        """
        try:
            return self._logs.acknowledged(name)
        except (TrackerError, TrackerUnavailable) as error:
            raise self._explained(error) from error

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription, if there is one.

        Raises:
            TrackingError: a tracker cannot be reached.
        """
        try:
            self._logs.unsubscribe(name)
        except (TrackerError, TrackerUnavailable) as error:
            raise self._explained(error) from error

    def frontier(self, front: str) -> int | None:
        """Return the time that a front has promised for every scope; None: none.

        Raises:
            TrackingError: the tracker cannot be reached.
        """
        try:
            fronts = self._client.job(self.job).fronts
        except (TrackerError, TrackerUnavailable) as error:
            raise self._explained(error) from error
        return next((status.frontiers.get("*") for status in fronts if status.front == front), None)

    def acknowledge_before_drain(self, subscriptions: Subscriptions) -> None:
        """Acknowledge all that has happened, unless the job drains.

        Raises:
            TrackingError: the tracker refuses.
        """
        try:
            statuses = EventLogs(self._impatient, self.job).statuses()
            if not any(status.drain.state in _DRAINS for status in statuses):
                subscriptions.ack(newest(statuses), timeout=ONE_ATTEMPT)
        except TrackerUnavailable:
            return  # another time
        except TrackerError as error:
            raise self._explained(error) from error

    def ended_of(self, substreams: Set[Substream], segment: str) -> dict[Substream, int | None]:
        """Return which substreams have ended on a segment, and their elements; None: the tracker has forgotten them
        since.

        Raises:
            TrackingError: the tracker cannot be reached.
        """
        try:
            known = {
                (status.scope, status.name): next((s for s in status.segments if s.segment == segment), None)
                for status in self._client.substreams(self.job, include_ended=True)
            }
        except (TrackerError, TrackerUnavailable) as error:
            raise self._explained(error) from error
        ended: dict[Substream, int | None] = {}
        for substream in substreams:
            account = known.get(substream[:2])
            if substream[:2] not in known:
                ended[substream] = None
            elif account is not None and account.ended:
                ended[substream] = account.sent
        return ended

    def ended_otherwise(self, promises: Iterable[CommitPromise], patient: bool) -> dict[Expected, int]:
        """Count of substreams that have ended when their front had given another one, and that one.

        Args:
            promises: those that are to be made.
            patient: whether a tracker that is away is waited for.

        Raises:
            TrackerError: the tracker refuses.
            TrackerUnavailable: it cannot be reached.
        """
        expected = [promise for promise in promises if isinstance(promise, Expected)]
        counted = {
            (status.scope, status.name, account.segment): account.expected_by
            for status in (self._client if patient else self._impatient).substreams(self.job, include_ended=True)
            for account in status.segments
            if account.ended
        }
        found = {each: counted.get((each.scope, each.name, each.segment), {}).get(each.front) for each in expected}
        return {each: count for each, count in found.items() if count is not None and count != each.elements}

    def events(self, after: Place, up_to: Place | None, segments: Sequence[str]) -> tuple[list[Event], Place]:
        """Return what was announced on some segments in a range; and the place after it.

        Args:
            after: what comes after it.
            up_to: what comes up to it; None: up to the newest.
            segments: whose events.

        Raises:
            TrackingError: a log is another one, or has lost that range.
        """
        try:
            return self._logs.read(after, up_to, segments)
        except (TrackerError, TrackerUnavailable) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> TrackingError:
        return explained(error, self.job, self._client.command_options)
