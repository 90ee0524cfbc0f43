"""Sends requests of `Requests` to a server over the wire, and looks at what comes of them."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from tests.conformance.over_grpc import refusal
from tests.server.processes import Server
from tracker.wire.gen import tracker_pb2 as wire

from .requests import Requests

CALL = "/substream.tracker.v1.Tracker/"
#: Codes that no request may be answered with, whatever it is.
FAULTS = frozenset({"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS", "UNIMPLEMENTED"})
_TIMEOUT_S = 60.0
_SHORT_S = 0.05  # of what may wait for ever


@dataclass
class Outcome:
    """Outcome of many requests."""

    sent: int = 0
    refusals: int = 0  #: that were held against the state before
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def note(self, method: str, said: str, data: list[bytes]) -> None:
        self.sent += 1
        self.answers[said] += 1
        if said.split()[0] in FAULTS:
            self.faults.append(f"{method}: {said}: {[each.hex() for each in data]}")


def answer(channel: Any, method: str, messages: list[bytes]) -> str:
    """Make one call. Return how it was answered."""
    try:
        if method == "Watch":
            call = channel.unary_stream(CALL + method)(messages[0], timeout=_SHORT_S)
            with suppress(StopIteration):
                next(call)
            call.cancel()
        elif method == "ReportStream":
            for response in channel.stream_stream(CALL + method)(iter(messages), timeout=_TIMEOUT_S):
                rejected = wire.ReportResponse.FromString(response)
                if rejected.error_code in (2, 13):
                    return f"INTERNAL {rejected.error_message}"
        else:
            channel.unary_unary(CALL + method)(messages[0], timeout=_SHORT_S if "Await" in method else _TIMEOUT_S)
    except grpc.RpcError as error:
        code = str(error.code().name)
        if code in ("DEADLINE_EXCEEDED", "CANCELLED"):
            return code
        with suppress(Exception):
            return f"{code} {refusal(error)['reason']}"
        return f"{code} {error.details()}"
    return "OK"


def many(server: Server, seed: int, count: int, threads: int) -> Outcome:
    """Send so many requests, or a few more, from several threads at once."""
    outcomes = [Outcome() for _ in range(threads)]

    def send(number: int) -> None:
        requests = Requests(seed * 1000 + number)
        with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            for _ in range(-(-count // threads)):
                method, data = requests.next()
                outcomes[number].note(method, answer(channel, method, data), data)

    running = [threading.Thread(target=send, args=[number]) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    whole = Outcome()
    for each in outcomes:
        whole.sent += each.sent
        whole.answers += each.answers
        whole.faults += each.faults
    return whole


def one_by_one(server: Server, seed: int, count: int) -> Outcome:
    """Send one by one, and hold each refusal against the state before: nothing may have changed."""
    outcome, requests = Outcome(), Requests(seed)
    before = view(server)
    for _ in range(count):
        method, data = requests.next()
        said = answer(server.channel, method, data)
        outcome.note(method, said, data)
        after = view(server)
        if said.split()[0] not in ("OK", "DEADLINE_EXCEEDED") and method != "ReportStream":
            outcome.refusals += 1
            if after != before and not settles(method, after, before):
                outcome.faults.append(f"{method} was refused with {said} and changed something: {data[0].hex()}")
        before = after
    return outcome


def settles(method: str, after: dict[str, bytes], before: dict[str, bytes]) -> bool:
    """Return whether a run's first report or commit may have settled earlier epochs: that stays, whatever follows."""
    if method not in ("Report", "Commit"):
        return False
    changed = [job for job in after if after[job] != before.get(job)]
    return len(changed) == 1


def view(server: Server) -> dict[str, bytes]:
    """Return all jobs, as far as they can be seen, but for who was last in contact when."""
    stub = server.stub
    seen = {}
    for job in stub.ListJobs(wire.ListJobsRequest()).jobs:
        status = stub.GetJob(wire.GetJobRequest(job=job))
        for producer in status.producers:
            producer.ClearField("last_heard")
        status.ClearField("cells")  # how much memory is taken: by what there was, too
        page = stub.ListSubstreams(wire.ListSubstreamsRequest(job=job, include_ended=True, page_size=1000))
        seen[job] = status.SerializeToString(deterministic=True) + page.SerializeToString(deterministic=True)
    return seen
