"""A real HTTP proxy before an object store, which refuses some requests: before their effect, or after it."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from types import TracebackType

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class Throttle:
    """The proxy.

    Args:
        port: of the store.

    Attributes:
        endpoint: its URL.
        refused: how many requests it has refused.
    """

    def __init__(self, port: int) -> None:
        throttle = self
        self.refused = 0
        random = Random(7)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outcome = random.choice(("pass",) * 6 + ("before", "after"))
                if outcome != "before":
                    connection = http.client.HTTPConnection("127.0.0.1", port)
                    connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        connection.putheader(name, value)
                    connection.endheaders(body)
                    answer = connection.getresponse()
                    status, headers, content = answer.status, answer.getheaders(), answer.read()
                    length = answer.getheader("Content-Length")
                    connection.close()
                if outcome != "pass":
                    throttle.refused += 1
                    status, headers, content, length = 503, [], _SLOW_DOWN, None
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length or str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass_on  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Throttle:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
