"""The tracker as a server: the same reports over gRPC, from enough processes to keep its core busy."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import grpc
import numpy as np

from benchmarks import sender, workload
from benchmarks.figures import Figure, written
from benchmarks.processes import tracker
from benchmarks.sender import REPORT, Prepare, Send
from benchmarks.workload import FRONT, JOB, SEGMENT, Ids
from tracker.client import Credentials, JobSpec, TrackerClient
from tracker.client.credentials import Bearer
from tracker.load.servers import bare_server
from tracker.wire.codec import unpack_u8
from tracker.wire.gen import columns_pb2, tracker_pb2


@dataclass(frozen=True, slots=True)
class Plan:
    """Extent of the measurement."""

    substreams: int
    sizes: list[int]
    runs: int
    seconds: float  #: of each run
    senders: int


def measure(journal: str, plan: Plan) -> Iterator[Figure]:
    """Measure entries folded in per second, over Report and over ReportStream, by id and by name.

    Args:
        journal: as `tracker serve --journal` takes it.
        plan: how much.
    """
    with (
        tempfile.TemporaryDirectory() as directory,
        tracker(journal) as server,
        bare_server() as bare,
        started_senders(plan.senders) as senders,
    ):
        ids = open_substreams(server.address, plan.substreams)
        file = Path(directory) / "ids.npy"
        np.save(file, ids.numbers)
        for by_id in (True, False):
            for entries in plan.sizes:
                what = f"by {'id' if by_id else 'name'}, {entries:,} entries a report"
                senders.prepare(
                    Prepare(
                        tracker=server.address,
                        producers=what,
                        substreams=plan.substreams,
                        entries=entries,
                        ids=str(file) if by_id else "",
                        log_id=ids.log_id,
                        seed=entries,
                    )
                )
                for stream in (False, True):
                    rates, floors, busy, capacity = [], [], [], []
                    for _ in range(plan.runs):
                        answered, lasted = senders.send(Send(bare.address, stream, plan.seconds))
                        floors.append(answered * entries / lasted)
                        spent = server.processor_seconds()
                        answered, lasted = senders.send(Send(server.address, stream, plan.seconds))
                        spent = server.processor_seconds() - spent
                        rates.append(answered * entries / lasted)
                        busy.append(spent / lasted)
                        capacity.append(answered * entries / max(spent, 1e-9))
                    yield Figure(
                        what=f"served ({journal.partition(':')[0]}), {what}, {'ReportStream' if stream else 'Report'}",
                        unit="/s",
                        runs=rates,
                        floor=floors,
                        floor_is="a server that takes the bytes",
                        note=f"{plan.substreams:,} open; server at {median(busy):.0%} of a core, "
                        f"{written(median(capacity), '/s')} a whole core",
                    )


def open_substreams(address: str, substreams: int) -> Ids:
    """Open the substreams in a new job. Return their ids."""
    with TrackerClient(address) as client:
        client.define_job(JobSpec(job=JOB, deployment="d1", segments={SEGMENT: []}, fronts=[FRONT]))
        client.open_producer(JOB, "opener", "r1")
    given = []
    credentials = Credentials.from_environment()
    metadata = Bearer(credentials, address).metadata()
    with sender.channel(credentials, address) as channel:
        report: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            REPORT, request_serializer=None, response_deserializer=None
        )
        for epoch, places in enumerate(workload.opening(substreams)):
            columns = workload.columns(places, sent=1, received=1, ids=None)
            asking = columns_pb2.ReportRequest(want_ids=True).SerializeToString()
            answer = tracker_pb2.ReportResponse.FromString(
                report(workload.header("opener", epoch) + columns + asking, metadata=metadata)
            )
            given.append(unpack_u8(answer.substream_ids))
    return Ids(np.concatenate(given), answer.log_id)


class Senders:
    """Sender processes, which all do the same at the same time."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def prepare(self, order: Prepare) -> None:
        """Give each its producers and its order of substreams."""
        self._tell(
            replace(order, producers=f"{order.producers}/{number}", seed=order.seed + number)
            for number in range(len(self._processes))
        )

    def send(self, order: Send) -> tuple[float, float]:
        """Send from all senders. Return the number of answered reports, and the seconds in which they were."""
        said = self._tell(order for _ in self._processes)
        lasted = max(one["end"] for one in said) - min(one["start"] for one in said)
        return sum(one["answered"] for one in said), lasted

    def _tell(self, orders: Iterable[Prepare | Send]) -> list[dict[str, float]]:
        for process, order in zip(self._processes, orders, strict=True):
            assert process.stdin is not None
            print(sender.line(order), file=process.stdin, flush=True)
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said:
                raise RuntimeError("a sender has ended; why is above")
            answers.append(json.loads(said))
        return answers


@contextmanager
def started_senders(count: int, environment: Mapping[str, str] | None = None) -> Iterator[Senders]:
    """Start senders for as long as the context lasts; their environment has their credentials."""
    processes = [
        subprocess.Popen(
            sender.COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict(environment or {}),
        )
        for _ in range(count)
    ]
    try:
        yield Senders(processes)
    finally:
        for process in processes:
            process.terminate()
            process.communicate()
