"""Play many seeds, in each journal, with losses and without: `python -m tests.trackers --seeds 10000`."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from tests.journal.redis_server import RedisServer

from .test_trackers import play

_AT_ONCE = 20  # seeds of one piece of work
JOURNALS = ("redis", "file", "objects")


def play_all(seeds: range) -> tuple[float, list[str]]:
    """Play seeds, and return the seconds of a processor that they took, and what was found out."""
    begun = time.process_time()
    found = []
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = RedisServer(base, appendonly="no")
        stack.callback(redis.kill)
        for seed in seeds:
            journal, losses, place = JOURNALS[seed % 3], seed // 6 % 2 == 1, base / str(seed)
            try:
                play(journal, seed, redis.port, place, losses)
            except Exception as error:
                found.append(f"seed {seed}, {journal}, {'losses' if losses else 'kills'}: {error!r}")
            shutil.rmtree(place, ignore_errors=True)
    return time.process_time() - begun, found


def main() -> int:
    """Return 1 if anything was found out."""
    parser = argparse.ArgumentParser(prog="python -m tests.trackers", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many (default: 1,000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--processes", type=int, default=2, help="how many play at once (default: 2)")
    arguments = parser.parse_args()
    last, begun = arguments.first + arguments.seeds, time.monotonic()
    played, used, failed = 0, 0.0, 0
    with ProcessPoolExecutor(arguments.processes) as pool:
        pieces = [range(seed, min(seed + _AT_ONCE, last)) for seed in range(arguments.first, last, _AT_ONCE)]
        work = {pool.submit(play_all, piece): piece for piece in pieces}
        for future in as_completed(work):
            seconds, found = future.result()
            played, used, failed = played + len(work[future]), used + seconds, failed + len(found)
            rate = played / (time.monotonic() - begun)
            print(*found, f"{played} of {arguments.seeds}: {rate:.2f} a second, {failed} failed", sep="\n", flush=True)
    print(f"{played} seeds in {time.monotonic() - begun:.0f} s, {used:.0f} s of a processor: {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
