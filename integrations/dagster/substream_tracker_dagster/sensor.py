"""A sensor that requests a run for each substream that has ended, or notes each as a partition of an asset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dagster import RunRequest, SensorDefinition, SensorEvaluationContext, SensorResult, SkipReason, sensor

from substream_tracker_dagster.completeness import asset_events
from substream_tracker_dagster.reading import COMPLETE, Wanted, ends_after
from tracker.client import Credentials, TrackerClient

_TAGS = ("segment", "scope", "name", "reason")
_TARGETS = {"target", "job", "jobs", "job_name", "asset_selection"}


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
    asset: str | Sequence[str] | None = None,
    most: int = 100,
    **more: Any,
) -> SensorDefinition:
    """Make a sensor that requests one run for each end.

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
        partition_key: makes from them the partition of a run and of the asset.
        asset: the key of an external asset. Each end materializes its partition, and is an evaluation of the check
            `complete`, which passes if the end is complete. Without a target, the sensor requests no runs.
        most: about so many runs at once, and at most 99 more.
        **more: as for `dagster.sensor`: `job`, here as `target`, `minimum_interval_seconds`, `default_status`, …

    Raises:
        ValueError: a reason is none of the tracker's, or a text is given in place of a list.

    >>> clean = substream_sensor("flights", ["clean"], name="clean", address="tracker:7654", target=billing)
    """
    wanted = Wanted(job, segments, scopes, reasons, by_drain)
    starts_runs = asset is None or not _TARGETS.isdisjoint(more)

    def partition_of(end: Mapping[str, Any]) -> str | None:
        return None if partition_key is None else partition_key(end)

    def request(key: str, end: Mapping[str, Any]) -> RunRequest:
        return RunRequest(
            run_key=key,
            run_config=None if run_config is None else run_config(end),
            partition_key=partition_of(end),
            tags={f"substream-tracker/{tag}": str(end[tag]) for tag in _TAGS},
        )

    @sensor(name=name, **more)
    def evaluate(context: SensorEvaluationContext) -> SensorResult:
        with TrackerClient(address, retry_for=20, credentials=credentials) as client:
            found = ends_after(client, wanted, context.cursor, most)
        requests = [request(key, end) for key, end in found.by_key.items()] if starts_runs else []
        ends = [] if asset is None else found.by_key.values()
        events = [event for end in ends for event in asset_events(asset, end, partition_of(end))]
        skipped = None if requests else SkipReason(_skipped(job, len(events) // 2))
        return SensorResult(run_requests=requests, skip_reason=skipped, cursor=found.cursor, asset_events=events)

    return evaluate


def _skipped(job: str, noted: int) -> str:
    return f"noted {noted} ends of job {job!r}" if noted else f"no substream of job {job!r} has ended since"
