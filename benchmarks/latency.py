"""From a promise sent to its `Ended` seen by a watcher, on an idle server; beside a call and a push that do nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import grpc
import numpy as np

from benchmarks.figures import Figure
from benchmarks.processes import tracker
from benchmarks.workload import JOB, SEGMENT
from tracker.client import JobSpec, Producer, TrackerClient
from tracker.load.servers import bare_server
from tracker.wire.gen import tracker_pb2, tracker_pb2_grpc

_WARM_UP: Final = 50


def measure(journal: str, runs: int, rounds: int) -> Iterator[Figure]:
    """Measure median and 99th percentile, over the stubs and over the client.

    Args:
        journal: as `tracker serve --journal` takes it.
        runs: repetitions.
        rounds: promises in each, one after the other.
    """
    kinds: list[tuple[str, Callable[[str, str], AbstractContextManager[Round]]]] = [
        ("stubs", _over_stubs),
        ("client", over_client),
    ]
    taken: dict[str, list[list[float]]] = {"floor": [], "stubs": [], "client": []}
    with tracker(journal) as server, bare_server() as bare:
        with TrackerClient(server.address) as client:
            client.define_job(JobSpec(job=JOB, deployment="d1", segments={SEGMENT: []}))
        for run in range(runs):
            with _bare(bare.address) as one:
                taken["floor"].append(times(one, rounds))
            for kind, connected in kinds:
                with connected(server.address, f"{kind}-{run}") as one:
                    taken[kind].append(times(one, rounds))
    for kind, _ in kinds:
        for percent in (50, 99):
            yield Figure(
                what=f"promise to Ended ({journal.partition(':')[0]}), {kind}, p{percent}",
                unit="s",
                runs=[float(np.percentile(each, percent)) for each in taken[kind]],
                floor=[float(np.percentile(each, percent)) for each in taken["floor"]],
                floor_is="a bare call and push",
                note=f"{rounds:,} promises a run",
            )


#: makes one promise, told its number, and returns when the call is answered and the watcher has seen the end;
#: the moment at which it was seen
Round = Callable[[int], float]


def times(one: Round, rounds: int) -> list[float]:
    """Measure seconds from before the call until the watcher saw the event."""
    taken = []
    for number in range(_WARM_UP + rounds):
        start = time.perf_counter()
        taken.append(one(number) - start)
    return taken[_WARM_UP:]


class _Watcher:
    """A thread that notes when each thing it iterates over came."""

    def __init__(self, events: Iterator[object]) -> None:
        self._events = events
        self._seen = threading.Semaphore(0)
        self._at = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            for _ in self._events:
                self._at = time.perf_counter()
                self._seen.release()
        except grpc.RpcError:
            pass  # it was cancelled

    def next_seen(self) -> float:
        self._seen.acquire()
        return self._at


@contextmanager
def _bare(address: str) -> Iterator[Round]:
    with grpc.insecure_channel(address) as channel:
        notify: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/bare/Notify", request_serializer=None, response_deserializer=None
        )
        watch: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            "/bare/Watch", request_serializer=None, response_deserializer=None
        )
        pushes = watch(b"")
        next(pushes)  # it listens
        watcher = _Watcher(pushes)

        def one(_: int) -> float:
            notify(b"." * 100)
            return watcher.next_seen()

        yield one
        pushes.cancel()


@contextmanager
def _over_stubs(address: str, name: str) -> Iterator[Round]:
    with TrackerClient(address) as client, grpc.insecure_channel(address) as channel:
        client.open_producer(JOB, name, "r1")
        last_seq = client.job(JOB).last_seq
        stub = tracker_pb2_grpc.TrackerStub(channel)
        events = stub.Watch(tracker_pb2.WatchRequest(job=JOB, after_seq=last_seq))
        watcher = _Watcher(iter(events))

        def one(number: int) -> float:
            stub.Report(
                tracker_pb2.ReportRequest(
                    job=JOB,
                    producer=name,
                    run="r1",
                    epoch=number,
                    units=["unit"],
                    scopes=[""],
                    names=[f"{name}-{number}"],
                    scope_index=[0],
                    promises=[tracker_pb2.Promise(close=tracker_pb2.Close(substream_index=0))],
                    commit=True,
                )
            )
            return watcher.next_seen()

        yield one
        events.cancel()


@contextmanager
def over_client(address: str, name: str) -> Iterator[Round]:
    """Yield promises and a watch by the client, with the credentials of the environment."""
    with TrackerClient(address) as client:
        producer: Producer = client.open_producer(JOB, name, "r1")
        with client.watch(JOB, after_seq=client.job(JOB).last_seq) as events:
            watcher = _Watcher(events)

            def one(number: int) -> float:
                report = producer.epoch(number)
                report.close("", f"{name}-{number}", front=None)
                report.report(units=["unit"], commit=True)
                return watcher.next_seen()

            yield one
