"""Ends a process whose parent is gone: a load test that was killed must not continue to send."""

from __future__ import annotations

import os
import signal
import threading
import time


def exit_with_parent() -> None:
    """Make this process end soon after its parent. It also ignores Ctrl-C, which the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=[os.getppid()], daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
