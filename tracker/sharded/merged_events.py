"""Merge of the events of a job's shards into those of one job, as they happen (`ShardedWatch`).

The merge does no I/O: the shards' events go in, in each shard's order and otherwise in any order; the job's events come
out.

- Events of one shard alone (`Late`, `Stalled`, `FrontIdle`, `DrainTimedOut`) pass as they come, and so do ends, unless
  the job has ordering ``"global"``.
- `Advanced` comes out with the minimum of what the shards have announced.
- `DrainRequested`, `DrainCancelled` and `Drained` come out once, when every shard has announced them.
- With ordering ``"global"``, the end of a substream with an end time waits until every shard has advanced that far on
  its segment. Then no shard can end an earlier one there any more, and the ends that waited come out by end time, scope
  and name: every subscriber gets the same order, whichever shard was faster. A substream's upstream ends come first,
  since a shard is never further on a segment than upstream of it. Substreams without an end time, and those that
  expired or were abandoned, do not wait.

The events of a drained shard wait here until all shards are drained, so that the events of its next deployment are not
mixed with the old ones. A drained shard that has finished holds no end back, and times start from scratch after it. A
deployment that hands over does not end the order: what is open, and how far each shard has come, lives on in the next
one, so the ends that wait for a slower shard wait across the hand-over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from queue import Full, Queue
from typing import Final, TypeAlias

from tracker.client.errors import TrackerError, TrackerUnavailable
from tracker.client.watch import Watch
from tracker.contract.events import Advanced, DrainCancelled, Drained, DrainRequested, Ended, Event, Late
from tracker.contract.spec import JobSpec
from tracker.contract.values import DrainMode, Reason

_TOGETHER: Final = (DrainRequested, DrainCancelled, Drained)
_NOT_YET: Final = -(2**63) - 1  #: below every time
_OVER: Final = 2**63 - 1  #: above every end time

#: (end time, scope, name, the event's number in its shard, the shard, the event); the first four differ
_Waiting: TypeAlias = tuple[int, str, str, int, int, Event]


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a merged watch, from which another one can continue exactly.

    It consists of numbers and strings: ``Position(**json.loads(text))`` reads what
    ``json.dumps(dataclasses.asdict(position))`` has written.
    """

    seqs: Sequence[int]  #: for each shard, the number of the last event that was taken
    held: Sequence[Sequence[int]]  #: for each shard, events that were taken and not given: they wait for other shards
    advanced: Sequence[Mapping[str, int]]  #: for each shard, the progress that it has announced, by segment
    said: Mapping[str, int]  #: the job's progress that was announced, by segment
    log_ids: Sequence[str]  #: for each shard, its log; empty: the current one
    handed_over: str = ""  #: the last deployment that handed over, unless one has finished since


def beginning(shards: int) -> Position:
    """Return the position before the oldest event that each shard has kept."""
    return Position([0] * shards, [[]] * shards, [{}] * shards, {}, [""] * shards)


@dataclass(slots=True)
class _Shard:
    seq: int
    again: set[int]  #: events that were taken before this merge began and not given: they are taken again
    advanced: dict[str, int]
    together: dict[type, deque[Event]] = field(default_factory=lambda: {kind: deque() for kind in _TOGETHER})
    later: deque[Event] = field(default_factory=deque)  #: events that came after it was drained

    @property
    def finished(self) -> bool:
        """Return whether the shard is drained, and ends nothing any more before times start from scratch."""
        return any(isinstance(event.kind, Drained) and _finishes(event.kind) for event in self.together[Drained])


