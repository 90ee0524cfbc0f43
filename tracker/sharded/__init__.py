"""One job on several trackers: reports are split, calls go to all trackers, and events are merged into one order.

`ShardedClient` has the methods of `TrackerClient`, so callers need not care; servers do not notice at all. The package
is loaded at its first use: an executor that reports to one tracker does not need it.
"""

from __future__ import annotations

from tracker.sharded.client import ShardedClient, ShardedProducer
from tracker.sharded.merged_events import Position, ShardedWatch

__all__ = ["Position", "ShardedClient", "ShardedProducer", "ShardedWatch"]
