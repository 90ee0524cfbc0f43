"""Imports of a process that only reports: an executor has nothing else installed, and starts often."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_LIBRARIES = {"google", "grpc", "grpc_status", "numpy"}
_OF_GRPC = {"grpc_health", "grpc_reflection", "grpc_tools", "typing_extensions"}  #: which it loads where they are
_OWN = {"tracker", "tracker.client", "tracker.contract", "tracker.python310", "tracker.wire"}

_IMPORT = "import tracker.client"
_REPORT = """
from tracker.client import TrackerClient, TrackerUnavailable, label
with TrackerClient("127.0.0.1:1", retry_for=0.1) as client:
    report = client.producer("job", "executor", "run").epoch(0)
    report.sent("raw", "berlin", "monday", label("a", 1))
    report.close("berlin", "tuesday")
    try:
        report.report(units=["task"], commit=True)
    except TrackerUnavailable:
        pass  # it has been as far as the wire
"""
_SEVERAL = "from tracker.client import Position, ShardedClient, ShardedProducer, ShardedWatch"


def loaded(code: str) -> set[str]:
    """Return the modules that a new process loads to run this."""
    printing = "print(json.dumps(sorted(set(sys.modules) - before)))"
    program = "\n".join(["import json, sys", "before = set(sys.modules)", code, printing])
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


@pytest.mark.parametrize("code", [_IMPORT, _REPORT], ids=["import", "report"])
def test_a_reporter_loads_no_more_than_it_needs(code: str) -> None:
    modules = loaded(code)
    roots = {name.partition(".")[0] for name in modules}
    others = {name for name in roots - set(sys.stdlib_module_names) if "cython" not in name}
    assert others - {"tracker"} <= _LIBRARIES | _OF_GRPC
    own = {".".join(name.split(".")[:2]) for name in modules if name.partition(".")[0] == "tracker"}
    assert own <= _OWN


def test_what_several_trackers_need_is_there_when_it_is_asked_for() -> None:
    assert "tracker.sharded.client" in loaded(_SEVERAL)
    with pytest.raises(ImportError):
        from tracker.client import NoSuchName  # noqa: F401
