"""A release's state: the partial aggregates of each batch, as files that anyone can read.

The state after each epoch is a version: a small file that names the parts (directories of Parquet files) it is made of.
A batch begins with the version before it, adds its own part, takes out what has ended, and publishes the next version;
a replay begins with the same version again. Drivers are numbered as they start, and versions of one epoch go by their
driver's number: one that stood still while another took over publishes beside its successor, and is not read. Parts are
immutable. A part whose substreams have all ended is left out and
later deleted; compaction makes one part of many. Nothing here knows of the tracker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Set
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from spark_client.errors import torn
from spark_client.release.parts import NONE, Part, RowTally, Selection, Version, joined, located, versions_of
from spark_client.spark_internals.checkpoints import Batch
from spark_client.storage.directories import publish, read_json, remove, sweep, write_first, write_json, write_parquet
from spark_client.trackers.places import Place
from spark_client.windows.substreams import Substream

_DRAINED = 100_000  #: substreams of which it is remembered that only a drain has closed them: the newest
_ENDED = 1000  #: substreams that have ended, in parts that are mostly of such, above which these are rewritten


class PartialState:
    """The parts that hold what has not ended yet.

    Args:
        compact_from: how many parts there may be before they are made one.
    """

    def __init__(self, path: Path, compact_from: int = 24) -> None:
        self._path = path
        self._compact_from = compact_from
        self._epoch: int | None = None
        self._is_as_published = False  # nothing was done to it in memory since it was
        self._driver = 0  # ours among all that have had this state; 0: not claimed yet
        self._parts: dict[str, Part] = {}
        self.version = -1  #: the batch after which it was published last; -1: never
        self.place: Place | None = None  #: after the last events that have been taken
        self.bad = 0  #: rows that were set aside since they belong to no substream, in all
        self.upstream: dict[Substream, dict[str, int]] = {}  #: by segment: elements of what has ended there, not here
        self.lost: dict[Substream, int] = {}  #: elements that were in flight on those segments when it ended there
        self.drained: dict[Substream, int] = {}  #: elements of what only a drain has closed, of which more may follow
        #: What has ended at the tracker, and is kept on with what has not: whether by a drain, and after one.
        self.ended: dict[Substream, tuple[bool, bool]] = {}
        self.beside: dict[str, str] = {}  #: by directory of ``tracker``: the newest of what this version goes with

    def sweep(self) -> None:
        """Remove what drivers that were killed have left half written."""
        sweep(self._path)

    def load(self, epoch: int) -> None:
        """Make the version before `epoch` the current one, as it was published.

        What a batch or a drain that failed has made of it in memory is gone: who tries again acts on the same.

        Raises:
            TrackingError: files that it names are missing.
        """
        if self._is_as_published and self._epoch == epoch - 1:
            self._is_as_published = False  # from here on it is the caller's to change
            return
        self._is_as_published = False
        self._driver = self._driver or self._claim()
        versions = [version for version in versions_of(self._path) if version.epoch < epoch]
        version: dict[str, Any] = {}
        self.version, self._parts = -1, {}
        if versions:
            self.version = max(versions).epoch
            version, self._parts = max(versions).read(self._path)
        log_id = version.get("log_id")
        self.place = Place.of(version["position"], log_id) if log_id else None
        self.bad = version.get("bad", 0)
        self.beside = version.get("beside", {})
        self.upstream = {Substream(*key): elements for key, elements in version.get("upstream", [])}
        self.lost = {Substream(*key): elements for key, elements in version.get("lost", [])}
        self.drained = {Substream(*key): elements for key, elements in version.get("drained", [])}
        self.ended = {Substream(*key): (by, after) for key, by, after in version.get("ended", [])}
        self._epoch = epoch - 1

    def must_follow(self, epoch: int, checkpoint: Path) -> None:
        """Refuse a state that is not the one after the batch before `epoch`, or lacks something that goes with it.

        Args:
            epoch: the batch in hand.
            checkpoint: of the query, for the message.

        Raises:
            TrackingError: the state is missing, older, or of a later batch than Spark's part of the checkpoint.
        """
        if self.version == epoch - 1:
            for directory, newest in self.beside.items():
                if not (checkpoint / "tracker" / directory / newest).exists():
                    raise torn(f"{newest} is not in {checkpoint / 'tracker' / directory}", epoch, checkpoint)
            return
        last = max((each.epoch for each in versions_of(self._path)), default=-1)
        found = f"that of batch {last}" if last >= 0 else "missing"
        raise torn(f"the state in {self._path} is {found}", epoch, checkpoint)

    def join(self, other: PartialState) -> None:
        """Take over from another release of the query what does not depend on the release: this one has begun later.

        Args:
            other: that release's state, after the same batch.
        """
        self.place, self.bad, self.beside = other.place, other.bad, dict(other.beside)
        self.lost, self.drained = dict(other.lost), dict(other.drained)
        self.ended = dict(other.ended)
        self.upstream = {substream: dict(counts) for substream, counts in other.upstream.items()}

    def write_part(self, epoch: int, partials: DataFrame) -> Path:
        """Write a batch's partial aggregates; they are part of the state once `add` has indexed them."""
        target = self._new("epoch", epoch)
        publish(target, write_parquet(partials))
        return target

    def add(
        self,
        part: Path,
        epoch: int,
        rows: dict[Substream, RowTally],
        late: set[Substream],
        batch: Batch | None = None,
        bare: Set[Substream] = frozenset(),
    ) -> None:
        """Take a written part into the state.

        Args:
            rows: of the stream, by substream.
            late: those of them that are over already.
            batch: what is to be remembered of the epoch's batch.
            bare: those of which the part has no partial rows.
        """
        if not rows:
            remove(part)
            return
        batches = {} if batch is None else {epoch: batch}
        added = Part(part.name, epoch, rows, batches, frozenset(bare)).index(self._path)
        added.live -= late
        self._parts[part.name] = added

    @property
    def epoch(self) -> int:
        """The last batch that is in it; -1: none."""
        return -1 if self._epoch is None else self._epoch

    def is_before(self, place: Place) -> bool:
        """Return whether there are events up to a place that it has not taken."""
        return self.place is None or place.is_beyond(self.place)

    def of(self, substream: Substream) -> list[tuple[int, str]]:
        """Return the parts in which a substream lives: (last epoch, name), oldest first."""
        return sorted((part.epoch, part.name) for part in self._parts.values() if substream in part.live)

    def tally(self, substream: Substream, names: Iterable[str]) -> RowTally:
        """Return the rows of a substream in some parts."""
        return reduce(RowTally.__add__, (self._parts[name].rows[substream] for name in names), NONE)

    def has_rows(self, substream: Substream, names: Iterable[str]) -> bool:
        """Return whether some parts have partial rows of a substream."""
        return any(substream not in self._parts[name].bare for name in names)

    def batch(self, epoch: int | None) -> Batch:
        """Return what is remembered of a batch."""
        remembered = (part.batches[epoch] for part in self._parts.values() if epoch in part.batches)
        return next(remembered, Batch())

    def selections(self, wanted: Mapping[Substream, Iterable[str]]) -> list[Selection]:
        """Return how to read some substreams in some parts each, by their paths: see `parts.selections`."""
        return located(self._path, self._parts, wanted)

    @property
    def live(self) -> dict[Substream, list[tuple[int, str]]]:
        """Return what has not ended, with the parts in which each lives, as `of` gives them."""
        return _living(self._parts.values())

    @property
    def substreams(self) -> set[Substream]:
        """Return what has not ended."""
        return {substream for part in self._parts.values() for substream in part.live}

    @property
    def rows(self) -> int:
        """The rows of the stream that it was made of, of what has not ended."""
        return sum(part.rows[substream].rows for part in self._parts.values() for substream in part.live)

    def note_upstream(self, substream: Substream, segment: str, elements: int, in_flight: int) -> None:
        """A substream has ended on a segment that leads here: noted until it has ended here, too."""
        if elements:
            self.upstream.setdefault(substream, {})[segment] = elements
        if in_flight:
            self.lost[substream] = self.lost.get(substream, 0) + in_flight

    def note_drained(self, substream: Substream, elements: int) -> None:
        """A drain has closed a substream, and released so many elements of it: the rest of it may come later."""
        self.drained[substream] = self.drained.pop(substream, 0) + elements
        while len(self.drained) > _DRAINED:
            del self.drained[next(iter(self.drained))]

    def drop(self, substreams: Iterable[Substream], up_to: int | None = None) -> None:
        """Take substreams out: they are released.

        Args:
            up_to: the last batch whose rows were released; what came later stays. None: nothing did.
        """
        ended = set(substreams)
        for noted in (self.upstream, self.lost):
            for substream in ended & noted.keys():
                del noted[substream]
        for name, part in list(self._parts.items()):
            if up_to is not None and part.epoch > up_to:
                continue
            part.live -= ended
            if not part.live:
                del self._parts[name]

    def take_out(self, substream: Substream, names: Iterable[str]) -> None:
        """Take a substream out of some parts: what they have of it is no part of any result."""
        for name in names:
            self._parts[name].live.discard(substream)
            if not self._parts[name].live:
                del self._parts[name]

    def write_carried(self, epoch: int, partials: DataFrame) -> Path:
        """Write what is kept of substreams that have ended; it is a part of the state once `carry` has indexed it."""
        target = self._new("carried", max(epoch, self.epoch))
        publish(target, write_parquet(partials))
        return target

    def carry(self, part: Path, rows: dict[Substream, RowTally]) -> None:
        """Take what is kept of substreams that have ended into the state: none of it was late."""
        if rows:
            self._parts[part.name] = Part(part.name, self.epoch - 1, rows, {}).index(self._path)
        else:
            remove(part)

    def compact(self, epoch: int, up_to: int, merge: Callable[[list[Selection]], DataFrame]) -> None:
        """Make one part of many small ones, if there are too many, or of those that are mostly of what has ended.

        Args:
            epoch: of the batch in hand.
            up_to: the last epoch of which it is known that none of its rows were late.
            merge: reads some substreams of some parts, and merges their rows.
        """
        settled = sorted((part for part in self._parts.values() if part.epoch <= up_to), key=_size)
        if len(settled) >= self._compact_from:
            chosen = settled[: max(2, len(settled) * 3 // 4)]  # the largest wait, so that each row is rewritten rarely
        else:
            # What has ended beside something that has not is listed with every version, and its rows take their place.
            chosen = [part for part in settled if 2 * len(part.live) <= len(part.rows)]
            if sum(len(part.rows) - len(part.live) for part in chosen) < _ENDED:
                return
        target = self._new("merged", epoch)
        part = joined(chosen, target.name)
        kept = {each: [name for _, name in living] for each, living in _living(chosen).items()}
        publish(target, write_parquet(merge(self.selections(kept))))
        for each in chosen:
            del self._parts[each.name]
        self._parts[part.name] = part.index(self._path)

    def publish(self, epoch: int) -> None:
        """Publish the version after `epoch`, and delete what neither it nor the one before it needs."""
        gone = {name: part.rows.keys() - part.live for name, part in self._parts.items()}
        dead = set[Substream]().union(*gone.values()) - self.substreams
        partly = {name: sorted(some - dead, key=str) for name, some in gone.items() if some - dead}
        version = {
            "parts": sorted(self._parts),
            "dead": sorted(dead, key=str),
            "partly": partly,
            "ended": [[list(key), *flags] for key, flags in self.ended.items()],
            "position": 0 if self.place is None else self.place.numbers,
            "log_id": "" if self.place is None else self.place.ids,
            "bad": self.bad,
            "beside": self.beside,
            "drained": [[list(key), elements] for key, elements in self.drained.items()],
            "upstream": [[list(key), elements] for key, elements in self.upstream.items()],
            "lost": [[list(key), elements] for key, elements in self.lost.items()],
        }
        write_json(Version(epoch, self._driver).file(self._path), version)
        self._epoch = self.version = epoch
        self._is_as_published = True
        published = versions_of(self._path)
        earlier = [version for version in published if version.epoch < epoch]
        if not earlier:
            return
        before = max(earlier)
        for each in published:
            if each < before:
                each.file(self._path).unlink(missing_ok=True)
        needed = {*self._parts, *((read_json(before.file(self._path)) or {}).get("parts", []))}
        for entry in self._path.iterdir():
            is_part = entry.is_dir() and entry.name[0] != "_"
            if is_part and entry.name not in needed and _epoch_of(entry.name) <= before.epoch:
                remove(entry)

    def _new(self, kind: str, epoch: int) -> Path:
        """Return a part's own name: a driver that was fenced and does not know it yet must not touch its
        successor's."""
        return self._path / f"{kind}-{epoch:012d}-{uuid.uuid4().hex[:8]}"

    def _claim(self) -> int:
        """Return the next driver's number: later than all before it, and nobody else's."""
        own = uuid.uuid4().hex
        while True:
            taken = [int(path.stem.removeprefix("driver-")) for path in self._path.glob("driver-*.json")]
            number = max(taken, default=0) + 1
            if write_first(self._path / f"driver-{number:06d}.json", own) == own:
                for earlier in taken:
                    (self._path / f"driver-{earlier:06d}.json").unlink(missing_ok=True)
                return number


def _living(parts: Iterable[Part]) -> dict[Substream, list[tuple[int, str]]]:
    """Return what lives in some parts, with the last epoch and the name of each part."""
    living: dict[Substream, list[tuple[int, str]]] = {}
    for part in sorted(parts, key=lambda part: (part.epoch, part.name)):
        for substream in part.live:
            living.setdefault(substream, []).append((part.epoch, part.name))
    return living


def _size(part: Part) -> int:
    return sum(tally.rows for tally in part.rows.values())


def _epoch_of(part: str) -> int:
    """Return the epoch in a part's name."""
    return int(part.split("-")[1])
