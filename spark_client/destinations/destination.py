"""Destinations of a query's rows: what each kind answers, and what a query asks of an open one.

A destination is declared as data that can be pickled. When a query starts, `Destination.check` refuses what could not
be written there, and `Destination.open` gives the output that batches write to. An output is given the rows of an
epoch, and again the same rows when the epoch is replayed, and sees to it that they are there once. It returns what it
has sent on into a channel, to be reported in the same epoch.

A kind is one file of this room; a format of files or tables is a line in `formats`, too. Several places for the same
results are written one after the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.counting.probes import TaskReports
from spark_client.plan.batches import BatchId, Counted, SetAside, computed_once
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.releases import ReleasePlan
from spark_client.storage.folder import Folder

HIDDEN: Final = ("_scope", "_key")  #: the columns of early results that no reader is given


class Output(Protocol):
    """Output for an epoch's rows.

    Attributes:
        concurrent: whether it may be written to while the rest of the batch runs, by another thread.
        reads_all: whether it reads all rows that it is given; else nobody knows how many.
        completes: whether it keeps what a batch completes, and so takes a batch that completes something and has no
            rows.
    """

    concurrent: bool
    reads_all: bool
    completes: bool

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:
        """Write rows, or find them written, and return what was sent into channels.

        Args:
            layout: whose key columns are known to name each row's substream; None: they may have changed.
        """
        ...

    def begun(self, query: str, epoch: int) -> bool:
        """Return whether somebody else may have taken rows of an epoch of this query, so that it has to be brought to
        its end."""
        ...

    def sweep(self, query: str) -> None:
        """Remove what drivers of this query that were killed have left half written."""
        ...


class EarlyOutput(Protocol):
    """Output of early results until final ones are there.

    Attributes:
        takes_all: whether each writing is of all that is open; else of what has changed since the last one.
    """

    takes_all: bool

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        """Show early rows, unless later ones or final ones are there.

        Args:
            rows: with the columns ``final`` and ``as_of``, and the hidden ``_scope`` and ``_key``.
            as_of: the last batch whose rows are in them.
        """
        ...


@dataclass(frozen=True)
class Opening:
    """Arguments to open an output.

    Attributes:
        tasks: count and report what is sent; None: the driver does.
        aside: takes rows that share a label with another, where a channel takes one of each only; None: such an epoch
            fails.
    """

    checkpoint: Folder
    tasks: TaskReports | None = None
    aside: SetAside | None = None


class Destination(ABC):
    """Destination of a query's rows, as declared.

    Attributes:
        sends: whether rows stay in the job there, as elements that another query receives.
    """

    sends = False

    def at(self, checkpoint: Folder) -> Destination:  # noqa: ARG002
        """Return the destination of one query, which may keep files in its checkpoint."""
        return self

    def check(self, schema: T.StructType, release: ReleasePlan | None, spark: SparkSession) -> None:  # noqa: B027
        """Refuse what could not be written, before the query starts.

        Args:
            release: that they are results of; None: they are rows of a stream.
        """

    def directories(self) -> Iterator[tuple[str, Folder]]:
        """Yield the directories that are written, each after its name for a message."""
        yield from ()

    @abstractmethod
    def open(self, opening: Opening) -> Output:
        """Return the output that batches write to."""

    def early(self) -> EarlyOutput | None:
        """Return where early results are shown; None: nowhere."""
        return None


class Place(Destination):
    """A destination out of the job, which is its own output: there is nothing to open, and nothing is counted."""

    concurrent = False
    reads_all = False
    completes = False
    takes_all = False

    def open(self, opening: Opening) -> Output:  # noqa: ARG002
        return self

    @abstractmethod
    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:
        """Write rows, as `Output.write`, and return nothing sent."""

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        """Return False: nobody is asked how far it came, and the next deployment writes the same rows again."""
        return False

    def sweep(self, query: str) -> None:
        """Leave everything: nothing is half written."""


class Nowhere(Place):
    """No place: the rows of a query are counted, and nothing else is done with them."""

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        return {}


class SeveralDestinations(Destination):
    """Several places out of the job, for the same results.

    Args:
        places: by name. Each keeps its notes of epochs under its name, so that two may share a database.
    """

    def __init__(self, places: Mapping[str, Destination]) -> None:
        self.places = places

    def at(self, checkpoint: Folder) -> SeveralDestinations:
        return SeveralDestinations({name: place.at(checkpoint) for name, place in self.places.items()})

    def check(self, schema: T.StructType, release: ReleasePlan | None, spark: SparkSession) -> None:
        for place in self.places.values():
            place.check(schema, release, spark)

    def directories(self) -> Iterator[tuple[str, Folder]]:
        for name, place in self.places.items():
            yield from ((f"{purpose} at {name!r}", path) for purpose, path in place.directories())

    def open(self, opening: Opening) -> Output:
        return _Outputs({name: place.open(opening) for name, place in self.places.items()})

    def early(self) -> EarlyOutput:
        outputs = {name: place.early() for name, place in self.places.items()}
        return _EarlyOutputs({name: output for name, output in outputs.items() if output is not None})


class _Outputs:
    concurrent = False

    def __init__(self, outputs: Mapping[str, Output]) -> None:
        self._outputs = outputs
        self.reads_all = any(output.reads_all for output in outputs.values())
        self.completes = any(output.completes for output in outputs.values())

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:
        with computed_once(rows, len(self._outputs)) as shared:
            for name, output in self._outputs.items():
                output.write(shared, BatchId(_named(batch.query, name), *batch[1:]), layout)
        return {}

    def begun(self, query: str, epoch: int) -> bool:
        return any(output.begun(_named(query, name), epoch) for name, output in self._outputs.items())

    def sweep(self, query: str) -> None:
        for name, output in self._outputs.items():
            output.sweep(_named(query, name))


class _EarlyOutputs:
    def __init__(self, outputs: Mapping[str, EarlyOutput]) -> None:
        self._outputs = outputs
        self.takes_all = any(output.takes_all for output in outputs.values())

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        with computed_once(rows, len(self._outputs)) as shared:
            for name, output in self._outputs.items():
                output.write_early(shared, _named(query, name), as_of)


def _named(query: str, name: str) -> str:
    """Return what one of several outputs knows its query by."""
    return f"{query}.{name}"


class Written(NamedTuple):
    """Results that a writer puts into a table, in a format of `formats`.

    Attributes:
        place: a path or URI, which has a slash, or a name in a catalog.
        folder: that place, for formats of files; None: it may be a name in a catalog.
        early: where early results are, beside the table; None: there are none.
    """

    place: str
    file_format: str
    options: Mapping[str, str]
    partition_by: tuple[str, ...]
    folder: Folder | None = None
    early: Folder | None = None
