"""One rule at work: it reads its subscription, delivers what concerns it, and acknowledges what was delivered."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tracker.client import Subscription, TrackerClient, TrackerError, TrackerUnavailable
from tracker.contract.events import Event
from tracker.store import StoreError, open_store

from .rules import Rule, cloud_event, delta_property, event_id, marker_place
from .webhooks import DeliveryError, WebhookSender

log = logging.getLogger("tracker.notify")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 300.0
_PASSED_EVERY_S = 60.0  #: events that do not concern the rule are acknowledged together
_ACK_S = 1.0


def subscription_of(rule: str) -> str:
    """Return the name of a rule's subscription at the tracker.

    >>> subscription_of("success")
    'notify/success'
    """
    return f"notify/{rule}"


class Delivery:
    """Runner of one rule in a thread of its own until it is stopped.

    Args:
        delivered: called after each delivery.
        failing: called with what is wrong, or with "" when it works again.
    """

    def __init__(
        self, rule: Rule, client: TrackerClient, delivered: Callable[[], object], failing: Callable[[str], object]
    ) -> None:
        self.rule = rule
        self._client = client
        self._delivered = delivered
        self._failing = failing
        self._sender = None if rule.webhook is None else WebhookSender(rule.webhook)
        self._stopped = threading.Event()
        self._reading: Subscription | None = None
        self._passed = 0  # the last event with which nothing has to be done any more
        self._passed_at = time.monotonic()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"notify-{rule.name}", daemon=True)

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    def stop(self) -> None:
        """Let the delivery under way end, and begin no other; `join` waits for that."""
        self._stopped.set()
        with self._lock:
            if self._reading is not None:
                self._reading.close()

    def join(self, timeout: float) -> None:
        """Wait until it has ended, for so many seconds at most."""
        self._thread.join(timeout)

    def _run(self) -> None:
        attempt = 0
        while not self._stopped.is_set():
            try:
                with self._subscribed() as events:
                    self._failing("")
                    attempt = 0
                    for event in events:
                        self._take(event, events)
                continue
            except (TrackerError, TrackerUnavailable) as error:
                problem = str(error)
                log.warning("cannot read events", extra={"rule": self.rule.name, "error": problem})
            except Exception as error:  # a fault of ours: it is shown as failing, and does not end the rule for good
                problem = f"{type(error).__name__}: {error}"
                log.exception("the rule has failed", extra={"rule": self.rule.name})
            self._failing(problem)
            self._pause(attempt)
            attempt += 1
        if self._sender is not None:
            self._sender.close()

    def _subscribed(self) -> Subscription:
        rule = self.rule
        events = self._client.subscribe(rule.job, subscription_of(rule.name), rule.segments, rule.scopes)
        with self._lock:
            self._reading, self._passed = events, events.acknowledged
        if self._stopped.is_set():
            events.close()
        return events

    def acknowledge_passed(self) -> None:
        """Acknowledge the events that did not concern the rule, once a minute: else the subscription would expire.

        To be called now and then, from any thread.
        """
        now, events, passed = time.monotonic(), self._reading, self._passed
        if events is None or passed <= events.acknowledged or now < self._passed_at + _PASSED_EVERY_S:
            return
        self._passed_at = now
        with suppress(TrackerError, TrackerUnavailable):  # the thread that reads finds out what is wrong
            events.ack(passed, timeout=_ACK_S)

    def _take(self, event: Event, events: Subscription) -> None:
        if self.rule.concerns(event):
            if not self._delivers(event, events.log_id):
                return
            events.ack(event)
        self._passed = event.seq

    def _delivers(self, event: Event, log_id: str) -> bool:
        """Deliver an event, however long that takes, and return whether it did: False if it was stopped before."""
        attempt = 0
        while not self._stopped.is_set():
            try:
                self._deliver(event, log_id)
            except DeliveryError as error:
                self._failing(str(error))
                log.warning(
                    "not delivered",
                    extra={"rule": self.rule.name, "event": event.seq, "attempt": attempt + 1, "error": str(error)},
                )
                self._pause(attempt, error.pause)
                attempt += 1
            else:
                if attempt:
                    self._failing("")
                self._delivered()
                log.debug("delivered", extra={"rule": self.rule.name, "event": event.seq})
                return True
        return False

    def _deliver(self, event: Event, log_id: str) -> None:
        message = cloud_event(self.rule, log_id, event)
        if self._sender is not None:
            self._sender.send(event_id(self.rule, log_id, event), message)
        elif self.rule.delta is not None:
            set_property(self.rule.delta.table, *delta_property(self.rule, event))
        else:
            write_marker(*marker_place(self.rule, event), message)

    def _pause(self, attempt: int, at_least: float = 0.0) -> None:
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 20))
        # Drawn, so that rules that have failed together do not come back together.
        self._stopped.wait(max(min(at_least, _LONGEST_PAUSE_S), longest * random.uniform(0.5, 1)))


def write_marker(place: str, name: str, content: bytes) -> None:
    """Write a marker, and replace one that is there. It outlives the machine, since the event is acknowledged next.

    Args:
        place: an absolute path, or an address, such as ``s3://bucket/path``.
        name: the marker's, below the place; it is taken as it is, also in an object's key.

    Raises:
        DeliveryError: it cannot be written.
    """
    try:
        open_store(place if "://" not in place else f"{place}/").put(name, content)
    except (StoreError, ValueError) as error:
        raise DeliveryError(f"{place}/{name} cannot be written: {error}") from error


def set_property(table: str, name: str, value: str) -> None:
    """Set a property of a Delta table, as one commit to its log; none if it has that value already.

    Args:
        table: an absolute path, or an address such as ``s3://bucket/table``.

    Raises:
        DeliveryError: there is no such table, or it cannot be written.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ModuleNotFoundError as missing:
        raise DeliveryError(f"a rule with delta needs {missing.name}: pip install 'deltalake>=1,<2'") from missing
    try:
        opened = DeltaTable(table)
        if opened.metadata().configuration.get(name) != value:
            # Who commits in between makes this fail, and it is tried again: a property never replaces data.
            opened.alter.set_table_properties({name: value}, raise_if_not_exists=False)
    except (DeltaError, OSError, ValueError) as error:
        raise DeliveryError(f"{table}: {name} cannot be set: {str(error).partition(chr(10))[0]}") from error
