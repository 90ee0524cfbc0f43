"""Substreams of rows: the protocol is `substreams.Substreams`, and each kind is a module."""

# Descriptions in channels and checkpoints are read by the kinds that are known: these are, wherever the room is.
from spark_client.windows import calendars, fixed, named, nested, sessions, sliding

__all__ = ["calendars", "fixed", "named", "nested", "sessions", "sliding"]
