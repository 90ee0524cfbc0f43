"""The audit log: one line of JSON for each command of an operator, with who, what, which job, the outcome and the time.

A line is in the file before the command is answered. If a line cannot be written, it goes to the server's log, is kept,
and is written first as soon as that works; until then further commands of operators are refused. So none is missing
without a trace.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from tracker.contract.commands import Command, DefineJob
from tracker.contract.refusal import Refusal, Refused

from .identities import NEEDED, Scope

log = logging.getLogger("tracker.audit")

#: The calls that are recorded: those that interfere with a job, concern all jobs, or define and remove something.
AUDITED: Final = frozenset(
    {call for call, scope in NEEDED.items() if scope in (Scope.OPERATE, Scope.BACKUP, Scope.ADMIN)}
    | {"DefineJob", "Unsubscribe"}
)
_LONGEST: Final = 1_000  #: characters of a text in a line
_STDERR: Final = 2


class Audit:
    """Writer of the audit log.

    Args:
        path: the file, to which lines are appended; ``-`` is standard error. The file may be moved away at any time,
            as programs that rotate logs do: then a new one is made.
        wall: the time, in seconds since the Unix epoch.

    Raises:
        ValueError: the file cannot be written.
    """

    def __init__(self, path: str, wall: Callable[[], float]) -> None:
        self._path = path
        self._wall = wall
        self._kept: list[bytes] = []
        self._turn = asyncio.Lock()
        try:
            self._append(b"")
        except OSError as failed:
            raise ValueError(f"the audit log {path} cannot be written: {failed.strerror}") from failed

    async def check(self) -> None:
        """Refuse a command while lines wait to be written."""
        if self._kept:
            await self._write([])
        if self._kept:
            raise Refused(
                Refusal.AUDIT,
                f"the server cannot write its audit log {self._path}, so it takes no commands of operators; see its "
                "log, and retry",
            )

    @asynccontextmanager
    async def recording(self, client: str, peer: str, call: str, command: Command | None) -> AsyncIterator[None]:
        """Record a call that is carried out while the context lasts, with its outcome.

        Raises:
            Refused: ``AUDIT``: it could not be recorded, so it must not be carried out.
        """
        await self.check()
        outcome = "CANCELLED"
        try:
            yield
            outcome = "OK"
        except Exception as error:
            outcome = error.reason if isinstance(error, Refused) else "FAULT"
            raise
        finally:
            await asyncio.shield(self.record(client, peer, call, command, outcome))

    async def record(self, client: str, peer: str, call: str, command: Command | None, outcome: str) -> None:
        """Write a line.

        Args:
            command: what exactly; None: the call has none, or was refused before it was read.
            outcome: ``OK``, the reason of a refusal, or ``CANCELLED`` if the caller did not wait for the answer.
        """
        at = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"ts": at, "client": client, "peer": peer, "call": call, "outcome": outcome}
        if command is not None:
            line |= {"job": command.job, "request": _described(command)}
        await self._write([json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"])

    async def _write(self, lines: list[bytes]) -> None:
        async with self._turn:
            self._kept += lines
            while self._kept:
                try:
                    await asyncio.to_thread(self._append, self._kept[0])
                except OSError as failed:
                    for line in lines:
                        log.error(
                            "the audit log cannot be written; the line is kept",
                            extra={"file": self._path, "error": failed.strerror, "line": line.decode().strip()},
                        )
                    return
                del self._kept[0]

    def _append(self, line: bytes) -> None:
        """Append one line, in one write.

        Raises:
            OSError: it could not be written whole.
        """
        if self._path == "-":
            os.write(_STDERR, line)
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, line) < len(line):  # the disk is full: half a line would spoil the next one
                os.ftruncate(descriptor, size)
                raise OSError(0, "the disk has no room for a whole line")
            if line:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _described(command: Command) -> Mapping[str, Any]:
    """Return a command's fields, without its job and with a large definition in numbers."""
    if isinstance(command, DefineJob):
        spec = command.spec
        return {
            "deployment": spec.deployment,
            "force": command.force,
            "segments": len(spec.segments),
            "fronts": len(spec.fronts),
        }
    values = ((each.name, getattr(command, each.name)) for each in fields(command) if each.name != "job")
    return {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in values}
