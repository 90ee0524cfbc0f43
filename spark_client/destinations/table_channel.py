"""A channel through a table of a database: each row once, whatever fails, for queries that share nothing but it.

Tasks of the sender write rows in pieces, each in a transaction of its own, under a name that no other attempt has. The
driver then enters the pieces of the epoch into a second table, in one transaction, unless the epoch is there: that
makes them the epoch. Pieces of attempts that failed are in no epoch; they are never read, and go with the next one. The
receiver reads the pieces of entered epochs only, by as many tasks as there are.

Like Kafka's, the channel has an outbox: a replay sends the rows that the first attempt has computed. Needs nothing of
the database but a DB-API 2 connection with transactions.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, parallelism
from spark_client.destinations.channel import JsonChannel, Published
from spark_client.destinations.epochs import EpochStore, epochs_in, epochs_of
from spark_client.plan import jsonrows
from spark_client.plan.layouts import DerivedLayout
from spark_client.spark_internals.tasks import spark_schema
from spark_client.storage.databases import Connection, check_placeholder, check_transactions, in_statement
from spark_client.storage.folder import Folder

_PIECE: Final = 10_000  #: rows that a task sends, or holds, at once
_ROW: Final = pa.schema(
    {"label": pa.int64(), "scope": pa.string(), "name": pa.string(), "ends": pa.int64(), "content": pa.string()}
)

_CLOSING: Final = {'"': '"', "`": "`", "]": "["}  #: what ends a name in quotation marks, and began it
_ESCAPED: Final = "\ufdd0"  #: begins a text that is kept as JSON: it is no character


def channel_tables(name: str) -> tuple[str, ...]:
    """Return the statements that make a channel's tables and their index; run them once.

    Args:
        name: of the table of rows, as SQL takes it; the table of epochs is called ``<name>_epochs``.

    >>> channel_tables('"a b"')[2].partition(" (")[0]
    'create table "a b_epochs"'
    """
    return (
        f"create table {name} (sender varchar(64) not null, epoch bigint not null, piece varchar(64) not null, "
        "label bigint not null, scope text, name text, ends bigint, content text not null)",
        f"create index {_index(name)} on {name} (sender, epoch, piece)",
        f"create table {_suffixed(name, '_epochs')} (sender varchar(64) not null, epoch bigint not null, "
        "part integer not null, piece varchar(64) not null, primary key (sender, epoch, part))",
    )


def _suffixed(name: str, suffix: str) -> str:
    """Return a table's name with a suffix, as SQL takes it: within its quotation marks, if it has some.

    >>> _suffixed("public.clean", "_epochs"), _suffixed('public."a b"', "_epochs")
    ('public.clean_epochs', 'public."a b_epochs"')
    """
    return f"{name[:-1]}{suffix}{name[-1]}" if name[-1:] in _CLOSING else name + suffix


def _index(name: str) -> str:
    """Return what a table's index is called: a name without a schema.

    >>> _index("public.clean"), _index('public."a.b"')
    ('public_clean_pieces', '"public_a_b_pieces"')
    """
    bare = re.sub(r'["`\[\]]', "", name).replace(".", "_")
    return f"{_CLOSING.get(name[-1:], '')}{bare}_pieces{name[-1] if name[-1:] in _CLOSING else ''}"


@dataclass(frozen=True)
class Store:
    """The two tables; travels to executors.

    Attributes:
        connect: makes a DB-API 2 connection that does not commit by itself.
        placeholder: how the driver writes a parameter.
    """

    connect: Callable[[], Connection]
    name: str
    placeholder: str

    def sql(self, text: str) -> str:
        """Return a statement with the tables' names and the driver's placeholders."""
        rows, epochs = (in_statement(self.placeholder, name) for name in (self.name, _suffixed(self.name, "_epochs")))
        return text.replace("?", self.placeholder).format(rows=rows, epochs=epochs)

    def ask(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query, on a connection of its own."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(self.sql(text), parameters)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found


class TableChannel(JsonChannel):
    """A table of a database as a channel, as `Tracking.table_channel` declares it.

    Args:
        connect: makes a DB-API 2 connection that is not in autocommit mode; called in the driver and in executors.
        table: that `channel_tables` has made, as SQL takes its name.
        path: a folder of the channel's own, for its outbox.
        placeholder: how the driver writes a parameter: ``%s``, or ``?`` as sqlite3 does.
        keep: whether an epoch's rows stay in the table when they have been received.
    """

    exact = True

    def __init__(
        self,
        segment: str,
        connect: Callable[[], Connection],
        table: str,
        path: Folder,
        placeholder: str = "%s",
        keep: bool = False,
    ) -> None:
        super().__init__(segment, path)
        check_placeholder(placeholder)
        self._store = Store(connect, table, placeholder)
        self._keep = keep

    def __repr__(self) -> str:
        return f"TableChannel({self.segment!r}, {self._store.name!r})"

    # ---------------------------------------------------------------- sending

    def write(
        self, rows: DataFrame, sender: str, epoch: int, ordinal: tuple[str, ...], layout: DerivedLayout | None = None
    ) -> Published:
        published, sent = self.publish_epoch(rows, sender, epoch, ordinal, layout)
        if not self._store.ask("select part from {epochs} where sender = ? and epoch = ?", sender, epoch):
            own = [name for name in sent.columns if name != TRACKER]
            of_lineage = [F.col(f"{TRACKER}.{name}") for name in ("label", "scope", "name")]
            ends = F.unix_micros(f"{TRACKER}.end").alias("ends")
            content = sent.select(*of_lineage, ends, jsonrows.to_json(own).alias("content"))
            pieces = content.mapInArrow(_Sends(self._store, sender, epoch), "piece string").collect()
            self._enter(sender, epoch, [row["piece"] for row in pieces])
        self.tidy(sender, epoch)
        return published

    def _enter(self, sender: str, epoch: int, pieces: Sequence[str]) -> None:
        """Make pieces the epoch. Should an earlier driver be at it, too, the primary key makes one of the two fail."""
        store = self._store
        if not pieces:
            return
        with closing(store.connect()) as connection:
            check_transactions(connection)
            cursor = connection.cursor()
            entry = store.sql("insert into {epochs} (sender, epoch, part, piece) values (?, ?, ?, ?)")
            cursor.executemany(entry, [(sender, epoch, part, piece) for part, piece in enumerate(pieces)])
            left_over = store.sql(
                "delete from {rows} where sender = ? and epoch between ? and ? and not exists "
                "(select 1 from {epochs} e where e.sender = {rows}.sender and e.epoch = {rows}.epoch "
                "and e.piece = {rows}.piece)"
            )
            cursor.execute(left_over, (sender, epoch - 1, epoch))  # an attempt may have gone on after its epoch
            connection.commit()

    # ---------------------------------------------------------------- receiving

    def stream(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        self.check_session(spark)
        return epochs_of(spark, self.segment, _Entered(self._store), max_epochs, self._keep)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:  # noqa: ARG002
        pieces = [piece for sender, number in epochs_in(batch) for piece in _pieces(self._store, sender, number)]
        if not pieces:
            return None
        return self._read(batch.sparkSession.createDataFrame(pieces, "sender string, epoch long, piece string"))

    def native(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        epochs = self.stream(spark, max_epochs)
        found = epochs.mapInArrow(_Finds(self._store), "sender string, epoch long, piece string")
        return self._read(found.repartition(parallelism(spark)))

    def _read(self, pieces: DataFrame) -> DataFrame:
        schema, _ = self.description()
        own = T.StructType([field for field in schema.fields if field.name != TRACKER])
        received = pieces.mapInArrow(_Receives(self._store), spark_schema(_ROW))
        tracker = F.struct("scope", "name", F.timestamp_micros("ends").alias("end"), "label")
        return received.select(jsonrows.from_json(F.col("content"), own).alias("row"), tracker.alias(TRACKER)).select(
            "row.*", TRACKER
        )


class _Entered(EpochStore):
    """The epochs that the table of epochs has."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __str__(self) -> str:
        return self._store.name

    def senders(self) -> list[str]:
        return [sender for (sender,) in self._store.ask("select distinct sender from {epochs} order by sender")]

    def published(self, sender: str, after: int) -> list[int]:
        text = "select distinct epoch from {epochs} where sender = ? and epoch > ? order by epoch"
        return [epoch for (epoch,) in self._store.ask(text, sender, after)]

    def discard(self, sender: str, before: int) -> None:
        with closing(self._store.connect()) as connection:
            cursor = connection.cursor()
            for table in ("{epochs}", "{rows}"):
                cursor.execute(self._store.sql(f"delete from {table} where sender = ? and epoch < ?"), (sender, before))
            connection.commit()