class Merge:
    """The state of a merge.

    Args:
        ordered: whether ends wait for the other shards, as with ordering ``"global"``.
        position: where to continue. The caller passes each shard's events in again, from `after` on.

    Attributes:
        handed_over: the last deployment that handed over, unless one has finished since; empty: none.
        graph: the segments of the deployment after that one; None: not known. On others nobody advances any more, so
            the ends that waited there across the hand-over wait no longer.
    """

    def __init__(self, ordered: bool, position: Position) -> None:
        self._ordered = ordered
        self.handed_over = position.handed_over
        self.graph: Collection[str] | None = None
        self._shards = [
            _Shard(seq, set(held), dict(advanced))
            for seq, held, advanced in zip(position.seqs, position.held, position.advanced, strict=True)
        ]
        self._said = dict(position.said)
        self._passing: deque[tuple[int, Event]] = deque()
        self._waiting: dict[str, list[_Waiting]] = {}  # by segment, a heap
        self._held: dict[tuple[str, str, str], int] = {}  # (segment, scope, name) of ends that wait: their end time
        self._news: dict[str, tuple[int, Event]] = {}  # by segment, the event that made the whole job advance

    def after(self, shard: int) -> int:
        """Return the number of the event of a shard after which its events must be passed in."""
        state = self._shards[shard]
        return min(state.again) - 1 if state.again else state.seq

    def take(self, shard: int, event: Event) -> None:
        """Take a shard's next event."""
        state = self._shards[shard]
        if event.seq in state.again:
            state.again.remove(event.seq)
        elif event.seq <= state.seq:
            return  # the event was given before this merge began
        elif state.together[Drained]:
            state.later.append(event)
            return
        else:
            state.seq = event.seq
        match event.kind:
            case Advanced(segment, time):
                state.advanced[segment] = max(time, state.advanced.get(segment, _NOT_YET))
                if self._advanced(segment) > self._said.get(segment, _NOT_YET):
                    self._news[segment] = (shard, event)
            case DrainRequested() | DrainCancelled() | Drained():
                state.together[type(event.kind)].append(event)
            case Ended() as ended if self._ordered and ended.end_time is not None:
                if ended.reason is Reason.COMPLETE:
                    self._held[ended.segment, ended.scope, ended.name] = ended.end_time
                    self._wait(ended, ended.end_time, shard, event)
                else:
                    self._let_go(ended.scope, ended.name)
                    self._passing.append((shard, event))
            case Late() as late if (end := self._held.get((late.segment, late.scope, late.name))) is not None:
                self._wait(late, end, shard, event)  # it must come after the end for which it is late
            case _:
                self._passing.append((shard, event))

    def give(self) -> Event | None:
        """Return the job's next event; None if another event has to be taken first."""
        if any(state.again for state in self._shards):
            return None
        if self._passing:
            return self._passing.popleft()[1]
        ready = [heap for segment, heap in self._waiting.items() if heap and heap[0][0] <= self._reached(segment)]
        if ready:
            *_, event = heappop(min(ready, key=lambda heap: heap[0]))
            if isinstance(event.kind, Ended):
                del self._held[event.kind.segment, event.kind.scope, event.kind.name]
            return event
        return self._advance() or self._agree()

    def position(self, log_ids: Sequence[str]) -> Position:
        """Return the position from which another merge can continue after the events that were given so far.

        Args:
            log_ids: for each shard, the log to which its events belong.
        """
        held = [sorted(self._numbers(shard)) for shard in range(len(self._shards))]
        advanced = [dict(state.advanced) for state in self._shards]
        seqs = [state.seq for state in self._shards]
        return Position(seqs, held, advanced, dict(self._said), tuple(log_ids), self.handed_over)

    @property
    def wants_graph(self) -> bool:
        """Return whether ends may wait on a segment that a deployment after a hand-over does not have: set `graph`."""
        return self._ordered and bool(self.handed_over) and self.graph is None

    def _numbers(self, shard: int) -> Iterator[int]:
        """Yield the numbers of the shard's events that were taken and not given."""
        state = self._shards[shard]
        yield from state.again
        yield from (event.seq for at, event in self._passing if at == shard)
        yield from (number for heap in self._waiting.values() for *_, number, at, _ in heap if at == shard)
        yield from (event.seq for events in state.together.values() for event in events)
        yield from (event.seq for at, event in self._news.values() if at == shard)

    def _advanced(self, segment: str) -> int:
        return min(state.advanced.get(segment, _NOT_YET) for state in self._shards)

    def _reached(self, segment: str) -> int:
        """Return the end time up to which ends need not wait."""
        if self.graph is not None and segment not in self.graph:
            return _OVER
        return min(_OVER if state.finished else state.advanced.get(segment, _NOT_YET) for state in self._shards)

    def _wait(self, of: Ended | Late, time: int, shard: int, event: Event) -> None:
        heap = self._waiting.setdefault(of.segment, [])
        heappush(heap, (time, of.scope, of.name, event.seq, shard, event))

    def _let_go(self, scope: str, name: str) -> None:
        """Release the waiting ends of a substream that was given up, since its upstream ends come first."""
        for segment, heap in self._waiting.items():
            if self._held.pop((segment, scope, name), None) is not None:
                gone = sorted(entry for entry in heap if entry[1:3] == (scope, name))
                self._passing.extend((shard, event) for *_, shard, event in gone)
                heap[:] = [entry for entry in heap if entry[1:3] != (scope, name)]
                heapify(heap)

    def _advance(self) -> Event | None:
        """Return the job's progress as an event, if it is new."""
        if not self._news:
            return None
        segment, (_, event) = next(iter(self._news.items()))
        del self._news[segment]
        self._said[segment] = self._advanced(segment)
        return event._replace(kind=Advanced(segment, self._said[segment]))

    def _agree(self) -> Event | None:
        """Return a drain's event that every shard has announced, if there is one."""
        first = self._shards[0].together
        agreed = [kind for kind in _TOGETHER if all(state.together[kind] for state in self._shards)]
        if not agreed:
            return None
        kind = min(agreed, key=lambda kind: first[kind][0].seq)
        event, *_ = [state.together[kind].popleft() for state in self._shards]
        if isinstance(event.kind, Drained):
            self._begin_deployment(event.deployment, anew=_finishes(event.kind))
        return event

    def _begin_deployment(self, after: str, anew: bool) -> None:
        self.handed_over, self.graph = "" if anew else after, None
        if anew:
            self._said.clear()
            for state in self._shards:
                state.advanced.clear()
        for shard, state in enumerate(self._shards):
            later, state.later = state.later, deque()
            for event in later:
                self.take(shard, event)


def _finishes(drained: Drained) -> bool:
    return drained.mode is DrainMode.FINISH


_AHEAD: Final = 1000  #: the most events that are read ahead
_LOOK_AGAIN_S: Final = 0.2

_Said: TypeAlias = Event | TrackerError | TrackerUnavailable | None


class ShardedWatch(Iterator[Event], AbstractContextManager["ShardedWatch"]):
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Event:
        """Wait for the next event.

        Raises:
            StopIteration: the watch was closed.
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
