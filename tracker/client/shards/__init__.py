"""One job over several trackers: reports cut up, calls carried out everywhere, and events merged into one order.

Nothing outside needs to know: `ShardedClient` has the methods of `TrackerClient`. Servers know nothing of it.
"""
