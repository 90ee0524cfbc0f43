"""The papers' distributed agent: one job over several trackers.

    python -m experiments.sharded

First a simulated dataflow: every machine's reports are cut up by the client's own code, and each part is put to the
core of its shard. Then real servers, on this machine: what the processor time of the busiest one comes to, by the size
of a report. Prints tables in Markdown; ends with an error if a tracker made a mistake.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from time import process_time
from typing import Final

import numpy as np

from benchmarks import processes
from experiments import agent, tables
from experiments.cells import BATCH_INTERVAL
from experiments.dataflow import HOP_NS, Run, Shape, simulate
from experiments.reports import Messages, each_interval
from tracker.client import JobSpec, ShardedClient
from tracker.sharded.agreement import Sharding
from tracker.wire import codec
from tracker.wire.codec import Method

_SHARDS: Final = (1, 2, 4, 8)
_SERVED: Final = (1, 2, 4)
_EPOCHS: Final = {100: 500, 1_000: 500, 10_000: 100, 50_000: 40}  #: by the entries of a report
_WARM_UP: Final = 3


@dataclass(frozen=True, slots=True)
class Followed:
    """The cost of following a run with so many shards."""

    messages: int
    bytes: int
    busiest_messages: int  #: of the shard that got most bytes
    busiest_entries: int
    busiest_bytes: int
    ended: int  #: substreams


def main() -> None:
    """Measure and print."""
    run = simulate(Shape())
    messages = each_interval(run, BATCH_INTERVAL)
    rows = []
    for shards in _SHARDS:
        done = follow(run, messages, shards)
        figures = (done.messages, done.busiest_messages, done.busiest_entries)
        rows.append([str(shards), *(f"{figure:,}" for figure in figures), f"{done.bytes / 1e6:.2f}",
                     f"{done.busiest_bytes / 1e6:.2f}"])  # fmt: skip
    header = ["shards", "messages", "busiest: messages", "busiest: entries", "MB", "busiest: MB"]
    print(f"## RR-30, 15 machines, 10 elements a substream, a report a second\n\n{tables.table(header, rows)}")
    header = ["entries a report", "servers", "entries/s of the busiest's time", "all servers' time", "client's time"]
    served = [row for entries in _EPOCHS for row in _served(entries)]
    print(f"\n## Real servers, journal in memory, by id\n\n{tables.table(header, served)}")


def follow(run: Run, messages: Messages, shards: int) -> Followed:
    """Send all reports of machines to as many cores as there are shards.

    Raises:
        agent.WrongEndError: a substream has not ended at the end.
    """
    machines = agent.names_of_machines(run)
    segments = [name for name, _ in run.shape.segments()]
    sharding = Sharding(tuple(f"tracker-{number}:7654" for number in range(shards)), "none")
    trackers = [agent.new_tracker(run, producers=machines) for _ in range(shards)]
    told, entries, size = np.zeros(shards, int), np.zeros(shards, int), np.zeros(shards, int)
    epochs = [0] * len(machines)
    order = np.argsort(messages.at, kind="stable")
    for said, at in zip(messages.said(order), messages.at[order].tolist(), strict=True):
        machine = machines[said.machine]
        for shard, part in enumerate(sharding.split(agent.contents(said, segments, machine))):
            message = agent.message(part)
            message.producer, message.epoch, message.commit = machine, epochs[said.machine], True
            data = message.SerializeToString()
            trackers[shard].apply(codec.read_command(Method.REPORT, data), int(at * HOP_NS))
            told[shard] += 1
            entries[shard] += len(part.xor)
            size[shard] += len(data)
        epochs[said.machine] += 1
    statuses = [tracker.view(agent.JOB).status() for tracker in trackers]
    ended = sum(status.ended_substreams for status in statuses)
    if ended != run.shape.substreams or any(status.in_flight or status.late_reports for status in statuses):
        raise agent.WrongEndError(f"{ended} of {run.shape.substreams} substreams have ended: {statuses}")
    most = int(size.argmax())
    return Followed(int(told.sum()), int(size.sum()), int(told[most]), int(entries[most]), int(size[most]), ended)


def _served(entries: int) -> list[list[str]]:
    """Measure the cost of reports of so many substreams at one server, and at several."""
    rows = []
    alone = 0.0
    epochs = _EPOCHS[entries]
    for count in _SERVED:
        times, client = _report(entries, count)
        alone = alone or sum(times)
        rows.append([
            f"{entries:,}", str(count), f"{entries * epochs / max(times):,.0f}", f"{sum(times) / alone:.2f}",
            f"{client / epochs * 1000:.1f} ms a report",
        ])  # fmt: skip
    return rows


def _report(entries: int, count: int) -> tuple[list[float], float]:
    """Return processor seconds of each server, and of the client."""
    names = [f"substream {number}" for number in range(entries)]
    scopes = ["scope"] * entries
    labels = np.random.default_rng(1).integers(0, 2**63, entries)
    ones, none = np.ones(entries, int), np.zeros(entries, int)
    with ExitStack() as stack:
        servers = [stack.enter_context(processes.tracker("memory")) for _ in range(count)]
        client = stack.enter_context(ShardedClient(",".join(server.address for server in servers)))
        client.define_job(JobSpec(job="job", deployment="d1", segments={"up": []}))
        run = client.open_producer("job", "q", "r1")
        for epoch in range(_WARM_UP + _EPOCHS[entries]):
            if epoch == _WARM_UP:
                before = [server.processor_seconds() for server in servers]
                began = process_time()
            report = run.epoch(epoch)
            report.add_columns("up", scopes, names, None, labels, ones, none)
            report.report(["u"], commit=True)
        used = process_time() - began
        return [server.processor_seconds() - was for server, was in zip(servers, before, strict=True)], used


if __name__ == "__main__":
    main()
