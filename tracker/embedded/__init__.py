"""A tracker in the process that uses it, for jobs that run no service."""

from tracker.journal import JournalError

from .embedded import embed, stop_embedded
from .hosted import HostedServer

__all__ = ["HostedServer", "JournalError", "embed", "stop_embedded"]
