"""The logs of a job's events: each is read in its own order, and acknowledged by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from spark_client.trackers import JobClient, Place
from tracker.client import (
    Event,
    EventPage,
    JobStatus,
    Subscription,
    SubscriptionStatus,
    TrackerClient,
    TrackerError,
)
from tracker.client.watch import pages
from tracker.contract.refusal import Refusal

_FEW: Final = 10  #: events that are looked at first; ten times as many next
_MANY: Final = 10_000


class Subscriptions:
    """Durable readers of all logs, of one name.

    Attributes:
        acknowledged: up to where they are acknowledged.
        incomplete: whether some events after the place at which they were made had been dropped.
    """

    def __init__(self, made: Sequence[tuple[Subscription, bool]]) -> None:
        self._subscriptions = [subscription for subscription, _ in made]
        self._dropped = [dropped for _, dropped in made]
        self.incomplete = any(self._dropped)

    @property
    def acknowledged(self) -> Place:
        return Place(
            tuple(each.acknowledged for each in self._subscriptions), tuple(each.log_id for each in self._subscriptions)
        )

    def beginning(self, place: Place) -> Place:
        """Return where to read on: at the place, but in logs that have dropped events after it, at the oldest that is
        kept."""
        seqs = zip(self._dropped, self._subscriptions, place.seqs, strict=True)
        return Place(tuple(each.acknowledged if dropped else seq for dropped, each, seq in seqs), place.log_ids)

    def ack(self, place: Place, timeout: float | None = None) -> None:
        """Acknowledge what is up to a place: see `Subscription.ack`.

        Args:
            timeout: one attempt at each log, of so many seconds; None: as the client repeats calls.
        """
        for subscription, seq in zip(self._subscriptions, place.seqs, strict=True):
            subscription.ack(seq, timeout)


class EventLogs:
    """Reader of one job's logs."""

    def __init__(self, client: JobClient, job: str) -> None:
        self._client = client
        self._job = job

    @property
    def all(self) -> list[tuple[TrackerClient, str]]:
        """Each log: who has it, and under which name."""
        return self._client.logs(self._job)

    def statuses(self) -> list[JobStatus]:
        """Describe the job at each of its logs."""
        return [client.job(name) for client, name in self.all]

    def newest(self) -> Place:
        """Return the place after the newest events."""
        return newest(self.statuses())

    def read(self, after: Place, up_to: Place | None, segments: Sequence[str]) -> tuple[list[Event], Place]:
        """Read what was announced on some segments, log by log.

        Args:
            after: the events after it.
            up_to: the events up to it; None: up to the newest.

        Returns:
            The events, and the place after them.

        Raises:
            TrackingError: the place is one in another number of logs.
            TrackerError: ``LOG_CHANGED``; ``EVENTS_EXPIRED``: some of them were dropped.
        """
        logs = self.all
        after.check(len(logs))
        ends = [None] * len(logs) if up_to is None else up_to.check(len(logs)).seqs
        found: list[Event] = []
        seqs: list[int] = []
        for (client, name), seq, log_id, end in zip(logs, after.seqs, after.log_ids, ends, strict=True):
            read = partial(client.list_events, name, segments=segments, log_id=log_id, own_position=True)
            events, last = _read(read, seq, end)
            found += events
            seqs.append(last)
        return found, Place(tuple(seqs), after.log_ids)

    def look_for(self, kinds: tuple[type, ...], after: Place, segments: Sequence[str]) -> tuple[bool, Place]:
        """Return whether there is an event of some kinds after a place, and the place up to which there is none.

        A few events show that there are some: the others do not travel.

        Raises:
            TrackingError: the place is one in another number of logs.
            TrackerError: ``LOG_CHANGED``; ``EVENTS_EXPIRED``: some of them were dropped.
        """
        logs = self.all
        seqs = list(after.check(len(logs)).seqs)
        for log, (client, name) in enumerate(logs):
            limit, more = _FEW, True
            while more:
                page = client.list_events(
                    name, seqs[log], limit=limit, segments=segments, log_id=after.log_ids[log], own_position=True
                )
                if any(isinstance(event.kind, kinds) for event in page.events):
                    return True, after
                more, limit = page.last_seq > seqs[log], min(10 * limit, _MANY)
                seqs[log] = page.last_seq
        return False, Place(tuple(seqs), after.log_ids)

    def subscribe(
        self,
        name: str,
        after: Place,
        segments: Sequence[str],
        max_age: timedelta | None,
        *,
        scopes: Sequence[str] = (),
        anew: bool = True,
    ) -> Subscriptions:
        """Have the trackers keep events until they are acknowledged.

        Args:
            name: of the subscription, at each log.
            after: where a subscription begins that is new.
            max_age: for how long at most; None: as the tracker likes.
            scopes: of which scopes; empty: of all.
            anew: where events after the place were dropped, begin at the oldest that is kept.

        Raises:
            TrackingError: the place is one in another number of logs.
            TrackerError: ``LOG_CHANGED``; and, unless `anew`, ``EVENTS_EXPIRED``, ``SUBSCRIPTION_EXPIRED``.
        """
        logs = self.all
        after.check(len(logs))
        made = []
        for (client, job), seq, log_id in zip(logs, after.seqs, after.log_ids, strict=True):
            subscribe = partial(client.subscribe, job, name, segments, scopes, max_age=max_age, log_id=log_id)
            unsubscribe = partial(client.unsubscribe, job, name)
            made.append(_subscribed(subscribe, seq, unsubscribe) if anew else (subscribe(after_seq=seq), False))
        return Subscriptions(made)

    def acknowledged(self, name: str) -> Place | None:
        """Return up to where a subscription is acknowledged at all logs; None: there is none at some of them."""
        logs = self.all
        found = [each.acknowledged for log in logs for each in _named(name, *log)]
        return Place(tuple(found), self.newest().log_ids) if len(found) == len(logs) else None

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription from the logs that have it."""
        for client, job in self.all:
            for _ in _named(name, client, job):
                client.unsubscribe(job, name)


def _named(name: str, client: TrackerClient, job: str) -> list[SubscriptionStatus]:
    """Return the subscription of a name at one log, if there is one."""
    return [each for each in client.subscriptions(job) if each.name == name]


def newest(statuses: Sequence[JobStatus]) -> Place:
    """Return the place after the newest events that a job's descriptions tell of, one for each log."""
    return Place(tuple(each.last_seq for each in statuses), tuple(each.log_id for each in statuses))


def _read(read: Callable[..., EventPage], after: int, up_to: int | None) -> tuple[list[Event], int]:
    """Read one log, and return the events, and the number of the last one that was looked at."""
    found: list[Event] = []
    for page in pages(read, after, up_to):
        found.extend(page.events)
        after = max(after, page.last_seq)
    return found, after


def _subscribed(
    subscribe: Callable[..., Subscription], after: int, unsubscribe: Callable[[], None]
) -> tuple[Subscription, bool]:
    """Subscribe to one log; return whether events after the place were dropped."""
    try:
        return subscribe(after_seq=after), False
    except TrackerError as error:
        if error.reason not in (Refusal.EVENTS_EXPIRED, Refusal.SUBSCRIPTION_EXPIRED):
            raise
    with suppress(TrackerError):  # there may be none
        unsubscribe()
    return subscribe(after_seq=None), True
