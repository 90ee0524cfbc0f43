"""`tracker dev`, as somebody uses it who has never seen a tracker."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.client.processes import TRACKER
from tests.page.browsing import Window
from tests.web.fetching import get, until


@pytest.fixture
def dev() -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Yield the process, the page and the tracker's address, as they are printed."""
    command = [*TRACKER, "dev", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = ""
        while "Ctrl-C" not in printed:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            printed += line
        page = re.search(r"Status page +(http://\S+)/\n", printed)
        address = re.search(r"Tracker +(127\S+)", printed)
        assert page is not None
        assert address is not None
        yield process, page[1], address[1]
        if process.poll() is None:
            process.kill()


def test_it_shows_a_job_at_work_and_ctrl_c_stops_everything(dev: tuple[subprocess.Popen[str], str, str]) -> None:
    process, page, _ = dev
    until(
        lambda: '"in_flight":' in get(f"{page}/api/jobs").text and '"in_flight":0' not in get(f"{page}/api/jobs").text
    )
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_newcomer_finds_out_why_a_substream_is_stuck(
    dev: tuple[subprocess.Popen[str], str, str], browser: Any
) -> None:
    _, page, _ = dev
    window = Window(browser, page)
    tab = window.open("#/")
    tab.set_default_timeout(180_000)
    tab.get_by_role("link", name="example").click()
    stalled = tab.get_by_role("link", name="Stalled")
    expect(stalled).to_be_visible(timeout=180_000)
    stalled.click()
    tab.get_by_role("link", name="of scope Lima: explain").first.click()
    expect(tab.get_by_role("dialog").get_by_role("listitem").first).to_contain_text("segment 'parcels': 1 in flight")
    window.close()
