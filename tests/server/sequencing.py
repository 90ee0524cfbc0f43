"""A sequencer without a server, for tests."""

from __future__ import annotations

from collections.abc import Callable

from tracker.server.lanes import Lanes
from tracker.server.limits import Limits
from tracker.server.measures import JobLabels, Measures
from tracker.server.replayable import RecoveredState
from tracker.server.sequencer import Clock, JournalHealth, Sequencer, Snapshots


def started(recovered: RecoveredState, done: Callable[[str, int, bool], None] = lambda *_: None) -> Sequencer:
    """Start a sequencer on the running event loop; it keeps no snapshot by itself."""
    measures = Measures(JobLabels(1, lambda _: True), recovered.state.tracker.find)
    health, snapshots = JournalHealth(lambda _: None, measures), Snapshots(recovered.journal, measures, 1 << 30)
    sequencer = Sequencer(recovered, Lanes(), Limits(), Clock(0), health, snapshots, done)
    sequencer.start()
    return sequencer
