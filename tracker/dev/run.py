"""Run of the tracker, its page and the example job in one process, until a signal stops them."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tracker.server.app import Options, Started, run

from .example import JOB, STALL_S, WINDOW_S, Example

LISTEN: Final = "127.0.0.1:7654"
PAGE: Final = "127.0.0.1:7660"


def dev(listen: str = LISTEN, page: str = PAGE, write: Callable[[str], object] = print) -> None:
    """Run until SIGINT or SIGTERM. Nothing is kept: the journal is in memory.

    Args:
        listen: ``HOST:PORT`` of the tracker. If another program uses the default, a free port is taken.
        page: the same for the status page.

    Raises:
        ValueError: an address has another form.
        tracker.web.listening.CannotListenError: a chosen address is in use.
    """
    asyncio.run(_dev(_free(listen, LISTEN), _free(page, PAGE), write))


async def _dev(listen: str, page: str, write: Callable[[str], object]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    examples: list[Example] = []

    def ready(started: Started) -> None:
        for line in _greeting(started.address, started.metrics):
            write(line)
        sys.stdout.flush()
        example = Example(started.address)
        example.start()
        examples.append(example)

    server = asyncio.create_task(run(replace(Options(), listen=listen, journal="memory", metrics=page), stop, ready))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({server, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for example in examples:  # while the server still answers it
        await asyncio.to_thread(example.stop)
        if example.failed is not None:
            write(f"the example job has ended: {example.failed}")
    stopped.cancel()
    await server


def _greeting(address: str, page: str) -> list[str]:
    wait = WINDOW_S * 2 + STALL_S + 10
    # Where it was installed for this start only (`uvx`), no shell finds the command.
    command = "tracker" if shutil.which("tracker") else f"{sys.executable} -m tracker.cli.main"
    return [
        "",
        f"  Status page   {page}/",
        f"  Tracker       {address}   (in memory: nothing is kept when it stops)",
        "",
        f"  The job `{JOB}` runs in it: four shops, whose orders of each {WINDOW_S} seconds are a substream.",
        "",
        f"  1. Open {page}/#/job?job={JOB}",
        f"  2. After some {wait} seconds, choose `Stalled` there, and one of the substreams: Lima has lost a parcel.",
        f"  3. {command} --server {address} watch {JOB}          shows what ends, as it ends",
        f"  4. {command} --server {address} drain {JOB} d1       ends the deployment; the page shows what it waits for",
        "",
        "  A job of yours, from PySpark and from any program of Python:",
        "",
        f'     tracking = spark_client.Tracking(spark, job="mine", server="{address}")',
        f'     client = tracker.client.TrackerClient("{address}")',
        "",
        "  Ctrl-C stops everything.",
        "",
    ]


def _free(address: str, default: str) -> str:
    """Return the address, or, if it is the default one and in use, one with a free port."""
    host, _, port = address.rpartition(":")
    if address != default:
        return address
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, int(port)))
        except OSError:
            return f"{host}:0"
    return address
