"""For all tests: what hypothesis tries has no deadline, since no test depends on the speed of a machine.

The JVMs that tests start share an archive of classes, if `make test` has made one.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from zlib import crc32

import pytest
from hypothesis import settings

from tests.classes import share

share()
# A shell's background job ignores an interrupt, and so would all processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="0/1", metavar="K/N", help="of all tests, only those of part K of N, from 0 on")
    parser.addoption("--connect", metavar="URL", help="run with sessions of this server of Spark Connect: sc://…")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests with Spark first: their files are the longest, and no worker is left with one at the end.

    Over Spark Connect, tests are skipped that reach into the process in which batches run.

    A time-out is for what hangs. Slow tests take many minutes on a busy machine, and one that is cut off in the middle
    of a call breaks the Spark session of those after it.
    """
    part, parts = map(int, config.getoption("--share").split("/"))
    items[:] = [each for each in items if crc32(each.nodeid.encode()) % parts == part % parts]
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
    over_connect = config.getoption("--connect")
    for item in items:
        if over_connect and (classic := item.get_closest_marker("classic")) is not None:
            item.add_marker(pytest.mark.skip(classic.args[0]))
        elif over_connect and "monkeypatch" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip("it replaces a part of this process, and batches run in another one"))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(14400))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Skip, over Spark Connect, a test of what is refused there by its name."""
    try:
        yield
    except ValueError as refused:
        if item.config.getoption("--connect") and " over Spark Connect: " in str(refused):
            pytest.skip(str(refused))
        raise
