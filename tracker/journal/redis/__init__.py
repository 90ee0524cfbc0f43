"""The journal in Redis or Valkey; it needs the package `redis`."""

from __future__ import annotations

from .address import RedisAddress
from .journal import RedisJournal
from .setting_aside import end_keys_restore, set_keys_aside

__all__ = ["RedisAddress", "RedisJournal", "end_keys_restore", "set_keys_aside"]
