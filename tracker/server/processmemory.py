"""The memory of a server's process: its size, when blocks go back to the system, when all objects are looked at."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NEVER = 1 << 30  # collections of the middle generation
_SHARE = 1000  # full collections take at most one part in so many of the time
_PAUSE_S = 10.0  # seconds between two of them, at least


def return_large_blocks() -> None:
    """Make glibc return large blocks to the system as soon as they are freed.

    By default, glibc raises the size from which it does so each time a large block is freed, and it keeps a heap for
    each thread. After a few large messages, the process would keep hundreds of megabytes. With a size of our own, glibc
    would return more than 128 KiB at the end of its heap, too. A report of 10,000 entries would then take and return
    that memory each time; so glibc may keep a few megabytes there.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 4 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 8 << 20)
        libc.mallopt(_M_ARENA_MAX, 2)


async def collect_garbage_rarely() -> None:
    """Run full garbage collections, each long after the one before, until the task is cancelled.

    A full collection visits every name of every substream: 30 ms for a million of them, in which nobody is served. By
    default, Python runs one as soon as the objects that it has not visited yet are a quarter of those that it has. Most
    of what a server has is in few large lists, so this would be several times a second while it answers large
    requests. Garbage that only a full collection finds is rare, and small.
    """
    young, middle, full = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    try:
        pause = _PAUSE_S
        while True:
            await asyncio.sleep(pause)
            began = time.perf_counter()
            gc.collect()
            pause = max(_PAUSE_S, _SHARE * (time.perf_counter() - began))
    finally:
        gc.set_threshold(young, middle, full)


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:  # other systems than Linux do not have this file
        return 0


def return_free_memory() -> None:
    """Return to the system what glibc has free."""
    # glibc keeps blocks that were freed in the middle of its heaps; after large messages these may be gigabytes.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
