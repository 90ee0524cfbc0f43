"""pytest's fixtures: they come with the package, and cost nothing where they are not used."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import tomllib

PLUGIN = ["-p", "tracker.testing.plugin"]

_TESTS = """
from datetime import timedelta

import pytest
from tracker.client import JobSpec, Stalled
from tracker.testing import like


def define(client, **rules):
    client.define_job(JobSpec(job="shop", deployment="d1", segments={"orders": []}, **rules))


def test_each_test_has_a_tracker_of_its_own(local_tracker):
    define(local_tracker.client)


def test_and_the_next_one_has_another(local_tracker):
    assert local_tracker.client.jobs() == []


def test_time_stands_still(tracker_clock, local_tracker):
    define(local_tracker.client, stall_after=timedelta(hours=1))
    with local_tracker.client.open_producer("shop", "till", run="1") as till:
        report = till.epoch()
        report.sent("orders", "berlin", "monday", 7)
        report.close("berlin", "monday")
        report.report(commit=True)
    tracker_clock.advance(timedelta(hours=1))
    local_tracker.assert_events("shop", [like(Stalled, name="monday")], timeout=0)


def test_a_failure_points_here(local_tracker):
    define(local_tracker.client)
    local_tracker.assert_ended("shop", "orders", "berlin", "monday", timeout=0)  # this line
"""


def test_the_fixtures_give_a_tracker_and_its_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(_TESTS)
    result = pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=1)
    output = result.stdout.str()
    assert "nothing was reported of it; the job has no substreams yet" in output
    assert "# this line" in output
    assert "def assert_ended" not in output, "the traceback ends at the test's line"


def test_pytest_starts_without_loading_the_client(pytester: pytest.Pytester) -> None:
    loaded = "import sys\n\ndef test_it():\n    assert not {'grpc', 'numpy', 'tracker.client'} & {*sys.modules}\n"
    pytester.makepyfile(loaded)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", "-q"], cwd=pytester.path, check=False
    )
    assert done.returncode == 0


def test_the_package_names_the_plugin_by_its_module() -> None:
    """Then pytest takes `-p` and the entry point for the same, and does not refuse the second."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tracker.testing.plugin": "tracker.testing.plugin"}
    assert find_spec("tracker.testing.plugin")


def test_a_process_without_pytest_uses_the_kit() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None\n"
        "from tracker.testing import LocalTracker\n"
        "with LocalTracker() as tracker: print(tracker.client.jobs())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sys.modules['msgpack'] = None", "needs msgpack: pip install 'substream-tracker[testing]'"),
        ("sys.version_info = (3, 10, 0)", "needs Python 3.11 or newer, as a tracker's server does"),
    ],
)
def test_what_a_local_tracker_lacks_is_named(setting: str, message: str) -> None:
    program = f"import sys, tracker.testing, tracker.client; {setting}\ntracker.testing.LocalTracker"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert message in done.stderr


def test_without_the_server_assertions_work() -> None:
    program = (
        "import sys, tracker.client; sys.version_info = (3, 10, 0)\nfrom tracker.testing import Assertions, ManualClock"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
