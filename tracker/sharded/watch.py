"""The events of one job over several servers, as they happen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Full, Queue
from types import TracebackType
from typing import Final, TypeAlias

from tracker.client.errors import TrackerError, TrackerUnavailable
from tracker.client.watch import Watch
from tracker.contract.events import Event
from tracker.contract.spec import JobSpec
from tracker.sharded.merged_events import Merge, Position

_AHEAD: Final = 1000  #: the most events that are read ahead
_LOOK_AGAIN_S: Final = 0.2

_Said: TypeAlias = Event | TrackerError | TrackerUnavailable | None


class ShardedWatch(Iterator[Event]):
    """An iterator over a sharded job's events that never ends by itself, made by `ShardedClient.watch`.

    It gives each event once; `tracker.sharded.merged_events` describes which, and in what order. `Event.seq` is the
    event's number at the server that announced it. Events that wait for other shards are kept in memory. One thread
    iterates; any thread may close it. It does not survive a fork.
    """

    def __init__(self, watches: Sequence[Watch], merge: Merge, spec: Callable[[], JobSpec]) -> None:
        self._watches = watches
        self._merge = merge
        self._spec = spec  # asks for the job's
        self._asks = True  # whether it may be another than when it was asked for
        self._said: Queue[tuple[int, _Said]] = Queue(_AHEAD)
        self._closed = threading.Event()
        self._started = False

    @property
    def position(self) -> Position:
        """The position from which another watch continues after the last event that this one gave."""
        return self._merge.position([watch.log_id for watch in self._watches])

    def __enter__(self) -> ShardedWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> ShardedWatch:
        return self

    def __next__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopIteration: it was closed.
            TrackerError: a server refuses: see `Watch.__next__`. After this error it is closed.
            TrackerUnavailable: one of the servers could not be reached for the client's `retry_for`. The caller may
                continue.
        """
        if not self._started:
            self._started = True
            for shard in range(len(self._watches)):
                threading.Thread(target=self._read, args=[shard], name="tracker-shard", daemon=True).start()
        while not self._closed.is_set():
            if self._asks and self._merge.wants_graph:
                spec = self._spec()
                self._asks = False
                if spec.deployment != self._merge.handed_over:
                    self._merge.graph = frozenset(spec.segments)
            event = self._merge.give()
            if event is not None:
                return event
            match self._said.get():
                case shard, Event() as event:
                    self._merge.take(shard, event)
                    self._asks = self._asks or event.deployment != self._merge.handed_over
                case _, TrackerError() as refused:
                    self.close()
                    raise refused
                case _, TrackerUnavailable() as unavailable:
                    raise unavailable
        raise StopIteration

    def close(self) -> None:
        """End the iteration, from any thread. A thread that waits for an event stops waiting."""
        self._closed.set()
        for watch in self._watches:
            watch.close()
        with suppress(Full):  # if the queue is full, no thread waits for it
            self._said.put_nowait((0, None))

    def _read(self, shard: int) -> None:
        while not self._closed.is_set():
            try:
                self._put(shard, next(self._watches[shard]))
            except StopIteration:
                return
            except TrackerUnavailable as unavailable:
                self._put(shard, unavailable)
            except TrackerError as refused:
                self._put(shard, refused)
                return

    def _put(self, shard: int, said: _Said) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                self._said.put((shard, said), timeout=_LOOK_AGAIN_S)
                return
