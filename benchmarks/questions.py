"""Costs of calls that list no substreams, with few open substreams and with many: they should be equal.

Every open substream has an element in flight; in the core, one of ten also has a number of elements that its front has
promised and not reached. Each call is made on a job with a thousand of them and on one with many; first in the core,
then at a server.

    python -m benchmarks.questions --substreams 1000000
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

import grpc
import numpy as np

from benchmarks import workload
from benchmarks.figures import HEADER, Figure, row
from benchmarks.processes import tracker
from benchmarks.sender import REPORT
from benchmarks.workload import FRONT, SEGMENT
from tracker.cli.output import print_table
from tracker.contract.values import Mode
from tracker.core import (
    Ack,
    CancelDrain,
    Commit,
    DefineJob,
    Drain,
    Expect,
    OpenProducer,
    Report,
    Spec,
    Subscribe,
    Tick,
    Tracker,
)
from tracker.wire.gen import columns_pb2, tracker_pb2, tracker_pb2_grpc

_NOW: Final = 1_800_000_000 * 10**9
_HOUR: Final = 3600 * 10**9
_FEW: Final = 1_000
_EACH: Final = 10  # of so many open substreams of the core, one has a number that is not reached yet


def main() -> int:
    """Measure and print."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.questions", description=__doc__.partition("\n")[0])
    asked.add_argument("--substreams", metavar="NUMBER", type=int, default=1_000_000, help="how many are open")
    asked.add_argument("--turns", metavar="NUMBER", type=int, default=30, help="how often each call is made")
    arguments = asked.parse_args()
    figures = [
        *in_the_core(arguments.substreams, arguments.turns),
        *at_a_server(arguments.substreams, arguments.turns),
    ]
    print_table(HEADER, map(row, figures))
    return 0


def in_the_core(substreams: int, turns: int) -> Iterator[Figure]:
    """Measure seconds of processor time for each call.

    Args:
        substreams: how many are open in the larger job.
        turns: how often each call is made.
    """
    core = Tracker("bench")
    for job, size in (("few", _FEW), ("many", substreams)):
        _open(core, job, size)
    calls = {job: _calls_of_the_core(core, job) for job in ("few", "many")}
    yield from _timed("core", calls, turns, substreams, time.thread_time_ns)


def _timed(
    where: str, calls: dict[str, dict[str, Callable[[], object]]], turns: int, substreams: int, clock: Callable[[], int]
) -> Iterator[Figure]:
    """Time each call on both jobs in turns.

    Args:
        where: the calls are made.
        calls: by job, ``few`` or ``many``, and by what they are called.
        turns: how often each is made.
        substreams: how many are open in the larger job.
        clock: in nanoseconds.
    """
    for name in calls["few"]:
        taken: dict[str, list[float]] = {"few": [], "many": []}
        for _ in range(turns):
            for job, spent in taken.items():
                start = clock()
                calls[job][name]()
                spent.append((clock() - start) / 1e9)
        floor_is, note = f"with {_FEW:,} open", f"{substreams:,} open"
        yield Figure(f"{where}, {name}", "s", taken["many"], taken["few"], floor_is, note)


def _open(core: Tracker, job: str, size: int) -> None:
    """Open so many substreams of a job, each with an element in flight and more to come."""
    core.apply(DefineJob(_spec(job)), _NOW)
    core.apply(OpenProducer(job, "opener", "r1"), _NOW)
    for epoch, places in enumerate(workload.opening(size)):
        rows = len(places)
        core.apply(
            Report(
                job=job,
                producer="opener",
                run="r1",
                epoch=epoch,
                units=["unit"],
                scopes=workload.scopes(),
                names=workload.names(places),
                scope_index=workload.scope_index(places),
                end_times=workload.end_times(places),
                segments=[SEGMENT],
                substream_index=np.arange(rows, dtype=np.uint32),
                segment_index=np.zeros(rows, np.uint32),
                xor=workload.labels(places),
                sent=np.ones(rows, np.uint32),
                received=np.zeros(rows, np.uint32),
                entry_count=rows,
                promises=tuple(Expect(FRONT, SEGMENT, at, 2) for at in range(0, rows, _EACH)),
                commit=True,
            ),
            _NOW,
        )
    core.apply(Subscribe(job, "reader"), _NOW)


