"""Contents of a release's state files: parts, each with an index of its substreams, and versions that name them.

Parts are immutable; a version lists those that the state is made of after an epoch. A reader of a state beside the
query that keeps it has to reckon with files that go meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import astuple, dataclass, field
from typing import Any, Final, NamedTuple

from spark_client.errors import TrackingError
from spark_client.spark_internals.checkpoints import Batch
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substream

NOTE: Final = "query.json"  #: beneath ``tracker``: what a query is, or one of its releases
INDEX = "_index.json"
_VERSION: Final = re.compile(r"version-(\d+)-(?:(\d+)-)?(\d+)\.json")


@dataclass(frozen=True, slots=True)
class RowTally:
    """The rows of a substream that something was made of.

    Attributes:
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
        """Return the values, in their order. (`dataclasses.astuple` copies them one by one, for ten times as long.)"""
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
        epoch: the last one whose rows are in it.
        rows: the rows of the stream it stands for, by substream.
        batches: what is known of the first and the last batch of each of them, by epoch.
        bare: those of which it has the tally, and no partial rows: a step has dropped all that came of them.
        files: its files, by name; none: all that its folder holds.
        live: the substreams that are still kept in it.
    """

    name: str
    epoch: int
    rows: dict[Substream, RowTally]
    batches: dict[int, Batch]
    bare: frozenset[Substream] = frozenset()
    files: Sequence[str] = ()
    live: set[Substream] = field(default_factory=set)

    def index(self, folder: Folder) -> Part:
        """Write the part's index beside its rows, which makes it whole; all its substreams live."""
        index = {
            "epoch": self.epoch,
            "rows": [[key, *tally.listed()] for key, tally in self.rows.items()],
            "batches": {number: astuple(batch) for number, batch in self.batches.items()},
            "bare": sorted(self.bare, key=str),
            "files": self.files,
        }
        folder.put(f"{self.name}/{INDEX}", index)
        self.live = set(self.rows)
        return self

    def urls(self, folder: Folder) -> list[str]:
        """Return where the part's rows are."""
        return [folder.url(f"{self.name}/{file}") for file in self.files] or [folder.url(self.name)]


def joined(parts: Sequence[Part], name: str, files: Sequence[str] = ()) -> Part:
    """Return what one part is that takes the place of several: of what lives in them.

    Args:
        files: the names of that part's files; none: all of its directory.
    """
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
    return Part(name, last, live, kept, frozenset(bare & live.keys()), files, set(live))


class Version(NamedTuple):
    """The state after an epoch, and after acts between it and the next one, as a driver has published it; in the order
    in which they hold.
    """

    epoch: int
    acts: int
    driver: int

    @property
    def file(self) -> str:
        """The name of its file. (Those of version 0.2 have no number of acts.)"""
        acts = f"{self.acts:012d}-" if self.acts else ""
        return f"version-{self.epoch:012d}-{acts}{self.driver:06d}.json"

    def read(self, folder: Folder) -> tuple[dict[str, Any], dict[str, Part]]:
        """Return what is written in it, and the parts that it names.

        Raises:
            TrackingError: it is gone, or files that it names are missing.
        """
        version = folder.read(self.file)
        if version is None:
            raise TrackingError(
                f"{folder.url(self.file)} is gone: another driver of this query has gone on from there. Stop this one"
            )
        dead = {Substream(*key) for key in version["dead"]}
        partly = {name: {Substream(*key) for key in keys} for name, keys in version.get("partly", {}).items()}
        return version, {name: read_part(folder, name, dead | partly.get(name, set())) for name in version["parts"]}


def versions_of(names: Iterable[str]) -> list[Version]:
    """Return the versions among the names of what is in a state's folder, the newest last."""
    found = [match.groups() for name in names if (match := _VERSION.fullmatch(name))]
    return sorted(Version(int(epoch), int(acts or 0), int(driver)) for epoch, acts, driver in found)


def read_part(folder: Folder, name: str, dead: Set[Substream]) -> Part:
    """Return what the index of a part holds.

    Args:
        dead: the substreams that are not kept in it any more.

    Raises:
        TrackingError: the part has no index: somebody has removed it.
    """
    index = folder.read(f"{name}/{INDEX}")
    if index is None:
        raise TrackingError(
            f"the state of this query is damaged: {folder.url(name)} is missing. Restore the checkpoint with all its "
            "files. If they are lost, start the job from scratch: stop its queries, delete it with "
            "`tracker delete-job`, and start them again with new checkpoints and new paths for channels and results"
        )
    rows = {Substream(*key): RowTally(*tally) for key, *tally in index["rows"]}
    batches = {int(number): Batch(*batch) for number, batch in index.get("batches", {}).items()}
    bare = frozenset(Substream(*key) for key in index.get("bare", []))
    return Part(name, index["epoch"], rows, batches, bare, index.get("files", ()), set(rows) - dead)


class Selection(NamedTuple):
    """Parts that are read together, and the substreams that are taken of them."""

    parts: list[str]
    substreams: set[Substream]


def selections(parts: Mapping[str, Part], wanted: Mapping[Substream, Iterable[str]]) -> list[Selection]:
    """Return how to read some substreams in some parts each, and nothing else that these parts have of them.

    Args:
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


def located(folder: Folder, parts: Mapping[str, Part], wanted: Mapping[Substream, Iterable[str]]) -> list[Selection]:
    """Return the same as `selections`, with the URLs of parts instead of their names.

    Args:
        wanted: the names of the parts in which each substream is to be read.
    """
    found = selections(parts, wanted)
    return [Selection([url for name in names for url in parts[name].urls(folder)], some) for names, some in found]
