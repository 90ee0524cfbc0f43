"""Directories that appear whole or not at all, on a file system that driver and executors share.

What a batch writes goes to a hidden directory first and is published by one rename. The first publication of a name
stands: a replay finds it and leaves it as it is, so readers never see two versions of an epoch.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame

from spark_client.errors import UsageError

_AT_ONCE = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


def local_path(location: str | os.PathLike[str], what: str) -> Path:
    """A location as a path that this process can open.

    Raises:
        UsageError: it is on a file system that needs a client of its own.
    """
    text = os.fspath(location)
    parsed = urlparse(text)
    if parsed.scheme not in ("", "file"):
        raise UsageError(
            f"{what} {text!r}: has to be on a file system that the driver and the executors see as a path (a local "
            "disk with local[*], else a shared mount), since directories are published there by rename"
        )
    return Path(unquote(parsed.path) if parsed.scheme else text).absolute()


def publish(target: Path, write: Callable[[str], object]) -> bool:
    """Writes a directory and publishes it under its name, unless it is there already.

    Args:
        target: its final path.
        write: fills the directory whose path it is given; Spark's writers make it.

    Returns:
        Whether it was written now; False: an earlier attempt had published it.
    """
    if target.is_dir():
        return False
    hidden = target.parent / f"_{target.name}.{uuid.uuid4().hex[:8]}"
    hidden.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(str(hidden))
        try:
            hidden.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            return False
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return True


def write_parquet(rows: DataFrame) -> Callable[[str], None]:
    """Writes rows as Parquet, for `publish`: which makes the directory appear as one, so Spark need not see to that."""
    writer = rows.write.options(**_AT_ONCE)
    return writer.parquet


def write_json(target: Path, content: Any) -> None:
    """Replaces a small file in one step, and has it on the disk."""
    _hidden(target, content).rename(target)


def write_first(target: Path, content: Any) -> Any:
    """Writes a small file unless it is there, in one step; gives what stands."""
    hidden = _hidden(target, content)
    try:
        os.link(hidden, target)
    except FileExistsError:
        return read_json(target)
    finally:
        hidden.unlink()
    return content


def is_table_of(table: Path, query: str) -> bool:
    """Whether a table with a directory for each epoch is a query's: the first that asks has it for good.

    Another query's epochs have the same numbers, and would be taken for published.
    """
    owner = table / "_query.json"
    return bool((read_json(owner) or write_first(owner, query)) == query)


def _hidden(target: Path, content: Any) -> Path:
    """A small file beside its target, on the disk, that readers do not see yet."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.parent / f"_{target.name}.{uuid.uuid4().hex[:8]}"
    with open(hidden, "w", encoding="utf-8") as file:
        json.dump(content, file, separators=(",", ":"))
        file.flush()
        os.fsync(file.fileno())
    return hidden


def read_json(path: Path) -> Any:
    """What `write_json` has written; None if there is nothing."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def remove(path: Path) -> None:
    """Removes a directory so that readers never see half of it."""
    hidden = path.parent / f"_{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        path.rename(hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)


def last_commit(checkpoint: Path) -> int | None:
    """The last batch that Spark has committed in a checkpoint; None: none yet."""
    try:
        names = os.listdir(checkpoint / "commits")
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdigit()), default=None)