def _spec(job: str) -> Spec:
    return Spec(job, "d1", ((SEGMENT, ()),), fronts=(FRONT,), stall_after=_HOUR)


def _calls_of_the_core(core: Tracker, job: str) -> dict[str, Callable[[], object]]:
    numbers, times = count(), count(_NOW, 10**6)

    def apply(command: object) -> object:
        return core.apply(command, next(times))  # type: ignore[arg-type]

    def drain_and_cancel() -> None:
        apply(Drain(job, deployment="d1", drain_id="drain"))
        apply(CancelDrain(job, deployment="d1", drain_id="drain"))

    return {
        "DefineJob, the same again": lambda: apply(DefineJob(_spec(job))),
        "OpenProducer": lambda: apply(OpenProducer(job, f"p{next(numbers)}", "r1", Mode.STAGED)),
        "Commit of nothing": lambda: apply(Commit(job, "opener", "r1")),
        "Drain and CancelDrain": drain_and_cancel,
        "Subscribe": lambda: apply(Subscribe(job, f"s{next(numbers)}")),
        "Ack": lambda: apply(Ack(job, "reader", 0)),
        "a tick": lambda: apply(Tick(job)),
        "GetJob": lambda: core.view(job).status(),
        "GetDrain": lambda: core.view(job).drain_status(),
        "ListEvents, Watch": lambda: core.view(job).events(0),
        "counts": lambda: core.view(job).counts(),
        "when a tick is due": lambda: core.next_due(job),
    }


def at_a_server(substreams: int, turns: int) -> Iterator[Figure]:
    """Measure seconds from each call to its answer, journal in memory.

    Args:
        substreams: how many are open in the larger job.
        turns: how often each call is made.
    """
    with (
        tracker("memory") as server,
        grpc.insecure_channel(server.address, [("grpc.max_receive_message_length", -1)]) as channel,
    ):
        stub = tracker_pb2_grpc.TrackerStub(channel)
        for job, size in (("few", _FEW), ("many", substreams)):
            _open_at(channel, stub, job, size)
        calls = {job: _calls_of_a_server(stub, job) for job in ("few", "many")}
        yield from _timed("server", calls, turns, substreams, time.perf_counter_ns)


def _open_at(channel: grpc.Channel, stub: tracker_pb2_grpc.TrackerStub, job: str, size: int) -> None:
    stub.DefineJob(tracker_pb2.DefineJobRequest(spec=_spec_on_the_wire(job)))
    stub.OpenProducer(tracker_pb2.OpenProducerRequest(job=job, producer="opener", run="r1"))
    report: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
        REPORT, request_serializer=None, response_deserializer=None
    )
    for epoch, places in enumerate(workload.opening(size)):
        head = columns_pb2.ReportRequest(job=job, producer="opener", run="r1", epoch=epoch, units=["unit"])
        report(head.SerializeToString() + workload.columns(places, sent=1, received=0, ids=None))


def _spec_on_the_wire(job: str) -> tracker_pb2.JobSpec:
    spec = tracker_pb2.JobSpec(job=job, deployment="d1", segments=[tracker_pb2.Segment(name=SEGMENT)], fronts=[FRONT])
    spec.stall_after.FromSeconds(_HOUR // 10**9)
    return spec


def _calls_of_a_server(stub: tracker_pb2_grpc.TrackerStub, job: str) -> dict[str, Callable[[], object]]:
    numbers = count()

    def watch() -> None:
        """Ask for the events from the end of the log on, and leave once the server has begun to answer."""
        call = stub.Watch(tracker_pb2.WatchRequest(job=job))
        call.initial_metadata()
        call.cancel()

    return {
        "DefineJob, the same again": lambda: stub.DefineJob(tracker_pb2.DefineJobRequest(spec=_spec_on_the_wire(job))),
        "OpenProducer": lambda: stub.OpenProducer(
            tracker_pb2.OpenProducerRequest(job=job, producer=f"p{next(numbers)}", run="r1")
        ),
        "GetJob": lambda: stub.GetJob(tracker_pb2.GetJobRequest(job=job)),
        "ListEvents": lambda: stub.ListEvents(tracker_pb2.ListEventsRequest(job=job)),
        "Watch": watch,
    }


if __name__ == "__main__":
    sys.exit(main())
