"""The cost of a process for each group of jobs behind one address: a front that only passes calls on.

    python -m benchmarks.groups                 # three minutes

Calls of different jobs share nothing, so two trackers serve twice what one serves, given the processors. One
address for both costs a process in front, which each call passes through as bytes, without being parsed. The benchmark
measures that cost against the tracker's own: entries for a second of the tracker's processor, and of the front's. The
front here does less than a real one would, which has to read the job's name, so its cost is a lower bound.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import numpy as np

from benchmarks.figures import HEADER, Figure, row
from benchmarks.processes import tracker
from benchmarks.sender import Prepare, Send
from benchmarks.served import open_substreams, started_senders
from tracker.cli.output import print_pairs, print_table
from tracker.load.results import machine
from tracker.load.servers import Server, server_process

_SUBSTREAMS = 100_000
_LARGEST = 64 << 20


class _Front(grpc.GenericRpcHandler):
    """A proxy that passes each unary call on as it is."""

    def __init__(self, behind: grpc.aio.Channel) -> None:
        self._behind = behind

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._behind.unary_unary(
            details.method, request_serializer=None, response_deserializer=None
        )

        async def passed(request: bytes, _: Any) -> bytes:
            answer: bytes = await call(request)
            return answer

        return grpc.unary_unary_rpc_method_handler(passed)


async def _serve(address: str) -> None:
    options = [("grpc.max_receive_message_length", _LARGEST), ("grpc.max_send_message_length", _LARGEST)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers([_Front(grpc.aio.insecure_channel(address, options=options))])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


@contextmanager
def _front(address: str) -> Iterator[Server]:
    with server_process(["benchmarks.groups", "--front", address]) as started:
        yield started


def _measure(entries: int, runs: int, seconds: float) -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory() as directory,
        tracker("memory") as server,
        _front(server.address) as front,
        started_senders(2) as senders,
    ):
        ids = open_substreams(server.address, _SUBSTREAMS)
        file = Path(directory) / "ids.npy"
        np.save(file, ids.numbers)
        senders.prepare(Prepare(server.address, f"by id {entries}", _SUBSTREAMS, entries, str(file), ids.log_id, 1))
        rates: dict[str, list[float]] = {"direct": [], "through a front": []}
        of_tracker, of_front = [], []
        for _ in range(runs):
            for name, address in (("direct", server.address), ("through a front", front.address)):
                before = server.processor_seconds(), front.processor_seconds()
                answered, lasted = senders.send(Send(address, stream=False, seconds=seconds))
                rates[name].append(answered * entries / lasted)
                if name != "direct":
                    of_tracker.append(answered * entries / (server.processor_seconds() - before[0]))
                    of_front.append(answered * entries / (front.processor_seconds() - before[1]))
        for name, found in rates.items():
            yield Figure(f"{entries:,} entries a report, {name}", "/s", found, rates["direct"], "direct")
        yield Figure(f"{entries:,}, for a second of the tracker", "/s", of_tracker, of_tracker, "the tracker")
        yield Figure(f"{entries:,}, for a second of the front", "/s", of_front, of_tracker, "the tracker")
        share = median(of_tracker) / median(of_front)
        print(f"{entries:,} entries a report: the front takes {share:.0%} of the tracker's processor time", flush=True)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--front", metavar="ADDRESS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.front:
        asyncio.run(_serve(given.front))
        return 0
    print_pairs(machine().items())
    figures = [figure for entries in (100, 1_000, 10_000) for figure in _measure(entries, given.runs, given.seconds)]
    print_table(HEADER, map(row, figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
