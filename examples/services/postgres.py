"""A PostgreSQL server of one's own, which also starts where one is root: then it runs as another user.

>>> with Postgres() as postgres:                                                            # doctest: +SKIP
...     connection = psycopg.connect(postgres.dsn)
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from examples.services.jars import MissingError
from examples.services.processes import Service, free_port

#: Seconds; the children of a server that was killed are sessions of their own, and have to notice first.
_CHILDREN_GONE_WITHIN = 60.0


class Postgres(Service):
    """A server with a cluster in a temporary directory, which ``with`` removes at the end.

    Attributes:
        dsn: to connect with: a URL.
    """

    def __init__(self) -> None:
        self._bin = _programs()
        self._directory = Path(tempfile.mkdtemp(prefix="tracker-postgres-"))
        super().__init__(self._directory / "postgres.log")
        self._data = self._directory / "data"
        self._as = _other_user()
        if self._as:
            os.chown(self._directory, self._as["user"], self._as["group"])
        self._port = free_port()
        self.dsn = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        if not self._data.exists():
            given = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "-D", str(self._data)]
            made = subprocess.run(
                [str(self._bin / "initdb"), *given], capture_output=True, text=True, cwd=self._directory, **self._as
            )
            if made.returncode != 0:
                raise RuntimeError(f"initdb: {made.stderr or made.stdout}")
        # Without fsync: a killed process loses nothing, only a machine that loses power does.
        settings = {
            "port": self._port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "32MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._bin / "postgres"), "-D", str(self._data), *options]
        until = time.monotonic() + _CHILDREN_GONE_WITHIN
        while True:
            self._launch(command, cwd=self._directory, **self._as)
            try:
                self._await("PostgreSQL")
                return
            except RuntimeError as error:
                if "still in use" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(0.1)

    def stop(self) -> None:
        """End the server without waiting for its clients (a fast shutdown)."""
        self._end(signal.SIGINT)

    def _answers(self) -> bool:
        asking = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(asking).returncode == 0


def _programs() -> Path:
    """Find the directory of the server's programs: Debian keeps them out of the path."""
    found = [Path(name).parent for name in [shutil.which("initdb")] if name]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    for path in found:
        if all((path / name).exists() for name in ("initdb", "postgres", "pg_isready")):
            return path
    raise MissingError("missing: PostgreSQL's server. Install it with: apt-get install postgresql")


def _other_user() -> dict[str, Any]:
    """Return the arguments that start a process as somebody else, for root, whom PostgreSQL refuses."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise MissingError("PostgreSQL does not run as root, and there is no user 'nobody': run this as another user")
