"""Tests of your own jobs: a real tracker in the test's process, time that the test moves, and readable assertions.

>>> from tracker.client import JobSpec, label
>>> from tracker.testing import LocalTracker
>>> with LocalTracker() as tracker:
...     _ = tracker.client.define_job(JobSpec(job="shop", deployment="d1", segments={"orders": []}))
...     with tracker.client.open_producer("shop", "till", run="1") as till:
...         report = till.epoch()
...         report.sent("orders", "berlin", "monday", label("orders", 1))
...         report.received("orders", "berlin", "monday", label("orders", 1))
...         report.close("berlin", "monday")
...         _ = report.report(commit=True)
...     tracker.assert_ended("shop", "orders", "berlin", "monday").elements
1

`LocalTracker` needs the extra `testing` (`pip install 'substream-tracker[testing]'`) and Python 3.11, like a tracker.
`Assertions` works from Python 3.10 on, against any tracker that a `TrackerClient` reaches. pytest has the fixtures
`local_tracker` and `tracker_clock` as soon as this package is installed: see `tracker.testing.plugin`.

Exported names are loaded when they are first used, so that pytest starts no slower for those who do not use them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tracker.testing.assertions import Assertions, Like, like
    from tracker.testing.clock import ManualClock
    from tracker.testing.local import LocalTracker

__all__ = ["Assertions", "Like", "LocalTracker", "ManualClock", "like"]

_ORIGINS: Final = {
    "Assertions": "assertions",
    "Like": "assertions",
    "LocalTracker": "local",
    "ManualClock": "clock",
    "like": "assertions",
}


def __getattr__(name: str) -> Any:
    if name not in _ORIGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"tracker.testing.{_ORIGINS[name]}"), name)
    return value
