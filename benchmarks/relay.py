"""Gain and cost of a relay: a node's workers report every epoch at once, with a relay and without."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.figures import Figure, Unit
from benchmarks.node import WARM_UP, Order
from benchmarks.processes import relay, tracker
from benchmarks.workload import JOB, SEGMENT
from tracker.client import JobSpec, TrackerClient
from tracker.client.relay import VARIABLE
from tracker.load.servers import Server

_ENTRIES = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """Extent of the measurement."""

    workers: Sequence[int]  #: on the node, one measurement for each
    runs: int
    epochs: int  #: of each run


@dataclass(frozen=True, slots=True)
class _Run:
    epoch: float  #: seconds, the median
    messages: float  #: reports to the tracker, an epoch
    server: float  #: seconds of the tracker's processor time, an epoch


def measure(journal: str, plan: Plan) -> Iterator[Figure]:
    """Measure an epoch, reports to the tracker, and the tracker's processor time, beside the same without a relay.

    Args:
        journal: as `tracker serve --journal` takes it.
        plan: how much.
    """
    with tracker(journal) as server:
        with TrackerClient(server.address) as client:
            client.define_job(JobSpec(job=JOB, deployment="d1", segments={SEGMENT: []}))
        for workers in plan.workers:
            direct, relayed = [], []
            for run in range(plan.runs):
                order = Order(server.address, f"direct-{workers}-{run}", workers, plan.epochs, _ENTRIES)
                direct.append(_run(server, order, ""))
                with relay(server.address) as near:
                    order = Order(server.address, f"relayed-{workers}-{run}", workers, plan.epochs, _ENTRIES)
                    over_it = _run(server, order, near.address)
                relayed.append(_with_messages(over_it, near, plan.epochs))
            what = f"relay ({journal.partition(':')[0]}), {workers} workers"
            note = f"{_ENTRIES} entries a report, {plan.epochs} epochs a run"
            kinds: list[tuple[str, Unit, str]] = [
                ("time of an epoch", "s", "epoch"),
                ("reports to the tracker, an epoch", "", "messages"),
                ("the tracker's processor time, an epoch", "s", "server"),
            ]
            for kind, unit, field in kinds:
                yield Figure(
                    what=f"{what}: {kind}",
                    unit=unit,
                    runs=[getattr(run, field) for run in relayed],
                    floor=[getattr(run, field) for run in direct],
                    floor_is="no relay",
                    note=note,
                )


def _run(server: Server, order: Order, relay_address: str) -> _Run:
    spent = server.processor_seconds()
    ran = subprocess.run(
        order.command(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {VARIABLE: relay_address},
    )
    spent = server.processor_seconds() - spent
    epochs = WARM_UP + order.epochs
    return _Run(median(json.loads(ran.stdout)), order.workers, spent / epochs)


def _with_messages(run: _Run, near: Server, epochs: int) -> _Run:
    """Add the number of messages that the relay logs at its end."""
    said = re.search(r"msg=stopped reports=\d+ messages=(\d+)", near.log)
    if said is None:
        raise RuntimeError(f"the relay has not stopped as it should: {near.log}")
    return _Run(run.epoch, int(said[1]) / (WARM_UP + epochs), run.server)
