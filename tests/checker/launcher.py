"""Starts a tracker whose clock can be set, and which may have a planted fault. Only the checker uses it.

python -m tests.checker.launcher --clock FILE --plant NAME -- serve --journal …

The product has no switch for either: this program changes its modules before it starts.
"""

from __future__ import annotations

import argparse
import mmap
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.checker.plants import PLANTS
from tracker.cli.main import main as cli
from tracker.server import app

_OFFSET = struct.Struct("q")  # nanoseconds


def set_clock(file: Path, seconds: float) -> None:
    """Sets the clock of the trackers that were started with a file: so far from the machine's."""
    with file.open("r+b" if file.exists() else "w+b") as written:
        written.write(_OFFSET.pack(int(seconds * 1e9)))


def clock(file: Path) -> Callable[[], int]:
    """Returns the clock that a file sets, in ns since the Unix epoch."""
    with file.open("rb") as read:
        mapped = mmap.mmap(read.fileno(), _OFFSET.size, access=mmap.ACCESS_READ)
    return lambda: time.time_ns() + int(_OFFSET.unpack_from(mapped)[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--plant", choices=("", *PLANTS), default="")
    parser.add_argument("arguments", nargs="+")
    given = parser.parse_args()
    if given.plant:
        PLANTS[given.plant].sow()
    app.run = partial(app.run, wall=clock(given.clock))
    return cli(given.arguments)


if __name__ == "__main__":
    sys.exit(main())
