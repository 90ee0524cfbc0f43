"""Content of the server's `/metrics`: the counters of `measures`, and the numbers of the jobs as they are now.

docs/reference/metrics.md has a table of everything in here, which a test compares with what a server exposes.

The jobs as they are now have one series for each label, which may stand for many jobs. Then numbers are summed, and of
ages the highest counts. Of the segments and fronts of a job only so many have series of their own: those with the most
in flight, and those that promised longest ago.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.registry import Collector

import tracker
from tracker.contract.status import Tally
from tracker.contract.values import DrainState, Reason

from .intake import Intake
from .inventory import Inventory, JobNumbers
from .measures import OTHERS, Distribution, JobLabels, Measures, escaped
from .owning import Readiness
from .sequencer import Clock, Sequencer
from .watching import Readers


class Metrics:
    """The server's metrics: what the process is like from the start, and once it serves, all that it tracks."""

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
        yield Gauge("tracker_ready", "1 while the server accepts commands, else 0.", not self._readiness.missing())
        yield Gauge(
            "tracker_standby",
            "1 while another server has the journal and this one waits for it.",
            self._readiness.is_standby,
        )
        build = Gauge("tracker_build_info", "1; the label has the server's version.", labels=["version"])
        build.add_metric([tracker.__version__], 1)
        yield build
        if self._serving is not None:
            yield from self._serving.collect()


class ServingMetrics:
    """Metrics of a server that serves."""

    def __init__(
        self,
        measures: Measures,
        labels: JobLabels,
        inventory: Inventory,
        clock: Clock,
        sequencer: Sequencer,
        intake: Intake,
        readers: Readers,
    ) -> None:
        self._measures = measures
        self._labels = labels
        self._inventory = inventory
        self._clock = clock
        self._sequencer = sequencer
        self._intake = intake
        self._readers = readers
        self._now = clock.now()
        self._label_of: dict[str, str] = {}  # by job, as of the last refresh

    async def refresh(self) -> None:
        """Look at all jobs, and drop the labels of those that were deleted."""
        await self._inventory.refresh()
        for label in self._labels.keep(self._inventory.jobs):
            self._measures.forget(label)
        self._now = self._clock.now()
        self._label_of = {name: self._labels.of(name) for name in self._inventory.jobs}

    def collect(self) -> Iterator[Metric]:
        """Give the metrics."""
        yield from self._calls()
        yield from self._reports()
        yield from self._ends()
        yield Gauge("tracker_jobs", "Jobs that are defined.", len(self._label_of))
        numbers = [(label, self._inventory.jobs.get(name)) for name, label in self._label_of.items()]
        known = [(label, each) for label, each in numbers if each is not None]
        yield from job_metrics(known, self._now, self._inventory.names)
        yield Gauge("tracker_watches", "Watches of events under way.", len(self._readers.watches))
        yield Gauge("tracker_waits", "Calls under way that wait for one end.", self._readers.waits)
        yield from self._journal()

    def _calls(self) -> Iterator[Metric]:
        calls = Histogram(
            "tracker_grpc_server_handling_seconds",
            "Time from a call's start to its end, by method and code; streams last as long as their callers want.",
            labels=["method", "code"],
        )
        for (method, code), seconds in list(self._measures.calls.items()):
            calls.add_metric([method, code], seconds.buckets(), seconds.sum)
        yield calls
        refusals = Counter(
            "tracker_refusals", "Calls and reports of streams that were refused, by reason.", labels=["reason"]
        )
        for reason, count in list(self._measures.refusals.items()):
            refusals.add_metric([reason], count)
        yield refusals
        under_way = self._intake.under_way
        calls_text = "Calls under way, beside watches, waits and streams of reports."
        yield Gauge("tracker_calls", calls_text, under_way["max_calls"])
        yield Gauge("tracker_report_streams", "Streams of reports under way.", under_way["max_report_streams"])

    def _reports(self) -> Iterator[Metric]:
        for name, text, counted in (
            ("tracker_reports", "Reports, by outcome.", self._measures.reports),
            ("tracker_report_entries", "Entries of reports, by the report's outcome.", self._measures.entries),
        ):
            family = Counter(name, text, labels=["job_name", "outcome"])
            for (label, outcome), count in list(counted.items()):
                family.add_metric([label, outcome.lower()], count)
            yield family

    def _ends(self) -> Iterator[Metric]:
        ends = Counter("tracker_ends", "Ends of substreams on segments, by reason.", labels=["job_name", "reason"])
        late = Counter(
            "tracker_late_entries",
            "Entries of substreams that had ended: announced as late, not counted.",
            labels=["job_name"],
        )
        delays = Histogram(
            "tracker_end_delay_seconds",
            "Time from when the server took the last commit or promise that an end needed, to its announcement.",
            labels=["job_name"],
        )
        for label in sorted({*self._label_of.values(), *list(self._measures.announced)}):
            counted = self._measures.announced.get(label, Tally())
            for reason, count in zip(Reason, counted.ends, strict=True):
                ends.add_metric([label, reason.name.lower()], count)
            late.add_metric([label], counted.late)
            delay = self._measures.delays.get(label)
            if delay is not None:
                delays.add_metric([label], delay.buckets(), delay.sum)
        yield from (ends, late, delays)

    def _journal(self) -> Iterator[Metric]:
        measures = self._measures
        yield _histogram("tracker_journal_sync_seconds", "Time to make a group of commands durable.", measures.syncs)
        yield Counter("tracker_journal_records", "Commands that were made durable.", measures.journal_records)
        yield Counter("tracker_journal_bytes", "Bytes of commands that were made durable.", measures.journal_bytes)
        yield Counter(
            "tracker_journal_failures", "Groups of commands that the journal refused.", measures.sync_failures
        )
        yield Gauge(
            "tracker_journal_pending_bytes",
            "Bytes of commands that wait for the journal or are carried out.",
            self._sequencer.pending_bytes,
        )
        yield _histogram("tracker_snapshot_seconds", "Time to copy, write and sync a snapshot.", measures.snapshots)
        yield Gauge("tracker_snapshot_bytes", "Size of the last snapshot since the start.", measures.snapshot_bytes)
        yield Gauge(
            "tracker_snapshot_timestamp_seconds",
            "Unix time of the last snapshot since the start; 0: there was none.",
            measures.snapshot_at,
        )
        yield Counter("tracker_snapshot_failures", "Snapshots that could not be kept.", measures.snapshot_failures)
        yield Gauge(
            "tracker_backup_timestamp_seconds",
            "Unix time of the last backup since the start; 0: there was none.",
            measures.backup_at,
        )


