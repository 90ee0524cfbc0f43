"""Counts: fronts that promise how many rows each substream will have. Each kind finds the numbers elsewhere.

Nothing is counted here. The source's rows are counted where all rows are, and the tracker closes a substream when as
many were sent as its front expects, whoever gave the number and in whatever order. So what is still missing can be seen
there, of silent tenants, too, and a restart has nothing to find out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import ColumnOrName, column, names_of
from spark_client.errors import TrackingError, UsageError, check_seconds
from spark_client.fronts import timetable
from spark_client.fronts.front import (
    AT_ONCE,
    IDENTITIES,
    Front,
    GivenCounts,
    Group,
    LiveFront,
    OpenRun,
    Promiser,
    Promises,
    Rows,
)
from spark_client.fronts.timetable import count_of
from spark_client.storage.folder import Folder
from spark_client.windows.belonging import Condition, not_null
from spark_client.windows.substreams import Ability, Substream
from tracker.client import Expected, Finish, Frontier
from tracker.contract.commands import CommitPromise

HowManyParts: TypeAlias = int | str | Collection[str] | None


class Count(NamedTuple):
    """Count of a substream's rows.

    Attributes:
        revise: whether it takes the place of another number.
        xor: of the rows' identities, unsigned; None: any rows count.
    """

    rows: int
    revise: bool
    xor: int | None = None


class Found(NamedTuple):
    """Counts that were found.

    Attributes:
        counts: all that are known: those found before are among them, as far as they are still there.
        through: a time up to whose window these are all there will be; None: others may follow.
        identities: the XOR of those of the rows, by substream.
    """

    counts: Mapping[Substream, int]
    through: datetime | date | None = None
    identities: Mapping[Substream, int] = MappingProxyType({})


@dataclass(frozen=True)
class Parts:
    """Parts in which a load comes, such as one of each host: its substream is closed when all of them are there.

    Args:
        part: the field, or column of a path, that names the part; None: a load is one part.
        all: how many parts there are, their names, or the field that has the number.
        front: the kind of front, for messages.

    Raises:
        UsageError: one was given without the other, there are none, or a name is there twice.
    """

    part: str | None
    all: HowManyParts
    front: str

    def __post_init__(self) -> None:
        some = self.all > 0 if isinstance(self.all, int) else isinstance(self.all, Collection) and bool(self.all)
        faulty = self.all is not None and (not some or len({*self.names}) < len(self.names))
        if (self.part is None) != (self.all is None) or faulty:
            raise UsageError(
                f"{self.front}: give part='host', which names a part, and parts= together: how many there are, a list "
                "of their names, or the field that has the number"
            )

    @property
    def names(self) -> list[str]:
        """The names of the parts, if these were given."""
        return [] if isinstance(self.all, str) or not isinstance(self.all, Collection) else [*map(str, self.all)]

    @property
    def keys(self) -> list[str]:
        """The fields that have the part, and how many there are."""
        return [key for key in (self.part, self.all) if isinstance(key, str)]

    def of(self, values: Mapping[str, Any], place: str) -> tuple[str, int]:
        """Return the part that an entry is of, and how many it names.

        Args:
            values: the fields of the entry, or the columns of its path.
            place: where the entry is, for messages.

        Raises:
            UsageError: it is none of them, or the number is none.
        """
        part = "" if self.part is None else str(values[self.part])
        if isinstance(self.all, str):
            number = count_of(values[self.all])
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise UsageError(f"{place}: {self.all!r} is {number!r}: write the number of parts, 1 or more")
            return part, number
        if self.names and part not in self.names:
            raise UsageError(
                f"{place}: part {part!r} is none of {self.front}(parts={self.names}): add it there, and start the "
                "query again"
            )
        return part, self.all if isinstance(self.all, int) else max(1, len(self.names))

    def are_all(self, substream: Substream, found: Mapping[str, int]) -> bool:
        """Return whether all parts of a substream are there.

        Args:
            found: how many there are, by each part that is there.

        Raises:
            UsageError: more parts are there than each of them names.
        """
        wanted = max(found.values())
        if len(found) > wanted:
            into = f"write as many into {self.all!r}" if isinstance(self.all, str) else "give parts= as many"
            raise UsageError(
                f"{self.front}: {substream.name!r} of scope {substream.scope!r} has {len(found)} parts, "
                f"{sorted(found)}, and was to have {wanted}: {into} as there are"
            )
        return len(found) == wanted


class ByCount(Front):
    """Base of fronts that promise how many rows each substream will have.

    Args:
        revise: a count that was given before as another number takes its place, while its substream is open.
        refresh: seconds between two looks at where the counts are.

    Attributes:
        identity: 64 bits of each row that name it for ever, whose XOR is promised beside a count; None: any rows count.
        table: counts that are known when the source is declared, and the XOR of the identities of their rows.
        given: counts that a driver has given since, for the query's next start.
        given_through: up to where counts are complete by what a driver has given; None: others may follow.
        remembers: whether what was given is given again by the next start; else it was given once, by a call.
        complete: whether there will be no other substreams up to the last window given.
    """

    counts = True
    remembers = True
    complete = False
    identity: ColumnOrName | None = None

    def __init__(self, revise: bool, refresh: float) -> None:
        check_seconds(f"{type(self).__name__}: refresh", refresh)
        self.revise = revise
        self.refresh: float = refresh
        self.table: dict[Substream, int] = {}
        self.table_identities: Mapping[Substream, int] = {}
        self.given: Mapping[Substream, Count] = {}
        self.given_through: int | None = None

    def give(self, counts: Mapping[Substream, Count], end: int | None) -> None:
        """Take counts for the query that is to start, and up to where they are complete."""
        self.given = {**self.given, **counts}
        self.given_through = max((each for each in (self.given_through, end) if each is not None), default=None)

    def live(self, spark: SparkSession) -> LiveCounts:
        return LiveCounts(self, spark)

    @property
    def reads(self) -> frozenset[str] | None:
        return names_of([] if self.identity is None else [self.identity])

    def conditions(self, rows: DataFrame) -> list[Condition]:
        return [] if self.identity is None else [not_null(rows, self.identity, repr(self))]

    def observed(self) -> dict[str, Column] | None:
        return {} if self.identity is None else None

    def values(self) -> dict[str, Column]:
        return {} if self.identity is None else {IDENTITIES: column(self.identity).cast("bigint")}

    def grouped(self) -> dict[str, Column]:
        return {name: F.bit_xor(value) for name, value in self.values().items()}

    @property
    def promiser(self) -> Promiser:
        return super().promiser if self.identity is None else partial(_identified, self.name)


def _identified(name: str, groups: Sequence[Group]) -> Promises:
    """Return the identities of a batch's rows."""
    return Promises(identities=[(name, each, values[IDENTITIES] % 2**64) for each, values in groups])


