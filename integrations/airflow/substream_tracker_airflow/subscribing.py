"""The events of a durable subscription in an event loop, acknowledged when Airflow has stored what came of them.

A thread reads the subscription, since that blocks, and hands its events to the loop. The tracker keeps every event
until it is acknowledged. So what was read and not stored, because the triggerer was killed or its database was away,
comes again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tracker.client import Event, Subscription, TrackerClient, TrackerError, TrackerUnavailable

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S: Final = 60.0
_PASSED_EVERY_S: Final = 60.0  # events that start nothing are acknowledged together
_ACK_S: Final = 10.0
_MOST_READ: Final = 256  # events that are read and not acknowledged; Airflow's queue holds 1024 by default


@dataclass(frozen=True)
class Position:
    """Where an event stands, in which subscription."""

    subscription: Subscription
    seq: int


class SubscriptionReader:
    """Reads a subscription until it is closed, whatever fails meanwhile.

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
        self._read: asyncio.Queue[tuple[Event, Position] | Exception] = asyncio.Queue()
        self._room = threading.Semaphore(_MOST_READ)
        self._closed = threading.Event()
        self._reading: Subscription | None = None
        self._lock = threading.Lock()
        self._outstanding = 0  # events that were given and are not done
        self._done: Position | None = None  # up to here everything is done
        self._is_done = asyncio.Event()
        self._acknowledging = asyncio.create_task(self._acknowledge())
        self._thread = threading.Thread(target=self._run, name=f"substreams-{name}", daemon=True)
        self._thread.start()

    async def events(self) -> AsyncIterator[tuple[Event, Position]]:
        """Yields the wanted events, in the order of the job's log. It never ends by itself.

        Raises:
            Exception: a mistake of this program's; the tracker's absence and refusals are waited for.
        """
        passed_at = self._loop.time()
        while True:
            found = await self._read.get()
            if isinstance(found, Exception):
                raise found
            event, position = found
            if self._concerns(event):
                self._outstanding += 1
                yield event, position
                continue
            self._room.release()
            if not self._outstanding and self._loop.time() >= passed_at + _PASSED_EVERY_S:
                passed_at = self._loop.time()
                self._set_done(position)

    def done(self, positions: Sequence[Position]) -> None:
        """Notes that nothing remains to be done for these events, the oldest that are not done, in order."""
        self._outstanding -= len(positions)
        self._room.release(len(positions))
        self._set_done(positions[-1])

    async def close(self) -> None:
        """Ends the reading. The subscription stays."""
        self._closed.set()
        self._room.release()
        with self._lock:
            if self._reading is not None:
                self._reading.close()
        self._acknowledging.cancel()
        if self._is_done.is_set() and self._done is not None:
            with suppress(TrackerError, TrackerUnavailable):  # what is not acknowledged comes again
                await asyncio.to_thread(self._done.subscription.ack, self._done.seq, _ACK_S)
        await asyncio.to_thread(self._thread.join, _ACK_S)
        self._client.close()

    def _set_done(self, position: Position) -> None:
        self._done = position
        self._is_done.set()

    async def _acknowledge(self) -> None:
        while True:
            await self._is_done.wait()
            self._is_done.clear()
            position = self._done
            assert position is not None
            try:
                await asyncio.to_thread(position.subscription.ack, position.seq, _ACK_S)
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
                            self._hand_over(event, Position(events, event.seq))
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

    def _hand_over(self, event: Event, position: Position) -> None:
        self._room.acquire()
        if not self._closed.is_set():
            self._loop.call_soon_threadsafe(self._read.put_nowait, (event, position))
