"""Where a driver's metrics are scraped: by HTTP at an address of its own, or in a registry that the program serves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from spark_client.errors import UsageError
from tracker.wire.addresses import host_and_port

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry

_log = logging.getLogger("spark_client")


class Exposure:
    """The registry of a driver's metrics, and the server that serves it.

    Args:
        where: ``HOST:PORT``, where `open` serves a registry of its own; port 0 picks one. Or a registry, which whoever
            made it serves.

    Raises:
        UsageError: prometheus-client is not installed, or an address has another form.
    """

    def __init__(self, where: str | CollectorRegistry) -> None:
        self._server: WSGIServer | None = None
        self._thread: Thread | None = None
        self._address: tuple[str, int] | None = None
        if not isinstance(where, str):
            self.registry = where
            return
        try:
            host, port = host_and_port(where, "give 'HOST:PORT', such as '0.0.0.0:7662', or a CollectorRegistry")
        except ValueError as error:
            raise UsageError(f"metrics={error}") from error
        self._address = host.removeprefix("[").removesuffix("]"), port
        try:
            from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
        except ImportError as error:
            raise UsageError(
                "metrics= needs prometheus-client: pip install 'substream-tracker[spark,metrics]', or leave it out"
            ) from error
        self.registry = CollectorRegistry()
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self.registry)

    @property
    def url(self) -> str | None:
        """Where metrics are served; None: nowhere, or not by this."""
        if self._server is None or self._address is None:
            return None
        host = self._address[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}"

    def open(self) -> None:
        """Begin to serve, unless it does already.

        Raises:
            UsageError: another program uses the address, or this machine does not have it.
        """
        if self._address is None or self._server is not None:
            return
        from prometheus_client import start_http_server

        host, port = self._address
        try:
            self._server, self._thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise UsageError(
                f"metrics='{host}:{port}': cannot listen there: {error}; check that no other driver uses the port"
            ) from error
        _log.info("metrics on %s", self.url)

    def close(self) -> None:
        """Serve no more; `open` begins again."""
        server, thread, self._server = self._server, self._thread, None
        if server is not None and thread is not None:
            server.shutdown()
            server.server_close()
            thread.join()
