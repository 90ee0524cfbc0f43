"""The ledger as a DataFrame: what became of every row of each substream, from the receipts of a job's releases."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.release.receipts import RECEIPT_SCHEMA
from spark_client.storage.directories import check_directory, read_json
from tracker.client.ledger import COUNTS, NEEDED, Aside, Entry, Key, Releases, asides_of, bad_rows, entries

_COUNTED: Final = ("sent", "released", "filtered", "late", "given_up", "quarantined", "passed_on", "missing")
LEDGER_SCHEMA: Final = T.StructType(
    [
        T.StructField("job", T.StringType()),
        T.StructField("scope", T.StringType()),  # null: rows that belong to no substream
        T.StructField("name", T.StringType()),
        T.StructField("end_time", T.TimestampType()),  # of a window
        T.StructField("origins", T.ArrayType(T.StringType())),  # the segments on which its rows entered the job
        T.StructField("segment", T.StringType()),  # that the line is about; null: all of them
        *[T.StructField(name, T.LongType()) for name in _COUNTED],
        T.StructField("wrong", T.ArrayType(T.StringType())),  # what does not add up, and where
    ]
)
_KEY: Final = ["_job", "_scope", "_name"]
_IN_ARROW: Final = pa.schema(
    [
        *[(name, pa.string()) for name in ("job", "scope", "name")],
        ("end_time", pa.int64()),
        ("origins", pa.list_(pa.string())),
        ("segment", pa.string()),
        *[(name, pa.int64()) for name in _COUNTED],
        ("wrong", pa.list_(pa.string())),
    ]
)


def ledger(
    spark: SparkSession,
    receipts: str | os.PathLike[str] | DataFrame,
    late: Sequence[str | os.PathLike[str]] = (),
    by_segment: bool = False,
) -> DataFrame:
    """Add up what became of every row of each substream that has ended.

    Args:
        spark: the session that reads receipts and tables.
        receipts: the directory that `receipts(…)` of the job's releases has filled; or its rows, as a DataFrame with
            the columns of `RECEIPT_SCHEMA`, if they are in a database.
        late: the tables of late rows of the job's queries: ``tracker/late`` in each checkpoint, or its ``late_path``.
            With them the ledger has rows that came after a receipt was written, and those of no substream.
        by_segment: whether the lines of single segments are there, too; else those of whole substreams.

    Returns:
        `LEDGER_SCHEMA`: in each line ``sent`` is the sum of the other counts. ``missing`` is not 0, or ``wrong`` not
        empty, where the receipts do not add up.

    Raises:
        UsageError: a directory is not there.

    >>> ledger(spark, "/data/receipts").where("size(wrong) > 0").show()                     # doctest: +SKIP
    """
    found = _read(spark, receipts)
    asides = [aside for path in late for aside in _asides(Path(path))]
    known = found.select("job", "deployment", "segment", "origins").distinct().collect()
    releases = Releases()
    for row in known:
        releases.add(*row)
    worst = found.groupBy("job", "segment", "query").agg(F.max("bad").alias("bad")).collect()
    bad = bad_rows([row.asDict() for row in worst], asides)
    by_key: dict[Key, list[Aside]] = {}
    for aside in chain(bad, (each for each in asides if each.kind != "bad")):
        by_key.setdefault(aside.key, []).append(aside)

    # Rows that were set aside of a substream without a receipt need a group, too.
    only_aside = spark.createDataFrame(
        [(*key, True) for key in by_key], "_job string, _scope string, _name string, _a boolean"
    )
    revision = (F.col("elements") == 0) & (F.col("revision") == 0)
    name = F.when(revision, F.regexp_replace("name", r"(?s)^(.+)#r[1-9][0-9]*$", "$1")).otherwise(F.col("name"))
    keyed = found.select(
        F.col("job").alias("_job"),
        F.col("scope").alias("_scope"),
        name.alias("_name"),
        *[F.unix_micros(each).alias(each) if each == "end_time" else F.col(each) for each in NEEDED],
    )

    def balanced(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        key = Key(*(rows[0][name] for name in _KEY))
        lines = entries(key, [row for row in rows if row["job"] is not None], by_key.get(key, ()), releases)
        return _table([line for line in lines if by_segment or line.segment is None])

    schema = T.StructType([T.StructField(f.name, T.LongType()) if f.name == "end_time" else f for f in LEDGER_SCHEMA])
    lines = (
        keyed.unionByName(only_aside.drop("_a"), allowMissingColumns=True).groupBy(*_KEY).applyInArrow(balanced, schema)
    )
    return lines.withColumn("end_time", F.timestamp_micros("end_time"))


def _read(spark: SparkSession, receipts: str | os.PathLike[str] | DataFrame) -> DataFrame:
    if isinstance(receipts, DataFrame):
        absent = [field for field in RECEIPT_SCHEMA.fields if field.name not in receipts.columns]
        return receipts.withColumns({field.name: F.lit(None).cast(field.dataType) for field in absent})
    check_directory(receipts, "receipts=", "give the one of .receipts(…)")
    return spark.read.schema(RECEIPT_SCHEMA).parquet(os.fspath(receipts))


def _asides(table: Path) -> list[Aside]:
    # A table is made when something is set aside.
    check_directory(table.parent, f"late={str(table)!r}: ", "give the path of a table of late rows")
    return [aside for note in sorted((table / COUNTS).glob("[0-9-]*.json")) for aside in asides_of(read_json(note))]


def _table(lines: Sequence[Entry]) -> pa.Table:
    rows = [
        {
            **dict(zip(("job", "scope", "name"), line.key, strict=True)),
            **{name: getattr(line, name) for name in ("end_time", "segment", *_COUNTED)},
            "origins": [*line.origins],
            "wrong": [*line.wrong],
        }
        for line in lines
    ]
    return pa.Table.from_pylist(rows, schema=_IN_ARROW)
