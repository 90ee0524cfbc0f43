"""The events of a durable subscription in an event loop, acknowledged when Airflow has stored what came of them.

A thread reads the subscription, since that blocks, and hands its events to the loop. The tracker keeps every event
until it is acknowledged. So what was read and not stored, because the triggerer was killed or its database was away,
comes again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tracker.client import Event, Subscription, TrackerClient, TrackerError, TrackerUnavailable

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S: Final = 60.0
_PASSED_EVERY_S: Final = 60.0  # events that start nothing are acknowledged together
_ACK_S: Final = 10.0
_MOST_READ: Final = 256  # events that are read and not done, and so in a batch
_LINGER_S: Final = 0.5  # events of one moment come together


@dataclass(frozen=True)
class Batch:
    """Events that are done together, and up to where they reach."""

    events: tuple[Event, ...]
    subscription: Subscription
    seq: int


class SubscriptionReader:
    """Reader of a subscription until it is closed, whatever fails meanwhile.

    Args:
        client: calls the tracker; it is closed with the reader.
        job: the job's name.
        name: the subscription's.
        segments: only ends on these; empty: on all.
        scopes: only ends in these; empty: in all.
        concerns: tells whether an event is wanted. Others are acknowledged in passing.
    """

    def __init__(
        self,
        client: TrackerClient,
        job: str,
        name: str,
        segments: Sequence[str],
        scopes: Sequence[str],
        concerns: Callable[[Event], bool],
    ) -> None:
        self._client = client
        self._job = job
        self._name = name
        self._segments = segments
        self._scopes = scopes
        self._concerns = concerns
        self._loop = asyncio.get_running_loop()
        self._read: asyncio.Queue[tuple[Event, Subscription] | Exception] = asyncio.Queue()
        self._room = threading.Semaphore(_MOST_READ)
        self._closed = threading.Event()
        self._reading: Subscription | None = None
        self._lock = threading.Lock()
        self._passed_at = self._loop.time()
        self._done: tuple[Subscription, int] | None = None  # up to here everything is done
        self._is_done = asyncio.Event()
        self._acknowledging = asyncio.create_task(self._acknowledge())
        self._thread = threading.Thread(target=self._run, name=f"substreams-{name}", daemon=True)
        self._thread.start()

    async def next_batch(self) -> Batch:
        """Wait for wanted events, and return those that are there, in the order of the job's log.

        The batch before it is done.

        Raises:
            Exception: a mistake of this program's; the tracker's absence and refusals are waited for.
        """
        wanted: list[Event] = []
        while True:
            event, subscription = self._taken(await self._read.get())
            if self._concerns(event):
                break
            self._pass_over(subscription, event.seq)
        wanted.append(event)
        await asyncio.sleep(_LINGER_S)
        while not self._read.empty():
            event, subscription = self._taken(self._read.get_nowait())
            if self._concerns(event):
                wanted.append(event)
            else:
                self._room.release()
        return Batch(tuple(wanted), subscription, event.seq)

    def done(self, batch: Batch) -> None:
        """Note that nothing remains to be done for a batch."""
        self._room.release(len(batch.events))
        self._set_done(batch.subscription, batch.seq)

    async def close(self) -> None:
        """End the reading. The subscription stays."""
        self._closed.set()
        self._room.release()
        with self._lock:
            if self._reading is not None:
                self._reading.close()
        self._acknowledging.cancel()
        if self._is_done.is_set() and self._done is not None:
            with suppress(TrackerError, TrackerUnavailable):  # what is not acknowledged comes again
                await asyncio.to_thread(self._done[0].ack, self._done[1], _ACK_S)
        await asyncio.to_thread(self._thread.join, _ACK_S)
        self._client.close()

    def _taken(self, found: tuple[Event, Subscription] | Exception) -> tuple[Event, Subscription]:
        if isinstance(found, Exception):
            raise found
        return found

    def _pass_over(self, subscription: Subscription, seq: int) -> None:
        """Pass over an event that is not wanted, when all before it are done: now and then this is acknowledged."""
        self._room.release()
        if self._loop.time() >= self._passed_at + _PASSED_EVERY_S:
            self._passed_at = self._loop.time()
            self._set_done(subscription, seq)

    def _set_done(self, subscription: Subscription, seq: int) -> None:
        self._done = subscription, seq
        self._is_done.set()

    async def _acknowledge(self) -> None:
        while True:
            await self._is_done.wait()
            self._is_done.clear()
            assert self._done is not None
            subscription, seq = self._done
            try:
                await asyncio.to_thread(subscription.ack, seq, _ACK_S)
            except TrackerUnavailable:
                await asyncio.sleep(1)
                self._is_done.set()
            except TrackerError as error:  # the thread that reads meets it, too, and does what can be done
                log.warning("Cannot acknowledge events of %s: %s", self._name, error)

    def _run(self) -> None:
        try:
            self._read_on()
        except Exception as error:  # else the loop would wait for a thread that has ended
            self._loop.call_soon_threadsafe(self._read.put_nowait, error)

    def _read_on(self) -> None:
        log_id, last, pause = "", 0, 1.0
        while not self._closed.is_set():
            try:
                with self._subscribed() as events:
                    if events.log_id != log_id:  # numbers begin anew in another log
                        log_id, last = events.log_id, 0
                    for event in events:
                        pause = 1.0
                        if event.seq > last:
                            last = event.seq
                            self._hand_over(event, events)
            except (TrackerError, TrackerUnavailable) as error:
                log.warning("Cannot read the events of subscription %s of job %s: %s", self._name, self._job, error)
                self._closed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _subscribed(self) -> Subscription:
        events = self._client.subscribe(self._job, self._name, self._segments, self._scopes)
        with self._lock:
            self._reading = events
        if self._closed.is_set():
            events.close()
        return events

    def _hand_over(self, event: Event, subscription: Subscription) -> None:
        self._room.acquire()
        if not self._closed.is_set():
            self._loop.call_soon_threadsafe(self._read.put_nowait, (event, subscription))
