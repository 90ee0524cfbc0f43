"""Directories that appear whole or not at all, on a file system that driver and executors share.

A batch's files go to a hidden directory first and are published by one rename. The first publication of a name stands:
a replay finds it and leaves it as it is, so readers never see two versions of an epoch. The next driver sweeps up what
one that was killed has left hidden.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse, urlunparse

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import TrackingError, UsageError, refused
from tracker.store.directory import sync

_SETTINGS: Final = threading.RLock()  #: who has changed what a user's session writes with

_HIDDEN: Final = re.compile(r"_.+\.[0-9a-f]{8}", re.DOTALL)

#: Options under which Spark reads all files that it is given, or fails.
WHOLE: Final = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
#: Of the session that writes Parquet, so that who counts what was written reads it without Spark.
PARQUET: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # with statistics, so that reading can skip
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_AT_ONCE = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


def local_path(location: str | os.PathLike[str], what: str) -> Path:
    """Return a location as a path that this process can open."""
    text = os.fspath(location)
    path = Path(local_pattern(text, what)).absolute()
    check_signs(str(path), _PATTERN, f"{what} {text!r}", "Spark takes for a pattern")
    return path


def check_signs(location: str, signs: Set[str], what: str, reason: str) -> None:
    """Refuse a location with signs that mean something else to those who open it.

    Args:
        signs: the characters that are refused.
        reason: what others take them for: the end of a clause with "which".
    """
    if found := sorted(signs & set(location)):
        raise UsageError(f"{what}: has {' '.join(found)}, which {reason}: choose another place")


def check_directory(path: str | os.PathLike[str], what: str, advice: str) -> None:
    """Refuse a path where there is no directory."""
    if not os.path.isdir(path):
        raise UsageError(f"{what}{os.fspath(path)!r} is not a directory: {advice}")


def local_pattern(pattern: str, what: str) -> str:
    """Return a pattern of paths, or a URI of one, as a pattern of paths that this process can open.

    >>> local_pattern("file:///data/a%20b/*.json", "the manifests"), local_pattern("m/17?.json", "the manifests")
    ('/data/a b/*.json', 'm/17?.json')
    """
    parsed = urlparse(pattern)
    if parsed.scheme not in ("", "file"):
        raise UsageError(
            f"{what} {pattern!r}: has to be on a file system that the driver and the executors see as a path (a local "
            "disk with local[*], else a shared mount), since directories are published there by rename"
        )
    return unquote(urlunparse(("", "", *parsed[2:]))) if parsed.scheme else pattern


def check_store(path: Path, what: str) -> None:
    """Refuse a file system that cannot do what is relied on: appear whole by rename, and once by a hard link.

    Args:
        path: a directory, which is made.
    """
    trial = path / f"_check.{uuid.uuid4().hex[:8]}"
    takes = (
        "It takes one on which this user may write, a directory is renamed in one step, and files have hard links (a "
        "local disk, NFS, Lustre; not SMB, FAT, or most object stores that are mounted)"
    )
    what = f"{what} {path}: the file system cannot do what exactly-once needs there"
    try:
        with refused(what, takes, (_Replaces, OSError)):
            (trial / "one").mkdir(parents=True)
            (trial / "one" / "file").write_text("")
            os.link(trial / "one" / "file", trial / "link")
            with suppress(FileExistsError):
                os.link(trial / "one" / "file", trial / "link")
                raise OSError(errno.ENOTSUP, "a hard link takes the place of a file that is there")
            (trial / "two").mkdir()
            (trial / "two" / "file").write_text("")
            with suppress(OSError):
                (trial / "one").rename(trial / "two")
                raise _Replaces
            (trial / "one").rename(trial / "three")
    finally:
        shutil.rmtree(trial, ignore_errors=True)


class _Replaces(Exception):  # noqa: N818 - an answer
    """A directory took the place of another one, that was not empty."""

    def __str__(self) -> str:
        return "a directory can be renamed onto one that is not empty"


_PATTERN = frozenset("*?[]{}\\")
_may_publish: ContextVar[Callable[[], object]] = ContextVar("may_publish", default=lambda: None)


@contextmanager
def publishing_after(ready: Callable[[], object]) -> Iterator[None]:
    """Let what this thread publishes meanwhile be written at once, and appear when `ready` has returned.

    Args:
        ready: raises if nothing must appear.
    """
    token = _may_publish.set(ready)
    try:
        yield
    finally:
        _may_publish.reset(token)


def may_appear() -> None:
    """Return as soon as what this thread publishes may appear: see `publishing_after`."""
    _may_publish.get()()


def publish(target: Path, write: Callable[[str], object]) -> bool:
    """Write a directory and publish it under its name, unless it is there already.

    Args:
        write: fills the directory whose path it is given; Spark's writers make it.

    Returns:
        True if this call has written it; False: an earlier attempt had published it.
    """
    if target.is_dir():
        return False
    hidden = _beside(target)
    make(hidden)
    mark, content = hidden / "_mark", hidden / "content"
    mark.touch()
    try:
        write(str(content))
        sync_all(content)
        may_appear()
        if not mark.exists():  # tasks that went on after it was swept have made a directory of the same name
            raise TrackingError(
                f"{hidden} was removed meanwhile: another driver of this query has taken over. Stop this one"
            )
        try:
            content.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            return False
        sync(target.parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return True


def make(path: Path) -> None:
    """Make a directory and those above it, on the disk: what is synced below a new directory is lost with its name."""
    if not path.is_dir():
        make(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync_all(directory: Path) -> None:
    """Have a directory with all that is below it on the disk: Spark's writers leave that to the system."""
    for path, _, files in os.walk(directory):
        for file in files:
            sync(Path(path, file))
        sync(Path(path))


