"""The processes of a round, as Linux lists them. Only those that carry the round's mark are ever seen, or killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

MARK = "CHAOS_ROUND"  #: the environment variable that every process of a round inherits

Role: TypeAlias = Literal["driver", "jvm", "executor", "reader", "worker", "daemon", "query", "other"]


@dataclass(frozen=True)
class Process:
    """One process of a round."""

    pid: int
    parent: int
    role: Role


def processes(mark: str) -> list[Process]:
    """List the processes of a round that live.

    Args:
        mark: the value of `MARK` in its processes.
    """
    sign = f"{MARK}={mark}".encode()
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if sign not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(entry.name)] = (int(parent), command)
    return sorted(
        (
            Process(pid, parent, _role(command, found.get(parent, (0, ""))[1]))
            for pid, (parent, command) in found.items()
        ),
        key=lambda process: process.pid,
    )


def below(root: int, living: Iterable[Process]) -> list[int]:
    """Return a process and all its descendants."""
    living = list(living)
    family = [root]
    for pid in family:
        family.extend(process.pid for process in living if process.parent == pid)
    return family


def send(pids: Iterable[int], number: signal.Signals) -> list[int]:
    """Send a signal to those that are still there.

    Returns:
        The processes that got it.
    """
    reached = []
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            reached.append(pid)
    return reached


def processor_seconds(living: Iterable[Process]) -> float:
    """Return the seconds of the processors that these processes have had so far."""
    ticks = 0
    for process in living:
        with suppress(OSError):
            user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


def kill_all(mark: str) -> None:
    """End all processes of a round, until none lives."""
    for _ in range(100):
        living = processes(mark)
        if not living:
            return
        send((process.pid for process in living), signal.SIGKILL)
        time.sleep(0.05)
    raise RuntimeError(f"processes of {mark} cannot be killed: {processes(mark)}")


def _role(command: str, parent: str) -> Role:
    if "tests.chaos.job" in command and "java" not in command.split(" ")[0]:
        return "driver"
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if "SparkSubmit" in command:
        return "jvm"
    if "python_streaming_source_runner" in command:
        return "reader"
    if "foreach_batch_worker" in command:
        return "query"
    if "pyspark.daemon pyspark.worker" in command:
        return "worker" if "pyspark.daemon" in parent else "daemon"
    return "other"
