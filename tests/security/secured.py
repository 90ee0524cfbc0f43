"""A real tracker with TLS and tokens, and clients of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.security.authority import Authority
from tests.server.processes import Servers
from tracker.client import Credentials, TrackerClient
from tracker.security.identities import entry, new_token


class Secured:
    """A tracker with TLS and tokens. Its files may be changed while it runs."""

    def __init__(self, servers: Servers, authority: Authority, directory: Path, *options: str) -> None:
        self.directory = directory
        self.authority = authority
        self.cert, self.key = authority.sign("tracker")
        self.tokens = directory / "tokens.toml"
        self._entries: dict[str, str] = {}
        self._write()
        tls = ["--tls-cert", str(self.cert), "--tls-key", str(self.key)]
        self.server = servers.start(directory, "memory", *tls, "--tokens", str(self.tokens), *options)
        self.address = self.server.address.replace("127.0.0.1", "localhost")
        self.all = self.add("all", ["admin"])
        self.until(lambda: self.client(self.all).jobs() is not None)

    def add(self, name: str, scopes: list[str], jobs: tuple[str, ...] = ("*",), more: str = "") -> Path:
        """Add a client, and return the file with its token. The tracker knows the client soon."""
        token = new_token()
        file = self.directory / f"{name}.token"
        file.write_text(f"{token}\n")
        self._entries[name] = entry(name, token, scopes, jobs) + more
        self._write()
        return file

    def remove(self, name: str) -> None:
        del self._entries[name]
        self._write()

    def _write(self) -> None:
        new = self.tokens.with_suffix(".new")
        new.write_text("\n\n".join(self._entries.values()))
        new.replace(self.tokens)

    def credentials(self, token: Path | None) -> Credentials:
        return Credentials(ca=str(self.authority.ca), token_file=str(token) if token else None)

    def client(self, token: Path | None, retry_for: float = 20) -> TrackerClient:
        return TrackerClient(self.address, retry_for=retry_for, credentials=self.credentials(token))

    def add_known(self, name: str, scopes: list[str], jobs: tuple[str, ...] = ("*",), more: str = "") -> Path:
        """Add a client that the tracker knows at once."""
        file = self.add(name, scopes, jobs, more)
        self.until(lambda: self.client(file).server_info() is not None)
        return file

    @staticmethod
    def until(holds: Callable[[], bool]) -> None:
        """Wait for something that the tracker does soon by itself; an exception counts as not yet."""
        last: Exception | None = None
        for _ in range(600):
            try:
                if holds():
                    return
            except Exception as error:
                last = error
            time.sleep(0.1)
        raise AssertionError("it has not happened") from last
