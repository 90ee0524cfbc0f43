"""The process: it runs the rules of a file until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tracker.client import TrackerClient
from tracker.web.application import application
from tracker.web.listening import listening

from .metrics import NotifyMetrics
from .supervising import Supervisor

log = logging.getLogger("tracker.notify")

_LOOK_S = 1.0  #: seconds between two looks at the file of rules


async def notify(file: Path, client: TrackerClient, metrics: str = "") -> None:
    """Deliver until SIGTERM or SIGINT; prints ``notifying by N rules`` when the rules are at work.

    A changed file is read within a second, or at once on SIGHUP.

    Args:
        file: the file of rules.
        client: calls the tracker.
        metrics: ``HOST:PORT`` of `/metrics`, `/healthz` and `/readyz`; port 0 picks one; "": they are not served.

    Raises:
        RulesError: the file cannot be used.
        ValueError: `metrics` has a wrong form.
        CannotListenError: this process cannot listen there.
    """
    counts = NotifyMetrics()
    supervisor = Supervisor(file, client, counts)
    stop, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, again.set)

    def not_ready() -> str:
        problems = [f"rule {name}: {problem}" for name, problem in supervisor.failures.items()]
        return "; ".join([*([supervisor.wrong] if supervisor.wrong else []), *problems])

    async with AsyncExitStack() as stack:
        if metrics:
            url = await stack.enter_async_context(listening(application(counts.scrape, not_ready), metrics))
            print(f"metrics on {url}", flush=True)
        supervisor.start()
        print(f"notifying by {supervisor.rules} rules", flush=True)
        while not stop.is_set():
            waiting = [asyncio.create_task(each.wait()) for each in (stop, again)]
            await asyncio.wait(waiting, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            forced = again.is_set()
            again.clear()
            await asyncio.to_thread(supervisor.look, forced)
        log.info("stopping")
        await asyncio.to_thread(supervisor.stop)
