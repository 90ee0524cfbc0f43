"""What a query reads of its job at the tracker: events, fronts, and what has ended."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from datetime import timedelta

from spark_client.advice import explained
from spark_client.errors import TrackingError
from spark_client.plan.substreams import Substream
from tracker.client import DrainState, Event, Subscription, TrackerClient, TrackerError, TrackerUnavailable

ONE_ATTEMPT = 5.0  #: seconds that an attempt may take that its caller makes again


class JobReader:
    """Reads a job for one of its queries.

    Args:
        client: to the tracker; it repeats a call that gets no answer for as long as its `retry_for` says.
        job: that is tracked.
        query: the query's id.
    """

    def __init__(self, client: TrackerClient, job: str, query: str) -> None:
        self.job = job
        self.query = query
        self._client = client
        # For what is tried again by its caller, so that nobody waits for a lock while the tracker is away.
        self._impatient = TrackerClient(client.address, ONE_ATTEMPT, 0, client.credentials, client.metrics)

    def subscribe(
        self, after: int, segments: Sequence[str], log_id: str, max_age: timedelta | None, name: str | None = None
    ) -> tuple[Subscription, bool]:
        """Has the tracker keep the query's events until they are acknowledged; under the query's id.

        Args:
            after: the place of a query that has no subscription yet.
            segments: whose events.
            log_id: the log that the place is in.
            max_age: for how long at most; None: as the tracker likes.
            name: of the subscription; None: the query's id.

        Returns:
            The subscription, and whether some of what comes after the query's place was dropped already.

        Raises:
            TrackingError: the log is another one, or the tracker cannot be reached.
        """

        own = name or self.query

        def subscribed(place: int | None) -> Subscription:
            return self._client.subscribe(self.job, own, segments, after_seq=place, max_age=max_age, log_id=log_id)

        try:
            try:
                return subscribed(after), False
            except TrackerError as error:
                if error.reason not in ("EVENTS_EXPIRED", "SUBSCRIPTION_EXPIRED"):
                    raise
            with suppress(TrackerError):  # there may be none
                self._client.unsubscribe(self.job, own)
            return subscribed(None), True
        except (TrackerError, TrackerUnavailable) as error:
            raise self._explained(error) from error

    def frontier(self, front: str) -> int | None:
        """The time that a front has promised for every scope; None: none.

        Raises:
            TrackingError: the tracker cannot be reached.
        """
        try:
            fronts = self._client.job(self.job).fronts
        except (TrackerError, TrackerUnavailable) as error:
            raise self._explained(error) from error
        return next((status.frontiers.get("*") for status in fronts if status.front == front), None)

    def acknowledge_before_drain(self, subscription: Subscription) -> None:
        """Acknowledges all that has happened, unless the job drains.

        Raises:
            TrackingError: the tracker refuses.
        """
        try:
            status = self._impatient.job(self.job)
            if status.drain.state not in (DrainState.DRAINING, DrainState.TIMED_OUT, DrainState.DRAINED):
                subscription.ack(status.last_seq, timeout=ONE_ATTEMPT)
        except TrackerUnavailable:
            return  # another time
        except TrackerError as error:
            raise self._explained(error) from error

    def ended_of(self, substreams: Set[Substream], segment: str) -> dict[Substream, int | None]:
        """Which substreams have ended on a segment, and their elements; None: the tracker has forgotten them since.

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

    def events(self, after: int, up_to: int, segments: Sequence[str], log_id: str) -> tuple[list[Event], int]:
        """What was announced on some segments in a range; and its last number.

        Raises:
            TrackingError: the log is another one, or has lost that range.
        """
        found: list[Event] = []
        try:
            while True:
                page = self._client.list_events(
                    self.job, after, up_to, segments=segments, log_id=log_id, own_position=True
                )
                found.extend(page.events)
                if page.last_seq <= after or page.last_seq == up_to:
                    return found, max(after, page.last_seq)
                after = page.last_seq
        except (TrackerError, TrackerUnavailable) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> TrackingError:
        return explained(error, self.job, self._client.address)
