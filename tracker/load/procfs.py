"""What the system says of a process: Linux's /proc. Elsewhere nothing is known, and 0 is said."""

from __future__ import annotations

import os
from pathlib import Path


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used, in all its threads."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waiting_seconds(pid: int) -> float:
    """Time in which a process's threads could have run and no processor was free for them."""
    waited = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            waited += int(task.read_text().split()[1])
        except (OSError, IndexError):  # a thread that has just ended
            continue
    return waited / 1e9


def machine_seconds() -> float:
    """Processor time that everything on this machine has used."""
    try:
        ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    except OSError:
        return 0.0
    idle, waiting = ticks[3], ticks[4]
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Bytes of memory that a process holds."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
