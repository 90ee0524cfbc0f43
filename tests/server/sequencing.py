"""A sequencer without a server, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import Message

from tracker.contract.commands import Answer
from tracker.core import Prepared
from tracker.server.lanes import Lanes
from tracker.server.limits import Limits
from tracker.server.measures import JobLabels, Measures
from tracker.server.replayable import RecoveredState
from tracker.server.sequencer import Clock, JournalHealth, Sequencer, Snapshots
from tracker.wire.codec import Method, read_command


def started(recovered: RecoveredState, done: Callable[[str, int, bool], None] = lambda *_: None) -> Sequencer:
    """Start a sequencer on the running event loop; it keeps no snapshot by itself."""
    measures = Measures(JobLabels(1, lambda _: True), recovered.state.tracker.find)
    health, snapshots = JournalHealth(lambda _: None, measures), Snapshots(recovered.journal, measures, 1 << 30)
    sequencer = Sequencer(recovered, Lanes(), Limits(), Clock(0), health, snapshots, done)
    sequencer.start()
    return sequencer


def submitted(sequencer: Sequencer, method: Method, request: Message) -> Answer | asyncio.Future[Answer]:
    """Submit a request as the server does, but unchecked; return what the sequencer does."""
    payload = request.SerializeToString()
    return sequencer.submit(method, payload, Prepared(read_command(method, payload)))
