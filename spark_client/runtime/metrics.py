"""Metrics of a driver's queries, for Prometheus: by job and query, and by nothing that grows with the data.

prometheus-client is imported only when metrics are asked for: executors, and drivers without metrics, do without it. A
batch that Spark runs again is counted again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

from spark_client.counting.batch import BatchResult, StateSize
from spark_client.errors import refused
from spark_client.fronts.front import LiveFront
from tracker.client import Ended, Outcome
from tracker.wire.addresses import host_and_port

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry

_log = logging.getLogger("spark_client")

_BATCH_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_DELAY_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_QUERY: Final = ("job_name", "query")


class _Families:
    """The metrics of one registry, which all jobs of this process share."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        def made(kind: Any, name: str, text: str, labels: Sequence[str] = _QUERY, **options: Any) -> Any:
            return kind(f"tracker_spark_{name}", text, labels, registry=registry, **options)

        self.batches = made(
            Counter,
            "batches",
            "Batches that this driver has run, by outcome: processed, or failed.",
            (*_QUERY, "outcome"),
        )
        self.batch_seconds = made(
            Histogram,
            "batch_seconds",
            "Time that a batch took, from its begin to the tracker's answer to its report.",
            buckets=_BATCH_S,
        )
        self.last_batch = made(
            Gauge, "last_batch_timestamp_seconds", "Unix time at which the last batch was processed."
        )
        self.reports = made(
            Counter, "reports", "Messages of the driver's reports, by the tracker's outcome.", (*_QUERY, "outcome")
        )
        self.rows = made(
            Counter,
            "rows",
            "Rows that the driver has counted, by what became of them: received, sent on, released in a result, "
            "late, quarantined because they belong to no substream, or dropped as copies.",
            (*_QUERY, "fate"),
        )
        self.ends = made(
            Counter, "ends", "Ends of substreams that a release has acted on, by reason.", (*_QUERY, "reason")
        )
        self.delay = made(
            Histogram,
            "end_delay_seconds",
            "Time from when the tracker announced an end to when its result was written and reported, by the "
            "clocks of both machines.",
            buckets=_DELAY_S,
        )
        self.state = made(Gauge, "state_substreams", "Substreams that a release's state holds.")
        self.state_rows = made(
            Gauge,
            "state_rows",
            "Rows of the stream that a release's state was made of, and that have not been released.",
        )
        self.learnt_delay = made(
            Gauge,
            "front_delay_seconds",
            "Longest delay of any scope that a measured front promises, in seconds of the rows' times.",
            (*_QUERY, "front"),
        )
        self.kept_windows = made(
            Gauge,
            "front_kept_ratio",
            "Share of a measured front's windows of which no row came after its promise; newer ones weigh more.",
            (*_QUERY, "front"),
        )
        self.queries = made(Gauge, "queries", "Queries of the job that this driver runs.", ("job_name",))
        self.drains = made(
            Gauge, "waiting_drains", "1 while this driver carries out a drain that is not over, else 0.", ("job_name",)
        )
        self.kept = made(
            Gauge,
            "kept_batches",
            "Batches whose reports wait in checkpoints for a tracker that is away.",
            ("job_name",),
        )


_lock = threading.Lock()
_families: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()


def _of(registry: CollectorRegistry) -> _Families:
    with _lock:
        families = _families.get(registry)
        if families is None:
            families = _families[registry] = _Families(registry)
        return families


class Watched(Protocol):
    """The queries of a job in this process."""

    @property
    def active(self) -> int:
        """Return how many run."""
        ...

    @property
    def drains(self) -> bool:
        """Return whether one is being brought to rest."""
        ...

    @property
    def kept(self) -> int:
        """Return how many batches have not been reported to a tracker that is away."""
        ...


class JobMetrics:
    """The metrics of one job in this driver.

    Args:
        registry: where they are registered.
    """

    def __init__(self, registry: CollectorRegistry, job: str) -> None:
        self._families = _of(registry)
        self._job = job

    def watch(self, running: Watched) -> None:
        """Show with each scrape what goes on then in the job's queries."""
        self._families.queries.labels(self._job).set_function(lambda: running.active)
        self._families.drains.labels(self._job).set_function(lambda: running.drains)
        self._families.kept.labels(self._job).set_function(lambda: running.kept)

    def query(self, name: str | None) -> QueryMetrics:
        """Return the metrics of a query.

        Args:
            name: as Spark shows it; None: it has none, and its id stands for it.
        """
        return QueryMetrics(self._families, self._job, name)


