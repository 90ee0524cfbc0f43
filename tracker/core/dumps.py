"""A job as plain values and columns, and back: what a snapshot keeps.

What is derived (indexes, heaps, the rows to look at) is not kept but built again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tracker.contract.bounds import bounded
from tracker.contract.commands import Spec
from tracker.contract.values import Ordering

from .accounts import Accounts
from .drains import DrainRecord
from .fronts import Fronts
from .graph import Graph
from .job import Job
from .lifecycle import CLOSED, ENDED, KNOWN
from .log import EventLog
from .producers import dump_producer, load_producer
from .remembered import Newest, Numbers
from .subscriptions import Subscriptions
from .tombstones import Tombstones


def dump(job: Job) -> dict[str, Any]:
    """The job as plain values; nothing in it is shared with the job."""
    accounts = job.accounts
    return {
        "spec": dump_spec(job.spec),
        "log": job.log.dump(),
        "subscriptions": job.subscriptions.dump(),
        "now": job.now,
        "incarnation": job.incarnation,
        "left": list(job.left),
        "drain": job.drain.dump(),
        "producer_names": list(job.numbers.names),
        "read_segments": sorted(job.read_segments),
        "producers": [dump_producer(producer, accounts.ids_of) for producer in job.producers.values()],
        "late_reports": job.late_reports,
        "late_by_id": list(job.late_by_id.items()),
        "accounts": accounts.dump(),
        "fronts": job.fronts.dump(),
        "closes": job.closing.dump(),
        "expectations": job.closing.expectations.dump(),
        "advanced": list(job.ends.advanced.items()),
        "tombstones": job.tombstones.dump(),
    }


def load(values: dict[str, Any]) -> Job:
    """The job that gave `dump`."""
    spec = load_spec(values["spec"])
    job = Job(spec, Graph(spec.segments), "", values["now"])
    job.log = EventLog.load(values["log"])
    job.subscriptions = Subscriptions.load(job.log, values.get("subscriptions", []))  # version 0.1 had none
    job.incarnation = values["incarnation"]
    job.left = Newest(values["left"])
    job.drain = DrainRecord.load(values["drain"])
    job.numbers = Numbers(values["producer_names"])
    job.read_segments = set(values.get("read_segments", job.graph.names))  # version 0.1 did not know
    job.late_reports = values["late_reports"]
    job.late_by_id = {id_: count for id_, count in values["late_by_id"]}  # noqa: C416 - pairs may be lists
    accounts = Accounts.load(values["accounts"])
    job.begin(accounts, Fronts.load(values["fronts"]), Fronts.load_floors(values["fronts"], len(job.graph)))
    job.closing.load(values["closes"], values.get("expectations", {}))  # older dumps have none
    if "tombstones" in values:  # older dumps have none
        job.tombstones = Tombstones.load(values["tombstones"])
    job.ends.advanced = {segment: time for segment, time in values["advanced"]}  # noqa: C416 - pairs may be lists
    for each in values["producers"]:
        producer = load_producer(each, accounts.rows_of)
        job.producers[producer.name] = producer
        for epoch in producer.staged.values():
            units, entries = epoch.size
            job.staged_units += units
            job.staged_entries += entries
    # Those that balance and yet have not ended wait for others, or for the next evaluation.
    closed = accounts.in_use(int(KNOWN | CLOSED), int(KNOWN | CLOSED | ENDED))
    if closed.size:
        job.dirty.append(accounts.cells.endable(closed, job.graph)[0])
    over = np.concatenate([accounts.in_use(0, int(KNOWN)), accounts.in_use(int(ENDED))])
    over = over[np.argsort(accounts.changed[over], kind="stable")]
    since, starts = np.unique(accounts.changed[over], return_index=True)
    if over.size:
        job.to_forget.extend(zip(since.tolist(), np.split(over, starts[1:]), strict=True))
    return job


def dump_spec(spec: Spec) -> list[Any]:
    """A spec as plain values."""
    return [
        spec.job,
        spec.deployment,
        [[name, list(feeds)] for name, feeds in spec.segments],
        list(spec.fronts),
        int(spec.ordering),
        spec.progress,
        spec.stall_after,
        spec.expire_after,
        spec.idle_after,
        spec.retention,
        spec.remember,
        [[front, list(segments)] for front, segments in spec.front_segments],
    ]


def load_spec(fields: list[Any]) -> Spec:
    """The spec that gave these values."""
    job, deployment, segments, fronts, ordering, *rest = fields
    front_segments = rest.pop() if isinstance(rest[-1], list) else []  # version 0.1 had none
    spec = Spec(
        job,
        deployment,
        tuple((name, tuple(feeds)) for name, feeds in segments),
        tuple(fronts),
        Ordering(ordering),
        *rest,
    )
    return bounded(replace(spec, front_segments=tuple((front, tuple(feeds)) for front, feeds in front_segments)))
