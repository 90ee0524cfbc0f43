"""The contract's vectors: in the core, and over gRPC on every journal, also killed after every command.

`TRACKER_VECTORS` names another directory of vectors to run instead.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.core.faults import staged_is_miscounted
from tests.core.invariants import broken
from tests.model.lines import Driver as CoreDriver
from tests.model.lines import as_told
from tests.server.processes import Server, Servers
from tracker.core import Tracker

from .over_grpc import Driver

VECTORS = sorted(Path(os.environ.get("TRACKER_VECTORS") or Path(__file__).parents[1] / "vectors").glob("*.jsonl"))


def lines(vector: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in vector.read_text().splitlines()]


def check(driver: Driver | CoreDriver, number: int, line: dict[str, Any]) -> None:
    answer, events = driver.run(line)
    told = line["events"]
    assert (answer, as_told(events, told)) == (line["expect"], told), f"line {number + 1}: {json.dumps(line)}"


def test_there_are_vectors() -> None:
    assert VECTORS


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.stem)
def test_in_the_core(vector: Path) -> None:
    run_in_the_core(vector)


def run_in_the_core(vector: Path) -> None:
    """Run a vector, and check what holds in the core after each of its commands."""
    tracker = Tracker("log")
    driver = CoreDriver(tracker)
    for number, line in enumerate(lines(vector)):
        check(driver, number, line)
        assert not (wrong := broken(tracker)), f"line {number + 1}: {wrong}"


def test_a_core_that_loses_count_is_found_out() -> None:
    """Its answers and events are right."""
    with staged_is_miscounted(), pytest.raises(AssertionError, match="staged epochs count"):
        run_all_in_the_core()


def run_all_in_the_core() -> None:
    for vector in VECTORS:
        run_in_the_core(vector)


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def server(request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return servers.start(tmp_path_factory.mktemp("server"), request.param)


@pytest.mark.thorough
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.stem)
def test_over_grpc(server: Server, vector: Path) -> None:
    driver = Driver(server.stub, vector.stem)
    for number, line in enumerate(lines(vector)):
        check(driver, number, line)


def run_with_kills(servers: Servers, directory: Path, vectors: list[Path], stride: int, *arguments: str) -> None:
    """Run vectors side by side, a job each: commands of each, then SIGKILL and another server, until all are done."""
    told = {vector.stem: lines(vector) for vector in vectors}
    drivers: dict[str, Driver] = {}
    for first in range(0, max(map(len, told.values())), stride):
        server = servers.start(directory, "sqlite", *arguments)
        for job, script in told.items():
            driver = drivers.setdefault(job, Driver(server.stub, job))
            driver.stub = server.stub
            if first < len(script):
                assert driver.new_events() == [], f"{job}: the restart before line {first + 1} made events"
            for number, line in list(enumerate(script))[first : first + stride]:
                check(driver, number, line)
        server.kill()
    assert "level=error" not in (directory / "log").read_text()


# Recovery is from the whole log, or from snapshots that are kept as often as can be. Some 170 servers are started one
# after the other where each command is followed by a kill, which takes a busy machine longer than other tests may take.
@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("first", "stride", "arguments"),
    [
        (0, 7, []),
        *(
            pytest.param(first, 1, arguments, marks=pytest.mark.slow)
            for first in range(6)
            for arguments in ([], ["--snapshot-every", "0"])
        ),
    ],
)
def test_killed_after_commands_it_goes_on(
    servers: Servers, tmp_path: Path, first: int, stride: int, arguments: list[str]
) -> None:
    run_with_kills(servers, tmp_path, VECTORS[first::6], stride, *arguments)


@pytest.mark.thorough
def test_stopped_in_the_middle_it_goes_on_from_its_snapshot(servers: Servers, tmp_path: Path) -> None:
    """A graceful stop leaves a snapshot of the whole state; so half of each vector is recovered from one."""
    told = {vector.stem: lines(vector) for vector in VECTORS}
    server = servers.start(tmp_path, "sqlite")
    drivers = {job: Driver(server.stub, job) for job in told}
    for job, driver in drivers.items():
        for number, line in enumerate(told[job][: len(told[job]) // 2]):
            check(driver, number, line)
    assert server.stop() == 0
    server = servers.start(tmp_path, "sqlite")
    for job, driver in drivers.items():
        driver.stub = server.stub
        for number, line in enumerate(told[job]):
            if number >= len(told[job]) // 2:
                check(driver, number, line)
    server.kill()
    recovered = [line for line in (tmp_path / "log").read_text().splitlines() if "msg=recovered" in line]
    assert "replayed=0" in recovered[-1]