def sweep(path: Path) -> None:
    """Remove from a directory what drivers that were killed have left half written, or half removed.

    Only for the driver that has taken over: an earlier one that is still at work there fails, and publishes nothing.
    """
    try:
        left = [entry for entry in path.iterdir() if _HIDDEN.fullmatch(entry.name)]
    except FileNotFoundError:
        return
    for entry in left:
        if entry.is_dir():
            remove(entry)  # renamed first: whoever is still writing there must not find half of it
        else:
            entry.unlink(missing_ok=True)


def sweep_beside(target: Path) -> None:
    """Remove what a process that was killed has left of the directory that it was to publish. See `sweep`."""
    for entry in target.parent.glob(f"_{target.name}.*"):
        if _HIDDEN.fullmatch(entry.name):
            remove(entry)


def write_parquet(rows: DataFrame) -> Callable[[str], None]:
    """Write rows as Parquet, for `publish`: which makes the directory appear as one, so Spark need not see to that."""
    writer = rows.write.options(**_AT_ONCE)
    return writer.parquet


@contextmanager
def as_batches_write(spark: SparkSession) -> Iterator[None]:
    """Let a session of a user write Parquet meanwhile as the batches of queries do.

    One thread after the other: else the second one would take the settings of the first for the user's.
    """
    with _SETTINGS, with_settings(spark, PARQUET):
        yield


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Let a session have other settings meanwhile."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, was in before.items():
            if was is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, was)


def parquet_of(spark: SparkSession, schema: T.StructType | str) -> DataFrameReader:
    """Read what `write_parquet` has written: all of it, whatever the session's settings pass over."""
    return spark.read.schema(schema).options(**WHOLE)


def write_json(target: Path, content: Any) -> None:
    """Replace a small file in one step, durably."""
    _hidden(target, content).rename(target)
    sync(target.parent)


def write_first(target: Path, content: Any) -> Any:
    """Write a small file unless it is there, in one step, and return what stands."""
    hidden = _hidden(target, content)
    try:
        os.link(hidden, target)
    except FileExistsError:
        return read_json(target)
    finally:
        hidden.unlink()
    sync(target.parent)
    return content


def _hidden(target: Path, content: Any) -> Path:
    """Return a small file beside its target, on the disk, that readers do not see yet."""
    make(target.parent)
    hidden = _beside(target)
    with open(hidden, "w", encoding="utf-8") as file:
        file.write(json.dumps(content, separators=(",", ":")))  # at once: json.dump goes value by value in Python
        file.flush()
        os.fsync(file.fileno())
    return hidden


def _beside(path: Path) -> Path:
    """Return a new name beside a path, that readers pass over: Spark reads ``_epoch=3``, which it takes for a
    partition."""
    return path.parent / f"_{path.name.replace('=', '-')}.{uuid.uuid4().hex[:8]}"


def read_json(path: Path) -> Any:
    """Return what `write_json` has written; None if there is nothing."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def remove(path: Path) -> None:
    """Remove a directory so that readers never see half of it."""
    hidden = _beside(path)
    try:
        path.rename(hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)
