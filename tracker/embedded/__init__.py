"""A tracker in the process that uses it, for jobs that run no service.

The tracker's journal is its name, and the first process that asks for it runs its server in a thread.

The server listens at a socket file that only this user can reach. Its name is made of the journal's, so other processes
of the machine find it there, and find the next process's there when this one has ended.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import hashlib
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracker.client import Credentials, TrackerClient, TrackerError, TrackerUnavailable
from tracker.journal import JournalError, JournalLockedError
from tracker.server import app
from tracker.server.app import Options

__all__ = ["HostedServer", "JournalError", "embed", "stop_embedded"]


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
        """Return where the tracker listens."""
        return self.started.address

    def tick(self) -> int | None:
        """Let the tracker act on the time that has come, and return when it acts next, in nanoseconds since 1970."""

        async def tick() -> int | None:
            return await self.started.tick()

        return asyncio.run_coroutine_threadsafe(tick(), self._loop).result()

    def stop(self) -> None:
        """Stop the tracker: calls under way are finished, and the journal is closed."""
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


_LOOKS: Final = 20  #: at the address of a process that has the journal, which may be starting
_PAUSE_S: Final = 0.25  #: between two of them
_HASH: Final = 16  #: characters of a name: a socket's path has at most 107


def embed(journal: str) -> str:
    """Return the address of a journal's tracker, ``unix:PATH``, and run it in this process unless it runs.

    It runs until the process ends, or `stop_embedded`. The address is the same whichever process runs it.

    Args:
        journal: ``sqlite:PATH``, ``file:///DIRECTORY``, or an address in an object store.

    Raises:
        ValueError: the journal's address has another form.
        JournalLockedError: another process has the journal, and this one cannot reach it.
        JournalError: the journal cannot be used.

    >>> TrackerClient(embed("file:///data/shop/tracker")).jobs()                           # doctest: +SKIP
    ['shop']
    """
    name = _directory() / hashlib.sha256(journal.encode()).hexdigest()[:_HASH]
    with _LOCK:
        if journal not in _HOSTED and not _answers(name):
            own = name.with_suffix(f".{secrets.token_hex(2)}")
            try:
                _HOSTED[journal] = HostedServer(Options(listen=f"unix:{own}", journal=journal, page=False))
                point(name, own)
            except JournalLockedError as locked:
                _await(name, journal, locked)
    return f"unix:{name}"


def stop_embedded(journal: str) -> None:
    """Stop a journal's tracker, if this process runs it, and free the journal for others."""
    with _LOCK:
        server = _HOSTED.pop(journal, None)
    if server is not None:
        server.stop()


def point(name: Path, socket: Path) -> None:
    """Have a name lead to a socket, in place of another one, which a process may listen at that does not know yet that
    it was replaced."""
    part = name.with_suffix(f".{secrets.token_hex(4)}")
    part.symlink_to(socket)
    part.rename(name)


_LOCK: Final = threading.Lock()
_HOSTED: Final[dict[str, HostedServer]] = {}  #: those that this process runs


def _directory() -> Path:
    """Return where this user's trackers listen, which is made.

    Raises:
        PermissionError: others may write there: anybody may have made it first.
    """
    path = Path(tempfile.gettempdir(), f"substream-tracker-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{path} is not this user's alone: remove it, or set TMPDIR to another directory")
    return path


def _await(name: Path, journal: str, locked: JournalLockedError) -> None:
    """Wait until the tracker of the process that has a journal answers.

    Raises:
        JournalLockedError: no tracker has answered in that time.
    """
    for _ in range(_LOOKS):
        if _answers(name):
            return
        time.sleep(_PAUSE_S)
    raise JournalLockedError(
        f"the tracker of {journal} runs elsewhere: {locked}. Only programs of one user on one machine reach a tracker "
        f"in one of them. For others end that program, run `tracker serve --journal '{journal}' --listen HOST:PORT`, "
        "and give server='HOST:PORT' to each program"
    ) from locked


def _answers(name: Path) -> bool:
    client = TrackerClient(f"unix:{name}", retry_for=0, credentials=Credentials())
    with client, suppress(TrackerError, TrackerUnavailable):
        client.server_info()
        return True
    return False


@atexit.register
def _stop_all() -> None:
    """Free the journals: a process on another machine would wait for the time of a lease."""
    for journal in list(_HOSTED):
        stop_embedded(journal)
