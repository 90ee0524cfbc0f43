"""The server in a thread of another program."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable

from tracker.server import app


class HostedServer:
    """A server that runs in a thread of this process until `stop`.

    A process that forks (`multiprocessing` with `fork`) has to do so before: gRPC's threads do not survive a fork.

    Args:
        now_ns: its time, in nanoseconds since 1970; None: the machine's clock.

    Raises:
        tracker.journal.JournalError: the journal cannot be used.
    """

    def __init__(self, options: app.Options, now_ns: Callable[[], int] | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready: concurrent.futures.Future[app.Started] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=[options, now_ns], name="local tracker", daemon=True)
        self._thread.start()
        self.started = self._ready.result()

    @property
    def address(self) -> str:
        """Return where it listens."""
        return self.started.address

    def tick(self) -> int | None:
        """Let it act on the time that has come, and return when it will act next, in nanoseconds since 1970."""

        async def tick() -> int | None:
            return await self.started.tick()

        return asyncio.run_coroutine_threadsafe(tick(), self._loop).result()

    def stop(self) -> None:
        """Stop it: calls under way are finished, and the journal is closed."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self, options: app.Options, now_ns: Callable[[], int] | None) -> None:
        wall, elapsed = (time.time_ns, time.monotonic_ns) if now_ns is None else (now_ns, now_ns)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(app.run(options, self._stop, self._ready.set_result, wall, elapsed))
            except BaseException as error:
                if self._ready.done():
                    raise
                self._ready.set_exception(error)
