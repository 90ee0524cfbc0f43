"""The numbers that the processes of a run share, in files that all of them have mapped; and what they use.

Producers and the watcher only record when something happened; a process that is killed loses nothing that it has
recorded. Times are in seconds, of the machine's monotonic clock, which all its processes share; 0 means: not yet.

Processor time and memory are read from Linux's /proc (0 elsewhere). A process of a run ends with its parent.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tracker.load.plan import Plan
from tracker.load.scenario import Scenario, read

_START: Final = 0
_STOP: Final = 1

PROBES_A_SECOND: Final = 20

#: The columns of `counters`.
REPEATED: Final = 0  #: reports that were sent once more
TAKEN_OVER: Final = 1  #: producers that a new run took over
SEEN: Final = 2  #: ends that the watcher has seen
LAST_SEQ: Final = 3  #: the number of the last event that it has seen
_COUNTERS: Final = 4


@dataclass(frozen=True, slots=True)
class Order:
    """Order to a process of a run: the scenario, the tracker's address and the job's name."""

    scenario: Scenario
    address: str
    job: str

    def write(self, directory: Path) -> None:
        """Write the order into a run's directory."""
        (directory / "order.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> Order:
        """Read the order from a run's directory."""
        order = json.loads((directory / "order.json").read_text())
        return cls(read(order["scenario"]), order["address"], order["job"])


class SharedCounters:
    """The numbers of one run.

    Attributes:
        sent: by producer and tick: when the report was first sent.
        answered: by producer and tick: when its answer arrived.
        free: by producer and tick: when its producer had finished with it, and could send the next one.
        disturbed: by producer and tick: 1 if it was late because its producer had been killed or taken over.
        ended: by producer, place and segment: when the watcher saw the end.
        elements: by producer, place and segment: how many elements were announced with the end.
        times: by producer, place and segment: how often the end was announced.
        probed: by probe: when the server that does nothing had answered it. Probe n is due n / PROBES_A_SECOND seconds
            after the start.
        ready: by process of producers: how many of its lives have begun to work.
        counters: by process of producers, with a last row for the watcher; the columns are named above.
    """

    def __init__(self, directory: Path, plan: Plan, create: bool = False) -> None:
        self._directory = directory
        self._mode = "w+" if create else "r+"
        reports = (plan.producers, plan.ticks)
        ends = (plan.producers, plan.substreams, plan.scenario.segments)
        processes = plan.scenario.processes
        self.sent: NDArray[np.float64] = self._mapped("sent", np.float64, reports)
        self.answered: NDArray[np.float64] = self._mapped("answered", np.float64, reports)
        self.free: NDArray[np.float64] = self._mapped("free", np.float64, reports)
        self.disturbed: NDArray[np.uint8] = self._mapped("disturbed", np.uint8, reports)
        self.ended: NDArray[np.float64] = self._mapped("ended", np.float64, ends)
        self.elements: NDArray[np.int64] = self._mapped("elements", np.int64, ends)
        self.times: NDArray[np.int32] = self._mapped("times", np.int32, ends)
        probes = int(plan.measured[1] * PROBES_A_SECOND)
        self.probed: NDArray[np.float64] = self._mapped("probed", np.float64, (probes,))
        self.ready: NDArray[np.int64] = self._mapped("ready", np.int64, (processes + 1,))
        self.counters: NDArray[np.int64] = self._mapped("counters", np.int64, (processes + 1, _COUNTERS))
        self._moments: NDArray[np.float64] = self._mapped("moments", np.float64, (2,))

    def _mapped(self, name: str, kind: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        mapped = np.memmap(self._directory / f"{name}.shared", kind, self._mode, shape=shape)  # type: ignore[call-overload]
        plain: NDArray[Any] = np.asarray(mapped)  # avoids memmap's cost at each access
        return plain

    @property
    def start(self) -> float:
        """Return when the plan begins; 0: not known yet."""
        return float(self._moments[_START])

    @start.setter
    def start(self, at: float) -> None:
        self._moments[_START] = at

    @property
    def stopped(self) -> bool:
        """Return whether all processes have to stop."""
        return bool(self._moments[_STOP])

    def stop(self) -> None:
        self._moments[_STOP] = 1

    def fault(self, text: str) -> None:
        """Record a fault: something that must not happen."""
        with (self._directory / "faults").open("a") as file:
            file.write(text.replace("\n", " ") + "\n")

    def faults(self) -> list[str]:
        """Return the faults that all processes have recorded."""
        file = self._directory / "faults"
        return file.read_text().splitlines() if file.exists() else []


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
