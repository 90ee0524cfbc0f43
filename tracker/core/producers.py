"""Producers and what they have staged: the bookkeeping of runs, epochs and units, in bounded memory.

An epoch is kept from its first report or seal until it is committed or revoked. This module remembers and compares;
`job` carries out what a commit or a revocation does to the substreams.

Of names that only guard against those who come back very late, the newest are kept: a process would have to outlive a
thousand successors to be taken for a new one, and whatever it reports is refused all the same, since its run is not the
current one. The numbers by which accumulators refer to producers are used again once no accumulator does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import Mode

from .cells import Entries, Rows

NEWEST = 1000  #: fenced runs of a producer, and deployments that a job has left, that are remembered


class Newest:
    """A set of names of which the newest are kept, in the order in which they were added.

    >>> names = Newest()
    >>> for i in range(NEWEST + 1):
    ...     names.add(str(i))
    >>> "0" in names, "1" in names
    (False, True)
    """

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: dict[str, None] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Remember a name, as the newest."""
        self._names.pop(name, None)
        self._names[name] = None
        if len(self._names) > NEWEST:
            del self._names[next(iter(self._names))]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Numbers:
    """Numbers for producers' names: a forgotten name has its number for as long as anything refers to it.

    Attributes:
        names: by number; empty for numbers that are free.
    """

    __slots__ = ("_collect_at", "_free", "_numbers", "names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(self.names) if name}
        self._free = [number for number, name in enumerate(self.names) if not name]
        self._collect_at = 64

    def of(self, name: str) -> int:
        """Return the number of a name, from now on if it had none."""
        number = self._numbers.get(name)
        if number is None:
            if self._free:
                number = self._free.pop()
                self.names[number] = name
            else:
                number = len(self.names)
                self.names.append(name)
            self._numbers[name] = number
        return number

    def collect(self, known: Iterable[str], used: Callable[[], set[int]]) -> None:
        """Free the numbers that nothing refers to, if there may be enough of them to be worth a look.

        Args:
            used: finds the numbers that anything refers to; called seldom enough to be paid for by what was added.
        """
        if len(self._numbers) < self._collect_at:
            return
        kept = used() | {self._numbers[name] for name in known}
        for name, number in list(self._numbers.items()):
            if number not in kept:
                del self._numbers[name]
                self.names[number] = ""
                self._free.append(number)
        self._collect_at = 2 * len(self._numbers) + 64


class FrontierOf(NamedTuple):
    """A front will send no more elements of substreams with an end time up to `time` (of `scope`; None: of all)."""

    front: str
    scope: str | None
    time: int


class CloseOf(NamedTuple):
    """A front (empty: the sole owner) will send no more elements of the substream in `row`."""

    front: str
    row: int


class FinishOf(NamedTuple):
    """A front will send nothing more at all."""

    front: str


class Number(NamedTuple):
    """Elements that a front has promised: how many, and the XOR of their identities; None: whichever they are."""

    elements: int
    xor: int | None = None

    @classmethod
    def of(cls, elements: int, xor: int | None = None) -> Number:
        """Return what a promise gives: no elements have no identities, whatever else it has."""
        return cls(elements, xor if elements else 0)


class ExpectOf(NamedTuple):
    """A front will send so many elements of the substream in `row` on a segment."""

    front: str
    row: int
    segment: int
    elements: int
    revise: bool
    xor: int | None = None

    @property
    def number(self) -> Number:
        """Return the number that the pledge gives."""
        return Number.of(self.elements, self.xor)


class IdentitiesOf(NamedTuple):
    """A front has sent elements of the substream in `row` on a segment: the XOR of their identities."""

    front: str
    row: int
    segment: int
    xor: int


Pledge: TypeAlias = FrontierOf | CloseOf | FinishOf | ExpectOf | IdentitiesOf  #: a promise whose names are resolved
AboutRow: TypeAlias = CloseOf | ExpectOf | IdentitiesOf  #: pledges about one substream


class StagedReport(NamedTuple):
    """One accepted report: its units, entries and promises."""

    units: tuple[str, ...]
    entries: Entries
    pledges: tuple[Pledge, ...]

    @property
    def size(self) -> int:
        """Entries and promises."""
        return len(self.entries.rows) + len(self.pledges)


@dataclass(slots=True)
class Epoch:
    """Reports of an epoch that is neither committed nor revoked.

    Attributes:
        sealing: the run that staged it seals its epochs.
        sealed: its reports are fixed.
        folded: in IMMEDIATE mode, what has been folded in already, to take out again.
    """

    sealing: bool
    sealed: bool = False
    pieces: list[StagedReport] = field(default_factory=list)
    units: set[str] = field(default_factory=set)
    folded: list[Entries] = field(default_factory=list)

    def add(self, piece: StagedReport) -> None:
        """Keep a report."""
        self.pieces.append(piece)
        self.units.update(piece.units)

    @property
    def size(self) -> tuple[int, int]:
        """Its size: units, with one for the epoch itself; entries and promises."""
        entries = sum(piece.size for piece in self.pieces) + sum(len(entries.rows) for entries in self.folded)
        return 1 + len(self.units), entries

    def check_manifest(self, manifest: Sequence[str], epoch: int, mode: Mode) -> list[StagedReport]:
        """Compare with the units that the engine kept.

        Returns:
            the reports to keep.
        """
        missing = [unit for unit in manifest if unit not in self.units]
        if missing:
            raise missing_units(missing, epoch)
        if self.sealed:
            return self.pieces
        kept = set(manifest)
        stay = []
        for piece in self.pieces:
            inside = sum(unit in kept for unit in piece.units)
            if inside == len(piece.units):
                stay.append(piece)
            elif inside:
                out = sorted(set(piece.units) - kept)
                raise Refused(
                    Refusal.SPLIT_UNITS,
                    f"epoch {epoch}: one report covers units inside the manifest and {out} outside it; "
                    "report units that the engine may drop separately (keep_apart)",
                )
            elif mode is Mode.IMMEDIATE:
                raise Refused(
                    Refusal.SPLIT_UNITS,
                    f"epoch {epoch}: the report of units {sorted(piece.units)} is outside the manifest, but took "
                    "effect on receipt (IMMEDIATE); use STAGED if the engine may drop work",
                )
        return stay

    def keep(self, pieces: list[StagedReport]) -> None:
        """Drop the other reports, as if they had never been made."""
        self.pieces = pieces
        self.units = {unit for piece in pieces for unit in piece.units}

    @property
    def pledges(self) -> list[Pledge]:
        """Return the epoch's promises, in their order."""
        return [pledge for piece in self.pieces for pledge in piece.pledges]

    @property
    def entries(self) -> list[Entries]:
        """Return the epoch's entries, folded in already or not."""
        return [*(piece.entries for piece in self.pieces), *self.folded]

    def rows(self) -> Rows:
        """Return the rows that it refers to."""
        named = [pledge.row for pledge in self.pledges if isinstance(pledge, AboutRow)]
        return np.concatenate([np.array(named, np.int64), *(entries.rows for entries in self.entries)])


def missing_units(units: Sequence[str], epoch: int) -> Refused:
    """Return the refusal of a manifest that has units which no report covers."""
    shown = ", ".join(repr(unit) for unit in units[:20]) + (", …" if len(units) > 20 else "")
    return Refused(
        Refusal.MISSING_UNITS,
        f"epoch {epoch}: no report covers {len(units)} of the manifest's units: {shown}; report them and retry",
    )


@dataclass(eq=False, slots=True)
class Producer:
    """One producer of a job, across its runs.

    Attributes:
        number: stands for it in the accounts.
        last_contact: when its last message arrived (ns).
        run: the current run; None: the last one was closed or fenced.
        seals: the current run seals every epoch.
        settled: the current run has reported where it starts.
        past: runs that are fenced, the newest of them.
        committed: the last committed epoch; -1: none.
        staged: what is reported and not committed, by the number of its epoch.
    """

    name: str
    number: int
    mode: Mode
    last_contact: int
    run: str | None = None
    last_run: str = ""
    seals: bool = False
    settled: bool = False
    past: Newest = field(default_factory=Newest)
    committed: int = -1
    staged: dict[int, Epoch] = field(default_factory=dict)

    def open(self, run: str, seals: bool) -> None:
        """Make a run current and fence the one before."""
        self.fence()
        self.run = self.last_run = run
        self.seals = seals
        self.settled = False

    def fence(self) -> None:
        """Refuse every later message of the current run."""
        if self.run is not None:
            self.past.add(self.run)
            self.run = None

    def has_taken_effect(self, epoch: int) -> bool:
        """Return whether what was reported in an epoch counts by now."""
        return epoch <= self.committed or (self.mode is Mode.IMMEDIATE and epoch in self.staged)

    def check_current(self, run: str) -> None:
        """Refuse a run that is not the current one."""
        if run != self.run:
            why = "was superseded or closed" if run in self.past else "was never opened"
            current = "none is open" if self.run is None else f"{self.run!r} is current"
            raise Refused(
                Refusal.FENCED, f"run {run!r} of producer {self.name!r} {why} ({current}); open a new run to continue"
            )
