"""Channels between queries: what one sends, another receives.

A channel knows how rows travel, and nothing of how they are counted. Both its sides have to agree on the columns and
how rows fall into substreams, which are kept beside it. Label and substream travel with the rows, as `layouts` lays
them out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, named, nullable
from spark_client.counting.folding import Fold
from spark_client.counting.groups import files, of_folded
from spark_client.errors import TrackingError, UsageError
from spark_client.fronts.front import Front, Group
from spark_client.plan import jsonrows
from spark_client.plan.labels import child_label
from spark_client.plan.layouts import DerivedLayout, Reader, RowLayout, layout_of
from spark_client.plan.streams import Direction
from spark_client.spark_internals.stores import Parquet
from spark_client.storage.directories import (
    parquet_of,
)
from spark_client.storage.folder import Backlog, Folder
from spark_client.windows.belonging import Belonging
from spark_client.windows.substreams import TRACKER_TYPE, Substreams

_NUMBER: Final = "_tracker_number"
_DESCRIPTION: Final = "_channel.json"


class Published(NamedTuple):
    """Rows of an epoch, in files.

    Attributes:
        groups: the rows by substream, if they were counted while they were written.
    """

    folder: Folder
    groups: list[Group] | None

    @property
    def has_rows(self) -> bool:
        return bool(files(self.folder).count_rows() if self.groups is None else self.groups)


class DoubledLabelsError(TrackingError):
    """Rows of an epoch share labels, in a channel that would take them for copies. Nothing of it was published."""


class Channel(ABC):
    """Way of a segment's rows from the queries that send to the one that receives.

    Args:
        path: for what the channel has to keep, in a store that its users share.

    Attributes:
        exact: whether a plain stream of its rows (`native`) has each row once.
    """

    exact: bool

    def __init__(self, segment: str, path: Folder) -> None:
        self.segment = segment
        self.path = path
        self._children: dict[tuple[tuple[str, ...], DerivedLayout | None], list[Column]] = {}
        self._readers: dict[RowLayout, Reader] = {}

    def describe(self, rows: T.StructType, rule: Substreams, layout: DerivedLayout | None = None) -> None:
        """Write down what a sender will write, or refuse it where an earlier one has written down something else.

        Args:
            rows: the columns, with `_tracker`.
            layout: by the key columns that rows had where they entered the job; the first sender's stands.

        Raises:
            UsageError: other columns, or other substreams, than the channel has.
        """
        written = T.StructType([*(field for field in rows.fields if field.name != TRACKER)])
        # Every column that Parquet gives back may be null.
        schema = nullable(T.StructType([*written.fields, T.StructField(TRACKER, TRACKER_TYPE)]))
        self.path.check(f"the path of channel {self.segment!r},")
        described = {"segment": self.segment, "schema": schema.jsonValue(), "substreams": rule.to_json()}
        if layout is not None and layout.fits(schema):
            described["told"] = {"scope": layout.scope, "key": layout.key}
        known = self.path.read(_DESCRIPTION)
        if known is None:
            self.path.put(_DESCRIPTION, described)
            return
        known["substreams"] = Substreams.from_json(known["substreams"]).to_json()  # it may be an earlier version's
        if _unordered(known) != _unordered(described):
            raise UsageError(
                f"channel {self.segment!r} at {self.path} was written as {_differences(known, described)}: keep the "
                "columns, or give the channel a new path (and its queries new checkpoints)"
            )

    def description(self) -> tuple[T.StructType, Substreams]:
        """Return the rows' schema, `_tracker` last, and how they fall into substreams.

        Raises:
            UsageError: no sender has described it yet.
        """
        known = self._known()
        return T.StructType.fromJson(known["schema"]), Substreams.from_json(known["substreams"])

    @property
    def layout(self) -> RowLayout:
        """Return how the channel's files lay out rows."""
        known = self._known()
        return layout_of(Substreams.from_json(known["substreams"]), known.get("told"))

    def _known(self) -> dict[str, Any]:
        known: dict[str, Any] | None = self.path.read(_DESCRIPTION)
        if known is None:
            raise UsageError(
                f"channel {self.segment!r} at {self.path} has no sender yet, so its columns are not known: build the "
                "query that writes to it first (….writeStream.channel(…)), or start the job that does"
            )
        if known["segment"] != self.segment:
            raise UsageError(f"the folder {self.path} is of channel {known['segment']!r}, not of {self.segment!r}")
        return known

    @abstractmethod
    def write(
        self, rows: DataFrame, sender: str, epoch: int, ordinal: tuple[str, ...], layout: DerivedLayout | None = None
    ) -> Published:
        """Send an epoch's rows, as children of those they were made of; again the same ones if it is repeated.

        Args:
            rows: with the parents' `_tracker`.
            ordinal: columns that tell the children of one parent apart.
            layout: whose key columns are known to name each row's substream; None: they may have changed.

        Returns:
            The files with what is to be counted as sent: see `layout` and `in_files`.
        """

    @abstractmethod
    def begun(self, sender: str, epoch: int) -> bool:
        """Return whether rows of an epoch may have been received: once it was published, it has to be brought to its
        end."""

    @abstractmethod
    def sweep(self, sender: str) -> None:
        """Remove what drivers of a sender that were killed have left half written."""

    def _keep_own(self, what: str, names: Iterable[str], own: Collection[str]) -> None:
        """Refuse names that the channel has for itself."""
        for name in names:
            if name.lower() in own:
                raise UsageError(f"channel {self.segment!r}: the {what} {name!r} is the channel's own: leave it out")

    def _refuse_bound(self, max_epochs: int | None, why: str) -> None:
        """Refuse a bound of epochs, where a batch has none."""
        if max_epochs is not None:
            raise UsageError(f"channel {self.segment!r}: {why}: leave max_epochs_per_trigger out")

    def check_session(self, spark: SparkSession) -> None:  # noqa: B027 - most travel under any settings
        """Refuse settings under which what is received would not be what was sent."""

    @abstractmethod
    def stream(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        """Return what the receiving query reads.

        Args:
            max_epochs: at most so many of the senders' epochs in a batch; None: as many as the channel likes.
        """

    @abstractmethod
    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:
        """Return the rows of a batch of `stream`, each once; the same when the epoch is replayed.

        Returns:
            None if it is known that there are none.
        """

    @abstractmethod
    def native(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        """Return the rows as a plain stream, for queries with native stateful operators."""

    def shape(self, spark: SparkSession) -> DataFrame:
        """Return a stream with the columns of its rows, which is never run: what steps are tried on."""
        self.check_session(spark)
        schema, _ = self.description()
        return spark.readStream.schema(schema).parquet(str(self.path))

    def publish_children(
        self, outbox: Folder, epoch: int, rows: DataFrame, ordinal: tuple[str, ...], layout: DerivedLayout | None = None
    ) -> Published:
        """Publish rows with labels of their own, in the channel's columns, unless they were published before."""
        children = self.carried(rows).select(*self._children_of(ordinal, layout))
        seen = Parquet(children, Fold(self.layout)).publish(outbox, epoch_name(epoch), self.check)
        groups = None if seen is None else of_folded(Fold.united(seen), self.layout.rule)
        return Published(outbox / epoch_name(epoch), groups)

    def check(self, folder: Folder) -> None:  # noqa: B027 - most have nothing to look for
        """Look at an epoch's files before anybody else can.

        Raises:
            TrackingError: they cannot be sent.
        """

    def check_children(self, rows: DataFrame, ordinal: tuple[str, ...]) -> None:  # noqa: B027 - as `check`
        """Look at rows whose children are to be sent, before it is settled that they are.

        Args:
            rows: with the parents' `_tracker`.
            ordinal: columns that tell the children of one parent apart.

        Raises:
            TrackingError: they cannot be sent.
        """

    def carried(self, rows: DataFrame) -> DataFrame:
        """Return the same rows; whoever reads one that the channel would alter fails, and so publishes nothing."""
        return rows

    def surplus(self, rows: DataFrame, ordinal: tuple[str, ...]) -> tuple[DataFrame, DataFrame]:
        """Return, of some rows, one for each label that they would have here; and those that are left.

        Args:
            rows: with the parents' `_tracker`.
            ordinal: columns that tell the children of one parent apart.
        """
        label = self.label_of_child(ordinal)
        alike = Window.partitionBy(label).orderBy(F.to_json(F.struct(*map(named, rows.columns))))
        numbered = rows.withColumn(_NUMBER, F.row_number().over(alike))
        return numbered.where(f"{_NUMBER} = 1").drop(_NUMBER), numbered.where(f"{_NUMBER} > 1").drop(_NUMBER)

    def label_of_child(self, ordinal: tuple[str, ...]) -> Column:
        """Return the label of a row's child on this channel's segment.

        Args:
            ordinal: columns that tell the children of one parent apart.
        """
        return child_label(F.col(f"{TRACKER}.label"), self.segment, [named(name) for name in ordinal])

    def _children_of(self, ordinal: tuple[str, ...], layout: DerivedLayout | None) -> list[Column]:
        """Return the columns of rows' children in files: made once, since each costs some calls into the JVM."""
        if (ordinal, layout) not in self._children:
            label = self.label_of_child(ordinal)
            schema, _ = self.description()
            own = [name for name in schema.fieldNames() if name != TRACKER]
            self._children[ordinal, layout] = self.layout.to_files(own, label, layout)
        return self._children[ordinal, layout]

    def in_files(self, spark: SparkSession, paths: Sequence[Folder]) -> DataFrame:
        """Return the rows of folders that `publish_children` has made."""
        return self.of_files(lambda schema: parquet_of(spark, schema).parquet(*map(str, paths)))

    def of_files(self, read: Callable[[T.StructType], DataFrame]) -> DataFrame:
        """Return the tracked rows that files hold.

        Args:
            read: reads the files, which have these columns.
        """
        schema, _ = self.description()
        layout = self.layout
        if layout not in self._readers:
            self._readers[layout] = layout.reader()
        return self._readers[layout](read(layout.schema_of_files(schema)))


class OutboxChannel(Channel):
    """A channel whose sender publishes an epoch's rows in an outbox first.

    So a replay sends those that the first attempt has computed.
    """

    def __init__(self, segment: str, path: Folder) -> None:
        super().__init__(segment, path)
        self._backlogs: dict[str, Backlog] = {}

    def begun(self, sender: str, epoch: int) -> bool:
        return self._outbox(sender).is_published(epoch_name(epoch))

    def sweep(self, sender: str) -> None:
        self.backlog(sender).sweep()

    def publish_epoch(
        self, rows: DataFrame, sender: str, epoch: int, ordinal: tuple[str, ...], layout: DerivedLayout | None
    ) -> tuple[Published, DataFrame]:
        """Publish an epoch's rows in the outbox, and return their files and the rows that are in them."""
        published = self.publish_children(self._outbox(sender), epoch, rows, ordinal, layout)
        self.backlog(sender).add(published.folder.name)
        return published, self.in_files(rows.sparkSession, [published.folder])

    def backlog(self, sender: str) -> Backlog:
        """Return the epochs that the outbox has."""
        return self._backlogs.setdefault(sender, Backlog(self._outbox(sender)))

    def tidy(self, sender: str, epoch: int) -> None:
        """Remove from the outbox what was sent and committed: all before an epoch that is sent."""
        for name in self.backlog(sender).before(epoch):
            self.backlog(sender).discard(name)

    def _outbox(self, sender: str) -> Folder:
        return self.path / "outbox" / sender


class JsonChannel(OutboxChannel):
    """A channel whose rows travel as JSON: what JSON would alter is refused, or fails its batch."""

    def describe(self, rows: T.StructType, rule: Substreams, layout: DerivedLayout | None = None) -> None:
        jsonrows.check(self.segment, rows)
        super().describe(rows, rule, layout)

    def check_session(self, spark: SparkSession) -> None:
        schema, _ = self.description()
        jsonrows.check_session(spark, f"channel {self.segment!r}", schema)

    def carried(self, rows: DataFrame) -> DataFrame:
        return jsonrows.carried(rows, f"channel {self.segment!r}", "a step makes something else of it")


def epoch_name(epoch: int) -> str:
    """Return the name of the folder that has a sender's epoch."""
    return f"{epoch:012d}"


@dataclass(frozen=True, eq=False)
class Received:
    """Rows that another query has sent into a channel.

    Attributes:
        rule: how its rows fall into substreams.
        layout: whose key columns name a row's substream, if its files are laid out so.
    """

    channel: Channel
    rule: Substreams
    layout: DerivedLayout | None

    direction: ClassVar[Direction] = "received"
    front: ClassVar[Front | None] = None
    named: ClassVar[bool] = True
    counted: ClassVar[bool] = True
    deduplicate: ClassVar[bool] = False
    belonging: ClassVar[Belonging | None] = None

    @classmethod
    def of(cls, channel: Channel) -> Received:
        """Return the rows of a channel that a sender has described."""
        _, rule = channel.description()
        return cls(channel, rule, channel.layout if isinstance(channel.layout, DerivedLayout) else None)

    @property
    def segment(self) -> str:
        return self.channel.segment

    @property
    def exact(self) -> bool:
        return self.channel.exact

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:
        return self.channel.rows(batch, query, epoch)

    def all_rows(self, batch: DataFrame) -> DataFrame:
        return batch

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:  # noqa: ARG002
        return rows


def _unordered(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a channel's description, but for the order of the columns and the layout of files: the first sender's
    stand."""
    columns = {field["name"]: field["type"] for field in description["schema"]["fields"]}
    return {**description, "schema": columns, "told": None}


def _differences(known: Mapping[str, Any], described: Mapping[str, Any]) -> str:
    def columns(description: Mapping[str, Any]) -> dict[str, str]:
        return {field["name"]: str(field["type"]) for field in description["schema"]["fields"]}

    one, other = columns(known), columns(described)
    changed = sorted({*one.items()} ^ {*other.items()})
    if changed:
        return f"{sorted(one)}, and is now {sorted(other)} (differing: {sorted({name for name, _ in changed})})"
    was, now = (f"{each['substreams']} of segment {each['segment']!r}" for each in (known, described))
    return f"{was}, and is now {now}"
