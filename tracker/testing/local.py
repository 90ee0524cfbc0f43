"""A tracker in the process of its tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from tracker.client import Credentials, TrackerClient
from tracker.testing.assertions import Assertions
from tracker.testing.clock import ManualClock

if sys.version_info < (3, 11):
    raise ImportError(
        f"LocalTracker needs Python 3.11 or newer, as a tracker's server does, and this is "
        f"{sys.version.partition(' ')[0]}; start `tracker serve` elsewhere, and use "
        "tracker.testing.Assertions(TrackerClient(ADDRESS))"
    )
try:
    from tracker.embedded import HostedServer
    from tracker.server.app import Options
    from tracker.server.limits import Limits
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"LocalTracker needs {missing.name}: pip install 'substream-tracker[testing]'", name=missing.name
    ) from None

if TYPE_CHECKING:
    from typing import Self

_DAY: Final = timedelta(days=1)


class LocalTracker(Assertions):
    """A tracker's server in a thread of this process, on a free port of the loopback address, and a client of it.

    It is the server that `tracker serve` runs, with its real protocol, so other processes reach it, too: a relay, or
    Spark's executors on this machine. It starts in some hundredths of a second and is stopped with the block.

    A process that forks (`multiprocessing` with `fork`) must do so before it starts one: gRPC's threads do not survive
    a fork.

    Args:
        journal: ``memory``, or ``sqlite:PATH`` to keep the state from one start to the next.
        clock: the tracker's time; None: the machine's clock.
        limits: limits to change, by name, to see how a job meets them: ``{"max_open_substreams": 10}``.
        retention: how long ended substreams and events are kept, for jobs without a retention.

    Attributes:
        client: a client of this tracker, which is closed with it.

    Raises:
        ImportError: on Python 3.10, which is too old for a server.
        ModuleNotFoundError: the extra `testing` is not installed.
        TypeError: there is no limit of this name.

    >>> with LocalTracker() as tracker:
    ...     tracker.client.jobs()
    []
    """

    client: TrackerClient

    def __init__(
        self,
        journal: str = "memory",
        clock: ManualClock | None = None,
        limits: Mapping[str, int] | None = None,
        retention: timedelta = _DAY,
    ) -> None:
        self._journal = journal
        self._limits = Limits(**(limits or {}))
        self._retention_s = round(retention.total_seconds())
        self._clock = clock
        self._address = "127.0.0.1:0"
        self._server: HostedServer | None = None

    def __repr__(self) -> str:
        return f"LocalTracker({self._address})"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """``127.0.0.1:PORT``, the same after a restart: what a client, a relay and `Tracking` take as server.

        Raises:
            RuntimeError: it was never started.
        """
        if self._address.endswith(":0"):
            raise RuntimeError("the tracker has no address before it is started: use `with LocalTracker() as tracker:`")
        return self._address

    def start(self) -> None:
        """Start the tracker, and wait until it accepts calls.

        Raises:
            RuntimeError: the tracker has been started, and not stopped.
            ValueError: the journal's name has a wrong form.
            tracker.journal.JournalError: another process uses the journal, or it is damaged.
        """
        if self._server is not None:
            raise RuntimeError("the tracker runs already")
        options = Options(
            listen=self._address, journal=self._journal, retention_s=self._retention_s, limits=self._limits
        )
        server = HostedServer(options, None if self._clock is None else self._clock.now_ns)
        self._address = server.address
        self._server = server
        self.client = TrackerClient(self._address, credentials=Credentials())
        if self._clock is not None:
            self._clock.join(server)

    def stop(self) -> None:
        """Stop the tracker: calls under way are finished, and a journal in a file is closed. It may start again.

        To kill a tracker, run `tracker serve` in a process of its own.
        """
        server, self._server = self._server, None
        if server is None:
            return
        if self._clock is not None:
            self._clock.leave(server)
        self.client.close()
        server.stop()

    def restart(self) -> None:
        """Stop the tracker and start it again at the same address; a journal in a file continues where it was."""
        self.stop()
        self.start()

    def _now(self) -> datetime | None:
        return None if self._clock is None else self._clock.now()
