"""The other client: one small committing report each 50 ms, from a process of its own.

It defines its job, reports until its stdin is closed, and prints how long each report took, in ms, as a JSON list.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from tests.server.tracking import define, ends
from tracker.client.connection import connect
from tracker.client.credentials import Credentials

PAUSE_S = 0.05
PATIENCE_S = 60  #: a call that takes longer was not answered


def main(address: str) -> None:
    closed = threading.Event()
    connection = connect(address, Credentials.from_environment())
    stub = connection.stubs
    define(stub, "good")
    for epoch in range(20):  # until everything is warm
        stub.Report(ends(epoch, "good"), timeout=PATIENCE_S)
    print("ready", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    took = list[float]()
    while not closed.is_set():
        started = time.monotonic()
        stub.Report(ends(20 + len(took), "good"), timeout=PATIENCE_S)
        took.append(1000 * (time.monotonic() - started))
        closed.wait(PAUSE_S)
    print(json.dumps(took), flush=True)


main(sys.argv[1])