def _histogram(name: str, text: str, values: Distribution) -> Metric:
    return Histogram(name, text, values.buckets(), values.sum)


_SECOND = 10**9  # ns


def job_metrics(jobs: Sequence[tuple[str, JobNumbers]], now: int, names: int) -> Iterator[Metric]:
    """Give the metrics.

    Args:
        now: the tracker's time (ns).
        names: how many segments and fronts of a job have series of their own.
    """
    yield from _counts(jobs)
    yield from _surveys(jobs, now)
    yield _gauge(
        "tracker_in_flight_elements",
        "Elements that were sent on a segment and not received, of open substreams.",
        ("job_name", "segment"),
        _in_flight(jobs, names),
    )
    yield _gauge(
        "tracker_front_promise_age_seconds",
        "Time since an unfinished front's last promise, or since it was added.",
        ("job_name", "front"),
        _promise_ages(jobs, now, names),
        max,
    )
    yield _gauge(
        "tracker_drain_state",
        "1 for the state of the drain of the job's deployment, 0 for the other states.",
        ("job_name", "state"),
        (((label, state.lower()), each.figures.drain is state) for label, each in jobs for state in DrainState),
    )


def _counts(jobs: Sequence[tuple[str, JobNumbers]]) -> Iterator[Metric]:
    for name, text in (
        ("open_substreams", "Substreams that have not ended on every segment."),
        ("incomplete_substreams", "Open substreams of which more is expected than was sent."),
        ("staged_substreams", "Substreams that only staged epochs name."),
        ("staged_epochs", "Epochs that were reported and are not committed."),
        ("cells", "Accumulators that take up memory."),
        ("tombstones", "Names of substreams that ended and were forgotten."),
        ("events", "Events that are kept."),
        ("retained_events", "Events that are kept only for subscriptions."),
        ("producers", "Producers."),
        ("idle_fronts", "Fronts that are idle, and not waited for."),
    ):
        values = (((label,), getattr(numbers.figures, name)) for label, numbers in jobs)
        yield _gauge(f"tracker_{name}", text, ("job_name",), values)
    unfinished = (((label,), len(each.figures.fronts) + each.figures.other_fronts) for label, each in jobs)
    yield _gauge("tracker_unfinished_fronts", "Fronts that may still send.", ("job_name",), unfinished)