class QueryMetrics:
    """The metrics of one query: see `JobMetrics.query`."""

    def __init__(self, families: _Families, job: str, name: str | None) -> None:
        self._families = families
        self._job = job
        self._name = name

    def failed(self, query: str) -> None:
        """Count a batch that failed."""
        self._families.batches.labels(self._job, self._name or query, "failed").inc()

    def processed(
        self,
        query: str,
        seconds: float,
        outcomes: Sequence[Outcome],
        result: BatchResult | None,
        size: StateSize | None,
    ) -> None:
        """Count a batch whose report the tracker has taken.

        Args:
            seconds: that the batch took.
            outcomes: of the report's messages.
            result: what the batch has done; None: nothing was to be done.
            size: of the query's state; None: it has none.
        """
        families, labels = self._families, (self._job, self._name or query)
        families.batches.labels(*labels, "processed").inc()
        families.batch_seconds.labels(*labels).observe(seconds)
        families.last_batch.labels(*labels).set_to_current_time()
        for outcome in outcomes:
            families.reports.labels(*labels, outcome.name.lower()).inc()
        if result is not None:
            self.done(query, result, size)

    def learnt(self, query: str, fronts: Iterable[LiveFront]) -> None:
        """Show what measured fronts have learnt up to now."""
        for front in fronts:
            if front.lateness is not None:
                labels = self._job, self._name or query, front.front.name
                self._families.learnt_delay.labels(*labels).set(front.lateness.delay / 1e6)
                self._families.kept_windows.labels(*labels).set(front.lateness.share)

    def done(self, query: str, result: BatchResult, size: StateSize | None) -> None:
        """Count what a batch has done, or a drain in the place of one.

        Args:
            size: of the query's state; None: it has none.
        """
        families, labels = self._families, (self._job, self._name or query)
        if size is not None:
            families.state.labels(*labels).set(size.substreams)
            families.state_rows.labels(*labels).set(size.rows)
        for fate, rows in result.rows.items():
            families.rows.labels(*labels, fate).inc(rows)
        now = time.time()
        for event in result.ended:
            if isinstance(event.kind, Ended):
                families.ends.labels(*labels, event.kind.reason.name.lower()).inc()
                families.delay.labels(*labels).observe(max(0.0, now - event.at.timestamp()))


class MetricsServer:
    """The registry of a driver's metrics, and the HTTP server for it.

    Args:
        where: ``HOST:PORT``, where `open` serves a registry of its own; port 0 picks one. Or a registry, which whoever
            made it serves.

    Raises:
        UsageError: prometheus-client is not installed, or an address has another form.
    """

    def __init__(self, where: str | CollectorRegistry) -> None:
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None
        self._address: tuple[str, int] | None = None
        if not isinstance(where, str):
            self.registry = where
            return
        with refused("metrics", errors=ValueError):
            host, port = host_and_port(where, "give 'HOST:PORT', such as '0.0.0.0:7662', or a CollectorRegistry")
        self._address = host.removeprefix("[").removesuffix("]"), port
        instead = "pip install 'substream-tracker[spark,metrics]', or leave it out"
        with refused("metrics= needs prometheus-client", instead, ImportError):
            from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
        self.registry = CollectorRegistry()
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self.registry)

    @property
    def url(self) -> str | None:
        """Return where metrics are served; None: nowhere, or not by this."""
        if self._server is None or self._address is None:
            return None
        host = self._address[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}"

    def open(self) -> None:
        """Begin to serve, unless it does already.

        Raises:
            UsageError: another program uses the address, or this machine does not have it.
        """
        if self._address is None or self._server is not None:
            return
        from prometheus_client import start_http_server

        host, port = self._address
        in_use = "Check that no other driver uses the port"
        with refused(f"metrics='{host}:{port}': cannot listen there", in_use, OSError):
            self._server, self._thread = start_http_server(port, host, self.registry)
        _log.info("metrics on %s", self.url)

    def close(self) -> None:
        """Serve no more; `open` begins again."""
        server, thread, self._server = self._server, self._thread, None
        if server is not None and thread is not None:
            server.shutdown()
            server.server_close()
            thread.join()
