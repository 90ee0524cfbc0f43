"""Figures of a process from Linux's /proc. On other systems all of them are 0."""

from __future__ import annotations

import os
from pathlib import Path


def processor_seconds(pid: int) -> float:
    """Return the processor time that all threads of a process have used, in seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waiting_seconds(pid: int) -> float:
    """Return the time in which a process's threads could have run but no processor was free, in seconds."""
    waited = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            waited += int(task.read_text().split()[1])
        except (OSError, IndexError):  # the thread has just ended
            continue
    return waited / 1e9


def machine_seconds() -> float:
    """Return the processor time that all programs on this machine have used, in seconds."""
    try:
        ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    except OSError:
        return 0.0
    idle, waiting = ticks[3], ticks[4]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
