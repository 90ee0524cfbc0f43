"""The events that a release acts on: each once, by acts that are the same when they are repeated, and however long the
query was away.

An act is of a batch, or stands between two batches: what ends while no batch comes is released all the same. Acts are
numbered in one row. Each is written down before anything is done, in a note that is created once: so of two drivers
that would act next, one being a zombie, one decides what the next act is, and the other repeats that act or stops. A
version of the state counts the acts that it is the outcome of.

The tracker keeps the release's events until the act that took them is published: a durable subscription under the
query's id, for as long as the query may be away. Should it have been away for longer, or its subscription be gone, the
tracker is asked for what the state still holds, one substream after the other; so no end is ever lost, only where
exactly it came.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

from spark_client.counting.news import ONE_ATTEMPT
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError, torn
from spark_client.release.state import PartialState
from spark_client.spark_internals.checkpoints import drop_last_source
from spark_client.storage.directories import make
from spark_client.storage.folder import Folder
from spark_client.trackers import Place
from spark_client.trackers.eventlogs import Subscriptions
from spark_client.windows.eventtime import micros_of
from spark_client.windows.substreams import Substream, Substreams
from tracker.client import Ended, Event, Late, Reason, TrackerError, TrackerUnavailable
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

_ACKNOWLEDGE_EVERY: Final = 1.0  #: seconds between two acknowledgements
ACTS: Final = "acts"  #: beneath ``tracker`` in a checkpoint: the notes of its acts
BEFORE: Final = "events"  #: beside the acts' directory: notes by batch, as version 0.2 left them
_NOTE: Final = re.compile(r"(\d+)\.json")
_DRAIN: Final = "drain"  #: in such a note: a drain has acted in place of the batch


@dataclass(frozen=True, slots=True)
class Act:
    """Ends that a query acts on at once.

    Attributes:
        number: 0, 1, 2, … of the query's acts.
        batch: whose rows it takes in; None: none, it is between two batches.
        at: when it was begun first, in microseconds since the epoch.
        events: that it acts on.
    """

    number: int
    batch: int | None
    at: int
    events: Sequence[Event]

    @property
    def epoch(self) -> int:
        """The number under which the results go out: the batch's, or a negative one that is no batch's.

        >>> Act(7, 3, 0, ()).epoch, Act(7, None, 0, ()).epoch
        (3, -8)
        """
        return -self.number - 1 if self.batch is None else self.batch


class _Taken(NamedTuple):
    """The newest act whose events the tracker still keeps, by its number, and up to where they go."""

    number: int
    batch: int | None
    place: Place


class Inbox:
    """Events read for a query's releases, to be acted on.

    Args:
        folder: its notes: one for each of the newest acts.
        before: notes that version 0.2 has left.
        states: the releases', each of which has its place in the events, too.
        segments: whose events it reads: that one, and others.
        max_away: how long the tracker keeps events for a query that is away; None: as the tracker likes.
    """

    def __init__(
        self,
        folder: Folder,
        before: Folder,
        states: Sequence[PartialState],
        segment: str,
        segments: Sequence[str],
        rule: Substreams,
        max_away: timedelta | None,
    ) -> None:
        self._folder = folder
        self._before = before
        self._states = states
        self._segment = segment
        self._segments = list(segments)
        self._rule = rule
        self._max_away = max_away
        self._lock = threading.Lock()
        self._subscription: Subscriptions | None = None
        self._lost = False  # events between the state's place and the subscription's are gone
        self._taken: _Taken | None = None
        self._fixed: tuple[int, Place] | None = None  # the newest act that this driver knows to stand
        self._looked_at: Place | None = None  # events up to here are no news
        self._acknowledge_at = 0.0

    @property
    def _state(self) -> PartialState:
        """The one that is furthest behind: all are at the same place, unless a driver died while it drained."""
        behind = self._states[0]
        for state in self._states[1:]:
            if behind.place is not None and state.is_before(behind.place):
                behind = state
        return behind

    @property
    def next(self) -> int:
        """The number of the act that comes after the state: of several states, after the one that is behind."""
        return min(state.acts for state in self._states)

    def must_follow(self, epoch: int, checkpoint: Folder) -> None:
        """Refuse notes that are not those by which the state before an epoch was made: the next may be missing, too.

        Args:
            checkpoint: of the query, for the message.

        Raises:
            TrackingError: the note of the act that has left the state is missing, or of other events.
        """
        place, last = self._state.place, self.next - 1
        if last < 0 or place is None or self._fixed == (last, place):
            return
        note = self._folder.read(_note(last))
        notes = [note] if note is not None else map(self._before.read, (f"{epoch - 1}.json", f"{-epoch}.json"))
        if place not in (_place_after(each) for each in notes if each is not None and _DRAIN not in each):
            raise torn(f"what batch {epoch - 1} acted on is not in {self._folder}", epoch, checkpoint)

    def begin(self, run: Run, batch: int | None) -> Act:
        """Return the next act, which is fixed by whoever asks first. It may be another one than is asked for: one that
        an earlier driver has begun between two batches, and that is to be repeated before.

        Args:
            batch: that is to be processed; None: what has ended is to be released between two batches.

        Raises:
            TrackingError: another driver has gone on from here; or the tracker refuses, or cannot be reached.
        """
        if self._subscription is None and not (run.away and batch is not None):
            self._subscribe(run)
        number = self.next
        chosen = None
        if self._fixed is None or self._fixed[0] != number - 1:  # else nobody has begun it, but for one who took over
            chosen = self._folder.read(_note(number)) or self._of_before(number)
        events: list[Event] | None = None
        if chosen is None:
            mine, found = self._choose(run, batch)
            chosen = self._folder.create(_note(number), mine)
            events = found if chosen == mine else None  # else another driver of this query was here meanwhile
        # It may be behind a successor that has come further, where notes are gone: there it decides nothing.
        run.must_be_newest()
        if chosen.get("batch") not in (batch, None):
            raise TrackingError(
                f"run {run.run} of query {run.query} writes nothing more: another run of the query has taken over, and "
                f"has begun batch {chosen['batch']}. Stop this driver"
            )
        place = _place_after(chosen)
        settled: int | None = chosen.get("settled", self._state.epoch)  # which was not noted before there was an outbox
        if events is None:
            after = Place.of(chosen["after"], chosen["log_id"])
            events = [] if settled is None else run.news.events(after, place, self._segments)[0]
        self._fixed = number, place
        self._folder.delete(map(_note, (number - 3, number - 4)))
        self._lost &= settled is None
        for each in self._states:
            each.begin(number, place, settled)
        with self._lock:
            self._taken = _Taken(number, chosen.get("batch"), place)
        events = [*self._made_good(chosen, run), *events]
        return Act(number, chosen.get("batch"), chosen.get("at") or _now(), events)

    def has_news(self, run: Run) -> bool:
        """Return whether something has happened that a release of the state would act on.

        Raises:
            TrackingError: the tracker refuses, or cannot be reached.
        """
        after = self._looked_at
        if after is None or not self._state.is_before(after):
            after = self._state.place or run.place
        try:
            found, self._looked_at = run.news.look_for((Ended, Late), after, [self._segment])
        except TrackingError as error:
            if getattr(error.__cause__, "reason", "") != Refusal.EVENTS_EXPIRED:
                raise
            return True
        return found

    def has_begun(self, batch: int) -> bool:
        """Return whether a batch has begun to act: its results may be out."""
        return has_begun(self._folder, self._before, batch)

    def committed(self, epoch: int, at_once: bool = False) -> None:
        """Let go of what was acted on up to here. To be called often: the tracker gets an acknowledgement now and then.

        Args:
            epoch: the last batch that Spark has committed; what was done between two batches is published.
            at_once: acknowledge in any case.
        """
        with self._lock:
            subscription, taken, now = self._subscription, self._taken, time.monotonic()
            if subscription is None or taken is None or (taken.batch or 0) > epoch:
                return
            if taken.number >= min(state.published_acts for state in self._states):
                return
            if now < self._acknowledge_at and not at_once:
                return
            self._taken, self._acknowledge_at = None, now + _ACKNOWLEDGE_EVERY
        try:
            subscription.ack(taken.place, timeout=ONE_ATTEMPT)
        except TrackerUnavailable as error:
            _log.info("what was released is not acknowledged yet, and will be: %s", error)
            with self._lock:
                self._taken = self._taken or taken
        except TrackerError as error:
            _log.warning("the tracker does not keep this release's events any more: %s", error)
            self._subscription = None  # the next act makes it again

    def sweep(self) -> None:
        """Remove what drivers have decided behind others that have taken over."""
        numbers = [int(found[1]) for name in self._folder.names() if (found := _NOTE.fullmatch(name))]
        self._folder.delete(_note(number) for number in numbers if number < self.next - 2)

    def _of_before(self, number: int) -> dict[str, Any] | None:
        """Return what a batch acts on that version 0.2 has begun; None: there is no such batch."""
        noted = self._before.read(f"{number}.json") if number == self._states[0].epoch + 1 else None
        if noted is None:
            return None
        if _DRAIN in noted:
            drained = self._before.read(f"{-number}.json")
            if drained is not None and self._state.is_before(_place_after(drained)):
                raise TrackingError(
                    f"{self._before} has a drain that version 0.2 has begun and not ended: start the query with that "
                    "version again, which ends the drain"
                )
            return None
        chosen: dict[str, Any] = self._folder.create(_note(number), {**noted, "batch": number})
        return chosen

    def _subscribe(self, run: Run) -> None:
        state = self._state
        self._subscription = run.news.subscribe(state.place or run.place, self._segments, self._max_away)
        self._lost = self._subscription.incomplete
        if self._lost:
            _log.warning(
                "query %s was away for longer than its events were kept: the tracker is asked for each of the %d "
                "substreams of its state",
                run.query,
                len(state.substreams),
            )

    def _choose(self, run: Run, batch: int | None) -> tuple[dict[str, Any], list[Event]]:
        """Return what this attempt would act on, for the note, and as events: nothing in a batch while the tracker is
        away.
        """
        place = self._state.place or run.place
        chosen = {"batch": batch, "at": _now(), "settled": None, **_note_of(place, place)}
        found = self._look(run) if batch is None else run.unless_away(lambda: self._look(run))
        return (chosen, []) if found is None else ({**chosen, **found[0]}, found[1])

    def _look(self, run: Run) -> tuple[dict[str, Any], list[Event]]:
        """Return what has happened since the last act, as `_choose` does."""
        state = self._state
        settled = run.outbox.settled(state.epoch)
        kept: dict[Substream, list[Substream]] = {}
        after, ended = state.place or run.place, None
        if self._lost and self._subscription is not None:
            after = self._subscription.beginning(after)
            kept = self._awaited()
            ended = run.news.ended_of(kept.keys(), self._segment)
        events, up_to = run.news.events(after, None, self._segments)
        chosen = {"settled": settled, **_note_of(after, up_to)}
        if ended is not None:
            ends = [event.kind for event in events if isinstance(event.kind, Ended)]
            announced = {(end.scope, end.name) for end in ends if end.segment == self._segment}
            chosen["over"] = [
                [list(substream), *self._counts(kept[substream], elements, settled)]
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

    def _counts(self, kept: Sequence[Substream], elements: int | None, settled: int) -> tuple[int, bool]:
        """Return how many elements it had; and whether the rows of it in the last batch that was reported
        came too late, as far as counts tell."""
        state = self._state
        parts = [(substream, *part) for substream in kept for part in state.of(substream) if part[0] <= settled]
        rows = sum(state.tally(substream, [name]).rows for substream, _, name in parts)
        newest = sum(state.tally(substream, [name]).rows for substream, epoch, name in parts if epoch == settled)
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


def _now() -> int:
    return micros_of(datetime.now(timezone.utc))


def forget_wake_ups(checkpoint: Folder) -> None:
    """Let a query of version 0.2 go on: its last source made batches happen when something had ended.

    Args:
        checkpoint: of a query that does not run.
    """
    if checkpoint.path is None:  # version 0.2 had none in a store
        return
    tracker = checkpoint.path / "tracker"
    if (tracker / BEFORE).is_dir() and not (tracker / ACTS).exists():
        drop_last_source(checkpoint, lambda place: place.keys() == {"seq", "log_id"})
        make(tracker / ACTS)


def has_begun(notes: Folder, before: Folder, batch: int) -> bool:
    """Return whether a query has begun to act for a batch: its results may be out.

    Args:
        notes: the folder of the inbox, a file for each note.
        before: notes that version 0.2 has left.
    """
    newest = max((name for name in notes.names() if _NOTE.fullmatch(name)), default=None)
    noted = None if newest is None else notes.read(newest)
    if noted is None:
        noted = before.read(f"{batch}.json")
        return noted is not None and _DRAIN not in noted
    return noted["batch"] is not None and int(noted["batch"]) >= batch


def write_note(notes: Folder, acts: int, epoch: int, place: Place) -> None:
    """Write the note of a batch whose state comes from elsewhere: it has acted on nothing here.

    Args:
        notes: the folder of the inbox, a file for each note.
        acts: of which that state is the outcome.
        epoch: the batch after which that state was published.
        place: up to which that state has taken the events.
    """
    notes.put(_note(acts - 1), {"batch": epoch, **_note_of(place, place)})


def _note(number: int) -> str:
    return f"{number:012d}.json"


def _note_of(after: Place, up_to: Place) -> dict[str, Any]:
    """Return the note of what acts on the events between two places."""
    return {"after": after.numbers, "log_id": after.ids, "up_to": up_to.numbers}


def _place_after(note: Mapping[str, Any]) -> Place:
    return Place.of(note["up_to"], note["log_id"])
