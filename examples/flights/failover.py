"""A year of flights while the leader of two trackers is killed every ten seconds; run by `make demo-failover`.

The pipeline is that of `demo.py`. Its tracker has two addresses: one process leads, the other one stands by, and both
have their journal in one Redis. Every ten seconds the leader is killed without warning (SIGKILL), the standby takes
over, and the killed one is started again, as the next standby. The job names both addresses, and does nothing else.

The exit status is 0 if the released table is exact: every window there, once, and equal to a batch computation; 1 if
not; 2 if the demonstration could not run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from examples.flights.agent import TrackerProcess
from examples.flights.outcome import COUNTS, Outcome, table
from examples.flights.program import ARTIFACTS, carry_out, parser
from examples.flights.progress import Progress
from examples.flights.spark import local_session
from examples.flights.year import Part, Year
from examples.services.processes import free_port
from examples.services.redis import Redis

_EVERY = 10.0  # seconds between two kills


class Pair:
    """Two trackers with one journal, whose leader is killed again and again while the context lasts.

    Args:
        journal: their journal.
        directory: of their logs.
        every: seconds between two kills.
        progress: shows each.

    Attributes:
        kills: how many there were.
    """

    def __init__(self, journal: str, directory: Path, every: float, progress: Progress) -> None:
        self._trackers = [
            TrackerProcess(directory / f"tracker-{place}", free_port(), journal, standby=True) for place in "ab"
        ]
        self._every = every
        self._progress = progress
        self._over = threading.Event()
        self._killing = threading.Thread(target=self._kill, daemon=True)
        self.kills = 0

    @property
    def address(self) -> str:
        """Both addresses, as clients name them."""
        return "+".join(tracker.address for tracker in self._trackers)

    def __enter__(self) -> Pair:
        first, second = self._trackers
        first.start()
        second.start(wait=False)
        self._killing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._killing.join()
        for tracker in self._trackers:
            tracker.stop()

    def _kill(self) -> None:
        leader, standby = self._trackers
        while not self._over.wait(self._every):
            pid = leader.pid
            leader.kill()
            standby.wait_until_it_listens()
            leader.start(wait=False)
            self.kills += 1
            self._progress.say(f"leader killed (SIGKILL, pid {pid}); pid {standby.pid} leads")
            leader, standby = standby, leader


def run(part: Part, every: float, directory: Path, progress: Progress) -> tuple[Outcome, int]:
    """Replay everything; all files are below `directory`. Return what was released, and how often a leader died."""
    year = Year(part, directory)
    progress.say(f"{year}; starting Spark")
    with (
        Redis(directory / "redis") as redis,
        local_session(directory) as spark,
        Pair(redis.journal, directory, every, progress) as pair,
    ):
        tracked = year.track(year.start(spark, pair.address))
        for _ in year.files(tracked, progress):
            tracked.forward()
            tracked.settle()
        tracked.drain(timeout=120)
    return year.judge("tracker", tracked.released), pair.kills


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parser("examples.flights.failover", __doc__, Part(), ARTIFACTS.with_name("flights-failover"))
    options.add_argument(
        "--every", type=float, default=_EVERY, metavar="SECONDS", help=f"between kills; default {_EVERY:g}"
    )
    given = options.parse_args(arguments)
    part = Part(given.first_day, given.days)

    def conclude(result: tuple[Outcome, int]) -> tuple[str, bool]:
        outcome, kills = result
        text = f"""
Windows (airport, scheduled day, carrier) of {part.days} days, while the leader was killed {kills} times:

{table([outcome], COUNTS)}

tracker: {outcome.comparison}
"""
        return text, outcome.comparison.exact and kills > 0

    return carry_out(lambda directory, progress: run(part, given.every, directory, progress), given.artifacts, conclude)


if __name__ == "__main__":
    sys.exit(main())
