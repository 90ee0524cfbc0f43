"""What a user of `spark_client` can get wrong, or may have to know."""

from __future__ import annotations


class TrackingError(Exception):
    """A tracked query cannot go on. The message says what happened and what to do."""


class UsageError(TrackingError, ValueError):
    """A declaration cannot work: raised where it is made, before any data flows."""
