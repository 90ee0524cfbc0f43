"""Durable readers: a subscription's events are kept until it acknowledges them, beyond the job's retention.

An event that retention would drop, and that some subscription has not acknowledged, is retained; each subscription
knows the retained events that it waits for, oldest first, and each event how many wait for it. So an acknowledgement
costs what it acknowledges, and nothing scans the log.

The subscriptions themselves bound what is kept: one that leaves an event lying for longer than its `max_age`, or more
events than its `max_events`, expires. Only events that are older than retention count for either. An expired
subscription keeps nothing, refuses everything by its name, and stays listed until it is unsubscribed, so that its owner
cannot overlook it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from tracker.contract.commands import Ack, Acknowledged, Subscribe, Subscribed
from tracker.contract.events import Event
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.status import SubscriptionStatus

from .graph import Graph
from .log import EventFilter, EventLog
from .validation import check_name, check_names, check_scope

_DAY: Final = 24 * 3600 * 10**9
MAX_AGE: Final = 30 * _DAY  #: where a subscription names none (ns)
MAX_EVENTS: Final = 1_000_000  #: where a subscription names none
_PIECE: Final = 20_000  # events that are dealt with at a time: what is left comes with the next command or tick


@dataclass(slots=True)
class Subscription:
    """One durable reader."""

    name: str
    wanted: EventFilter
    acknowledged: int  #: the events up to this one are acknowledged
    max_age: int  #: ns
    max_events: int
    created: int  #: ns since the Unix epoch
    last_ack: int | None = None
    expired: int | None = None  #: when
    expired_because: str = ""
    waiting: deque[int] = field(default_factory=deque)  #: the retained events it waits for, oldest first

    def waits_for(self, event: Event) -> bool:
        return self.expired is None and event.seq > self.acknowledged and self.wanted.passes(event)

    def refusal(self) -> Refused:
        """Return the refusal of every later call in its name, once it has expired."""
        return Refused(
            Refusal.SUBSCRIPTION_EXPIRED,
            f"subscription {self.name!r} has expired: {self.expired_because}. Events after seq {self.acknowledged} "
            "that match its filter may be lost. Unsubscribe, subscribe again, and decide how to handle the lost ones",
        )


class Subscriptions:
    """The subscriptions of a job."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._by_name: dict[str, Subscription] = {}
        self._ended = False
        self._to_release: deque[int] = deque()  # retained events for which there is one reader less

    # ------------------------------------------------------------ commands

    def subscribe(self, command: Subscribe, graph: Graph, now: int) -> Subscribed:
        """Make a subscription, or change the filter and the bounds of one; its place is never changed."""
        self.check_subscribe(command, graph)
        wanted = EventFilter(command.segments, command.scopes)
        subscription = self._by_name.get(command.name)
        created = subscription is None
        if subscription is None:
            own = command.after_seq is not None
            start = self._log.start(command.after_seq or 0, wanted, own)
            subscription = Subscription(command.name, wanted, start, 0, 0, now)
            self._by_name[command.name] = subscription
            self._wait_for_retained(subscription)
        elif wanted != subscription.wanted:
            before, subscription.wanted = subscription.waiting, wanted
            self._wait_for_retained(subscription)
            self._leave(before)
        subscription.max_age = command.max_age or MAX_AGE
        subscription.max_events = command.max_events or MAX_EVENTS
        return Subscribed(subscription.acknowledged, self._log.last_seq, self._log.log_id, created)

    def check_subscribe(self, command: Subscribe, graph: Graph) -> None:
        """Refuse what cannot be subscribed to, or not from there, or not under this name."""
        self._check(command, graph)
        wanted = EventFilter(command.segments, command.scopes)
        subscription = self._by_name.get(command.name)
        if subscription is None:
            self._log.start(command.after_seq or 0, wanted, command.after_seq is not None)
        elif subscription.expired is not None:
            raise subscription.refusal()
        elif wanted != subscription.wanted:
            self._log.start(subscription.acknowledged, wanted, own=True)

    def _check(self, command: Subscribe, graph: Graph) -> None:
        check_name("subscription", command.name)
        check_names("segment", command.segments)
        for scope in command.scopes:
            check_scope(scope)
        if command.max_age is not None and command.max_age <= 0:
            raise Refused(Refusal.MALFORMED, "max_age must be positive; leave it out for 30 days")
        self._check_log(command.log_id)
        for segment in command.segments:
            graph.place(segment)
        if command.after_seq is not None and command.after_seq > self._log.last_seq:
            raise Refused(
                Refusal.MALFORMED,
                f"after_seq={command.after_seq} is beyond the last event, {self._log.last_seq}; leave it out to start "
                "at the oldest event kept",
            )

    def _check_log(self, log_id: str) -> None:
        if log_id and log_id != self._log.log_id:
            raise Refused(
                Refusal.LOG_CHANGED,
                f"the job's log is {self._log.log_id!r}, not {log_id!r}: the job was deleted, its journal has "
                "lost its tail, or a backup was restored; start again from seq 0",
            )

    def acknowledge(self, command: Ack, now: int) -> Acknowledged:
        """Acknowledge events: they need not be kept for the subscription any more."""
        subscription = self.check_acknowledge(command)
        subscription.last_ack = now
        subscription.acknowledged = max(subscription.acknowledged, command.seq)
        self._release([subscription])
        return Acknowledged(subscription.acknowledged)

    def check_acknowledge(self, command: Ack) -> Subscription:
        """Refuse to acknowledge future events, or for a missing or expired subscription; return the subscription."""
        subscription = self.find(command.name)
        self._check_log(command.log_id)
        if command.seq > self._log.last_seq:
            raise Refused(
                Refusal.MALFORMED,
                f"event {command.seq} does not exist yet: the last event is {self._log.last_seq}; acknowledge what "
                "was received",
            )
        return subscription

    def check_unsubscribe(self, name: str) -> None:
        """Refuse to end a subscription that does not exist."""
        self._named(name)

    def unsubscribe(self, name: str) -> None:
        """End a subscription, an expired one too."""
        subscription = self._named(name)
        del self._by_name[name]
        self._leave(subscription.waiting)
        self._ended = True

    # ------------------------------------------------------------ time

    def retire(self, until: int, now: int) -> None:
        """Apply retention: drop events up to `until` (ns), or retain those that a subscription waits for."""
        readers = self._count_readers if self._by_name else None
        self._log.retire(until, readers, max(_PIECE // (1 + len(self._by_name)), 500))
        self._release(self._by_name.values())
        for subscription in self._by_name.values():
            if subscription.expired is None:
                why = self._overdue(subscription, now)
                if why:
                    subscription.expired, subscription.expired_because = now, why
                    self._leave(subscription.waiting)
                    subscription.waiting = deque()
                    self._ended = True

    def _count_readers(self, event: Event) -> int:
        count = 0
        for subscription in self._by_name.values():
            if subscription.waits_for(event):
                subscription.waiting.append(event.seq)
                count += 1
        return count

    def _overdue(self, subscription: Subscription, now: int) -> str:
        waiting = subscription.waiting
        if waiting and waiting[0] <= subscription.acknowledged:
            return ""  # what it has acknowledged is still being released
        if len(waiting) > subscription.max_events:
            return f"{len(waiting)} events were kept for it, more than its max_events={subscription.max_events}"
        if waiting and now - self._log.retained.at(waiting[0]) >= subscription.max_age:
            days = subscription.max_age / _DAY
            return f"it had not acknowledged seq {waiting[0]} within its max_age of {days:g} days"
        return ""

    def next_due(self, now: int) -> int | None:
        """Return the earliest time at which a subscription expires (ns)."""
        if self._to_release:
            return now
        return min((self._due(each, now) for each in self._by_name.values() if each.waiting), default=None)

    def _due(self, subscription: Subscription, now: int) -> int:
        waiting = subscription.waiting
        if waiting[0] <= subscription.acknowledged or len(waiting) > subscription.max_events:
            return now
        return self._log.retained.at(waiting[0]) + subscription.max_age

    def _wait_for_retained(self, subscription: Subscription) -> None:
        """Have a subscription wait for the events already retained for others, from its position on."""
        subscription.waiting = deque(
            event.seq for event in self._log.retained.after(subscription.acknowledged) if subscription.waits_for(event)
        )
        for seq in subscription.waiting:
            self._log.retained.join(seq)

    def _leave(self, seqs: Iterable[int]) -> None:
        """Note that a subscription no longer waits for these events."""
        self._to_release.extend(seqs)
        self._release(())

    def _release(self, subscriptions: Iterable[Subscription]) -> None:
        """Release a batch of events that were acknowledged or left behind."""
        room = _PIECE
        for subscription in subscriptions:
            waiting = subscription.waiting
            while room and waiting and waiting[0] <= subscription.acknowledged:
                self._log.release(waiting.popleft())
                room -= 1
        while room and self._to_release:
            self._log.release(self._to_release.popleft())
            room -= 1

    # ------------------------------------------------------------ questions

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def names_asked_for(self, besides: str) -> int:
        """Return how many segments and scopes their filters name, but for one of them."""
        wanted = [each.wanted for name, each in self._by_name.items() if name != besides]
        return sum(len(each.segments) + len(each.scopes) for each in wanted)

    def pop_ended(self) -> bool:
        """Return whether a subscription has ended since the last call; its readers must be woken."""
        ended, self._ended = self._ended, False
        return ended

    def _named(self, name: str) -> Subscription:
        subscription = self._by_name.get(name)
        if subscription is None:
            raise Refused(
                Refusal.UNKNOWN_SUBSCRIPTION,
                f"there is no subscription {name!r}; it may have been ended: subscribe first",
            )
        return subscription

    def find(self, name: str) -> Subscription:
        """Return a subscription that has not expired."""
        subscription = self._named(name)
        if subscription.expired is not None:
            raise subscription.refusal()
        return subscription

    def statuses(self) -> list[SubscriptionStatus]:
        """Return all of them, by name."""
        return [
            SubscriptionStatus(
                name,
                tuple(sorted(subscription.wanted.segments)),
                tuple(sorted(subscription.wanted.scopes)),
                subscription.acknowledged,
                subscription.max_age,
                subscription.max_events,
                *self._retained(subscription),
                subscription.created,
                subscription.last_ack,
                subscription.expired,
                subscription.expired_because,
            )
            for name, subscription in sorted(self._by_name.items())
        ]

    def _retained(self, subscription: Subscription) -> tuple[int, int | None]:
        """Return how many events are kept for it alone, and when the oldest of them happened."""
        lagging = takewhile(lambda seq: seq <= subscription.acknowledged, subscription.waiting)
        done = sum(1 for _ in lagging)
        waiting = subscription.waiting
        return len(waiting) - done, self._log.retained.at(waiting[done]) if done < len(waiting) else None

    # ------------------------------------------------------------ from a snapshot

    def restore(self, subscription: Subscription) -> None:
        """Restore a subscription; it waits for what the log has retained."""
        self._by_name[subscription.name] = subscription
        self._wait_for_retained(subscription)

    def release_unclaimed(self) -> None:
        """Release what is retained for nobody, once all are restored."""
        for seq in self._log.retained.unclaimed():
            self._log.retained.join(seq)
            self._to_release.append(seq)
