"""A process that watches the job and records the time of each end.

Run as `python -m tracker.load.watcher DIRECTORY`. The checks that need the plan's sums are in `results`.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Final

from tracker.client import Ended, Event, Reason, TrackerClient, TrackerError, TrackerUnavailable, Watch
from tracker.load.plan import Plan, graph
from tracker.load.shared import LAST_SEQ, SEEN, Order, SharedCounters, exit_with_parent

_MOST_FAULTS: Final = 100  #: the most faults that are recorded: more would not help


class _Witness:
    """Recorder of the job's events."""

    def __init__(self, plan: Plan, shared: SharedCounters) -> None:
        self._plan = plan
        self._shared = shared
        self._segments = {name: number for number, name in enumerate(graph(plan.scenario))}
        self._counters = shared.counters[-1]
        self._faults = 0

    def record(self, event: Event, at: float) -> None:
        """Record an event.

        Args:
            at: when it came, in seconds of the monotonic clock.
        """
        if event.seq != self._counters[LAST_SEQ] + 1:
            self._fault(f"event {event.seq} came after event {self._counters[LAST_SEQ]}")
        self._counters[LAST_SEQ] = event.seq
        match event.kind:
            case Ended() as ended:
                found = self._plan.find(ended.scope, ended.name)
                if found is None:
                    self._fault(f"a substream ended that is not in the plan: {ended}")
                    return
                if ended.reason is not Reason.COMPLETE:
                    self._fault(f"a substream ended by force: {ended}")
                place = (*found, self._segments[ended.segment])
                if not self._shared.times[place]:
                    self._shared.ended[place] = at
                    self._shared.elements[place] = ended.elements
                self._shared.times[place] += 1
                self._counters[SEEN] += 1
            case unexpected:
                self._fault(f"an event that must not come: {unexpected}")

    def _fault(self, text: str) -> None:
        self._faults += 1
        if self._faults <= _MOST_FAULTS:
            self._shared.fault(text)


def _close_at_stop(shared: SharedCounters, events: Watch) -> None:
    while not shared.stopped:
        time.sleep(0.1)
    events.close()


def main() -> int:
    """Run the process and return the exit status."""
    directory = Path(sys.argv[1])
    exit_with_parent()
    order = Order.read(directory)
    plan = Plan(order.scenario)
    shared = SharedCounters(directory, plan)
    witness = _Witness(plan, shared)
    try:
        with (
            TrackerClient(order.address, retry_for=order.scenario.patience) as client,
            client.watch(order.job) as events,
        ):
            threading.Thread(target=_close_at_stop, args=[shared, events], daemon=True).start()
            shared.ready[-1] = 1
            for event in events:
                witness.record(event, time.monotonic())
    except (TrackerError, TrackerUnavailable) as error:
        shared.fault(f"the watcher: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