def _surveys(jobs: Sequence[tuple[str, JobNumbers]], now: int) -> Iterator[Metric]:
    surveys = [(label, numbers.survey) for label, numbers in jobs if numbers.survey is not None]
    yield _gauge(
        "tracker_waiting_substreams",
        "Open substreams, by what they wait for: a front's promise, elements on a segment, a staged epoch's commit, or "
        "only the order of ends. One that waits for several things counts for each.",
        ("job_name", "waiting_for"),
        (
            ((label, what), count)
            for label, survey in surveys
            for what, count in (
                ("front", survey.all_fronts),
                ("segment", survey.all_segments),
                ("epoch", survey.staged),
                ("order", survey.ordered),
            )
        ),
    )
    yield _gauge(
        "tracker_stalled_substreams",
        "Open substreams that were announced as stalled and have not changed since.",
        ("job_name",),
        (((label,), survey.stalled) for label, survey in surveys),
    )
    yield _gauge(
        "tracker_oldest_unbalanced_seconds",
        "Time without a change of the closed substream that has gone without one for longest and does not balance.",
        ("job_name",),
        (((label,), _age(survey.oldest[0].changed if survey.oldest else None, now)) for label, survey in surveys),
        max,
    )
    yield _gauge(
        "tracker_watch_behind_events",
        "Events that the watch furthest behind has not sent yet.",
        ("job_name",),
        (((label,), numbers.behind_events) for label, numbers in jobs),
        max,
    )
    yield _gauge(
        "tracker_watch_behind_seconds",
        "Age of the first event that the watch furthest behind has not sent yet.",
        ("job_name",),
        (((label,), _age(numbers.behind_since, now)) for label, numbers in jobs),
        max,
    )


def _age(since: int | None, now: int) -> float:
    return 0.0 if since is None else max(0, now - since) / _SECOND


def _in_flight(jobs: Sequence[tuple[str, JobNumbers]], names: int) -> Iterator[tuple[tuple[str, str], float]]:
    for label, numbers in jobs:
        if numbers.survey is None:
            continue
        counts = numbers.survey.in_flight
        if label == OTHERS:
            yield (label, OTHERS), sum(counts.values())
            continue
        segments = sorted(numbers.figures.segments, key=lambda segment: -counts.get(segment, 0))
        for segment in segments[:names]:
            yield (label, escaped(segment)), counts.get(segment, 0)
        if len(segments) > names:
            yield (label, OTHERS), sum(counts.get(segment, 0) for segment in segments[names:])


def _promise_ages(
    jobs: Sequence[tuple[str, JobNumbers]], now: int, names: int
) -> Iterator[tuple[tuple[str, str], float]]:
    for label, numbers in jobs:
        for place, (front, since) in enumerate(numbers.figures.fronts):
            if label == OTHERS:
                yield (label, OTHERS), _age(since, now)
                break
            if place < names:
                yield (label, escaped(front)), _age(since, now)
            else:
                yield (label, OTHERS), _age(since, now)


def _gauge(
    name: str,
    text: str,
    labels: Sequence[str],
    values: Iterable[tuple[tuple[str, ...], float]],
    combined: Callable[[list[float]], float] = sum,
) -> Metric:
    """Return a gauge; values of the same labels are summed, or combined in another way."""
    found: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for key, value in values:
        found[key].append(value)
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, several in found.items():
        family.add_metric(key, combined(several))
    return family
