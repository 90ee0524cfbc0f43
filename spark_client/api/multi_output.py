"""Several releases of one stream, or several outputs of one release, in one query: one read of each batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol, TypeAlias

from pyspark.sql.streaming.query import StreamingQuery

from spark_client.api.queryoptions import QueryOptions
from spark_client.api.readers import Readable
from spark_client.api.refusals import check_checkpoint
from spark_client.api.writer import TrackedWriter
from spark_client.errors import UsageError, check_faults, check_kind, check_some

Outputs: TypeAlias = Mapping[str, "TrackedWriter | Mapping[str, TrackedWriter]"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST: Final = 27  #: characters: tables of epochs have 64 for the query's id, a dot and this
_OF_THE_QUERY: Final = ("checkpointLocation", "late_path", "seal")


class Starter(Protocol):
    """Part of a `Tracking` for a writer of several outputs."""

    def start(self, writer: SeveralWriter) -> StreamingQuery:
        """Start what a `SeveralWriter` describes."""
        ...


class SeveralWriter(QueryOptions):
    """Writer of several outputs by one query, as `Tracking.write_together` gives it.

    Options: ``checkpointLocation`` (required), ``late_path``, ``seal``, as of `TrackedWriter`; and `queryName`,
    `trigger`, `late`. All others are given where an output is declared.

    Attributes:
        rows: the stream that all of them are of.
        outputs: by release, the places of its results; a place that has no name of its own is called as the release.
    """

    def __init__(self, tracking: Starter, outputs: Outputs) -> None:
        super().__init__()
        self._tracking = tracking
        self.outputs: dict[str, dict[str, TrackedWriter]] = {}
        for name, given in outputs.items():
            places = (
                {f"{name}.{place}": to for place, to in given.items()} if isinstance(given, Mapping) else {name: given}
            )
            _check_names(name, given, places)
            self.outputs[name] = places
        writers = {place: writer for places in self.outputs.values() for place, writer in places.items()}
        check_some("write_together", writers, "output: {'by_kind': by_kind.writeStream…}")
        for place, writer in writers.items():
            _check_writer(place, writer)
        self.rows: Readable = next(iter(writers.values())).rows
        apart = [place for place, writer in writers.items() if writer.rows is not self.rows]
        releases = {name: {id(each.release) for each in places.values()} for name, places in self.outputs.items()}
        mixed = [name for name, found in releases.items() if len(found) != 1]
        paths = [writer.options_given.get("path") for writer in writers.values()]
        doubled = {path for path in paths if path is not None and paths.count(path) > 1}
        check_faults(
            "write_together:",
            (
                apart,
                f"output {', '.join(map(repr, apart))} is of another stream: what is written together is of one, so "
                "that its rows are read once. Release the same object, with its steps (rows = orders.where(…)), and "
                "put what differs into the aggregates: aggregates.count().where(…)",
            ),
            (
                mixed,
                f"output {', '.join(map(repr, mixed))} has no place, or places of several releases: give each release "
                "a name of its own, and a place",
            ),
            (doubled, f"two outputs go to {', '.join(doubled)}: give each a path of its own"),
            (
                sum(writer.to_receipts is not None for writer in writers.values()) > 1,
                "a substream leaves one receipt, whatever is made of it: give .receipts(…) to one output",
            ),
        )

    def start(self) -> StreamingQuery:
        """Start the query, once the job is defined and the run is open at the tracker.

        Raises:
            UsageError: something is missing, or an output cannot be written.
            TrackingError: the tracker cannot be reached, or refuses the job or the run.
        """
        if foreign := [key for key in self.options_given if key not in _OF_THE_QUERY]:
            raise UsageError(f"option {foreign[0]!r}: give it to the output that it is for")
        check_checkpoint(self.options_given.get("checkpointLocation"))
        return self._tracking.start(self)


def _check_names(name: str, given: object, places: Mapping[str, object]) -> None:
    for place, writer in places.items():
        parts = [name, place[len(name) + 1 :]] if isinstance(given, Mapping) else [name]
        if len(place) > _LONGEST or place == "receipts" or not all(_NAME.fullmatch(part) for part in parts):
            raise UsageError(
                f"output {place!r}: a name has letters, digits, '_' and '-', at most {_LONGEST} with that of its "
                "place, and is not 'receipts'"
            )
        advice = "give released.writeStream with where its results go"
        check_kind(f"output {place!r}", writer, TrackedWriter, advice)


def _check_writer(place: str, writer: TrackedWriter) -> None:
    """Refuse a writer that cannot share its query."""
    own = any(key in writer.options_given for key in _OF_THE_QUERY)
    check_faults(
        f"output {place!r}",
        (writer.release is None, "sends rows on: only results of tracking.release are written together"),
        (writer.sends, "goes into a channel: give that release a query of its own"),
        (
            writer.release is not None and writer.release.revisions,
            "is of a release with revisions=True: reopened rows would be released by all, so it needs a query of its "
            "own",
        ),
        (
            own or writer.name is not None or writer.trigger_given or writer.to_late is not None,
            "has an option, a name, a trigger or a place of late rows that is the query's: give it to "
            "write_together(…)",
        ),
    )
    writer.check_place()
