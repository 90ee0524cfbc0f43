"""Who holds a journal that several machines can reach: a process, and how others can tell whether it lives."""

from __future__ import annotations

import json
import os
import secrets
import socket
from pathlib import Path


def new_holder() -> str:
    """Return a description of this process, as JSON that people can read. No two calls return the same."""
    here = {"host": socket.gethostname(), "pid": os.getpid(), "machine": _machine(), "name": secrets.token_hex(4)}
    return json.dumps(here)


def is_dead(holder: str) -> bool:
    """Tell whether a holder was a process of this machine that has ended."""
    try:
        held = json.loads(holder)
        if not held["machine"] or held["machine"] != _machine():
            return False
        os.kill(held["pid"], 0)
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, OSError):
        return False
    return False


def describe(holder: str) -> str:
    """Return a holder's process and host, for people."""
    try:
        held = json.loads(holder)
        return f"process {held['pid']} on {held['host']}"
    except (ValueError, KeyError, TypeError):
        return holder


def _machine() -> str:
    """Return what two processes have in common that see each other's process numbers; empty: it cannot be found out."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
