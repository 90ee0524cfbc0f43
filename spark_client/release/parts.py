"""Contents of a release's state files: parts, each with an index of its substreams, and versions that name them.

Parts are immutable; a version lists those that the state is made of after an epoch. Who reads a state beside the query
that keeps it has to reckon with files that go meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from spark_client.errors import TrackingError
from spark_client.spark_internals.checkpoints import Batch
from spark_client.storage.directories import read_json, write_json
from spark_client.windows.substreams import Substream

_INDEX = "_index.json"


@dataclass(frozen=True, slots=True)
class RowTally:
    """The rows of a substream that something was made of.

    Attributes:
        rows: how many.
        xor: of their labels; None: not counted, or not of all of them.
        first: the epoch in which the first of them came; None: not known.
        last: the epoch in which the last of them came.
        kept: how many the release's own steps have made of them; None: not known.
    """

    rows: int = 0
    xor: int | None = None
    first: int | None = None
    last: int | None = None
    kept: int | None = None

    def listed(self) -> tuple[int | None, ...]:
        """Its values, in their order. (`dataclasses.astuple` copies them one by one, for ten times as long.)"""
        return self.rows, self.xor, self.first, self.last, self.kept

    def __add__(self, more: RowTally) -> RowTally:
        known = self.xor is not None and more.xor is not None
        firsts = [epoch for epoch in (self.first, more.first) if epoch is not None]
        lasts = [epoch for epoch in (self.last, more.last) if epoch is not None]
        return RowTally(
            self.rows + more.rows,
            (self.xor or 0) ^ (more.xor or 0) if known else None,
            min(firsts, default=None),
            max(lasts, default=None),
            None if self.kept is None or more.kept is None else self.kept + more.kept,
        )


NONE: Final = RowTally(0, 0, kept=0)  #: of no rows


@dataclass(slots=True)
class Part:
    """One directory of partial aggregates.

    Attributes:
        name: of the directory.
        epoch: the last one whose rows are in it.
        rows: the rows of the stream it stands for, by substream.
        batches: what is known of the first and the last batch of each of them, by epoch.
        bare: those of which it has the tally, and no partial rows: a step has dropped all that came of them.
        live: the substreams that are still kept in it.
    """

    name: str
    epoch: int
    rows: dict[Substream, RowTally]
    batches: dict[int, Batch]
    bare: frozenset[Substream] = frozenset()
    live: set[Substream] = field(default_factory=set)

    def index(self, path: Path) -> Part:
        """Write its index beside its rows, which makes it whole; all its substreams live."""
        index = {
            "epoch": self.epoch,
            "rows": [[key, *tally.listed()] for key, tally in self.rows.items()],
            "batches": {number: astuple(batch) for number, batch in self.batches.items()},
            "bare": sorted(self.bare, key=str),
        }
        write_json(path / self.name / _INDEX, index)
        self.live = set(self.rows)
        return self


def joined(parts: Sequence[Part], name: str) -> Part:
    """Return what one part is that takes the place of several: of what lives in them."""
    live: dict[Substream, RowTally] = {}
    batches: dict[int, Batch] = {}
    bare = {substream for part in parts for substream in part.bare}
    for part in parts:
        bare -= part.live - part.bare
        batches |= part.batches
        for substream in part.live:
            live[substream] = live.get(substream, NONE) + part.rows[substream]
    named = {epoch for tally in live.values() for epoch in (tally.first, tally.last) if epoch is not None}
    kept = {epoch: batches[epoch] for epoch in named & batches.keys()}
    last = max((part.epoch for part in parts), default=-1)
    return Part(name, last, live, kept, frozenset(bare & live.keys()), set(live))


class Version(NamedTuple):
    """The state after an epoch, as a driver has published it; in the order in which they hold."""

    epoch: int
    driver: int

    def file(self, path: Path) -> Path:
        """Return where it is."""
        return path / f"version-{self.epoch:012d}-{self.driver:06d}.json"

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, Part]]:
        """Return what is written in it, and the parts that it names.

        Raises:
            TrackingError: it is gone, or files that it names are missing.
        """
        version = read_json(self.file(path))
        if version is None:
            raise TrackingError(f"{self.file(path)} is gone: another driver of this query has gone on from there")
        dead = {Substream(*key) for key in version["dead"]}
        partly = {name: {Substream(*key) for key in keys} for name, keys in version.get("partly", {}).items()}
        return version, {name: read_part(path / name, dead | partly.get(name, set())) for name in version["parts"]}


def versions_of(path: Path) -> list[Version]:
    """Return the versions of a state that are there, the newest last."""
    return sorted(Version(*map(int, file.stem.split("-")[1:])) for file in path.glob("version-*.json"))


def read_part(path: Path, dead: Set[Substream]) -> Part:
    """Return what the index of a part holds.

    Args:
        dead: the substreams that are not kept in it any more.

    Raises:
        TrackingError: it is missing.
    """
    index = read_json(path / _INDEX)
    if index is None:
        raise TrackingError(
            f"the state of this query is damaged: {path} is missing. Restore the checkpoint with all its files. If "
            "they are lost, start the job from scratch: stop its queries, delete it with `tracker delete-job`, and "
            "start them again with new checkpoints and new paths for channels and results"
        )
    rows = {Substream(*key): RowTally(*tally) for key, *tally in index["rows"]}
    batches = {int(number): Batch(*batch) for number, batch in index.get("batches", {}).items()}
    bare = frozenset(Substream(*key) for key in index.get("bare", []))
    return Part(path.name, index["epoch"], rows, batches, bare, set(rows) - dead)


class Selection(NamedTuple):
    """Parts that are read together, and the substreams that are taken of them."""

    parts: list[str]
    substreams: set[Substream]


def selections(parts: Mapping[str, Part], wanted: Mapping[Substream, Iterable[str]]) -> list[Selection]:
    """Return how to read some substreams in some parts each, and nothing else that these parts have of them.

    Args:
        parts: by name.
        wanted: the names of the parts in which each substream is to be read.
    """
    taken: dict[str, set[Substream]] = {}
    for substream, names in wanted.items():
        for name in names:
            taken.setdefault(name, set()).add(substream)
    mixed = {name for name, some in taken.items() if parts[name].rows.keys() & wanted.keys() != some}
    found = [Selection([name], taken[name]) for name in sorted(mixed)]
    together = sorted(taken.keys() - mixed)
    return found if not together else [Selection(together, set().union(*(taken[name] for name in together))), *found]


def located(directory: Path, parts: Mapping[str, Part], wanted: Mapping[Substream, Iterable[str]]) -> list[Selection]:
    """Return the same as `selections`, with the paths of parts instead of their names.

    Args:
        directory: where the parts are.
        parts: by name.
        wanted: the names of the parts in which each substream is to be read.
    """
    found = selections(parts, wanted)
    return [Selection([str(directory / name) for name in names], substreams) for names, substreams in found]
