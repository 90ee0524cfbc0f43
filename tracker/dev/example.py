"""An example job that runs for ever in small steps: shops sell, parcels are checked, tried again and delivered.

Each shop's quarter of a minute is a substream. Now and then one parcel is lost, an order comes late, and a courier
takes its time to commit, so that there is something to see wherever one looks.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final
from uuid import uuid4

from tracker.client import Credentials, DrainState, JobSpec, Producer, Report, TrackerClient, TrackerError, label

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
        seed: of what happens by chance.
    """

    def __init__(self, address: str, seed: int = 7) -> None:
        self._client = TrackerClient(address, retry_for=5, credentials=Credentials())
        self._random = random.Random(seed)
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
        """One deployment, until it is drained."""
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
        """Half a second of the job.

        Args:
            now: seconds since 1970.
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
        """The checker takes orders, and sends parcels, or what has to be tried again."""
        report = self._producers["checker"].epoch()
        for element in list(self._due(now, ("orders", "retries"))):
            again = self._random.random() < 0.2
            self._send(report, "retries" if again else "parcels", element.shop, element.window, now)
            element.receive(report)
        report.report(commit=True)

    def _deliver(self, now: float) -> None:
        """The courier takes parcels, and commits every few steps. One parcel now and then is lost on the way."""
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
