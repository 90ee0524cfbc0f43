"""The tracker beside others that do the same: Storm's acker in its JVM, a script in Redis, a dict in Python.

Each keeps so many XORs pending, by a number of 64 bits, and takes updates of them in random order. An update that makes
one zero ends it, and another one begins. So it is what an acker does, without names, counts, epochs, promises and
events.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import redis
from numpy.typing import NDArray

from benchmarks import core, served
from benchmarks.figures import Figure
from examples.services import jars
from examples.services.redis import Redis, RedisMissingError

_PROGRAM: Final = Path(__file__).parent / "programs" / "StormAcker.java"
_UPDATES: Final = 400_000  #: of a run of the slower ones
_AT_ONCE: Final = 1_000  #: updates of a call of the script

#: Numbers in Lua are doubles, and its XOR is of 32 bits.
_SCRIPT: Final = """
local updates, ended = ARGV[1], 0
for at = 1, #updates, 16 do
  local key = string.sub(updates, at, at + 7)
  local low, high = struct.unpack('<I4I4', updates, at + 8)
  local had = redis.call('HGET', KEYS[1], key)
  if had then
    local had_low, had_high = struct.unpack('<I4I4', had)
    low, high = bit.bxor(low, had_low), bit.bxor(high, had_high)
  end
  if low == 0 and high == 0 then
    redis.call('HDEL', KEYS[1], key)
    ended = ended + 1
  else
    redis.call('HSET', KEYS[1], key, struct.pack('<i4i4', bit.tobit(low), bit.tobit(high)))
  end
end
return ended
"""


def measure(pending: Sequence[int], runs: int, plan: served.Plan, journal: str) -> Iterator[Figure]:
    """Measure updates per second, and print which peer is missing.

    Args:
        pending: how many XORs are kept, one measurement for each.
        runs: repetitions.
        plan: how the tracker is measured over gRPC, with the most of them.
        journal: its, as `tracker serve --journal` takes it.
    """
    peers: dict[str, Callable[[int, int], list[float]]] = {
        "Storm's acker in its JVM": _storm,
        "a script in Redis": _redis,
        "a dict in Python": _dict,
    }
    for number in pending:
        measured = [next(core.measure(number, [min(10_000, number)], runs))]
        if number == plan.substreams:
            measured += islice(served.measure(journal, plan), 1, 2)  # by id, over ReportStream
        for name, peer in peers.items():
            try:
                floor = peer(number, runs)
            except (jars.MissingError, RedisMissingError) as missing:
                print(f"not measured: {name}: {missing}", file=sys.stderr)
                continue
            for ours in measured:
                yield Figure(ours.what, ours.unit, ours.runs, floor, name, f"{number:,} open or pending")


def _storm(pending: int, runs: int) -> list[float]:
    """Measure Storm's own class, of its jar, in a JVM of its own: updates in a second of its processor."""
    java = [jars.java(), "-XX:+UseParallelGC", "-Xms2g", "-Xmx2g", "-cp", f"{jars.of_peer('storm')}/*"]
    done = subprocess.run([*java, str(_PROGRAM), str(pending), str(runs)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"Storm's acker was not measured:\n{done.stderr}")
    return [float(line) for line in done.stdout.split()]


def _redis(pending: int, runs: int) -> list[float]:
    """Measure a script in a Redis that keeps nothing on disk: updates in a second, one call after the other."""
    with tempfile.TemporaryDirectory() as directory, Redis(Path(directory)) as server:
        client = redis.Redis(port=server.port)
        client.config_set("appendonly", "no")
        script = client.register_script(_SCRIPT)
        turns = _Turns(pending)
        for updates in turns.opening():
            script(keys=["pending"], args=[updates.tobytes()])
        rates = []
        for _ in range(runs):
            calls = [turns.replaced().tobytes() for _ in range(_UPDATES // _AT_ONCE)]
            start = time.perf_counter()
            ended = sum(script(keys=["pending"], args=[updates]) for updates in calls)
            rates.append(_UPDATES / (time.perf_counter() - start))
            assert ended == _UPDATES // 2
        return rates


def _dict(pending: int, runs: int) -> list[float]:
    """Measure a loop in Python: updates in a second of processor time."""
    turns, known = _Turns(pending), dict[int, int]()
    for updates in turns.opening():
        known.update(updates.tolist())
    rates = []
    for _ in range(runs):
        all_updates = [turns.replaced().tolist() for _ in range(_UPDATES // _AT_ONCE)]
        start = time.thread_time()
        for updates in all_updates:
            for key, value in updates:
                if both := known.get(key, 0) ^ value:
                    known[key] = both
                else:
                    del known[key]
        rates.append(_UPDATES / (time.thread_time() - start))
        assert len(known) == pending
    return rates


class _Turns:
    """Updates of pending XORs, each a key and a value."""

    def __init__(self, pending: int) -> None:
        self._random = np.random.default_rng(1)
        self._pending = self._new(pending)

    def _new(self, number: int) -> NDArray[np.uint64]:
        return self._random.integers(1, 2**63, (number, 2), np.uint64)

    def opening(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the updates that begin all."""
        for start in range(0, len(self._pending), _AT_ONCE):
            yield self._pending[start : start + _AT_ONCE]

    def replaced(self) -> NDArray[np.uint64]:
        """Return updates in pairs: the first ends what is pending, and the second begins another in its place."""
        places = self._random.choice(len(self._pending), _AT_ONCE // 2, replace=False)
        made = self._new(len(places))
        updates = np.stack([self._pending[places], made], axis=1).reshape(-1, 2)
        self._pending[places] = made
        return updates
