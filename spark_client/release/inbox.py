"""The events that a release acts on: each once, in batches that act on the same ones when replayed, and however
long the query was away.

What a batch acts on is written down before it acts. The tracker keeps the release's events until the batch that acted
on them is committed: a durable subscription under the query's id, for as long as the query may be away. Should it have
been away for longer, or its subscription be gone, the tracker is asked for what the state still holds, one substream
after the other; so no end is ever lost, only where exactly it came.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from spark_client.counting.runs import ONE_ATTEMPT, Run
from spark_client.errors import TrackingError, torn
from spark_client.release.state import PartialState
from spark_client.storage.directories import read_json, sweep, write_first, write_json
from spark_client.trackers.eventlogs import Subscriptions
from spark_client.trackers.places import Place
from spark_client.windows.eventtime import micros_of
from spark_client.windows.substreams import Substream, Substreams
from tracker.client import Ended, Event, Late, Reason, TrackerError, TrackerUnavailable

_log = logging.getLogger("spark_client")

_ACKNOWLEDGE_EVERY: Final = 1.0  #: seconds between two acknowledgements
_DRAIN: Final = "drain"  #: in the note of a batch in whose place a drain acts: the drain's number


class Inbox:
    """Events read for a query's releases, to be acted on.

    Args:
        path: the directory of its notes: one for each of the newest batches.
        states: the releases', each of which has its place in the events, too.
        segments: whose events it reads: that one, and others.
        rule: how rows fall into substreams.
        max_away: how long the tracker keeps events for a query that is away; None: as the tracker likes.
    """

    def __init__(
        self,
        path: Path,
        states: Sequence[PartialState],
        segment: str,
        segments: Sequence[str],
        rule: Substreams,
        max_away: timedelta | None,
    ) -> None:
        self._path = path
        self._states = states
        self._segment = segment
        self._segments = list(segments)
        self._rule = rule
        self._max_away = max_away
        self._lock = threading.Lock()
        self._subscription: Subscriptions | None = None
        self._lost = False  # events between the state's place and the subscription's are gone
        self._taken: tuple[int, Place] | None = None  # a batch that acts, and up to where
        self._acknowledge_at = 0.0

    @property
    def _state(self) -> PartialState:
        """The one that is furthest behind: all are at the same place, unless a driver died while it drained."""
        behind = self._states[0]
        for state in self._states[1:]:
            if behind.place is not None and state.is_before(behind.place):
                behind = state
        return behind

    def must_follow(self, epoch: int, checkpoint: Path) -> None:
        """Refuse notes that are not those by which the state before an epoch was made: they may lack the epoch's own.

        Args:
            epoch: the batch in hand.
            checkpoint: of the query, for the message.

        Raises:
            TrackingError: the note of the batch before, or of a drain after it, is missing, or of other events.
        """
        last, place = epoch - 1, self._state.place
        if last >= 0 and place is not None and place not in map(self.up_to, (last, -last - 1)):
            raise torn(f"what batch {last} acted on is not in {self._path}", epoch, checkpoint)

    def take(self, run: Run, epoch: int) -> list[Event]:
        """Return the events that an epoch acts on: fixed by its first attempt, before it acts.

        Raises:
            TrackingError: the tracker refuses, or cannot be reached.
        """
        if self._subscription is None:
            self._subscribe(run)
        note = self._note(epoch)
        chosen = read_json(note)
        events: list[Event] | None = None
        if chosen is None or _DRAIN in chosen:
            mine, found = self._choose(run)
            if chosen is None:
                chosen = write_first(note, mine)
            if _DRAIN in chosen:
                run.must_be_newest()  # a drain has taken the batch's place: only who comes after it may have it back
                write_json(note, mine)
                chosen = mine
            events = found if chosen == mine else None  # else another driver of this query was here meanwhile
            for old in note.parent.glob("*.json"):
                if abs(int(old.stem)) < abs(epoch) - 2:
                    old.unlink(missing_ok=True)
        place = Place.of(chosen["up_to"], chosen["log_id"])
        if events is None:
            events, _ = run.events(Place.of(chosen["after"], chosen["log_id"]), place, self._segments)
        for each in self._states:
            each.place = place
        self._lost = False
        with self._lock:
            self._taken = epoch, place
        return [*self._made_good(chosen, run), *events]

    def up_to(self, epoch: int) -> Place | None:
        """Return the place after the last events that an epoch acts on; None: it has not begun to."""
        return up_to(self._path, epoch)

    def act_instead(self, drain: int, epoch: int) -> None:
        """A drain acts on what the next batch would: from now on no attempt of that batch can begin to.

        Raises:
            TrackingError: it has begun to.
        """
        if _DRAIN not in write_first(self._note(epoch), {_DRAIN: drain}):
            raise TrackingError(
                f"batch {epoch} has begun to release and was not committed: it has to be brought to its end first. "
                "Start its query again, and the drain goes on"
            )

    def committed(self, epoch: int) -> None:
        """Let go of what this epoch, and those before it, acted on. To be called again and again: the
        tracker is told now and then.

        Args:
            epoch: that is committed; a drain's last one is negative, and is named when its state was published.
        """
        with self._lock:
            subscription, taken, now = self._subscription, self._taken, time.monotonic()
            if subscription is None or taken is None or taken[0] > epoch or (now < self._acknowledge_at and epoch >= 0):
                return
            self._taken, self._acknowledge_at = None, now + _ACKNOWLEDGE_EVERY
        try:
            subscription.ack(taken[1], timeout=ONE_ATTEMPT)
        except TrackerUnavailable as error:
            _log.info("what was released is not acknowledged yet, and will be: %s", error)
            with self._lock:
                self._taken = self._taken or taken
        except TrackerError as error:
            _log.warning("the tracker does not keep this release's events any more: %s", error)
            self._subscription = None  # the next batch makes it again

    def sweep(self) -> None:
        """Remove what drivers that were killed have left half written."""
        sweep(self._path)

    def _note(self, epoch: int) -> Path:
        return self._path / f"{epoch}.json"

    def _subscribe(self, run: Run) -> None:
        state = self._state
        self._subscription = run.subscribe(state.place or run.place, self._segments, self._max_away)
        self._lost = self._subscription.incomplete
        if self._lost:
            _log.warning(
                "query %s was away for longer than its events were kept: the tracker is asked for each of the %d "
                "substreams of its state",
                run.query,
                len(state.substreams),
            )

    def _choose(self, run: Run) -> tuple[dict[str, Any], list[Event]]:
        """Return what this attempt would act on: for the note, and as events."""
        state = self._state
        kept: dict[Substream, list[Substream]] = {}
        after, ended = state.place or run.place, None
        if self._lost and self._subscription is not None:
            after = self._subscription.beginning(after)
            kept = self._awaited()
            ended = run.ended_of(kept.keys(), self._segment)
        events, up_to = run.events(after, None, self._segments)
        chosen = _note_of(after, up_to)
        if ended is not None:
            ends = [event.kind for event in events if isinstance(event.kind, Ended)]
            announced = {(end.scope, end.name) for end in ends if end.segment == self._segment}
            chosen["at"] = micros_of(datetime.now(timezone.utc))
            chosen["over"] = [
                [list(substream), *self._counts(kept[substream], elements)]
                for substream, elements in sorted(ended.items(), key=str)
                if substream[:2] not in announced
            ]
        return chosen, events

    def _awaited(self) -> dict[Substream, list[Substream]]:
        """Return the substreams of the tracker whose ends are waited for, with what the state keeps of each."""
        kept: dict[Substream, list[Substream]] = {}
        for substream in self._state.substreams:
            for each in self._rule.tracked_as(substream):
                if each not in self._state.ended:
                    kept.setdefault(each, []).append(substream)
        return kept

    def _counts(self, kept: Sequence[Substream], elements: int | None) -> tuple[int, bool]:
        """Return how many elements it had; and whether the last batch's rows of it came too late, as far as counts
        tell."""
        state = self._state
        parts = [(substream, *part) for substream in kept for part in state.of(substream)]
        rows = sum(state.tally(substream, [name]).rows for substream, _, name in parts)
        newest = sum(state.tally(substream, [name]).rows for substream, epoch, name in parts if epoch == state.epoch)
        if elements is None:
            return rows, False
        return elements, rows - newest == elements < rows

    def _made_good(self, chosen: dict[str, Any], run: Run) -> list[Event]:
        """Return the ends that were asked for, as the events that they were."""
        events = []
        seq = max(Place.of(chosen["after"], chosen["log_id"]).seqs)
        for key, elements, late in chosen.get("over", []):
            scope, name, end_time = key
            at_ns = chosen["at"] * 1_000
            ended = Ended(self._segment, scope, name, end_time, elements, Reason.COMPLETE, 0)
            events.append(Event(seq, at_ns, "", ended))
            if late:
                events.append(Event(seq, at_ns, "", Late(self._segment, scope, name, run.query, 0, 0)))
        return events


def up_to(notes: Path, epoch: int) -> Place | None:
    """Return the same as `Inbox.up_to`, for those who have no query."""
    note = read_json(notes / f"{epoch}.json")
    return None if note is None or _DRAIN in note else Place.of(note["up_to"], note["log_id"])


def write_note(notes: Path, epoch: int, place: Place) -> None:
    """Write the note of a batch whose state comes from elsewhere: it has acted on nothing here.

    Args:
        notes: the inbox's directory, which is made.
        epoch: the batch after which that state was published.
        place: up to which that state has taken the events.
    """
    notes.mkdir()
    write_json(notes / f"{epoch}.json", _note_of(place, place))


def _note_of(after: Place, up_to: Place) -> dict[str, Any]:
    """Return the note of a batch that acts on the events between two places."""
    return {"after": after.numbers, "log_id": after.ids, "up_to": up_to.numbers}
