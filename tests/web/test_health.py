"""A server as a supervisor sees it: whether it lives, whether it can work, and where metrics are."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.client.processes import TRACKER
from tests.server.processes import Server, Servers, StartFailedError
from tests.server.test_durability import fill
from tests.server.tracking import define

from .fetching import get, until


def test_a_server_that_serves_is_alive_and_ready(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory", "--metrics", "127.0.0.1:0")
    assert get(f"{server.metrics}/healthz").status == 200
    assert get(f"{server.metrics}/readyz")[:2] == (200, "ready\n")
    page = get(f"{server.metrics}/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert "\ntracker_ready 1.0\n" in page.text
    assert f" metrics={server.metrics}\n" in server.log
    assert get(f"{server.metrics}/nothing").status == 404
    assert server.stop() == 0


def test_without_the_option_nothing_is_served(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path)
    assert " metrics=" not in server.log
    server.kill()


def test_a_scraper_gets_the_format_and_the_compression_it_asks_for(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory", "--metrics", "127.0.0.1:0")
    url = f"{server.metrics}/metrics"
    assert get(url, accept="application/openmetrics-text; version=1.0.0").text.endswith("# EOF\n")
    assert get(url, accept_encoding="gzip").headers["content-encoding"] == "gzip"
    server.kill()


def reason(server: Server) -> str:
    """Return why a server is not ready; "" if it is."""
    page = get(f"{server.metrics}/readyz")
    assert page.status == (200 if page.text == "ready\n" else 503)
    return "" if page.status == 200 else page.text


def test_a_failing_journal_leaves_a_server_alive_but_not_ready(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "sqlite", "--metrics", "127.0.0.1:0")
    define(server.stub)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    fill(server.stub)
    assert "the journal fails" in reason(server)
    assert "\ntracker_ready 0.0\n" in get(f"{server.metrics}/metrics").text
    assert get(f"{server.metrics}/healthz").status == 200
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    until(lambda: not reason(server))
    server.kill()


def test_a_server_that_recovers_answers_before_it_is_ready(tmp_path: Path) -> None:
    """The snapshot is a pipe here, which gives nothing: the recovery goes on for as long as the test wants."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--listen", "127.0.0.1:0", "--metrics", f"127.0.0.1:{port}"]
    os.mkfifo(tmp_path / "tracker.db-snapshot-7")
    process = subprocess.Popen(
        [*TRACKER, "serve", *options, "--journal", f"sqlite:{tmp_path / 'tracker.db'}"], stderr=subprocess.DEVNULL
    )
    try:

        def answers() -> bool:
            try:
                return get(f"http://127.0.0.1:{port}/healthz").status == 200
            except OSError:
                return False

        until(answers)
        page = get(f"http://127.0.0.1:{port}/readyz")
        assert page.status == 503
        assert "recovers" in page.text
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_an_address_that_is_used_is_a_clear_error(servers: Servers, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartFailedError) as failed:
            servers.start(tmp_path, "memory", "--metrics", address)
    assert failed.value.status == 1
    assert f"cannot listen on {address} for metrics: Address already in use; check that" in failed.value.log
    assert "Traceback" not in failed.value.log


@pytest.mark.parametrize("address", ["7660", "localhost", ":7660", "localhost:http", "localhost:70000"])
def test_a_wrong_address_is_a_clear_error(servers: Servers, tmp_path: Path, address: str) -> None:
    with pytest.raises(StartFailedError) as failed:
        servers.start(tmp_path, "memory", "--metrics", address)
    assert failed.value.status == 2
    assert "use HOST:PORT, such as 127.0.0.1:7660" in failed.value.log


def test_a_host_of_another_machine_is_a_clear_error(servers: Servers, tmp_path: Path) -> None:
    with pytest.raises(StartFailedError) as failed:
        servers.start(tmp_path, "memory", "--insecure", "--metrics", "192.0.2.1:7660")
    assert failed.value.status == 1
    assert "for metrics" in failed.value.log
