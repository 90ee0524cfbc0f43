"""Folders that a user names, with what Spark's own settings have of their stores.

Relies on the settings of Hadoop's clients, which a session has as ``spark.hadoop.…`` and the JVM as its configuration:
``fs.s3a.*``, ``fs.s3a.bucket.NAME.*``, ``fs.azure.account.key.ACCOUNT``, and Google's key file. Fails closed: a store
refuses who has no keys. Since Spark 3.5.

Spark's own writers ask a store of objects some forty times for each folder, for names that a rename would need. Files
of this package have names that nobody else uses, so each task puts its own there with one request.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from spark_client.errors import refused
from spark_client.spark_internals.hadoop import SCHEMES, HadoopStore
from spark_client.spark_internals.sessions import is_remote
from spark_client.spark_internals.tasks import arrow_schema, passes_through_arrow
from spark_client.storage.directories import check_signs, local_path, write_parquet
from spark_client.storage.folder import STORES, Folder
from tracker.store import StoreError

Look: TypeAlias = Callable[[pa.Table], str]  #: at rows that are written

_AT_ONCE: Final = 256 << 20  #: bytes of rows, uncompressed, that a task holds before it writes them
_UNUSABLE: Final = frozenset('*?[]{}\\~^#%|<>"`')  #: in URLs: patterns to Spark, or spelled otherwise by stores


def folder_of(spark: SparkSession, location: str | os.PathLike[str], what: str) -> Folder:
    """Return the folder that a user names, with what Spark's own settings have of its store.

    The environment of this process comes first (``AWS_ACCESS_KEY_ID`` and the like, a role of the machine); then
    settings such as ``spark.hadoop.fs.s3a.access.key``, of the bucket or of all.

    Args:
        what: it is, for a message.

    Raises:
        UsageError: nobody can keep files there as this package needs them.

    >>> folder_of(spark, "s3a://lake/checkpoints/daily", "checkpointLocation")                      # doctest: +SKIP
    Folder('s3a://lake/checkpoints/daily')
    """
    text = os.fspath(location)
    url = urlsplit(text)
    through_spark = url.scheme in SCHEMES and not is_remote(spark)
    if url.scheme not in STORES and not through_spark:
        return Folder(local_path(text, what))
    check_signs(text, _UNUSABLE, f"{what} {text!r}", "Spark or the store reads otherwise")
    if through_spark:
        with refused(f"{what} {text!r}", errors=StoreError):
            store = HadoopStore(spark.sparkContext._gateway, f"{url.scheme}://{url.netloc}")
        return Folder(text, None, (store, f"{url.path.strip('/')}/".lstrip("/")))
    return Folder(text, _settings(spark, url.scheme, url.netloc))


def _settings(spark: SparkSession, scheme: str, authority: str) -> dict[str, str]:
    """Return the settings of a store that this process's environment lacks and Spark's settings have."""
    read = _reader(spark)
    if scheme == "gs":
        found = {"service_account": read("google.cloud.auth.service.account.json.keyfile")}
        return _lacking(found, ("GOOGLE_",))
    if scheme.startswith("abfs"):
        account = authority.rpartition("@")[2]
        return _lacking({"account_key": read(f"fs.azure.account.key.{account}")}, ("AZURE_",))

    def of_bucket(key: str) -> str:
        return read(f"fs.s3a.bucket.{authority}.{key}") or read(f"fs.s3a.{key}")

    endpoint = of_bucket("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if of_bucket('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
    keys = {
        "access_key_id": of_bucket("access.key"),
        "secret_access_key": of_bucket("secret.key"),
        "session_token": of_bucket("session.token"),
    }
    return {
        **_lacking(keys, ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY", "AWS_CONTAINER")),
        **_lacking({"endpoint": endpoint}, ("AWS_ENDPOINT",)),
        **_lacking({"region": of_bucket("endpoint.region")}, ("AWS_REGION", "AWS_DEFAULT_REGION")),
    }


def _lacking(settings: Mapping[str, str], environment: tuple[str, ...]) -> dict[str, str]:
    if any(name.startswith(environment) for name in os.environ):
        return {}
    return {name: value for name, value in settings.items() if value}


def _reader(spark: SparkSession) -> Callable[[str], str]:
    """Return how to read a setting of Hadoop; what is not set is empty."""
    if is_remote(spark):
        return lambda key: str(spark.conf.get(f"spark.hadoop.{key}", "") or "")
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    return lambda key: str(hadoop.get(key) or "")


class Parquet:
    """Filling of a folder with rows as Parquet.

    Args:
        look: at the rows of each file, where a task has them in Python; what it returns goes to the driver.

    >>> folder.write("part-7", Parquet(rows))                                                       # doctest: +SKIP
    ['0.1f0e….parquet', '1.77ab….parquet']
    """

    def __init__(self, rows: DataFrame, look: Look | None = None) -> None:
        self._rows = rows
        self._look = look
        self._seen: list[str] | None = None

    def __call__(self, folder: Folder) -> list[str]:
        rows = self._rows
        if not folder.is_of_objects or not all(passes_through_arrow(field.dataType) for field in rows.schema):
            write_parquet(rows)(str(folder))
            return []
        found = rows.mapInArrow(_Puts(folder, self._look), "file string, seen string").collect()
        self._seen = [row["seen"] for row in found]
        return sorted(row["file"] for row in found) or [_put(folder, "0", arrow_schema(rows.schema).empty_table())]

    def publish(self, into: Folder, name: str, check: Callable[[Folder], None]) -> list[str] | None:
        """Publish the rows under a name, unless there are some already: see `Folder.publish`.

        Args:
            check: raises an error for files that are not to be published.

        Returns:
            The answers of the looks at the files; None: others stand, or Spark has written them itself.
        """

        def fill(folder: Folder) -> list[str]:
            made = self(folder)
            check(folder)
            return made

        if into.publish(name, fill):
            return self._seen
        self._rows.write.format("noop").mode("overwrite").save()  # what counts and observes rows waits for them
        return None


@dataclass(frozen=True)
class _Puts:
    """Writer in executors: puts a partition's rows into a folder, and returns the names of the files."""

    folder: Folder
    look: Look | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        number = "0" if task is None else str(task.partitionId())
        taken: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            taken.append(batch)
            size += batch.nbytes
            if size >= _AT_ONCE:
                yield self._put(number, taken)
                taken, size = [], 0
        if taken:
            yield self._put(number, taken)

    def _put(self, number: str, taken: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        rows = pa.Table.from_batches(taken)
        seen = None if self.look is None else self.look(rows)
        return pa.RecordBatch.from_arrays(
            [pa.array([each], pa.string()) for each in (_put(self.folder, number, rows), seen)], ["file", "seen"]
        )


def _put(folder: Folder, number: str, table: pa.Table) -> str:
    name = f"{number}.{uuid.uuid4().hex}.parquet"
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    folder.put(name, buffer.getvalue().to_pybytes())
    return name
