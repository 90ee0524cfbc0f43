"""The limits of a job, which count what is staged and forgotten, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracker.contract.commands import Abandon, Close, Command, Commit, Expect, Frontier
from tracker.core import DefineJob, Drain, OpenProducer, Refused, Report, Spec, Tick, Tracker
from tracker.server.admission import check_capacity
from tracker.server.limits import Limits

NOW = 1_800_000_000 * 10**9
SECOND = 10**9


class Server:
    """A taker of commands, as the server is one: a limit is looked at first."""

    def __init__(self, segments: int = 2, **limits: int) -> None:
        self.tracker, self.limits, self.epoch, self.named = Tracker("log"), Limits(**limits), 0, 0
        graph = tuple((f"s{i}", ()) for i in range(segments))
        self.take(DefineJob(Spec("job", "d1", graph, fronts=("f", "g"), retention=SECOND)))
        self.take(OpenProducer("job", "p", "r"))

    def take(self, command: Command, now: int = NOW) -> None:
        new = len(command.names) if isinstance(command, Report) else 0
        check_capacity(self.tracker, command, self.limits, new)
        self.tracker.apply(command, now)

    def report(self, names: int = 1, commit: bool = True, units: int = 1, **more: Any) -> None:
        self.epoch += 1
        self.named += names
        self.take(
            Report(
                "job",
                "p",
                "r",
                self.epoch,
                [f"u{i}" for i in range(units)],
                ["t"],
                [f"n{self.named - i}" for i in range(names)],
                np.zeros(names, np.uint32),
                segments=["s0"],
                substream_index=np.arange(names, dtype=np.uint32),
                segment_index=np.zeros(names, np.uint32),
                xor=np.zeros(names, np.uint64),
                sent=np.ones(names, np.uint32),
                received=np.ones(names, np.uint32),
                entry_count=names,
                commit=commit,
                **more,
            )
        )


def refused(limit: str, take: Any) -> None:
    with pytest.raises(Refused, match=rf"^LIMIT: limit {limit}=\d+ exceeded: .*; \w+") as error:
        take()
    assert error.value.code == "RESOURCE_EXHAUSTED"


def test_cells_are_substreams_times_segments_staged_ones_too() -> None:
    server = Server(segments=10, max_cells=100)
    server.report(5)
    server.report(5, commit=False)
    refused("max_cells", lambda: server.report(1))
    refused("max_cells", lambda: server.report(1, commit=False))
    server.report(0)  # which commits what is staged


def test_fronts_that_feed_some_segments_are_counted_times_all_segments() -> None:
    """Each segment may wait for other fronts than the next, down a chain for all before it."""
    server = Server(max_front_segments=6)
    segments = tuple((f"s{i}", ()) for i in range(3))
    fed = (("f", ("s0",)), ("g", ("s1", "s2")))
    server.take(DefineJob(Spec("two", "d1", segments, fronts=("f", "g", "h", "i"), front_segments=fed)))
    three = Spec("three", "d1", segments, fronts=("f", "g", "h"), front_segments=(*fed, ("h", ("s2",))))
    refused("max_front_segments", lambda: server.take(DefineJob(three)))
    assert server.tracker.jobs() == ["job", "two"]


def test_what_is_staged_is_counted() -> None:
    server = Server(max_staged_substreams=10)
    server.report(10, commit=False)
    refused("max_staged_substreams", lambda: server.report(1, commit=False))
    server.report(11)
    server.report(10, commit=False)

    server = Server(max_staged_units=10, max_staged_entries=20)
    server.report(0, commit=False, units=5)
    server.report(0, commit=False, units=3)  # and two epochs
    refused("max_staged_units", lambda: server.report(0, commit=False, units=1))
    server.report(1)
    server.report(18, commit=False, promises=[Frontier("f", 1), Frontier("f", 2)])
    refused("max_staged_entries", lambda: server.report(1, commit=False))


def test_frontiers_of_scopes_are_counted_for_each_front() -> None:
    server = Server(max_scope_frontiers=6)
    server.report(0, promises=[Frontier("f", 1, scope) for scope in "abc"])
    server.report(0, promises=[Frontier("g", 1, scope) for scope in "abc"])
    promises = [Frontier("f", 1, "d")]
    refused("max_scope_frontiers", lambda: server.report(0, promises=promises))
    refused("max_scope_frontiers", lambda: server.take(Commit("job", "p", "r", promises=promises)))
    server.report(0, promises=[Frontier("f", 2, "a"), Frontier("f", 2)])


def test_tombstones_and_events_are_counted() -> None:
    server = Server(max_tombstones=10, max_events=25)
    for _ in range(2):
        server.report(5, promises=[Close("", i) for i in range(5)])
    server.take(Tick(), NOW + 2 * SECOND)
    assert server.tracker.view("job").status().tombstones == 10
    refused("max_tombstones", lambda: server.report(1))

    server = Server(max_events=10)
    server.report(5, promises=[Close("", i) for i in range(5)])
    refused("max_events", lambda: server.report(1))
    server.take(Tick(), NOW + 2 * SECOND)
    server.report(1)


def test_drains_of_deployments_that_never_come_are_counted() -> None:
    server = Server(max_pending_drains=3)
    server.take(Drain("nobody", "d1", "x"))
    server.take(Drain("nobody", "d2", "x"))
    server.take(Drain("job", "d2", "x"))
    for job in ("nobody", "job", "other"):
        refused("max_pending_drains", lambda job=job: server.take(Drain(job, "d3", "x")))
    server.take(Drain("nobody", "d1", "again"))
    server.take(Drain("job", "d1", "x"))
    server.take(DefineJob(Spec("nobody", "d1", (("a", ()),))))
    server.take(Drain("other", "d3", "x"))


def test_numbers_that_are_expected_are_counted_and_what_a_commit_names() -> None:
    server = Server(max_expected=4, max_cells=16)
    expects = [Expect("f", "s0", i, 5) for i in range(2)]
    server.report(2, promises=expects)
    server.report(0, promises=[])
    names = (("t", "x", None), ("t", "y", None))
    server.take(Commit("job", "p", "r", promises=expects, substreams=names))
    refused("max_expected", lambda: server.report(2, promises=expects))
    refused("max_expected", lambda: server.take(Commit("job", "p", "r", promises=expects, substreams=names)))
    assert server.tracker.view("job").counts().expected == 4
    server.tracker = Tracker.load(server.tracker.dump())
    assert server.tracker.view("job").counts().expected == 4
    for name in ("x", "y"):
        server.take(Abandon("job", "t", name))
    server.take(Tick(), NOW + 2 * SECOND)
    assert server.tracker.view("job").counts().expected == 2
    more = tuple(("t", f"z{i}", None) for i in range(8))
    refused(
        "max_cells", lambda: check_capacity(server.tracker, Commit("job", "p", "r", substreams=more), server.limits, 8)
    )
