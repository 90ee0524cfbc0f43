"""One job over several trackers: reports cut up, calls carried out everywhere, and events merged into one order.

Nothing outside needs to know: `ShardedClient` has the methods of `TrackerClient`. Servers know nothing of it. It is
loaded when it is used: an executor that reports to one tracker needs none of it.
"""

from __future__ import annotations

from tracker.sharded.client import ShardedClient
from tracker.sharded.merged_events import Position
from tracker.sharded.producer import ShardedProducer
from tracker.sharded.watch import ShardedWatch

__all__ = ["Position", "ShardedClient", "ShardedProducer", "ShardedWatch"]
