"""Servers that a client calls, and as whom."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tracker.client import servers
from tracker.client.calls import Calls, ClientMetrics
from tracker.client.credentials import Credentials

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Routing:
    """The servers of a client: the calls about a job go to the one that has it."""

    def __init__(
        self,
        address: str,
        timeout: float = 10.0,
        retry_for: float = 60.0,
        credentials: Credentials | None = None,
        metrics: CollectorRegistry | None = None,
    ) -> None:
        self._address = address
        self._metrics = metrics
        self._credentials = Credentials.from_environment() if credentials is None else credentials
        self._timeout = timeout
        self._retry_for = retry_for
        self._calls: dict[str, Calls] = {}  # by server
        if "@" not in address:
            self._servers()

    def close(self) -> None:
        """Release the connections. A later call takes them again."""
        for calls in self._calls.values():
            calls.disconnect()

    @property
    def address(self) -> str:
        """The address of the tracker, or the trackers, as the caller gave it."""
        return self._address

    @property
    def command_options(self) -> str:
        """The options with which the commands of `tracker` call the same trackers, as a shell takes them."""
        return f"--server {shlex.quote(self._address)}"

    @property
    def credentials(self) -> Credentials:
        """Return what the client shows to the tracker."""
        return self._credentials

    @property
    def metrics(self) -> CollectorRegistry | None:
        """Return where the client counts."""
        return self._metrics

    def _only(self, call: str) -> Calls:
        """Return the calls to the only server."""
        found = self._servers()
        if len(found) > 1:
            raise ValueError(f"{call} concerns one tracker, and there are {len(found)}: {', '.join(found)}; name one")
        return next(iter(found.values()))

    def _servers(self) -> dict[str, Calls]:
        """Return the calls to each server, by name and in that order."""
        if not self._calls:
            counting = None if self._metrics is None else ClientMetrics.of(self._metrics)
            self._calls = {
                name: Calls(name, self._timeout, self._retry_for, self._credentials, counting)
                for name in servers.names(self._address)
            }
        return self._calls

    def _to(self, job: str) -> Calls:
        """Return the calls to the server that has the job."""
        calls = self._servers()
        return calls[servers.choose(tuple(calls), job)]
