"""Durability of a record: on the server's disk, and at so many replicas.

A server with ``appendfsync always`` answers after its disk has the write. Servers from 7.2 have ``WAITAOF``, which
waits for the disks of the server and of its replicas, and returns how many have it; older ones have ``WAIT``, which
counts the replicas that have it in memory. An answer of either is a count and no promise, so the count is checked.

Source: the commands' documentation of Redis and Valkey.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import redis

from ..interface import JournalError
from .address import RedisAddress

log = logging.getLogger("tracker.journal")

_WAIT_MS: Final = 1000  # of one wait; it is repeated


class Durability:
    """Wait for durability after each write.

    Args:
        address: with the wanted durability.
    """

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._fsync = address.durability == "fsync"
        self._replicas = address.replicas
        self._command: tuple[Any, ...] = ()
        self._wanted: tuple[int, ...] = ()

    def check(self, client: Any) -> None:
        """Find out how the server can give what is wanted. To be repeated for every server that is connected to.

        Raises:
            JournalError: it cannot; the message has what to set.
        """
        self._check_memory(client)
        [waits] = client.execute_command("COMMAND INFO", "WAITAOF") or [None]
        if self._fsync:
            self._check_disk(client, bool(waits))
        if self._fsync and waits:
            self._command, self._wanted = ("WAITAOF", 1, self._replicas, _WAIT_MS), (1, self._replicas)
        elif self._replicas:
            self._command, self._wanted = ("WAIT", self._replicas, _WAIT_MS), (self._replicas,)
        else:
            self._command, self._wanted = (), ()

    @property
    def command(self) -> tuple[Any, ...]:
        """The command that waits for the connection's last write; empty: there is nothing to wait for."""
        return self._command

    def missing(self, answer: Any) -> str:
        """Return what is missing after `command` has returned its counts; empty: nothing."""
        counts = [int(each) for each in answer] if isinstance(answer, list) else [int(answer or 0)]
        if all(count >= wanted for count, wanted in zip(counts, self._wanted, strict=False)):
            return ""
        return f"{self._command[0]} counted {counts}, and {list(self._wanted)} are wanted"

    def _check_memory(self, client: Any) -> None:
        """Refuse a server that removes records to make room, and warn of one that would if it had a limit."""
        try:
            settings = client.config_get("maxmemory*")
        except redis.ResponseError:  # a managed server does not tell
            return
        policy = settings.get("maxmemory-policy", "noeviction")
        if policy == "noeviction":
            return
        if int(settings.get("maxmemory", 0)) > 0:
            raise JournalError(
                f"{self._address} has maxmemory-policy={policy}, so it may remove keys of the journal when it is full; "
                "set `maxmemory-policy noeviction`"
            )
        log.warning(
            "%s has maxmemory-policy=%s: with a maxmemory it would remove keys of the journal; set `maxmemory-policy "
            "noeviction`",
            self._address,
            policy,
        )

    def _check_disk(self, client: Any, waits: bool) -> None:
        try:
            settings = client.config_get("append*")
        except redis.ResponseError:  # a managed server does not tell
            settings = {}
        advice = f"set `{'appendonly yes' if waits else 'appendonly yes, appendfsync always'}`, or give {_WEAKER}"
        if settings.get("appendonly", "yes") != "yes":
            raise JournalError(f"{self._address} has no append-only file, so its records end with it; {advice}")
        how = settings.get("appendfsync", "unknown")
        if (how == "no") if waits else (how != "always"):
            raise JournalError(
                f"{self._address} has appendfsync={how}, so it would answer before its disk has a record; {advice}"
            )


_WEAKER: Final = "`?durability=memory` in the address if acknowledged records may be lost with the server"
