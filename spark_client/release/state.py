"""A release's state: the partial aggregates of each batch, as files that anyone can read.

The state after each epoch is a version: a small file that names the parts (directories of Parquet files) it is made of.
A batch begins with the version before it, adds its own part, takes out what has ended, and publishes the next version;
a replay begins with the same version again. Drivers are numbered as they start, and versions of one epoch go by their
driver's number: one that stood still while another took over publishes beside its successor, and is not read. Parts are
immutable. A part whose substreams have all ended is left out and
later deleted; compaction makes one part of many. Nothing here knows of the tracker.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import reduce
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame

from spark_client.counting.groups import Dataset, files
from spark_client.errors import torn
from spark_client.release.parts import INDEX, NONE, Part, RowTally, Selection, Version, joined, located, versions_of
from spark_client.spark_internals.checkpoints import Batch
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.folder import Folder
from spark_client.trackers import Place
from spark_client.windows.substreams import Substream

_DRAINED = 100_000  #: substreams of which it is remembered that only a drain has closed them: the newest
_CUT = 10_000  #: likewise, that a rule has ended them: each version lists them, and there may be more with every hour
#: A part, or what a driver of an earlier version has left of one that it was to rename.
_PART: Final = re.compile(r"_?[a-z]+-(\d{12})-.*/")
_DRIVER: Final = re.compile(r"driver-(\d+)\.json")
_ENDED = 1000  #: substreams that have ended, in parts that are mostly of such, above which these are rewritten


class _Written(NamedTuple):
    """A part that was written: the epoch, and its files if their names are known."""

    epoch: int
    files: Sequence[str] = ()


class PartialState:
    """The parts that hold what has not ended yet.

    Args:
        compact_from: how many parts there may be before they are made one.
    """

    def __init__(self, folder: Folder, compact_from: int = 24) -> None:
        self._folder = folder
        self._published: dict[Version, Set[str] | None] = {}  # with the parts that each names, once known
        self._written: dict[str, _Written] = {}  # all parts that are there, also those that nobody needs
        self._compact_from = compact_from
        self._epoch: int | None = None
        self.is_as_published = False  #: nothing was done to it in memory since it was read or published
        self._before: Version | None = None  # that it was read from, or published as
        self._driver = 0  # ours among all that have had this state; 0: not claimed yet
        self._parts: dict[str, Part] = {}
        self.version = -1  #: the batch after which it was published last; -1: never
        self.acts = 0  #: of which it is the outcome: see `Inbox`
        self.place: Place | None = None  #: after the last events that have been taken
        self.settled = -1  #: the last batch of which it is known by them which rows were late
        self.bad = 0  #: rows that were set aside since they belong to no substream, in all
        self.upstream: dict[Substream, dict[str, int]] = {}  #: by segment: elements of what has ended there, not here
        self.lost: dict[Substream, int] = {}  #: elements that were in flight on those segments when it ended there
        self.drained: dict[Substream, int] = {}  #: elements of what only a drain has closed, of which more may follow
        self.cut: dict[Substream, int] = {}  #: elements of what a rule has ended: a later deployment may have more
        #: Substreams that have ended at the tracker, kept on with others: how each was cut short; whether after a
        #: drain.
        self.ended: dict[Substream, tuple[str, bool]] = {}
        self.beside: dict[str, str] = {}  #: by directory of ``tracker``: the newest of what this version goes with

    def load(self, epoch: int) -> None:
        """Make the version before `epoch` the current one, as it was published.

        All that an act which failed has made of the state in memory is gone: the next attempt acts on the same.

        Raises:
            TrackingError: files that it names are missing.
        """
        if self.is_as_published and self._epoch == epoch - 1:
            return
        self.is_as_published = False
        names = self._folder.names() if self._driver else self._claim()
        self._published = dict.fromkeys(versions_of(names))
        self._written = {name[:-1]: _Written(int(found[1])) for name in names if (found := _PART.fullmatch(name))}
        versions = [version for version in self._published if version.epoch < epoch]
        version: dict[str, Any] = {}
        self.version, self._parts = -1, {}
        self._before = max(versions, default=None)
        if self._before is not None:
            self.version = self._before.epoch
            version, self._parts = self._before.read(self._folder)
            self._published[self._before] = set(version["parts"])
        # Version 0.2 did not count them. No act of its batches and drains has a number as high as that.
        self.acts = version.get("acts", self.version + 1)
        log_id = version.get("log_id")
        self.place = Place.of(version["position"], log_id) if log_id else None
        self.settled = version.get("settled", self.version - 1)
        self.bad = version.get("bad", 0)
        self.beside = version.get("beside", {})
        self.upstream = {Substream(*key): elements for key, elements in version.get("upstream", [])}
        self.lost = {Substream(*key): elements for key, elements in version.get("lost", [])}
        self.drained = {Substream(*key): elements for key, elements in version.get("drained", [])}
        self.cut = {Substream(*key): elements for key, elements in version.get("cut", [])}
        # Version 0.2 knew drains alone, as true and false.
        ended = [
            (key, {True: "drained", False: ""}.get(cut, cut), after) for key, cut, after in version.get("ended", [])
        ]
        self.ended = {Substream(*key): (cut, after) for key, cut, after in ended}
        self._epoch = epoch - 1
        self.is_as_published = True

    def begin(self, act: int, place: Place, settled: int | None) -> None:
        """Note that an act changes the state from here on, and up to where the state takes events by it.

        Args:
            act: the number of the act; a state that has this act behind it keeps its place.
            settled: the last batch of which the events name what was late; None: they are of no batch more.
        """
        self.is_as_published = False
        if self.acts == act:
            self.place, self.acts = place, act + 1
            self.settled = self.settled if settled is None else settled

    def must_follow(self, epoch: int, checkpoint: Folder) -> None:
        """Refuse a state that is not the one after the batch before `epoch`, or lacks something that goes with it.

        Args:
            checkpoint: of the query, for the message.

        Raises:
            TrackingError: the state is missing, older, or of a later batch than Spark's part of the checkpoint.
        """
        if self.version == epoch - 1:
            for directory, newest in self.beside.items():
                if not (beside := checkpoint / "tracker" / directory).holds(newest):
                    raise torn(f"{newest} is not in {beside}", epoch, checkpoint)
            return
        last = max((each.epoch for each in self._published), default=-1)
        found = f"that of batch {last}" if last >= 0 else "missing"
        raise torn(f"the state in {self._folder} is {found}", epoch, checkpoint)

    def join(self, other: PartialState) -> None:
        """Take over from another release of the query what does not depend on the release: this one has begun later.

        Args:
            other: that release's state, after the same batch.
        """
        self.place, self.acts, self.settled = other.place, other.acts, other.settled
        self.bad, self.beside = other.bad, dict(other.beside)
        self.lost, self.drained, self.cut = dict(other.lost), dict(other.drained), dict(other.cut)
        self.ended = dict(other.ended)
        self.upstream = {substream: dict(counts) for substream, counts in other.upstream.items()}

    def write_part(self, epoch: int, partials: DataFrame) -> str:
        """Write a batch's partial aggregates, and return their URL: a part of the state once `add` has indexed it."""
        return self._folder.url(self._write("epoch", epoch, partials))

    def files(self, part: str) -> Dataset:
        """Return the rows of a written part as a dataset of Arrow.

        Args:
            part: the URL of its directory.
        """
        name = _name_of(part)
        return files(self._folder / name, names=self._written[name].files)

    def add(
        self,
        part: str,
        epoch: int,
        rows: dict[Substream, RowTally],
        late: set[Substream],
        batch: Batch | None = None,
        bare: Set[Substream] = frozenset(),
    ) -> None:
        """Take a written part into the state.

        Args:
            late: those of them that are over already.
            batch: what is to be remembered of the epoch's batch.
            bare: those of which the part has no partial rows.
        """
        if not rows:
            self._remove(_name_of(part))
            return
        batches = {} if batch is None else {epoch: batch}
        name = _name_of(part)
        added = Part(name, epoch, rows, batches, frozenset(bare), self._written[name].files).index(self._folder)
        added.live -= late
        self._parts[added.name] = added

    @property
    def published_acts(self) -> int:
        """Return of how many acts the newest version is the outcome that was published or read here."""
        return 0 if self._before is None else self._before.acts

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
        """Return how to read some substreams in some parts each, by their URLs: see `parts.selections`."""
        return located(self._folder, self._parts, wanted)

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
        """Note that a substream has ended on a segment that leads here, until it has ended here, too."""
        if elements:
            self.upstream.setdefault(substream, {})[segment] = elements
        if in_flight:
            self.lost[substream] = self.lost.get(substream, 0) + in_flight

    def released_before(self, substream: Substream) -> int:
        """Return how many elements of a substream were released when a drain or a rule ended it, not its sources."""
        return self.drained.get(substream, 0) + self.cut.get(substream, 0)

    def note_cut(self, substream: Substream, elements: int, by_drain: bool) -> None:
        """Note that so many elements of a substream were released before its sources closed it: more may follow."""
        noted, most = (self.drained, _DRAINED) if by_drain else (self.cut, _CUT)
        noted[substream] = noted.pop(substream, 0) + elements
        while len(noted) > most:
            del noted[next(iter(noted))]

    def forget_cut(self, substream: Substream) -> None:
        """Forget that a substream was ended early: its sources have closed it."""
        self.drained.pop(substream, None)
        self.cut.pop(substream, None)

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

    def write_carried(self, epoch: int, partials: DataFrame) -> str:
        """Write what is kept of substreams that have ended, and return its URL: a part of the state once `carry` has
        indexed it."""
        return self._folder.url(self._write("carried", max(epoch, self.epoch), partials))

    def carry(self, part: str, rows: dict[Substream, RowTally]) -> None:
        """Take what is kept of substreams that have ended into the state: none of it was late."""
        if rows:
            name = _name_of(part)
            files = self._written[name].files
            self._parts[name] = Part(name, self.epoch - 1, rows, {}, files=files).index(self._folder)
        else:
            self._remove(_name_of(part))

    def compact(self, epoch: int, merge: Callable[[list[Selection]], DataFrame]) -> None:
        """Make one part of many small ones, if there are too many, or of those that are mostly of what has ended.

        Args:
            merge: reads some substreams of some parts, and merges their rows.
        """
        known = sorted((part for part in self._parts.values() if part.epoch <= self.settled), key=_size)
        if len(known) >= self._compact_from:
            chosen = known[: max(2, len(known) * 3 // 4)]  # the largest wait, so that each row is rewritten rarely
        else:
            # Ended substreams beside others that have not are listed with every version, and their rows take room.
            chosen = [part for part in known if 2 * len(part.live) <= len(part.rows)]
            if sum(len(part.rows) - len(part.live) for part in chosen) < _ENDED:
                return
        kept = {each: [name for _, name in living] for each, living in _living(chosen).items()}
        name = self._write("merged", epoch, merge(self.selections(kept)))
        part = joined(chosen, name, self._written[name].files)
        for each in chosen:
            del self._parts[each.name]
        self._parts[part.name] = part.index(self._folder)

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
            "acts": self.acts,
            "position": 0 if self.place is None else self.place.numbers,
            "log_id": "" if self.place is None else self.place.ids,
            "settled": self.settled,
            "bad": self.bad,
            "beside": self.beside,
            "drained": [[list(key), elements] for key, elements in self.drained.items()],
            "cut": [[list(key), elements] for key, elements in self.cut.items()],
            "upstream": [[list(key), elements] for key, elements in self.upstream.items()],
            "lost": [[list(key), elements] for key, elements in self.lost.items()],
        }
        now, before = Version(epoch, self.acts, self._driver), self._before
        self._folder.put(now.file, version)
        self._published[now] = set(self._parts)
        self._epoch = self.version = epoch
        self.is_as_published, self._before = True, now
        if before is None:
            return
        if old := [each for each in self._published if each < before]:
            self._folder.delete(each.file for each in old)
            for each in old:
                del self._published[each]
        needed = {*self._parts, *self._named_by(before)}
        for name in [name for name, written in self._written.items() if written.epoch <= before.epoch]:
            if name not in needed:
                self._remove(name)

    def _named_by(self, version: Version) -> Set[str]:
        """Return the parts of a version, which another driver may have published."""
        named = self._published[version]
        if named is None:
            named = self._published[version] = set((self._folder.read(version.file) or {}).get("parts", []))
        return named

    def _write(self, kind: str, epoch: int, partials: DataFrame) -> str:
        """Write a part and return its name, which nobody else's has: a driver that was fenced and does not know it yet
        must not touch its successor's."""
        name = f"{kind}-{epoch:012d}-{uuid.uuid4().hex[:8]}"
        self._written[name] = _Written(epoch, self._folder.write(name, Parquet(partials)))
        return name

    def _remove(self, name: str) -> None:
        if files := self._written.pop(name).files:  # what tasks that failed have left there goes with the next driver
            self._folder.delete(f"{name}/{file}" for file in (*files, INDEX))
        else:
            self._folder.remove(name)

    def _claim(self) -> list[str]:
        """Take a driver's number, later than all before it and nobody else's, and return the names of what is there."""
        own = uuid.uuid4().hex
        names = self._folder.names()
        while True:
            earlier = {name: int(found[1]) for name in names if (found := _DRIVER.fullmatch(name))}
            number = max(earlier.values(), default=0) + 1
            mine = f"driver-{number:06d}.json"
            taken = self._folder.create(mine, own) == own
            names = self._folder.names()
            if taken and mine == max(name for name in names if _DRIVER.fullmatch(name)):
                self._folder.delete(earlier)
                self._driver = number
                return names


def _living(parts: Iterable[Part]) -> dict[Substream, list[tuple[int, str]]]:
    """Return what lives in some parts, with the last epoch and the name of each part."""
    living: dict[Substream, list[tuple[int, str]]] = {}
    for part in sorted(parts, key=lambda part: (part.epoch, part.name)):
        for substream in part.live:
            living.setdefault(substream, []).append((part.epoch, part.name))
    return living


def _size(part: Part) -> int:
    return sum(tally.rows for tally in part.rows.values())


def _name_of(part: str) -> str:
    """Return the name at the end of a part's URL."""
    return part.rpartition("/")[2]
