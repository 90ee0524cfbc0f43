"""The status page of a tracker with TLS and tokens, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.client.conftest import spec
from tests.page.browsing import Window, chromium, inaccessible
from tests.security.authority import Authority
from tests.security.secured import Secured
from tests.server.processes import Servers


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.mark.thorough
def test_the_page_asks_for_a_token_and_shows_its_jobs(
    servers: Servers, authority: Authority, tmp_path: Path, browser: Any
) -> None:
    site = Secured(servers, authority, tmp_path, "--metrics", "127.0.0.1:0")
    for job in ("shop", "mail"):
        site.client(site.all).define_job(spec(job))
    token = site.add_known("shopkeeper", ["watch"], ("shop",)).read_text().strip()
    window = Window(browser, site.server.metrics, ignore_https_errors=True)
    tab = window.tab
    tab.goto(f"{window.url}/")
    dialog = tab.get_by_role("dialog")
    expect(dialog).to_contain_text("This tracker asks for a token")
    assert not inaccessible(tab)
    box: Any = dialog.bounding_box()
    size: Any = tab.viewport_size
    assert box["height"] < size["height"] / 2
    expect(tab.locator("#connection")).to_have_text("Needs a token")
    dialog.get_by_label("Token").fill(token)
    dialog.get_by_role("button", name="Use it").click()
    expect(tab.get_by_role("link", name="shop")).to_be_visible()
    expect(tab.get_by_role("link", name="mail")).to_have_count(0)
    assert token not in tab.content()
    assert token not in tab.url
    assert not tab.context.cookies()
    tab.get_by_role("link", name="shop").click()
    expect(tab.get_by_role("heading", name="shop", level=1)).to_be_visible()
    window.close()
