"""Cost of a scrape of /metrics with many open substreams, and of reports beside one.

One job has so many open substreams, another one has few. Reports go to both in turns, at a steady pace: for a while
nobody scrapes, then somebody does once a second, and so on, in one run on one server.

    python -m benchmarks.scrape --substreams 1000000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import count
from typing import Final

import grpc
import numpy as np

from benchmarks import workload
from benchmarks.figures import HEADER, Figure, Unit, row
from benchmarks.processes import tracker
from benchmarks.sender import REPORT
from benchmarks.workload import FRONT, SEGMENT
from examples.services.processes import free_port
from tracker.cli.output import print_table
from tracker.wire.gen import columns_pb2, tracker_pb2, tracker_pb2_grpc

_FEW: Final = 1_000
_SMALL: Final = 20  #: substreams of a report
_PAUSE_S: Final = 0.005  #: between two reports
_SCRAPE_EVERY_S: Final = 1.0
_JOBS: Final = ("few", "many")
_SCRAPED: Final[tuple[tuple[str, Unit], ...]] = (("a scrape", "s"), ("a scrape's answer", "bytes"))


def main() -> int:
    """Measure and print."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.scrape", description=__doc__.partition("\n")[0])
    asked.add_argument("--substreams", metavar="NUMBER", type=int, default=1_000_000, help="how many are open")
    asked.add_argument("--seconds", metavar="NUMBER", type=float, default=20.0, help="of each turn")
    asked.add_argument("--turns", metavar="NUMBER", type=int, default=4, help="with scrapes, and as many without")
    asked.add_argument("--scrape", metavar="URL", help=argparse.SUPPRESS)  # the process that scrapes
    arguments = asked.parse_args()
    if arguments.scrape:
        _scrape(arguments.scrape, arguments.seconds)
        return 0
    print_table(HEADER, map(row, measure(arguments.substreams, arguments.seconds, arguments.turns)))
    return 0


def measure(substreams: int, seconds: float, turns: int) -> Iterator[Figure]:
    """Measure seconds that scrapes take, and reports with scrapes beside them and without.

    Args:
        substreams: how many are open in the larger job.
        seconds: of each turn.
        turns: with scrapes, and as many without.
    """
    metrics = f"127.0.0.1:{free_port()}"
    with (
        tracker("memory", "--metrics", metrics) as server,
        grpc.insecure_channel(server.address, [("grpc.max_receive_message_length", -1)]) as channel,
    ):
        stub = tracker_pb2_grpc.TrackerStub(channel)
        report: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            REPORT, request_serializer=None, response_deserializer=None
        )
        _open(stub, report, "few", _FEW)
        reporter = _Reporter(report)
        floor = _finish(_scraper(metrics, seconds))
        _open(stub, report, "many", substreams)
        reporter.run(1.0)  # warms up
        scrapes: list[tuple[float, float]] = []
        quiet: list[dict[str, list[float]]] = []
        beside: list[dict[str, list[float]]] = []
        for _ in range(turns):
            quiet.append(reporter.run(seconds))
            scraper = _scraper(metrics, seconds)
            beside.append(reporter.run(seconds))
            scrapes += _finish(scraper)
    note = f"{substreams:,} open"
    for place, (what, unit) in enumerate(_SCRAPED):
        runs, floors = ([each[place] for each in found] for found in (scrapes, floor))
        yield Figure(what, unit, runs, floors, f"with {_FEW:,} open", note)
    for job in _JOBS:
        for share in (50, 99, 99.9):
            runs, floors = ([float(np.percentile(turn[job], share)) for turn in found] for found in (beside, quiet))
            yield Figure(f"a report to the job with {job} open, p{share}", "s", runs, floors, "no scrapes", note)


def _open(
    stub: tracker_pb2_grpc.TrackerStub, report: grpc.UnaryUnaryMultiCallable[bytes, bytes], job: str, size: int
) -> None:
    """Open so many substreams of a job, each with an element in flight."""
    spec = tracker_pb2.JobSpec(job=job, deployment="d1", segments=[tracker_pb2.Segment(name=SEGMENT)], fronts=[FRONT])
    stub.DefineJob(tracker_pb2.DefineJobRequest(spec=spec))
    for producer in ("opener", "reporter"):
        stub.OpenProducer(tracker_pb2.OpenProducerRequest(job=job, producer=producer, run="r1"))
    for epoch, places in enumerate(workload.opening(size)):
        head = columns_pb2.ReportRequest(job=job, producer="opener", run="r1", epoch=epoch, units=["unit"], commit=True)
        report(head.SerializeToString() + workload.columns(places, sent=1, received=0, ids=None))


class _Reporter:
    """A sender of small reports to both jobs in turns, each about substreams that are open."""

    def __init__(self, report: grpc.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
        self._report = report
        self._epochs = count()
        places = next(iter(workload.opening(_FEW)))[:_SMALL]
        self._columns = workload.columns(places, sent=1, received=1, ids=None)

    def run(self, seconds: float) -> dict[str, list[float]]:
        """Report for so long; return the seconds that each report took, by job."""
        taken: dict[str, list[float]] = {job: [] for job in _JOBS}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            epoch = next(self._epochs)
            for job in _JOBS:
                head = columns_pb2.ReportRequest(
                    job=job, producer="reporter", run="r1", epoch=epoch, units=["unit"], commit=True
                )
                request = head.SerializeToString() + self._columns
                started = time.perf_counter()
                self._report(request)
                taken[job].append(time.perf_counter() - started)
                time.sleep(_PAUSE_S)
        return taken


def _scraper(metrics: str, seconds: float) -> subprocess.Popen[str]:
    """Start a process that scrapes."""
    command = [sys.executable, "-m", "benchmarks.scrape", "--scrape", f"http://{metrics}/metrics"]
    return subprocess.Popen([*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)


def _finish(scraper: subprocess.Popen[str]) -> list[tuple[float, float]]:
    """Return the seconds and bytes of each of its scrapes."""
    printed, _ = scraper.communicate()
    return [(float(took), float(size)) for took, size in json.loads(printed)]


def _scrape(url: str, seconds: float) -> None:
    """Scrape once a second for so long, and print the seconds and bytes of each answer."""
    found = []
    until = time.monotonic() + seconds
    while (started := time.monotonic()) < until:
        with urllib.request.urlopen(url) as answer:
            size = len(answer.read())
        found.append((time.monotonic() - started, size))
        time.sleep(max(0.0, min(until, started + _SCRAPE_EVERY_S) - time.monotonic()))
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