class LiveCounts(LiveFront):
    """A front by counts while its query runs: the counts that the tracker is to be given.

    A kind that finds counts by itself has a class of its own, with `find`.

    Args:
        spark: the session, in which times are read.
    """

    front: ByCount

    def __init__(self, front: ByCount, spark: SparkSession) -> None:
        super().__init__(front)
        self._rule = front.rule
        self._spark = spark
        self._due: dict[Substream, Count] = {}  # counts that the tracker has not been given yet
        self._through: int | None = None  # likewise
        self._promised_through: int | None = None  # up to where the counts are complete, at the tracker
        self._known: Mapping[Substream, tuple[int, int | None]] = {}  # what was found so far: rows, and XOR
        self._found: Found | None = None  # what was found last, and was refused
        self._before: GivenCounts | None = None
        self.take(
            {each: Count(rows, front.revise, front.table_identities.get(each)) for each, rows in front.table.items()},
            self.end_of(front.table),
        )
        self.take(front.given, front.given_through)

    def counts_of(self, rows: Rows, revise: bool = False) -> dict[Substream, Count]:
        """Read counts that a driver gives.

        Raises:
            UsageError: rows of another form, a substream twice, a time that does not fit the source's.
        """
        revise = revise or self.front.revise
        if self.front.identity is None:
            return {each: Count(n, revise) for each, n in timetable.read(self._spark, rows, self._rule).items()}
        found, identities = timetable.read_identified(self._spark, rows, self._rule)
        return {each: Count(n, revise, identities[each]) for each, n in found.items()}

    def end_of(self, due: Iterable[Substream], through: datetime | date | None = None) -> int | None:
        """Return up to where counts are complete when these are given; None: others may follow.

        Raises:
            UsageError: a time that does not fit the source's.
        """
        ends = [substream.end_time for substream in due if substream.end_time is not None]
        last = max(ends, default=None) if self.front.complete else None
        if through is not None:
            self._rule.require(Ability.THROUGH, repr(self.front))
            row = (through, 0) if self._rule.scope is None else ("", through, 0)
            (window,) = timetable.read(self._spark, [row], self._rule)
            ends.append(window.end_time or 0)
            last = max(ends) if self.front.complete else window.end_time
        return last

    def take(self, due: Mapping[Substream, Count], end: int | None) -> None:
        """Take counts, to be given to the tracker, and up to where they are complete."""
        with self._lock:
            self._due.update(due)
            if end is not None:
                self._through = end if self._through is None else max(end, self._through)

    def begin(self, given: GivenCounts) -> None:
        """Learn what earlier deployments were given, when the query starts.

        Raises:
            UsageError: substreams that were left out of a table that was complete are given now.
        """
        _refuse(given.too_late(self._due))
        with self._lock:
            given.keep_only(self.front.table.keys() | self._known.keys())
            self._due = {each: count for each, count in self._due.items() if self._goes_on(each, given)}
            self._before = given

    def _goes_on(self, substream: Substream, before: GivenCounts) -> bool:
        """Return whether no other deployment has seen a substream to its end."""
        return substream not in before.done or substream in before.taken

    def _missing(self, substream: Substream, count: int) -> int:
        """Return what is expected of a count now, after what a drain has released of it."""
        return max(0, count - (self._before.taken.get(substream, 0) if self._before is not None else 0))

    def look(self, checkpoint: Folder, epoch: int | None, at_once: bool = False) -> None:
        if self._before is not None:
            self._before.follow()
        super().look(checkpoint, epoch, at_once)

    def find(self) -> Found | None:
        """Return what is known now; None: nothing has come since the last call, or a driver gives the counts.

        Looks at what is new only, as far as that can be seen: it is asked at every `refresh`.

        Raises:
            UsageError: what is there can be promised by nobody. Any other error may pass.
        """
        return None

    def read(self) -> None:
        found = self._found = self.find() or self._found
        if found is None:
            return
        known = {each: (rows, found.identities.get(each)) for each, rows in found.counts.items()}
        news = {substream: count for substream, count in known.items() if self._known.get(substream) != count}
        through = self._promised_through
        left_out = [each for each in news if each not in self._known and each.end_time is not None]
        _refuse([each for each in left_out if through is not None and (each.end_time or 0) <= through])
        before = self._before
        goes_on = [each for each in news if before is None or self._goes_on(each, before)]
        end = self.end_of(known, found.through)
        self.take({each: Count(news[each][0], self.front.revise, news[each][1]) for each in goes_on}, end)
        # Counts that are not found for a while, as in a table that is loaded again, are known when they are back.
        self._known, self._found = {**self._known, **known}, None

    def due(self) -> Sequence[CommitPromise]:
        """Return the next promises to be made: counts first, and how far they are complete when all of them are
        made."""
        with self._lock:
            some = list(self._due.items())[:AT_ONCE]
            if not some:
                return [] if self._through is None else [Frontier(self.front.name, self._through, None)]
        return self.expected(dict(some))

    def expected(self, counts: Mapping[Substream, Count]) -> list[Expected]:
        """Return the promises of some counts, which are written down as given."""
        with self._lock:
            if self._before is not None and self.front.remembers:
                self._before.give(counts)
            name = self.front.name  # a source's front is called as the segment that it feeds
            return [
                Expected(
                    *(name, name, each.scope, each.name),
                    self._missing(each, count.rows),
                    each.end_time,
                    count.revise,
                    self._xor(each, count),
                )
                for each, count in counts.items()
            ]

    def _xor(self, substream: Substream, count: Count) -> int | None:
        """Return the XOR to expect: a drain has released rows of which nobody has kept the identities."""
        return None if self._missing(substream, count.rows) != count.rows else count.xor

    def promised(self, promises: Sequence[CommitPromise]) -> None:
        with self._lock:
            for promise in promises:
                if isinstance(promise, Finish):
                    continue
                if isinstance(promise, Frontier):
                    self._promised_through = promise.time
                    if self._through is not None and self._through <= promise.time:
                        self._through = None
                    continue
                substream = Substream(promise.scope, promise.name, promise.end_time)
                count = self._due.get(substream, Count(-1, False))
                given = self._missing(substream, count.rows), self._xor(substream, count)
                if given == (promise.elements, promise.xor):
                    self._due.pop(substream, None)

    def of_observed(self, row: Mapping[str, Any]) -> Promises:  # noqa: ARG002
        with self._lock:
            done = self._due or self._through is None
            return Promises() if done else Promises(frontiers=[Frontier(self.front.name, self._through or 0, None)])

    def of_groups(self, groups: Sequence[Group], epoch: int) -> Promises:  # noqa: ARG002
        promises = self.of_observed({})
        promises.identities = self.front.promiser(groups).identities
        return promises

    def expect(
        self, run: OpenRun | None, rows: Rows, through: datetime | date | None = None, revise: bool = False
    ) -> None:
        """Give counts to the tracker, or to a query that is to start. Those that a running batch holds up follow later.

        The tracker is asked first, and what it refuses changes nothing: a number that is refused never becomes one of
        the front's, where it would be given again and again, and stop the query. And a driver whose counts nobody has
        taken learns of it, since they would be given only once.
        """
        counts = self.counts_of(rows, revise)
        end = self.end_of(counts, through)
        if run is None:
            self.front.give(counts, end)
            return
        offer = _Offer(self, counts)
        run.announce(self)
        if not self._due:  # else these follow after those that a batch under way holds up
            run.announce(offer)
        if (offer.left or end is not None) and run.closed:
            raise TrackingError(
                f"the query that reads {self.front.name!r} has ended before it took these counts: start it "
                "again, and give them again"
            )
        self.take(offer.left, end)
        again = {each: count for each, count in counts.items() if each in self.front.given}
        self.front.give({**offer.left, **again}, end)
        run.announce(self)


class _Offer(LiveFront):
    """Counts on their way to the tracker, before they are a front's.

    Attributes:
        left: those that the tracker has not taken yet.
    """

    def __init__(self, front: LiveCounts, counts: Mapping[Substream, Count]) -> None:
        super().__init__(front.front)
        self.left = dict(counts)
        self._counts = front

    def due(self) -> Sequence[CommitPromise]:
        return self._counts.expected(dict(list(self.left.items())[:AT_ONCE]))

    def promised(self, promises: Sequence[CommitPromise]) -> None:
        for promise in promises:
            if isinstance(promise, Expected):
                self.left.pop(Substream(promise.scope, promise.name, promise.end_time), None)


def _refuse(missed: Sequence[Substream]) -> None:
    """Substreams of which it was promised that they will not come."""
    if missed:
        raise UsageError(
            f"Schedule: {len(missed)} substreams, such as {missed[0].name} of {missed[0].scope!r}, are given only now, "
            "and the counts given before were said to be complete to a later time, so their rows are late. Take them "
            "out, and give them to the deployment after the next drain; and give complete=False, or no through=, if "
            "others may follow"
        )
