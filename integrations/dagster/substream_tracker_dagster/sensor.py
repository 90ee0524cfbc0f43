"""A sensor that requests a run for each substream that has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dagster import RunRequest, SensorDefinition, SensorEvaluationContext, SensorResult, SkipReason, sensor

from substream_tracker_dagster.reading import COMPLETE, Wanted, ends_after
from tracker.client import Credentials, TrackerClient

_TAGS = ("segment", "scope", "name", "reason")


def substream_sensor(
    job: str,
    segments: Sequence[str] = (),
    scopes: Sequence[str] = (),
    *,
    name: str,
    address: str,
    credentials: Credentials | None = None,
    reasons: Sequence[str] = (COMPLETE,),
    by_drain: bool = False,
    run_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    partition_key: Callable[[Mapping[str, Any]], str] | None = None,
    most: int = 100,
    **more: Any,
) -> SensorDefinition:
    """Makes a sensor that requests one run for each end.

    A run's key names the end, so Dagster starts one run for it, also if the daemon is killed and looks again. The runs
    have the tags ``substream-tracker/segment``, ``…/scope``, ``…/name`` and ``…/reason``.

    Args:
        job: the tracked job's name.
        segments: only ends on these; empty: on all.
        scopes: only ends in these; empty: in all.
        name: the sensor's.
        address: the tracker's, `host:port`.
        credentials: what the sensor shows there; None: what the environment names.
        reasons: those of ends that start runs.
        by_drain: whether the ends of substreams that only a drain has closed do, too.
        run_config: makes a run's configuration from an end's fields: those of `tracker.client.Ended`, ``deployment``
            and ``time``.
        partition_key: makes a run's partition from them.
        most: about so many runs at once, and at most 99 more.
        **more: as for `dagster.sensor`: `job`, here as `target`, `minimum_interval_seconds`, `default_status`, …

    Raises:
        ValueError: a reason is none, or a text is given in place of a list.

    >>> clean = substream_sensor("flights", ["clean"], name="clean", address="tracker:7654", target=billing)
    """
    wanted = Wanted(job, segments, scopes, reasons, by_drain)

    def request(key: str, end: Mapping[str, Any]) -> RunRequest:
        return RunRequest(
            run_key=key,
            run_config=None if run_config is None else run_config(end),
            partition_key=None if partition_key is None else partition_key(end),
            tags={f"substream-tracker/{tag}": str(end[tag]) for tag in _TAGS},
        )

    @sensor(name=name, **more)
    def evaluate(context: SensorEvaluationContext) -> SensorResult:
        with TrackerClient(address, retry_for=20, credentials=credentials) as client:
            found = ends_after(client, wanted, context.cursor, most)
        requests = [request(key, end) for key, end in found.by_key.items()]
        skipped = None if requests else SkipReason(f"no substream of job {job!r} has ended since")
        return SensorResult(run_requests=requests, skip_reason=skipped, cursor=found.cursor)

    return evaluate
