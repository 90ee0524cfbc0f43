"""A real Redis, or Valkey, that syncs each write before it answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import redis

from examples.services.processes import Service, free_port


class RedisMissingError(Exception):
    """There is no server here; the message has the command that installs one."""


class Redis(Service):
    """A server with its data below a directory.

    Raises:
        RedisMissingError: there is no program to start.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory / "redis.log")
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise RedisMissingError("there is no redis-server here; `apt-get install redis-server` brings it")
        self._program = program
        self._directory = directory
        self.port = free_port()

    @property
    def journal(self) -> str:
        """The address of a tracker's journal in it."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory))
        self._launch([self._program, *place, "--appendonly", "yes", "--appendfsync", "always", "--save", ""])
        self._await("Redis")

    def _answers(self) -> bool:
        try:
            return bool(redis.Redis(port=self.port).ping())
        except redis.RedisError:
            return False
