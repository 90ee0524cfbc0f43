"""The metrics of the jobs as they are now: one series for each label, which may stand for many jobs.

Where a label stands for many, numbers are summed, and of ages the highest counts. Of the segments and fronts of a job
only so many have series of their own: those with the most in flight, and those that promised longest ago.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from tracker.contract.values import DrainState

from .inventory import JobNumbers
from .joblabels import OTHERS, escaped

_SECOND = 10**9  # ns


def job_metrics(jobs: Sequence[tuple[str, JobNumbers]], now: int, names: int) -> Iterator[Metric]:
    """Give the metrics.

    Args:
        jobs: the jobs' labels and numbers.
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
        _drain_states(jobs),
    )


def _counts(jobs: Sequence[tuple[str, JobNumbers]]) -> Iterator[Metric]:
    for name, text, attribute in (
        ("open_substreams", "Substreams that have not ended on every segment.", "open_substreams"),
        ("incomplete_substreams", "Open substreams of which more is expected than was sent.", "incomplete_substreams"),
        ("staged_substreams", "Substreams that only staged epochs name.", "staged_substreams"),
        ("staged_epochs", "Epochs that were reported and are not committed.", "staged_epochs"),
        ("cells", "Accumulators that take up memory.", "cells"),
        ("tombstones", "Names of substreams that ended and were forgotten.", "tombstones"),
        ("events", "Events that are kept.", "events"),
        ("retained_events", "Events that are kept only for subscriptions.", "retained_events"),
        ("producers", "Producers.", "producers"),
        ("idle_fronts", "Fronts that are idle, and not waited for.", "idle_fronts"),
    ):
        values = (((label,), getattr(numbers.figures, attribute)) for label, numbers in jobs)
        yield _gauge(f"tracker_{name}", text, ("job_name",), values)
    yield _gauge(
        "tracker_unfinished_fronts",
        "Fronts that may still send.",
        ("job_name",),
        (((label,), len(each.figures.fronts) + each.figures.other_fronts) for label, each in jobs),
    )


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


def _drain_states(jobs: Sequence[tuple[str, JobNumbers]]) -> Iterator[tuple[tuple[str, str], float]]:
    for label, numbers in jobs:
        for state in DrainState:
            yield (label, state.lower()), numbers.figures.drain is state


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
