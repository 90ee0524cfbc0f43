"""The tracker as a process of its own: started, killed without warning, and started again where it stood."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


class TrackerDiedError(Exception):
    """The tracker did not start; the message has its last words."""


class TrackerProcess:
    """`tracker serve` on a port of this machine, with a journal in a file.

    >>> with TrackerProcess(Path("/tmp/flights")) as tracker:       # doctest: +SKIP
    ...     tracker.kill()
    ...     tracker.start()                                         # same port, same journal
    """

    def __init__(self, directory: Path, port: int = 0, journal: str = "", standby: bool = False) -> None:
        """Put journal and log below `directory`.

        Args:
            directory: made if it is not there.
            port: 0: any free one; it is kept over a restart.
            journal: as `tracker serve --journal` takes it; empty: a file below `directory`.
            standby: wait while another tracker has the journal.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.journal = journal or f"sqlite:{directory / 'tracker.db'}"
        self.log = directory / "tracker.log"
        self.address = f"127.0.0.1:{port}"
        self._standby = standby
        self._process: subprocess.Popen[str] | None = None

    def start(self, wait: bool = True) -> None:
        """Start the tracker, and wait until it listens unless `wait` is False."""
        command = [
            str(Path(sys.executable).with_name("tracker")),
            "serve",
            *("--listen", self.address),
            *("--journal", self.journal),
            *(["--standby"] if self._standby else []),
        ]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        if wait:
            self.wait_until_it_listens()

    def wait_until_it_listens(self) -> None:
        """Wait until the tracker is ready: a standby, until it has taken over."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("listening on "):
                self.address = line.split()[-1]
                return
        self._process.wait()
        last_words = "\n".join(self.log.read_text().splitlines()[-5:])
        raise TrackerDiedError(f"the tracker did not start on {self.address}:\n{last_words}")

    @property
    def pid(self) -> int | None:
        """Of the running process; None between a kill and a start."""
        return self._process.pid if self._process else None

    def kill(self) -> None:
        """Kill the tracker by SIGKILL: no goodbye, no flush."""
        if self._process:
            self._process.kill()
        self._reap()

    def restart(self) -> None:
        """Kill the tracker by SIGKILL, and start it on the same port with the same journal again."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """Stop the tracker by SIGTERM, and by SIGKILL if that takes more than ten seconds."""
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

    def _reap(self) -> None:
        if self._process:
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()
        self._process = None

    def __enter__(self) -> TrackerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
