"""Real servers of Redis or Valkey, in processes of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from examples.services.processes import free_port

#: The program. `TEST_REDIS_SERVER` names another one, such as a newer Redis, or Valkey.
PROGRAM = os.environ.get("TEST_REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
needs_redis = pytest.mark.skipif(
    PROGRAM is None, reason="there is no redis-server here: `apt-get install redis-server` brings it"
)
_DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}


class RedisServer:
    """A server that keeps its port and its directory from one start to the next."""

    def __init__(self, directory: Path, **options: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.port = free_port()
        self._options = _DURABLE | {name.replace("_", "-"): value for name, value in options.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)
        self.wait_until(lambda: self.client().ping())

    def _command(self) -> list[str]:
        values = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.directory), **self._options}
        arguments = [part for name, value in values.items() for part in (f"--{name}", *(value.split() or [""]))]
        return [str(PROGRAM), *arguments]

    @property
    def is_running(self) -> bool:
        """True if the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def client(self) -> Any:
        """Return a client with which a test looks at the server."""
        return redis.Redis(
            port=self.port,
            password=self._options.get("requirepass"),
            decode_responses=True,
            encoding_errors="replace",
        )

    def address(self, options: str = "") -> str:
        """Return the journal's address on it; its lease is short, and this machine's marks lie beside its files."""
        return f"redis://127.0.0.1:{self.port}/0?lease=1&marks={self.directory}/marks{options}"

    def wait_until(self, holds: Any) -> None:
        """Wait until something holds; an error of the server means that it does not yet."""
        assert self._process is not None
        while True:
            try:
                if holds():
                    return
            except redis.RedisError:
                pass
            assert self._process.poll() is None, (self.directory / "log").read_text()
            time.sleep(0.02)

    def promote(self) -> None:
        """Make a replica a server of its own, which it stays."""
        self.client().replicaof("NO", "ONE")
        del self._options["replicaof"]

    def kill(self) -> None:
        """Kill the process by SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """Let the process stand still, its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self._process.pid}/stat")
        self.wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")

    def thaw(self) -> None:
        """Let the process go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class Sentinel(RedisServer):
    """A sentinel that watches a server, under the name `main`, and promotes a replica soon after its death."""

    def __init__(self, directory: Path, server: RedisServer) -> None:
        directory.mkdir()
        (directory / "sentinel.conf").write_text(
            f"sentinel monitor main 127.0.0.1 {server.port} 1\n"
            "sentinel down-after-milliseconds main 3000\nsentinel failover-timeout main 10000\n"
        )
        super().__init__(directory)

    def _command(self) -> list[str]:
        file = str(self.directory / "sentinel.conf")
        return [str(PROGRAM), file, "--sentinel", "--port", str(self.port), "--bind", "127.0.0.1"]


def replica_of(server: RedisServer, directory: Path, port: int | None = None, **options: str) -> RedisServer:
    """Return a replica that has caught up; it finds its server at a port, if one is given."""
    replica = RedisServer(directory, replicaof=f"127.0.0.1 {port or server.port}", **options)
    replica.wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up")
    return replica
