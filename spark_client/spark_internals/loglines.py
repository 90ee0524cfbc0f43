"""Lines of the logs in a checkpoint.

Relies on how `HDFSMetadataLog` and `OffsetSeqLog` write: in UTF-8, the entry's lines with a line feed between them.
Fails closed: a line that is cut elsewhere is no JSON.

Since Spark 4.0.
"""

from __future__ import annotations

from pathlib import Path


def lines_of(log: Path) -> list[str]:
    """Return a log's lines.

    Spark puts a line feed between them, and nothing else: names of files and offsets may have any of the other
    characters at which `str.splitlines` splits.

    Args:
        log: a file, such as ``offsets/0``.
    """
    return log.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
