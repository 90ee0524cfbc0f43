"""Content of the server's `/metrics`: the counters of `measures`, and the numbers of the jobs as they are now.

docs/reference/metrics.md has a table of everything in here, which a test compares with what a server exposes.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import tracker
from tracker.contract.figures import Tally

from .clock import Clock
from .distribution import Distribution
from .inventory import Inventory
from .joblabels import JobLabels
from .jobmetrics import job_metrics
from .measures import Measures
from .readiness import Readiness
from .sequencer import Sequencer
from .service import Service
from .watching import Readers


class Metrics:
    """The server's metrics: what the process is like from the start, and once it serves, all that it tracks.

    Args:
        readiness: whether the server is ready.
    """

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._registry = CollectorRegistry()
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self._registry)
        self._registry.register(self)
        self._serving: ServingMetrics | None = None

    def serves(self, serving: ServingMetrics) -> None:
        """Show what the server tracks from now on."""
        self._serving = serving

    async def scrape(self) -> Collector:
        """Gather what a scrape shows."""
        if self._serving is not None:
            await self._serving.refresh()
        return self._registry

    def collect(self) -> Iterator[Metric]:
        """Give the metrics as they were gathered; any thread may ask."""
        yield _gauge("tracker_ready", "1 while the server accepts commands, else 0.", not self._readiness.missing())
        yield _gauge(
            "tracker_standby",
            "1 while another server has the journal and this one waits for it.",
            self._readiness.is_standby,
        )
        build = GaugeMetricFamily("tracker_build_info", "1; the label has the server's version.", labels=["version"])
        build.add_metric([tracker.__version__], 1)
        yield build
        if self._serving is not None:
            yield from self._serving.collect()


class ServingMetrics:
    """Metrics of a server that serves.

    Args:
        names: how many segments and fronts of a job have series of their own.
        sequencer, service, readers: what is under way.
    """

    def __init__(
        self,
        measures: Measures,
        labels: JobLabels,
        inventory: Inventory,
        names: int,
        clock: Clock,
        sequencer: Sequencer,
        service: Service,
        readers: Readers,
    ) -> None:
        self._measures = measures
        self._labels = labels
        self._inventory = inventory
        self._names = names
        self._clock = clock
        self._sequencer = sequencer
        self._service = service
        self._readers = readers
        self._now = clock.now()
        self._label_of: dict[str, str] = {}  # by job, as of the last refresh
        self._under_way = (0, 0)

    async def refresh(self) -> None:
        """Look at all jobs, and drop the labels of those that were deleted."""
        await self._inventory.refresh()
        for label in self._labels.keep(self._inventory.jobs):
            self._measures.forget(label)
        self._now = self._clock.now()
        self._label_of = {name: self._labels.of(name) for name in self._inventory.jobs}
        self._under_way = self._service.under_way

    def collect(self) -> Iterator[Metric]:
        """Give the metrics."""
        yield from self._calls()
        yield from self._reports()
        yield from self._ends()
        yield _gauge("tracker_jobs", "Jobs that are defined.", len(self._label_of))
        numbers = [(label, self._inventory.jobs.get(name)) for name, label in self._label_of.items()]
        known = [(label, each) for label, each in numbers if each is not None]
        yield from job_metrics(known, self._now, self._names)
        yield _gauge("tracker_watches", "Watches of events under way.", len(self._readers.watches))
        yield _gauge("tracker_waits", "Calls under way that wait for one end.", self._readers.waits)
        yield from self._journal()

    def _calls(self) -> Iterator[Metric]:
        calls = HistogramMetricFamily(
            "tracker_grpc_server_handling_seconds",
            "Time from a call's start to its end, by method and code; streams last as long as their callers want.",
            labels=["method", "code"],
        )
        for (method, code), seconds in list(self._measures.calls.items()):
            calls.add_metric([method, code], seconds.buckets(), seconds.sum)
        yield calls
        refusals = CounterMetricFamily(
            "tracker_refusals", "Calls and reports of streams that were refused, by reason.", labels=["reason"]
        )
        for reason, count in list(self._measures.refusals.items()):
            refusals.add_metric([reason], count)
        yield refusals
        under_way, streams = self._under_way
        yield _gauge("tracker_calls", "Calls under way, beside watches, waits and streams of reports.", under_way)
        yield _gauge("tracker_report_streams", "Streams of reports under way.", streams)

    def _reports(self) -> Iterator[Metric]:
        for name, text, counted in (
            ("tracker_reports", "Reports, by outcome.", self._measures.reports),
            ("tracker_report_entries", "Entries of reports, by the report's outcome.", self._measures.entries),
        ):
            family = CounterMetricFamily(name, text, labels=["job_name", "outcome"])
            for (label, outcome), count in list(counted.items()):
                family.add_metric([label, outcome.lower()], count)
            yield family

    def _ends(self) -> Iterator[Metric]:
        ends = CounterMetricFamily(
            "tracker_ends", "Ends of substreams on segments, by reason.", labels=["job_name", "reason"]
        )
        late = CounterMetricFamily(
            "tracker_late_entries",
            "Entries of substreams that had ended: announced as late, not counted.",
            labels=["job_name"],
        )
        delays = HistogramMetricFamily(
            "tracker_end_delay_seconds",
            "Time from when the server took the last commit or promise that an end needed, to its announcement.",
            labels=["job_name"],
        )
        for label in sorted({*self._label_of.values(), *list(self._measures.announced)}):
            counted = self._measures.announced.get(label, Tally())
            for reason in ("complete", "expired", "abandoned"):
                ends.add_metric([label, reason], getattr(counted, reason))
            late.add_metric([label], counted.late)
            delay = self._measures.delays.get(label)
            if delay is not None:
                delays.add_metric([label], delay.buckets(), delay.sum)
        yield from (ends, late, delays)

    def _journal(self) -> Iterator[Metric]:
        measures = self._measures
        yield _histogram("tracker_journal_sync_seconds", "Time to make a group of commands durable.", measures.syncs)
        yield _counter("tracker_journal_records", "Commands that were made durable.", measures.journal_records)
        yield _counter("tracker_journal_bytes", "Bytes of commands that were made durable.", measures.journal_bytes)
        yield _counter(
            "tracker_journal_failures", "Groups of commands that the journal refused.", measures.sync_failures
        )
        yield _gauge(
            "tracker_journal_pending_bytes",
            "Bytes of commands that wait for the journal or are carried out.",
            self._sequencer.pending_bytes,
        )
        yield _histogram("tracker_snapshot_seconds", "Time to copy, write and sync a snapshot.", measures.snapshots)
        yield _gauge("tracker_snapshot_bytes", "Size of the last snapshot since the start.", measures.snapshot_bytes)
        yield _gauge(
            "tracker_snapshot_timestamp_seconds",
            "Unix time of the last snapshot since the start; 0: there was none.",
            measures.snapshot_at,
        )
        yield _counter("tracker_snapshot_failures", "Snapshots that could not be kept.", measures.snapshot_failures)
        yield _gauge(
            "tracker_backup_timestamp_seconds",
            "Unix time of the last backup since the start; 0: there was none.",
            measures.backup_at,
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value)


def _histogram(name: str, text: str, values: Distribution) -> Metric:
    return HistogramMetricFamily(name, text, values.buckets(), values.sum)
