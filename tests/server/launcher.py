"""Starts servers by forking: a real process each, without the second that importing takes.

It reads JSON lines from stdin and answers each with one: ``{"start": [argument…], "log": PATH}`` with ``{"pid": …,
"address": …, "metrics": …}`` once the server listens (``"address": null``: it has ended before; ``"metrics"``: the
URL, with the option), ``{"wait": pid}`` with ``{"status":
…, "waited_for": pid}``, negative for a signal, ``{}`` with nothing. The answer repeats the request's ``number``: who
was interrupted while it waited for an answer can tell it from the next one. Here nothing of gRPC runs: it does not
survive a fork.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import tracker.server.app  # noqa: F401 - imported once, for all that are forked
from tracker.cli.main import main


def start(arguments: list[str], log: str) -> dict[str, Any]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, 100)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        status = 70
        try:
            status = main(arguments)
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as said:
        address = said.readline().removeprefix("listening on ").strip() or None
        metrics = said.readline() if address and "--metrics" in arguments else ""
    return {"pid": pid, "address": address, "metrics": metrics.removeprefix("metrics on ").strip()}


for request in map(json.loads, sys.stdin):
    answer: dict[str, Any] = {}
    if "start" in request:
        answer = start(request["start"], request["log"])
    elif "wait" in request:
        status = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        answer = {"status": status, "waited_for": request["wait"]}
    print(json.dumps({**answer, "number": request["number"]}), flush=True)
