"""Whether the relay can do its work now, and if not, why."""

from __future__ import annotations

from .upstream import Upstream


class Readiness:
    """Tells whether the relay serves and can reach the tracker.

    Args:
        upstream: the tracker.

    Attributes:
        serving: whether the relay accepts calls.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.serving = False
        self._upstream = upstream

    def missing(self) -> str:
        """Return why the relay is not ready; "" if it is."""
        return self._upstream.missing() if self.serving else "the relay is starting or stopping"
