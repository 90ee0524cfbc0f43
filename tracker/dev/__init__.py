"""`tracker dev`: a tracker with its status page and an example job, to look around in the first five minutes.

All run in one process, until a signal stops them. The example job runs for ever in small steps: shops sell, parcels are
checked, tried again and delivered. Each shop's quarter of a minute is a substream. Now and then one parcel is lost, an
order comes late, and a courier takes its time to commit, so that there is something to see wherever one looks.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Final
from uuid import uuid4

from tracker.client import Credentials, DrainState, JobSpec, Producer, Report, TrackerClient, TrackerError, label
from tracker.server.app import Options, Started, run

JOB: Final = "example"
WINDOW_S: Final = 15
STALL_S: Final = 10
_SHOPS: Final = ("Berlin", "Lima", "Nairobi", "Osaka")
_LOSING: Final = "Lima"  #: the shop that loses parcels: the first of every second window
_STEP_S: Final = 0.5
_COMMIT_STEPS: Final = 7  #: steps after which the courier commits
_LATE_STEPS: Final = 60  #: steps after which an order comes late
_REST_S: Final = 15  #: between the end of a drain and the next deployment
_SEGMENTS: Final = {"orders": ["parcels", "retries"], "retries": ["parcels", "retries"], "parcels": []}


@dataclass(frozen=True, slots=True)
class _Element:
    """One order or parcel on its way."""

    segment: str
    shop: str
    window: int  #: its end, in seconds since 1970
    label: int
    due: float  #: when its reader takes it

    def send(self, report: Report) -> None:
        report.sent(self.segment, self.shop, _name(self.window), self.label, self.window * 1_000_000)

    def receive(self, report: Report) -> None:
        report.received(self.segment, self.shop, _name(self.window), self.label, self.window * 1_000_000)


def _name(window: int) -> str:
    return datetime.fromtimestamp(window - WINDOW_S, timezone.utc).strftime("%H:%M:%S")


class Example:
    """The job, until it is stopped.

    Args:
        address: of the tracker, ``host:port``.
    """

    def __init__(self, address: str) -> None:
        self._client = TrackerClient(address, retry_for=5, credentials=Credentials())
        self._random = random.Random(7)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="example job", daemon=True)
        self._deployments = 0
        self.failed: Exception | None = None  #: what ended it, if it was not `stop`

    def start(self) -> None:
        """Run in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for it."""
        self._stop.set()
        self._thread.join(timeout=10)
        self._client.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._deployment()
        except Exception as error:
            if not self._stop.is_set():
                self.failed = error

    def _deployment(self) -> None:
        """Run one deployment, until it is drained."""
        self._deployments += 1
        self._client.define_job(
            JobSpec(
                job=JOB,
                deployment=f"d{self._deployments}",
                segments=_SEGMENTS,
                fronts={"web": ["orders"], "till": ["orders"]},
                stall_after=timedelta(seconds=STALL_S),
                expire_after=timedelta(minutes=5),
                retention=timedelta(minutes=10),
            )
        )
        run = str(uuid4())
        opened = {name: self._client.open_producer(JOB, name, run) for name in ("web", "till", "checker", "courier")}
        steps = _Steps(opened, self._random)
        while not self._stop.wait(_STEP_S):
            state = self._client.job(JOB).drain.state
            if state is DrainState.DRAINED:
                break
            steps.step(time.time(), selling=state is not DrainState.DRAINING)
        for producer in opened.values():
            try:
                producer.close()
            except TrackerError:
                continue  # an operator has fenced or forgotten it
        self._stop.wait(_REST_S)


class _Steps:
    """Steps of the producers, one after the other."""

    def __init__(self, producers: dict[str, Producer], chance: random.Random) -> None:
        self._producers = producers
        self._random = chance
        self._numbers = 0
        self._on_the_way: list[_Element] = []
        self._lost: set[int] = set()  # windows in which a parcel was lost already
        self._finished = False
        self._steps = 0
        self._delivering: Report | None = None
        self._delivery = 0
        self._to_deliver: list[_Element] = []

    def step(self, now: float, selling: bool) -> None:
        """Play half a second of the job.

        Args:
            selling: the sources go on; False: they finish, because the deployment is asked to drain.
        """
        self._steps += 1
        if selling:
            self._sell(now)
        elif not self._finished:
            self._finished = True
            for front in ("web", "till"):
                report = self._producers[front].epoch()
                report.finish(front)
                report.report(commit=True)
        self._check(now)
        self._deliver(now)

    def _sell(self, now: float) -> None:
        window = (int(now) // WINDOW_S + 1) * WINDOW_S
        report = self._producers["web"].epoch()
        for _ in range(self._random.randint(3, 9)):
            self._send(report, "orders", self._random.choice(_SHOPS), window, now)
        if not self._steps % _LATE_STEPS:
            self._send(report, "orders", "Berlin", window - 4 * WINDOW_S, now)
        report.frontier("web", (int(now) - 1) * 1_000_000)
        report.report(commit=True)
        if not self._steps % 4:
            report = self._producers["till"].epoch()
            self._send(report, "orders", self._random.choice(_SHOPS), window, now)
            report.frontier("till", (int(now) - 2) * 1_000_000)
            report.report(commit=True)

    def _send(self, report: Report, segment: str, shop: str, window: int, now: float) -> None:
        self._numbers += 1
        due = now + self._random.uniform(0.5, 4)
        element = _Element(segment, shop, window, label(JOB, segment, shop, self._numbers), due)
        element.send(report)
        self._on_the_way.append(element)

    def _check(self, now: float) -> None:
        """Let the checker take orders, and send parcels, or what has to be tried again."""
        report = self._producers["checker"].epoch()
        for element in list(self._due(now, ("orders", "retries"))):
            again = self._random.random() < 0.2
            self._send(report, "retries" if again else "parcels", element.shop, element.window, now)
            element.receive(report)
        report.report(commit=True)

    def _deliver(self, now: float) -> None:
        """Let the courier take parcels, and commit every few steps. One parcel now and then is lost on the way."""
        courier = self._producers["courier"]
        taken = [element for element in self._due(now, ("parcels",)) if not self._loses(element)]
        if self._delivering is None:
            self._delivery = courier.next_epoch()
        report = self._delivering = courier.epoch(self._delivery)
        for element in taken:
            element.receive(report)
        if self._steps % _COMMIT_STEPS:
            if taken:
                report.report(units=[str(self._steps)])
        else:
            report.report(units=[str(self._steps)], commit=True)
            self._delivering = None

    def _loses(self, element: _Element) -> bool:
        every_second = not element.window // WINDOW_S % 2
        if element.shop != _LOSING or not every_second or element.window in self._lost:
            return False
        self._lost.add(element.window)
        return True

    def _due(self, now: float, segments: tuple[str, ...]) -> Iterator[_Element]:
        due = [each for each in self._on_the_way if each.due <= now and each.segment in segments]
        self._on_the_way = [each for each in self._on_the_way if each not in due]
        return iter(due)


LISTEN: Final = "127.0.0.1:7654"
PAGE: Final = "127.0.0.1:7660"


def dev(listen: str = LISTEN, page: str = PAGE, write: Callable[[str], object] = print) -> None:
    """Run until SIGINT or SIGTERM. Nothing is kept: the journal is in memory.

    Args:
        listen: ``HOST:PORT`` of the tracker. If another program uses the default, a free port is taken.
        page: the same for the status page.

    Raises:
        ValueError: an address has another form.
        tracker.wire.addresses.CannotListenError: a chosen address is in use.
    """
    asyncio.run(_dev(_free(listen, LISTEN), _free(page, PAGE), write))


async def _dev(listen: str, page: str, write: Callable[[str], object]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    examples: list[Example] = []

    def ready(started: Started) -> None:
        for line in _greeting(started.address, started.metrics):
            write(line)
        sys.stdout.flush()
        example = Example(started.address)
        example.start()
        examples.append(example)

    server = asyncio.create_task(run(replace(Options(), listen=listen, journal="memory", metrics=page), stop, ready))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({server, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for example in examples:  # while the server still answers it
        await asyncio.to_thread(example.stop)
        if example.failed is not None:
            write(f"the example job has ended: {example.failed}")
    stopped.cancel()
    await server


def _greeting(address: str, page: str) -> list[str]:
    wait = WINDOW_S * 2 + STALL_S + 10
    # Where it was installed for this start only (`uvx`), no shell finds the command.
    command = "tracker" if shutil.which("tracker") else f"{sys.executable} -m tracker.cli.main"
    return [
        "",
        f"  Status page   {page}/",
        f"  Tracker       {address}   (in memory: nothing is kept when it stops)",
        "",
        f"  The job `{JOB}` runs in it: four shops, whose orders of each {WINDOW_S} seconds are a substream.",
        "",
        f"  1. Open {page}/#/job?job={JOB}",
        f"  2. After some {wait} seconds, choose `Stalled` there, and one of the substreams: Lima has lost a parcel.",
        f"  3. {command} --server {address} watch {JOB}          shows what ends, as it ends",
        f"  4. {command} --server {address} drain {JOB} d1       ends the deployment; the page shows what it waits for",
        "",
        "  A job of yours, from PySpark and from any program of Python:",
        "",
        f'     tracking = spark_client.Tracking(spark, job="mine", server="{address}")',
        f'     client = tracker.client.TrackerClient("{address}")',
        "",
        "  Ctrl-C stops everything.",
        "",
    ]


def _free(address: str, default: str) -> str:
    """Return the address, or, if it is the default one and in use, one with a free port."""
    host, _, port = address.rpartition(":")
    if address != default:
        return address
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, int(port)))
        except OSError:
            return f"{host}:0"
    return address
