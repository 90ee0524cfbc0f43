"""Processes of a load test: their figures from Linux's /proc (0 elsewhere), and their end with their parent."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path


def exit_with_parent() -> None:
    """Make this process end soon after its parent. It also ignores Ctrl-C, which the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=[os.getppid()], daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


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
