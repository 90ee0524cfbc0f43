"""Pages as a scraper or a supervisor gets them."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from typing import NamedTuple


class Page(NamedTuple):
    status: int
    text: str
    headers: Message


def get(url: str, **headers: str) -> Page:
    """Get a page, whatever its status."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request) as answer:
            return Page(answer.status, answer.read().decode("latin1"), answer.headers)
    except urllib.error.HTTPError as refused:
        with refused:
            return Page(refused.code, refused.read().decode(), refused.headers)


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; the test's own timeout ends what never does."""
    while not holds():
        time.sleep(0.02)
