"""A process that sends reports as fast as they are answered; `benchmarks.served` starts several.

It reads what to do from stdin, a JSON object a line, and answers each with a line: for `Prepare`, when it is ready;
for `Send`, how many reports were answered, and when it began and ended.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, islice
from typing import Final, TypeAlias

import grpc
import numpy as np

from benchmarks import workload
from benchmarks.workload import Ids, Passes
from tracker.client import Credentials, TrackerClient
from tracker.client.credentials import Bearer
from tracker.wire.gen import tracker_pb2

COMMAND: Final = [sys.executable, "-m", "benchmarks.sender"]
REPORT: Final = f"/{tracker_pb2.DESCRIPTOR.services_by_name['Tracker'].full_name}/Report"
_REPORT_STREAM: Final = f"{REPORT}Stream"

_Metadata: TypeAlias = tuple[tuple[str, str], ...]

_AT_ONCE: Final = 3  #: callers in a process, or reports under way on a stream
_PREPARED_ENTRIES: Final = 500_000  #: of a pass; the rest of it would only take memory


@dataclass(frozen=True, slots=True)
class Prepare:
    """An order to make reports ready, and to open the producers that will send them."""

    tracker: str  #: its address
    producers: str  #: what their names begin with
    substreams: int
    entries: int
    ids: str  #: the file that has them; empty: report by name
    log_id: str
    seed: int


@dataclass(frozen=True, slots=True)
class Send:
    """An order to send what is prepared."""

    address: str  #: of a tracker or of a bare server
    stream: bool  #: over ReportStream instead of Report
    seconds: float


def line(order: Prepare | Send) -> str:
    """Return an order as a sender reads it."""
    return json.dumps({"order": type(order).__name__} | asdict(order))


def main() -> None:
    """Carry out orders until there are no more."""
    prepared: list[_Producer] = []
    for said in sys.stdin:
        order = json.loads(said)
        match order.pop("order"):
            case "Prepare":
                prepared = _prepare(Prepare(**order))
                answer: dict[str, float] = {}
            case _:
                answer = _send(prepared, Send(**order))
        print(json.dumps(answer), flush=True)


class _Producer:
    """A producer's reports, one epoch after the other, over and over."""

    def __init__(self, name: str, columns: list[bytes]) -> None:
        self._name = name
        self._columns = columns
        self._epochs = count()

    def next_report(self) -> bytes:
        epoch = next(self._epochs)
        return workload.header(self._name, epoch) + self._columns[epoch % len(self._columns)]


def _prepare(order: Prepare) -> list[_Producer]:
    ids = Ids(np.load(order.ids), order.log_id) if order.ids else None
    passes = Passes(order.substreams, order.entries, order.seed)
    places = list(islice(passes.places(), max(_AT_ONCE, _PREPARED_ENTRIES // order.entries)))
    producers = []
    with TrackerClient(order.tracker) as client:
        for number in range(_AT_ONCE):
            name = f"{order.producers}/{number}"
            client.open_producer(workload.JOB, name, "r1")
            own = places[number::_AT_ONCE]
            columns = [
                workload.columns(chosen, sent=sent, received=1 - sent, ids=ids) for sent in (1, 0) for chosen in own
            ]
            producers.append(_Producer(name, columns))
    return producers


def _send(producers: list[_Producer], order: Send) -> dict[str, float]:
    """Send, from a thread for each producer, or all over one stream."""
    start = time.monotonic()
    until = start + order.seconds
    answered: list[int] = []
    credentials = Credentials.from_environment()
    metadata = Bearer(credentials, order.address).metadata()
    with channel(credentials, order.address) as connected:
        if order.stream:
            work = [partial(_over_stream, connected, metadata, producers, until)]
        else:
            work = [partial(_over_calls, connected, metadata, producer, until) for producer in producers]
        threads = [threading.Thread(target=lambda one: answered.append(one()), args=[one]) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if len(answered) < len(work):
        raise RuntimeError("a report failed; why is above")
    return {"answered": sum(answered), "start": start, "end": time.monotonic()}


def channel(credentials: Credentials, address: str) -> grpc.Channel:
    """Open a channel with the transport of these credentials."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    transport = credentials.transport(address)
    if transport is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, transport, options)


def _over_calls(channel: grpc.Channel, metadata: _Metadata, producer: _Producer, until: float) -> int:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
        REPORT, request_serializer=None, response_deserializer=None
    )
    answered = 0
    while time.monotonic() < until:
        _check(call(producer.next_report(), metadata=metadata))
        answered += 1
    return answered


def _over_stream(channel: grpc.Channel, metadata: _Metadata, producers: list[_Producer], until: float) -> int:
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
        _REPORT_STREAM, request_serializer=None, response_deserializer=None
    )
    free = threading.Semaphore(_AT_ONCE)

    def requests() -> Iterator[bytes]:
        for number in count():
            free.acquire()
            if time.monotonic() >= until:
                return
            yield producers[number % len(producers)].next_report()

    answered = 0
    for answer in call(requests(), metadata=metadata):
        _check(answer)
        answered += 1
        free.release()
    return answered


def _check(answer: bytes) -> None:
    response = tracker_pb2.ReportResponse.FromString(answer)
    if response.outcome != tracker_pb2.ReportResponse.APPLIED:
        raise RuntimeError(f"a report was not applied: {response}")


if __name__ == "__main__":
    main()
