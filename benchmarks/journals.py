"""The journals of the servers that are measured: each gets one of its own, which is gone afterwards."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from examples.services.processes import free_port

_ALWAYS = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


@contextmanager
def journal(kind: str, directory: Path, name: str) -> Iterator[str]:
    """Gives a journal of a kind.

    Args:
        kind: ``memory``; ``sqlite``: a file in `directory`; ``redis``, or with options ``redis?durability=memory``: a
            server that is started for it, and syncs each write; or an address as `tracker serve --journal` takes it.
        directory: where files may be.
        name: of the files.

    Yields:
        The journal's address.
    """
    plain, _, options = kind.partition("?")
    if plain == "sqlite":
        yield f"sqlite:{directory / f'{name}.db'}"
    elif plain == "redis":
        with _redis(directory / name) as port:
            yield f"redis://127.0.0.1:{port}?{options}"
    else:
        yield kind


@contextmanager
def _redis(directory: Path) -> Iterator[int]:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise SystemExit("there is no redis-server here; `apt-get install redis-server` brings it")
    directory.mkdir()
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), *_ALWAYS]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            client = redis.Redis(port=port)
            while True:
                try:
                    client.ping()
                    break
                except redis.RedisError:
                    time.sleep(0.05)
            yield port
        finally:
            server.kill()
