"""A watch that is left open does no harm: it ends with the last reference to it, or with the program."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tests.client.test_client import pass_through
from tests.client.test_failures import until
from tracker.client import TrackerClient, TrackerError
from tracker.client.connection import _connections
from tracker.contract.refusal import Refusal

OPENED = {"a watch": ("watch",), "a subscription": ("subscribe", "mailer")}  #: the client's method, its arguments


@pytest.mark.parametrize("opened", OPENED.values(), ids=OPENED)
def test_what_nobody_holds_ends_at_the_tracker(tmp_path: Path, opened: tuple[str, ...]) -> None:
    """A cell of a notebook that reads one event and breaks may be run for ever."""
    method, *arguments = opened
    server = Server(tmp_path, "memory", "--limit", "max_watchers=2")
    try:
        with TrackerClient(server.address) as client:
            client.define_job(spec("job"))
            pass_through(client.open_producer("job", "p", "r"), 0, "w0")

            def reads_one() -> bool:
                try:
                    return next(getattr(client, method)("job", *arguments)).seq == 1
                except TrackerError as error:
                    if error.reason != Refusal.LIMIT:
                        raise
                    return False

            for _ in range(6):
                until(reads_one)
    finally:
        server.kill()


@pytest.mark.parametrize("reads", ["next(events)", "threading.Thread(target=all, args=[events], daemon=True).start()"])
@pytest.mark.parametrize("opened", OPENED.values(), ids=OPENED)
def test_a_program_that_leaves_it_open_ends_without_a_word(
    shared_server: Server, client: TrackerClient, job: str, opened: tuple[str, ...], reads: str
) -> None:
    method, *arguments = opened
    client.define_job(spec(job))
    pass_through(client.open_producer(job, "p", "r"), 0, "w0")
    program = f"""
import threading, time
from tracker.client import TrackerClient
client = TrackerClient({shared_server.address!r})
events = client.{method}{(job, *arguments)!r}
{reads}
while events.last_seq < 1:
    time.sleep(0.01)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_closed_client_holds_no_connection(shared_server: Server, job: str) -> None:
    """A tracker with two addresses gets a connection of its own for what only waits."""
    address = shared_server.address.replace("127.0.0.1", "localhost")  # that no other client uses
    client = TrackerClient(f"{address}+127.0.0.1:1")
    client.define_job(spec(job))
    pass_through(client.open_producer(job, "p", "r"), 0, "w0")
    with client.watch(job) as events:
        assert next(events).seq == 1
    assert {key[2] for key in _connections if key[0] == address} == {False, True}
    client.close()
    gc.collect()
    assert not [key for key in _connections if key[0] == address]
