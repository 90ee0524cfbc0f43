"""Content of the relay's `/metrics`. docs/reference/metrics.md has a table of it, which a test compares with a relay's.

No label names a job or a caller, so a relay has the same few series whatever it relays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

import tracker
from tracker.client.calls import refusal

from .batching import FullError

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RelayMetrics:
    """The relay's metrics.

    Args:
        missing: returns why the relay cannot do its work now; "" while it can.
        pending: returns the bytes of requests that the tracker has not answered.
        limit: the most bytes that may be pending.
    """

    def __init__(self, missing: Callable[[], str], pending: Callable[[], int], limit: int) -> None:
        self._registry = CollectorRegistry()
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self._registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"tracker_relay_{name}", text, labels, registry=self._registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"tracker_relay_{name}", text, labels, registry=self._registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"tracker_relay_{name}_seconds", text, buckets=_SECONDS, registry=self._registry)

        gauge("ready", "1 while the relay accepts calls and can reach the tracker, else 0.").set_function(
            lambda: float(not missing())
        )
        gauge("build_info", "1; the label has the relay's version.", ("version",)).labels(tracker.__version__).set(1)
        self._reports = counter(
            "reports",
            "Reports of callers, by outcome: answered and refused by the tracker, not answered by it (unavailable), "
            "refused by the relay because it is full or serves another_tracker, given up by the caller (left), or "
            "failed by a fault in the relay.",
            ("outcome",),
        )
        self._report_seconds = seconds("report", "Time from when a report came to its answer, of those that were sent.")
        self._report_bytes = counter("report_bytes", "Bytes of callers' reports.")
        self._messages = counter(
            "messages", "Messages that were sent to the tracker for reports, by the code of its answer.", ("code",)
        )
        self._message_seconds = seconds("message", "Time from when a message was sent to the tracker's answer.")
        self._message_bytes = counter("message_bytes", "Bytes of messages that were sent to the tracker for reports.")
        self._calls = counter(
            "passed_calls", "Other calls that were passed on and have ended, by method and code.", ("method", "code")
        )
        self._open = gauge("open_calls", "Other calls that are passed on and have not ended, by method.", ("method",))
        gauge("pending_bytes", "Bytes of requests that the tracker has not answered.").set_function(pending)
        gauge("pending_bytes_limit", "The most bytes of requests that may be pending.").set(limit)

    async def scrape(self) -> Collector:
        """Return what a scrape shows."""
        return self._registry

    @contextmanager
    def report(self, size: int) -> Iterator[None]:
        """Count a report that is sent on while the context lasts."""
        self._report_bytes.inc(size)
        started = time.monotonic()
        outcome = "answered"
        try:
            yield
        except grpc.aio.AioRpcError as error:
            outcome = "refused" if refusal(error) else "unavailable"
            raise
        except FullError:
            outcome = "full"
            raise
        except asyncio.CancelledError:
            outcome = "left"
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            if outcome != "full":
                self._report_seconds.observe(time.monotonic() - started)
            self._reports.labels(outcome).inc()

    def report_for_another(self) -> None:
        """Count a report that is meant for another tracker."""
        self._reports.labels("another_tracker").inc()

    @contextmanager
    def message(self, size: int) -> Iterator[None]:
        """Count a message to the tracker, which answers while the context lasts."""
        self._message_bytes.inc(size)
        started = time.monotonic()
        with self._ended(lambda code: self._messages.labels(code).inc()):
            try:
                yield
            finally:
                self._message_seconds.observe(time.monotonic() - started)

    @contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Count another call, which is passed on while the context lasts."""
        self._open.labels(method).inc()
        with self._ended(lambda code: self._calls.labels(method, code).inc()):
            try:
                yield
            finally:
                self._open.labels(method).dec()

    def call_refused(self, method: str) -> None:
        """Count another call that was refused because too many bytes are pending."""
        self._calls.labels(method, grpc.StatusCode.RESOURCE_EXHAUSTED.name).inc()

    @staticmethod
    @contextmanager
    def _ended(count: Callable[[str], object]) -> Iterator[None]:
        """Count what is done in the context by the code with which it ends."""
        code = grpc.StatusCode.OK
        try:
            yield
        except grpc.aio.AioRpcError as error:
            code = error.code()
            raise
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except BaseException:
            code = grpc.StatusCode.UNKNOWN
            raise
        finally:
            count(code.name)
