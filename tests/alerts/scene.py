"""A real tracker under load that a real Prometheus scrapes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from examples.services.processes import free_port
from tests.client.processes import Server
from tests.server.tracking import define, ends
from tests.web.fetching import until
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

from .prometheus import Prometheus, prometheus

KIND = "substream-tracker"  # in prometheus.yml


class Scene:
    """A tracker, from the beginning of the context to its end, and what `under_load` adds.

    Args:
        directory: for the files of both.
        options: of the tracker.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.metrics = f"127.0.0.1:{free_port()}"
        self.server = Server(directory, "sqlite", "--metrics", self.metrics, *options)
        self._channel = grpc.insecure_channel(self.server.address)
        self.stub = TrackerStub(self._channel)
        self._epochs = itertools.count()
        self._stop = threading.Event()
        self._load = threading.Thread(target=self._report_on)
        self.observer: Prometheus

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self.server.kill()

    def _report_on(self) -> None:
        """Send small reports, one after the other, through all faults."""
        while not self._stop.wait(0.02):
            with suppress(grpc.RpcError):
                self.stub.Report(ends(next(self._epochs), "load"), timeout=10)

    @contextmanager
    def under_load(self, others: Mapping[str, str] | None = None, more: Sequence[str] = ()) -> Iterator[None]:
        """Load the tracker and have a Prometheus scrape it while the context lasts.

        Args:
            others: addresses that are scraped, too, by their kind in prometheus.yml.
            more: addresses of other trackers, likewise.
        """
        define(self.stub, "load")
        self._load.start()
        try:
            with prometheus(
                self.directory, {KIND: [self.metrics, *more], **{kind: [each] for kind, each in (others or {}).items()}}
            ) as self.observer:
                until(lambda: bool(self.observer.query('rate(tracker_reports_total{job_name="load"}[4s]) > 0')))
                yield
        finally:
            self._stop.set()
            self._load.join()
