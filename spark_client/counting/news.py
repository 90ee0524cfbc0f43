"""News that a query's run reads of its job at the tracker: events, subscriptions, and outcomes of substreams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from datetime import timedelta

from spark_client.advice import advice, explained, explaining
from spark_client.errors import TrackingError
from spark_client.trackers import JobClient, Place
from spark_client.trackers.eventlogs import EventLogs, Subscriptions, newest
from spark_client.windows.substreams import Substream
from tracker.client import DrainState, Event, Expected, JobStatus, TrackerError, TrackerUnavailable, Watch
from tracker.contract.commands import CommitPromise

ONE_ATTEMPT = 5.0  #: seconds that an attempt may take that its caller makes again
DRAINS = frozenset({DrainState.DRAINING, DrainState.TIMED_OUT, DrainState.DRAINED})


class JobNews:
    """A job as one of its queries reads it.

    Args:
        client: of the job; it repeats a call that gets no answer for as long as its `retry_for`.
        query: the id of Spark's query, under which the trackers keep its events.

    Attributes:
        impatient: for what is tried again by its caller, so that nobody waits for a lock while the tracker is away.
    """

    def __init__(self, client: JobClient, job: str, query: str) -> None:
        self._client = client
        self.impatient = client.with_patience(ONE_ATTEMPT, 0)
        self._job = job
        self._query = query
        self._logs = EventLogs(client, job)

    def statuses(self) -> list[JobStatus]:
        """Return the job as each tracker has it."""
        return self._logs.statuses()

    def is_current(self, run: str) -> bool:
        """Return whether no later run of the query than this one has been opened.

        Raises:
            TrackingError: the tracker cannot be reached.
        """
        with self.explaining():
            producers = self._client.job(self._job).producers
        return any((status.producer, status.run) == (self._query, run) for status in producers)

    def check_not_rewound(self, epoch: int) -> None:
        """Refuse to go on before a batch that the tracker has for committed.

        Args:
            epoch: the first batch that will be reported.

        Raises:
            TrackingError: the query's checkpoint is older than that, or the tracker cannot be reached.
        """
        with self.explaining():
            producers = [each for status in self.statuses() for each in status.producers]
        committed = [each.committed_epoch for each in producers if each.producer == self._query]
        last = max((each for each in committed if each is not None), default=-1)
        if last >= epoch:
            raise self.rewound(last)

    def rewound(self, epoch: int) -> TrackingError:
        """Return the error of a batch that the tracker has for committed, and that Spark runs again."""
        what_to_do = advice("EPOCH_REWOUND", "", self._job, self._client.command_options)
        return TrackingError(
            f"EPOCH_REWOUND: the tracker has batch {epoch} of query {self._query} for committed, but Spark runs it "
            f"again. {what_to_do}"
        )

    def subscribe(
        self, after: Place, segments: Sequence[str], max_age: timedelta | None, name: str | None = None
    ) -> Subscriptions:
        """Have the trackers keep the query's events until they are acknowledged; under the query's id.

        Args:
            after: the place of a query that has no subscription yet.
            max_age: for how long at most; None: as the tracker likes.
            name: of the subscription; None: the query's id.

        Raises:
            TrackingError: a log is another one, or a tracker cannot be reached.
        """
        with self.explaining():
            return self._logs.subscribe(name or self._query, after, segments, max_age)

    def acknowledged(self, name: str) -> Place | None:
        """Return up to where a subscription is acknowledged; None: there is none.

        Raises:
            TrackingError: a tracker cannot be reached.
        """
        with self.explaining():
            return self._logs.acknowledged(name)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription, if there is one.

        Raises:
            TrackingError: a tracker cannot be reached.
        """
        with self.explaining():
            self._logs.unsubscribe(name)

    def frontiers(self) -> Mapping[str, Mapping[str, int]]:
        """Return the times that each front has promised, by scope; ``"*"``: for every scope.

        Raises:
            TrackingError: the tracker cannot be reached.
        """
        with self.explaining():
            return {status.front: status.frontiers for status in self._client.job(self._job).fronts}

    def acknowledge_before_drain(self, subscriptions: Subscriptions) -> None:
        """Acknowledge all that has happened, unless the job drains.

        Raises:
            TrackingError: the tracker does not know the job, or a subscription, any more.
        """
        try:
            statuses = EventLogs(self.impatient, self._job).statuses()
            if not any(status.drain.state in DRAINS for status in statuses):
                subscriptions.ack(newest(statuses), timeout=ONE_ATTEMPT)
        except TrackerUnavailable:
            return  # another time
        except TrackerError as error:
            raise self.explained(error) from error

    def ended_of(self, substreams: Set[Substream], segment: str) -> dict[Substream, int | None]:
        """Return which substreams have ended on a segment, and their elements; None: the tracker has forgotten them
        since.

        Raises:
            TrackingError: the tracker cannot be reached.
        """
        with self.explaining():
            known = {
                (status.scope, status.name): next((s for s in status.segments if s.segment == segment), None)
                for status in self._client.substreams(self._job, include_ended=True)
            }
        ended: dict[Substream, int | None] = {}
        for substream in substreams:
            account = known.get(substream[:2])
            if substream[:2] not in known:
                ended[substream] = None
            elif account is not None and account.ended:
                ended[substream] = account.sent
        return ended

    def begun(self, segment: str) -> int:
        """Return of how many substreams that have not ended on a segment something was sent there.

        Raises:
            TrackingError: the tracker cannot be reached.
        """
        with self.explaining():
            accounts = [each for status in self._client.substreams(self._job) for each in status.segments]
        return sum(each.segment == segment and each.sent > 0 and not each.ended for each in accounts)

    def ended_otherwise(self, promises: Iterable[CommitPromise], patient: bool) -> dict[Expected, int]:
        """Return the promised counts of substreams that have ended with another count, and that one.

        Args:
            promises: those that are to be made.
            patient: whether a tracker that is away is waited for.

        Raises:
            TrackerError: the tracker refuses to list the substreams.
            TrackerUnavailable: it cannot be reached.
        """
        expected = [promise for promise in promises if isinstance(promise, Expected)]
        counted = {
            (status.scope, status.name, account.segment): account.expected_by
            for status in (self._client if patient else self.impatient).substreams(self._job, include_ended=True)
            for account in status.segments
            if account.ended
        }
        found = {each: counted.get((each.scope, each.name, each.segment), {}).get(each.front) for each in expected}
        return {each: count for each, count in found.items() if count is not None and count != each.elements}

    def watch(self, segments: Sequence[str], after: Place) -> list[Watch]:
        """Watch what is announced on some segments after a place, at each log."""
        return [
            client.watch(name, seq, segments, log_id=log_id)
            for (client, name), seq, log_id in zip(self._logs.all, after.seqs, after.log_ids, strict=True)
        ]

    def look_for(self, kinds: tuple[type, ...], after: Place, segments: Sequence[str]) -> tuple[bool, Place]:
        """Return whether something was announced on some segments; and the place up to which nothing was.

        Raises:
            TrackingError: a log is another one, or has lost some of it.
        """
        with self.explaining():
            return self._logs.look_for(kinds, after, segments)

    def events(self, after: Place, up_to: Place | None, segments: Sequence[str]) -> tuple[list[Event], Place]:
        """Return what was announced on some segments in a range; and the place after it.

        Args:
            up_to: what comes up to it; None: up to the newest.

        Raises:
            TrackingError: a log is another one, or has lost that range.
        """
        with self.explaining():
            return self._logs.read(after, up_to, segments)

    def require(self, feature: str, what: str) -> None:
        """Refuse a tracker of an earlier release, which would not notice what it is asked for.

        Args:
            feature: that it has to have; empty: none.
            what: asks for it, for the message.

        Raises:
            TrackingError: the tracker does not have it, or cannot be reached.
        """
        if not feature:
            return
        with self.explaining():
            known = self._client.server_info()
        if feature not in known.features:
            raise TrackingError(f"{what} needs a later tracker than this one, {known.version}: upgrade it first")

    def explaining(self) -> AbstractContextManager[None]:
        """Raise what the tracker refuses, or that it cannot be reached, with what to do about it."""
        return explaining(self._job, self._client.command_options)

    def explained(self, error: Exception) -> TrackingError:
        """Return what a call has raised, with what to do about it."""
        return explained(error, self._job, self._client.command_options)
