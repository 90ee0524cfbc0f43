"""The other client: one small committing report each 50 ms, from a process of its own.

It defines its job, reports until its stdin is closed, and prints how long each report took, in ms, as a JSON list.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import grpc

from tests.server.tracking import define, ends
from tracker.client.authorizing import AuthorizingChannel
from tracker.client.credentials import Bearer, Credentials
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

PAUSE_S = 0.05


def main(address: str) -> None:
    closed = threading.Event()
    with grpc.insecure_channel(address) as channel:
        stub = TrackerStub(AuthorizingChannel(channel, Bearer(Credentials.from_environment(), address)))  # type: ignore[arg-type]
        define(stub, "good")
        for epoch in range(20):  # until everything is warm
            stub.Report(ends(epoch, "good"))
        print("ready", flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
        took = []
        while not closed.is_set():
            started = time.monotonic()
            stub.Report(ends(20 + len(took), "good"))
            took.append(1000 * (time.monotonic() - started))
            closed.wait(PAUSE_S)
    print(json.dumps(took), flush=True)


main(sys.argv[1])
