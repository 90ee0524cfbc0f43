"""The files that Spark's source of files has read, and which of them are others by now.

Relies on ``FileStreamSourceLog``: ``sources/S/N`` has, after the version, a line of JSON for each file of a batch, and
``sources/S/N.compact`` one for each file up to there. ``path`` is a URI, ``batchId`` is what the source's offset counts
(``{"logOffset": N}``), and ``timestamp`` tells, in milliseconds, when the file had changed last when Spark found it.
Spark reads a file once: a later one of its name is never read. Fails open: a file that is not found there belongs to no
batch, and is not known to be replaced.

Since Spark 4.0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from spark_client.spark_internals.loglines import lines_of

_COMPACT: Final = ".compact"


def entries_of(log: Path) -> Iterator[dict[str, Any]]:
    """Yield what the log of a source has of each file that it has read; nothing for a source of another kind.

    Args:
        log: the source's directory, such as ``sources/0``, which need not be there.
    """
    found = [file for file in log.glob("[0-9]*") if file.suffix in ("", _COMPACT)]
    compact = max((int(file.stem) for file in found if file.suffix), default=-1)  # it has all that earlier ones have
    needed = (file for file in found if (int(file.stem), bool(file.suffix)) >= (compact, True))
    for file in sorted(needed, key=lambda file: int(file.stem)):
        yield from (json.loads(line) for line in lines_of(file)[1:] if '"path":' in line)


class FilesRead:
    """The files that queries have read so far. Their logs are read once, when this is asked first.

    Args:
        checkpoints: of the queries whose sources are meant, each with all of its sources.
    """

    def __init__(self, checkpoints: Iterable[Path]) -> None:
        self._checkpoints = tuple(checkpoints)  # others may be added to what was given
        self._real_directory = cache(os.path.realpath)

    def replaced(self, files: Iterable[str]) -> list[str]:
        """Return those of some files that have changed since Spark found them to read them.

        Args:
            files: paths of files that are there.
        """
        return [
            file
            for file in files
            if (read := self._times.get(self._real(file))) is not None
            and read != os.stat(file).st_mtime_ns // 1_000_000
        ]

    @cached_property
    def _times(self) -> dict[str, int]:
        """When each file had changed last when it was found, in milliseconds, by its real path."""
        times = {}
        for checkpoint in self._checkpoints:
            for log in checkpoint.glob("sources/*"):
                for entry in entries_of(log):
                    scheme, _, path = str(entry["path"]).partition(":")
                    if scheme == "file":
                        times[self._real("/" + unquote(path).lstrip("/"))] = int(entry["timestamp"])
        return times

    def _real(self, file: str) -> str:
        directory, name = os.path.split(file)
        return os.path.join(self._real_directory(directory), name)
