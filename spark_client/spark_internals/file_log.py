"""The files that Spark has read, and which of them are others by now.

Relies on ``FileStreamSourceLog``: ``sources/N/B`` has a line of JSON for each file of a batch, below the version, and
``sources/N/B.compact`` one for each file up to there. ``path`` is a URI, and ``timestamp`` tells, in milliseconds, when
the file had changed last when Spark found it. Spark reads a file once: a later one of its name is never read.
Fails open: in another form of log, a file that was replaced is not noticed.

Since Spark 4.0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from spark_client.spark_internals.loglines import lines_of

_COMPACT: Final = ".compact"
_TRIES: Final = 10  # of a log whose oldest entries go while it is read


class FilesRead:
    """The files that queries have read so far. Their logs are read once, when this is asked first.

    Args:
        checkpoints: of the queries.
    """

    def __init__(self, checkpoints: Iterable[Path]) -> None:
        self._checkpoints = list(checkpoints)
        self._found: dict[str, int] | None = None

    def replaced(self, files: Iterable[str]) -> list[str]:
        """Return those of some files that have changed since Spark found them to read them.

        Args:
            files: paths of files that are there.
        """
        if self._found is None:
            logs = [log for checkpoint in self._checkpoints for log in checkpoint.glob("sources/*")]
            self._found = dict(entry for log in logs for entry in _entries(log))
        found = self._found
        return [
            file
            for file in files
            if (read := found.get(_real(file))) is not None and read != os.stat(file).st_mtime_ns // 1_000_000
        ]


def _entries(log: Path) -> Iterator[tuple[str, int]]:
    """Yield the real path and the time of each file in one source's log."""
    for line in _lines(log):
        if '"path":' not in line:
            continue  # the version, or an entry of another kind of source
        entry = json.loads(line)
        scheme, _, path = str(entry["path"]).partition(":")
        if scheme == "file":
            yield _real("/" + unquote(path).lstrip("/")), int(entry["timestamp"])


def _lines(log: Path) -> list[str]:
    for left in reversed(range(_TRIES)):
        try:
            return [line for entry in _needed(log) for line in lines_of(entry)]
        except FileNotFoundError:
            if not left:
                raise
    return []


def _needed(log: Path) -> list[Path]:
    """Return the newest compact entry of a log, and those after it."""
    numbers = {path: path.name.removesuffix(_COMPACT) for path in log.iterdir()}
    batches = {path: int(number) for path, number in numbers.items() if number.isascii() and number.isdigit()}
    compact = max((path for path in batches if path.name.endswith(_COMPACT)), key=batches.__getitem__, default=None)
    later = [path for path, batch in batches.items() if compact is None or batch > batches[compact]]
    return [*([] if compact is None else [compact]), *sorted(later, key=batches.__getitem__)]


def _real(file: str) -> str:
    directory, name = os.path.split(file)
    return os.path.join(_real_directory(directory), name)


@lru_cache(10_000)
def _real_directory(directory: str) -> str:
    return os.path.realpath(directory)
