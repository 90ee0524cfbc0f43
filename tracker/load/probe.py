"""A process that regularly calls a server which does nothing, to measure what a call costs on this machine meanwhile.

Run as `python -m tracker.load.probe DIRECTORY ADDRESS`. As for reports, a call's latency counts from when it was due.
On a machine that others use as well, only figures from the same seconds can be compared.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import grpc

from tracker.load.plan import Plan
from tracker.load.shared import PROBES_A_SECOND, Order, SharedCounters, exit_with_parent

_CALL: Final = b"." * 4096  # about the size of a report


def main() -> int:
    """Run the process and return the exit status."""
    directory, address = sys.argv[1:]
    exit_with_parent()
    shared = SharedCounters(Path(directory), Plan(Order.read(Path(directory)).scenario))
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/bare/Report", request_serializer=None, response_deserializer=None
        )
        call(_CALL)  # connects
        while not shared.start and not shared.stopped:
            time.sleep(0.01)
        for number in range(len(shared.probed)):
            due = shared.start + number / PROBES_A_SECOND
            while (left := due - time.monotonic()) > 0:
                time.sleep(left)
            if shared.stopped:
                return 0
            call(_CALL)
            shared.probed[number] = time.monotonic()
    return 0


if __name__ == "__main__":
    sys.exit(main())
