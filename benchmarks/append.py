"""One record of a kilobyte, made durable by a journal: beside what its storage takes for a kilobyte by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import redis

from benchmarks.figures import Figure
from tracker.journal import Record, open_journal
from tracker.journal.objects import SCHEMES, ObjectsAddress
from tracker.journal.redis import RedisAddress

_CONTENT: Final = os.urandom(1024)
_WARM_UP: Final = 20


def measure(journal: str, directory: Path, runs: int, rounds: int) -> Iterator[Figure]:
    """Measure median and 99th percentile.

    Args:
        journal: as `tracker serve --journal` takes it.
        directory: for the file of a floor.
        runs: repetitions.
        rounds: records in each, one after the other.
    """
    kind = journal.partition(":")[0]
    if (found := _floor(journal, directory)) is None:
        return  # nothing is made durable
    bare, floor_is = found
    taken: list[list[float]] = []
    floor: list[list[float]] = []
    with closing(open_journal(journal)) as opened:
        list(opened.recover().records)
        record = [Record(1, 1, _CONTENT)]
        for run in range(runs):
            floor.append(_times(lambda number, run=run: bare(run * (rounds + _WARM_UP) + number), rounds))  # type: ignore[misc]
            taken.append(_times(lambda _: opened.append(record), rounds))
    for percent in (50, 99):
        yield Figure(
            what=f"append of one record ({kind}), p{percent}",
            unit="s",
            runs=[float(np.percentile(each, percent)) for each in taken],
            floor=[float(np.percentile(each, percent)) for each in floor],
            floor_is=floor_is,
            note=f"{rounds:,} records of 1 KiB a run",
        )


def _times(one: Callable[[int], Any], rounds: int) -> list[float]:
    taken = []
    for number in range(_WARM_UP + rounds):
        start = time.perf_counter()
        one(number)
        taken.append(time.perf_counter() - start)
    return taken[_WARM_UP:]


def _floor(journal: str, directory: Path) -> tuple[Callable[[int], Any], str] | None:
    """Return a bare write to the journal's storage, and its name; None: there is none."""
    kind = journal.partition(":")[0]
    if kind in SCHEMES:
        objects = ObjectsAddress.parse(journal).open()
        return lambda number: objects.create(f"floor/{number:08}", _CONTENT), "a bare conditional put"
    if kind == "sqlite":
        file = os.open(directory / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def write(_: int) -> None:
            os.write(file, _CONTENT)
            os.fsync(file)

        return write, "a bare write and sync"
    if kind.startswith("redis"):
        [(host, port)] = RedisAddress.parse(journal).servers
        client = redis.Redis(host=host, port=port)
        return lambda _: client.xadd("floor", {"data": _CONTENT}), "a bare XADD"
    return None