@dataclass(frozen=True)
class _Sends:
    """Writer in executors: puts a partition's rows into the table, and returns in which pieces."""

    store: Store
    sender: str
    epoch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (_kept(row) for batch in batches for row in batch.to_pylist())
        insert = self.store.sql(
            "insert into {rows} (sender, epoch, piece, label, scope, name, ends, content) "
            "values (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        pieces: list[str] = []
        chunk = list(islice(rows, _PIECE))
        if not chunk:
            return
        with closing(self.store.connect()) as connection:
            while chunk:
                pieces.append(uuid.uuid4().hex)
                named = (self.sender, self.epoch, pieces[-1])
                connection.cursor().executemany(insert, [(*named, *row) for row in chunk])
                connection.commit()
                chunk = list(islice(rows, _PIECE))
        yield pa.RecordBatch.from_pydict({"piece": pieces})


@dataclass(frozen=True)
class _Finds:
    """Finder, in executors, of the pieces of epochs."""

    store: Store

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [piece for row in batch.to_pylist() for piece in _pieces(self.store, row["sender"], row["epoch"])]
            if found:
                senders, epochs, pieces = zip(*found, strict=True)
                yield pa.RecordBatch.from_pydict({"sender": senders, "epoch": epochs, "piece": pieces})


@dataclass(frozen=True)
class _Receives:
    """Reader, in executors, of the rows of pieces, a piece at a time."""

    store: Store

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        query = self.store.sql(
            "select label, scope, name, ends, content from {rows} where sender = ? and epoch = ? and piece = ?"
        )
        with closing(self.store.connect()) as connection:
            cursor = connection.cursor()
            for batch in batches:
                for piece in batch.to_pylist():
                    cursor.execute(query, (piece["sender"], piece["epoch"], piece["piece"]))
                    columns = list(zip(*map(_given_back, cursor.fetchall()), strict=True))
                    yield pa.RecordBatch.from_pydict(dict(zip(_ROW.names, columns, strict=True)), schema=_ROW)


def _pieces(store: Store, sender: str, epoch: int) -> list[tuple[str, int, str]]:
    text = "select piece from {epochs} where sender = ? and epoch = ? order by part"
    return [(sender, epoch, piece) for (piece,) in store.ask(text, sender, epoch)]


def _kept(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row as the table keeps it: databases refuse texts with NUL, so scopes and names that have one are
    JSON."""
    return tuple(_escaped(value) if name in ("scope", "name") else value for name, value in row.items())


def _given_back(row: Sequence[Any]) -> tuple[Any, ...]:
    label, scope, name, ends, content = row
    return label, _unescaped(scope), _unescaped(name), ends, content


def _escaped(text: str | None) -> str | None:
    """Return a text without NUL.

    >>> _unescaped(_escaped("a\\0b")) == "a\\0b" and "\\0" not in _escaped("a\\0b")
    True
    """
    if text is None or not ("\0" in text or text.startswith(_ESCAPED)):
        return text
    return _ESCAPED + json.dumps(text)


def _unescaped(text: str | None) -> str | None:
    return json.loads(text.removeprefix(_ESCAPED)) if text is not None and text.startswith(_ESCAPED) else text
