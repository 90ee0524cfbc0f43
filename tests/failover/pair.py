"""Two trackers with one journal, and whether each is ready."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import HTTPError, URLError

from examples.services.processes import free_port
from tests.client.processes import SERVER, Server

KINDS = ("kill", "stop", "sleep")


class Pair:
    """Two trackers with one journal; the first to start leads.

    Args:
        directory: of their logs.
        journal: their journal.
        program: what serves.

    Attributes:
        servers: the trackers.
        metrics: the addresses of their metrics.
    """

    def __init__(self, directory: Path, journal: str, program: Sequence[str] = SERVER) -> None:
        self.metrics = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.servers: list[Server] = []
        for place, metrics in enumerate(self.metrics):
            (directory / str(place)).mkdir(parents=True)
            options = ("--metrics", metrics, "--standby")
            self.servers.append(Server(directory / str(place), journal, *options, waits=place > 0, program=program))
        self._leads = 0
        wait_for_readiness(self.metrics[1], ready=False, word="standby")

    @property
    def address(self) -> str:
        """Both addresses."""
        return "+".join(server.address for server in self.servers)

    def strike(self, kind: str) -> Callable[[], None]:
        """End the leader's service. Return a function that brings the tracker back, as a standby.

        Args:
            kind: of `KINDS`.
        """
        struck = self._leads
        server = self.servers[struck]
        self._leads = 1 - struck
        if kind == "sleep":
            server.freeze()
        else:
            getattr(server, kind)()

        def bring_back() -> None:
            if kind == "sleep":
                server.thaw()
                if (status := server.ended()) != 1:
                    raise RuntimeError(f"a leader that had slept ended with {status}: {server.log[-1000:]}")
            server.start(waits=True)
            wait_for_readiness(self.metrics[struck], ready=False, word="standby")

        return bring_back

    def end(self) -> None:
        """Kill both."""
        for server in self.servers:
            server.kill()


def wait_for_readiness(metrics: str, ready: bool, word: str = "") -> str:
    """Wait until the server is ready, or not, for a reason with a word in it. Return the page then."""
    while True:
        try:
            with urllib.request.urlopen(f"http://{metrics}/readyz", timeout=60) as answer:
                found, text = True, answer.read().decode()
        except HTTPError as error:
            found, text = False, error.read().decode()
        except (URLError, ConnectionError):  # it does not listen yet, or has just ended
            continue
        if found is ready and word in text:
            return text
        time.sleep(0.02)
