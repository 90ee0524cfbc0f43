"""The journal in Redis or Valkey; it needs the package `redis`."""

from __future__ import annotations

from .address import RedisAddress
from .journal import RedisJournal

__all__ = ["RedisAddress", "RedisJournal"]
