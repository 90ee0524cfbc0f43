"""The processes that a benchmark starts and ends: trackers, relays."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tracker.load.servers import Server, server_process


@contextmanager
def tracker(journal: str, *options: str) -> Iterator[Server]:
    """Run a tracker of its own, stopped at the end.

    Args:
        journal: as `tracker serve --journal` takes it.
        options: further ones of `tracker serve`.
    """
    command = ["tracker.cli.main", "serve", "--listen", "127.0.0.1:0", "--journal", journal, *options]
    with server_process(command) as server:
        yield server


@contextmanager
def relay(server: str) -> Iterator[Server]:
    """Run a relay to the tracker at an address."""
    with (
        tempfile.TemporaryDirectory() as directory,
        server_process(
            ["tracker.cli.main", "relay", "--server", server, "--listen", f"unix:{directory}/relay.sock"]
        ) as started,
    ):
        yield started
