"""A browser that looks at the page: Debian's Chromium, without a window."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: axe-core's rules for the page: WCAG 2.2 A and AA, and its good practice.
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

expect.set_options(timeout=60_000)  # ms: a busy machine takes its time


@contextmanager
def chromium() -> Iterator[Browser]:
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"{CHROMIUM} is not there: apt-get install -y chromium, or set CHROMIUM to another one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


class Window:
    """A tab, and everything in it that went wrong.

    Args:
        browser: where it opens, with storage of its own.
        url: the page's.
        options: of playwright's `new_context`: the size, the colours that the person prefers.
    """

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.tab: Page = self.context.new_page()
        self.tab.set_default_timeout(60_000)
        self.wrong: list[str] = []
        self.tab.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.tab.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.tab.on("console", self._note)

    def _note(self, message: Any) -> None:
        # A fetch's message when the server is gone is no fault of the page.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.wrong.append(f"{message.type}: {message.text}")

    def open(self, address: str = "#/") -> Page:
        """Show a view, and wait until it is up to date."""
        self.tab.goto(f"{self.url}/{address}")
        self.tab.wait_for_selector("#connection[data-state=live]")
        return self.tab

    def job(self, job: str, more: str = "") -> Page:
        """Show a job, and wait until its substreams are counted and listed."""
        tab = self.open(f"#/job?job={job}{more}")
        expect(tab.locator(".side .quiet")).to_have_text(re.compile("^Of|^Nothing"))
        expect(tab.locator("#substreams [role=status]")).to_have_text(re.compile("^[^…]+$"))
        return tab

    def close(self) -> None:
        self.context.close()
        assert not self.wrong, self.wrong


def inaccessible(tab: Page) -> list[str]:
    """List the violations that axe-core finds, in a line each."""
    results = Axe().run(tab, options={"runOnly": {"type": "tag", "values": _RULES}, "resultTypes": ["violations"]})
    return [
        f"{each['id']}: {each['help']}: {json.dumps([node['html'][:200] for node in each['nodes'][:3]])}"
        for each in results.response["violations"]
    ]


def sideways(tab: Page) -> int:
    """Return by how many pixels the page is wider than the window."""
    wider: int = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider


Opens = Callable[..., Window]
