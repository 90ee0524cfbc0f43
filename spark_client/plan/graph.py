"""A job's graph as it is declared: segments, what each of them feeds, and the fronts that promise for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spark_client.errors import UsageError, check_faults, refused
from spark_client.plan.names import check_segment
from spark_client.windows.substreams import Substreams
from tracker.contract.spec import check_graph


class JobGraph:
    """The graph of a job, given whole or declared bit by bit.

    Args:
        segments: for each segment those that it feeds, if not all of it is declared here; None: it is.
        fronts: all fronts, likewise; or for each front the segments that it feeds.

    Attributes:
        given: whether it was given whole: then nothing can be declared that is not in it.
        fixed: whether the job is defined: then nothing more can be declared.
        segments: for each segment those that it feeds.
        trusts: what the promise of each source trusts, by segment.
        rules: how the rows of the sources that are declared fall into substreams, by segment.
    """

    def __init__(
        self,
        segments: Mapping[str, Sequence[str]] | None,
        fronts: Sequence[str] | Mapping[str, Sequence[str]] | None,
    ) -> None:
        with refused("Tracking", errors=TypeError):
            check_graph({} if segments is None else segments, () if fronts is None else fronts)
        self.given = segments is not None or fronts is not None
        self.fixed = False
        self.segments: dict[str, list[str]] = {name: list(feeds) for name, feeds in (segments or {}).items()}
        self.trusts: dict[str, str] = {}
        self.rules: dict[str, Substreams] = {}
        self._fronts: dict[str, list[str]] = _feeding(fronts, self.segments)
        self._promised_by: dict[str, str] = {}  # the source of each front
        self._consumed: set[str] = set()
        self._states: set[str] = set()  # segments that stand for the state of a release, which no query reads

    def declare(self, segment: str) -> None:
        """Add a segment; of a graph that was given whole, it has to be there.

        Raises:
            UsageError: it is declared twice, or too late, or was not given.
        """
        check_segment(segment)
        if segment in self.segments:
            if not self.given:
                raise UsageError(f"segment {segment!r} is declared twice: each source and channel has its own")
            return
        self._check_open(f"segment {segment!r}")
        self.segments[segment] = []

    def declare_state(self, segment: str) -> None:
        """Add a segment that stands for the state of a release."""
        self.declare(segment)
        self._states.add(segment)

    def declare_fronts(self, names: Sequence[str], segment: str) -> None:
        """Add the fronts of a source; of a graph that was given whole, they have to be there.

        Raises:
            UsageError: one was not given, or is another source's.
        """
        for name in names:
            if (other := self._promised_by.setdefault(name, segment)) != segment:
                raise UsageError(
                    f"front {name!r} is that of source {other!r} and of source {segment!r}: one of them would be "
                    "waited for in place of both. Give one of these sources another name; a front of several parts "
                    "(Frontier(…, 'part', 2)) has SOURCE/0, SOURCE/1, …"
                )
        if not self.given:
            self._fronts.update({name: [segment] for name in names})
        elif missing := [name for name in names if name not in self._fronts]:
            self._check_open(f"front {missing[0]!r}")

    def feed(self, segment: str, fed: str) -> None:
        """Add that one segment feeds another.

        Raises:
            UsageError: it is too late, or was not given, or the other one is of another job.
        """
        if fed not in self.segments:
            raise UsageError(f"segment {fed!r} is of another Tracking: declare the channel here")
        if fed in self.segments[segment]:
            return
        self._check_open(f"that {segment!r} feeds {fed!r}")
        self.segments[segment].append(fed)

    def consume(self, segment: str) -> None:
        """Note that a query of this application reads a segment.

        Raises:
            UsageError: another query reads it already.
        """
        if segment in self._consumed:
            raise UsageError(
                f"segment {segment!r} has a consumer already: a segment has one. Send the rows into a channel for each"
            )
        self._consumed.add(segment)

    @property
    def read_here(self) -> set[str]:
        """The segments that queries of this application are to read."""
        return self._consumed if self.given else {*self.segments} - self._states

    @property
    def received_here(self) -> frozenset[str]:
        """Return those of them whose rows come from no source."""
        return frozenset(self.read_here).difference(self._promised_by.values())

    def states(self) -> list[str]:
        """Return the segments that stand for the state of a release.

        Of a graph that was given whole they go by their names, as one application does not declare all of them.
        """
        if self.given:
            named = {state_of(segment) for segment in self.segments}
            return sorted(named.intersection(self.segments))
        return sorted(self._states)

    def leading_to(self, segment: str) -> list[str]:
        """Return the segments from which this one can be reached."""
        found = {segment}
        while more := {name for name, feeds in self.segments.items() if found.intersection(feeds)} - found:
            found |= more
        return sorted(found - {segment})

    def connected(self, segment: str) -> list[str]:
        """Return the segment, those from which it can be reached, and those that can be reached from it."""
        found = {segment}
        while more := {fed for name in found for fed in self.segments.get(name, ())} - found:
            found |= more
        return sorted(found.union(self.leading_to(segment)))

    def origins_of(self, segment: str) -> list[str]:
        """Return the segments on which what reaches this one entered the job, or left a release that sends its results
        on."""
        states = {*self.states()}
        found, todo = {segment}, [segment]
        origins = []
        while todo:
            reached = todo.pop()
            feeders = [name for name, feeds in self.segments.items() if reached in feeds and name not in states]
            if all(name == reached for name in feeders):
                origins.append(reached)
            todo += {*feeders} - found
            found.update(feeders)
        return sorted(origins)

    def fronts(self) -> dict[str, list[str]]:
        """Return the segments that each front feeds; one that no front reaches, as nobody sends there yet, waits for
        all."""
        reached: set[str] = set()
        todo = [segment for feeds in self._fronts.values() for segment in feeds or self.segments]
        while todo:
            segment = todo.pop()
            if segment not in reached:
                reached.add(segment)
                todo.extend(self.segments.get(segment, ()))
        others = [segment for segment in self.segments if segment not in reached]
        return {front: [*feeds, *others] if feeds else [] for front, feeds in self._fronts.items()}

    def _check_open(self, what: str) -> None:
        check_faults(
            what,
            (self.given, f"is not in segments={self.segments}, fronts={list(self._fronts)}: add it there"),
            (
                self.fixed,
                "is declared after the first query has started: declare sources, channels and what is sent into them "
                "first, or give Tracking(segments=…, fronts=…)",
            ),
        )


def state_of(segment: str) -> str:
    """Return the segment that stands for the state of the release of a segment.

    >>> state_of("clean")
    'clean.held'
    """
    return f"{segment}.held"


def _feeding(
    fronts: Sequence[str] | Mapping[str, Sequence[str]] | None, segments: Iterable[str]
) -> dict[str, list[str]]:
    """Return the segments that each front feeds; empty: all.

    >>> _feeding(["orders", "clicks/0", "control"], ["orders", "clicks"])
    {'orders': ['orders'], 'clicks/0': ['clicks'], 'control': []}
    """
    if isinstance(fronts, Mapping):
        return {name: list(feeds) for name, feeds in fronts.items()}
    known = set(segments)
    for name in fronts or ():
        if name in known and name.rpartition("/")[0] in known:
            raise UsageError(
                f"fronts: {name!r} is a segment, and could be a part of segment {name.rpartition('/')[0]!r}: give a "
                f"mapping of each front to the segments that it feeds, as fronts={{{name!r}: [{name!r}], …}}"
            )
    return {
        name: next(([segment] for segment in (name, name.rpartition("/")[0]) if segment in known), [])
        for name in fronts or ()
    }
