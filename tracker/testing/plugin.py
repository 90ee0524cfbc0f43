"""The fixtures of pytest: a tracker for each test, and its time.

pytest finds them by the entry point `pytest11` wherever this package is installed. Nothing else of the package is
loaded before a test asks for one of them.

>>> def test_the_till_closes_its_day(local_tracker):
...     run_my_job(server=local_tracker.address)
...     local_tracker.assert_ended("shop", "orders", "berlin", "monday")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tracker.testing.clock import ManualClock
    from tracker.testing.local import LocalTracker


@pytest.fixture
def local_tracker(request: pytest.FixtureRequest) -> Iterator[LocalTracker]:
    """Yield a tracker of the test's own, in this process; if the test also asks for `tracker_clock`, with that time."""
    from tracker.testing.local import LocalTracker

    clock = request.getfixturevalue("tracker_clock") if "tracker_clock" in request.fixturenames else None
    with LocalTracker(clock=clock) as tracker:
        yield tracker


@pytest.fixture
def tracker_clock() -> ManualClock:
    """Return the time of the test's `local_tracker`, which stands still until the test advances it."""
    from tracker.testing.clock import ManualClock

    return ManualClock()
