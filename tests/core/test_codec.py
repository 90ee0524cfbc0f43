"""Every field of every class of a job's state comes back from a dump, or is listed here as rebuilt.

Nothing here knows what the codec writes: two jobs, the one that was dumped and the one that was loaded, are walked
side by side through all fields that there are. So a field that somebody adds is compared as soon as it is there; and
one that held the same value in all states is refused, since then the comparison shows nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.model.generate import generate
from tests.model.lines import Driver
from tracker.core import Tracker, accounts, log
from tracker.core.cells import Cells
from tracker.core.graph import Graph
from tracker.core.log import EventFilter
from tracker.journal.snapshots import decode, encode

#: By class, the fields that are not kept, and what rebuilds them.
DERIVED: Mapping[str, Mapping[str, str]] = {
    "Job": {
        "ends_announced": "counted since the process started",
        "to_forget": "found by what has ended, or is only named",
        "retained": "found again when it is to be forgotten",
        "retained_checked": "goes with it",
        "stalls_from": "found by the first look",
        "least_end_time": "found by the first look",
        "least_created": "goes with it",
        "_read_whole": "an abbreviation of read_segments",
        "fronts_resumed": "is so only within a command",
    },
    "Accounts": {
        "table": "made of names and rows",
        "version": "counts since the start",
        "_slot_of_page": "slots are assigned again",
        "_first_page": "as far as there are slots",
        "_page_of_slot": "slots are assigned again",
        "_in_use": "counted by slot",
        "_free_slots": "none is free then",
        "_emptied": "none is empty then",
        "_capacity": "as much as is needed",
    },
    "Cells": {
        "_stamp": "of no meaning after a fold",
        **dict.fromkeys(("words", "_blocks"), "of free rows too: what is touched is compared instead"),
        **dict.fromkeys(("changed", "end_time", "created", "scope"), "compared as the accounts' own"),
    },
    "SparseCells": dict.fromkeys(
        (
            *("_records", "changed", "end_time", "created", "scope"),
            *("words", "_stamp", "_groups", "_heads", "_marks_of", "_done", "_directories", "_marks"),
            *("_block_pool", "_directory_pool", "_marks_pool"),
        ),
        "places are assigned again: what is touched and has ended is compared instead",
    ),
    "ClosedSet": {
        "_times": "made of the open substreams",
        "_several": "found by the promises",
        "_all_finished": "found by the fronts",
        "_closed_changed": "is so only within a command",
        "reopened": "everything is looked at, at first",
    },
    "Changes": {"_rows": "what balances is looked at again"},
    "Waiting": {"counted": "what is expected is looked at again"},
    "Expectations": {
        "_least": "the least of the numbers",
        "_segment": "goes with it",
        "_compared": "found by the numbers and identities",
        "_short": "counted when it is asked",
        "_short_expected": "counted when it is asked",
        "_short_sent": "counted when it is asked",
        "_shortfall": "counted when it is asked",
        "_uncounted": "everything, at first",
        "_uncounted_ones": "everything, at first",
        "_uncounted_size": "goes with it",
    },
    "Completion": {
        "_announce": "the job's",
        "_announce_ends": "the job's",
        "_drains": "is so only within a command",
        "_times": "made of the open substreams",
        "_waiting": "what balances is looked at again",
        "_groups_changed": "is so only within a command",
    },
    "Front": {"fed": "the spec's", "groups": "the graph's"},
    "EventLog": {"_passed": "what was dropped is not kept", "_events": "compared by what can be read"},
    "_Retained": {"_seqs": "the keys of its events", "_readers": "counted by the subscriptions"},
    "Subscriptions": {
        "_ended": "is so only within a command",
        "_to_release": "what nobody waits for is released again",
    },
    "Subscription": {"waiting": "found in the log"},
    "Tombstones": {"_runs": "compared by what all of them hold"},
    "Numbers": {
        "_numbers": "made of the names",
        "_free": "found by the names",
        "_collect_at": "a look too early is free",
    },
    "Newest": {},
    "Producer": {},
    "Epoch": {},
    "Dropped": {},
    "DrainRecord": {},
    "Lifecycle": {},
    "Fronts": {"groups": "made of the fronts and their floors, which are compared", "group_of": "goes with it"},
    "CommittedWatermarks": {},
    "Provisional": {"_ids": "made of the closes and the numbers"},
}

#: Fields of which every state has the same value, all the same.
CONSTANT = {
    ("Job", "spec"),
    ("Accounts", "segments"),
    ("EventLog", "log_id"),
    ("Cells", "segments"),
    ("SparseCells", "segments"),
    ("SparseCells", "_ended"),  # of the dense layout: empty here
    ("SparseCells", "_blocks"),  # likewise
}


def fields_of(value: Any) -> Iterator[str]:
    """Yield the names of all fields of an object, however its class keeps them."""
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
    yield from getattr(value, "__dict__", ())


class Walk:
    """Two jobs side by side.

    Attributes:
        seen: by class and field, what tells its values apart.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], set[str]] = {}
        self._been: dict[tuple[int, int], Any] = {}

    def jobs(self, one: Any, other: Any) -> None:
        """Compare all that two jobs hold."""
        self._been.clear()
        self.same(one, other, "job")

    def same(self, one: Any, other: Any, path: str) -> None:
        """Compare two values, field by field."""
        if (id(one), id(other)) in self._been:
            return
        self._been[id(one), id(other)] = (one, other)
        if isinstance(one, np.ndarray):
            longest = max(len(one), len(other))
            filled = [np.concatenate([a, np.zeros((longest - len(a), *a.shape[1:]), a.dtype)]) for a in (one, other)]
            assert (filled[0] == filled[1]).all(), path
        elif type(one).__module__.startswith("tracker.core") and not isinstance(one, tuple | Graph | EventFilter):
            self._fields(one, other, path)
        elif isinstance(one, dict):
            assert one.keys() == other.keys(), path
            for key in one:
                self.same(one[key], other[key], f"{path}[{key!r}]")
        elif isinstance(one, list | tuple | deque):
            filled_to = (
                max(len(one), len(other)) if path.endswith(".names") else 0
            )  # by row, up to what there is room for
            left, right = ([*each, *[""] * (filled_to - len(each))] for each in (one, other))
            assert len(left) == len(right), path
            for place, (a, b) in enumerate(zip(left, right, strict=True)):
                self.same(a, b, f"{path}[{place}]")
        else:
            assert one == other, f"{path}: {one!r} was dumped, {other!r} was loaded"

    def _fields(self, one: Any, other: Any, path: str) -> None:
        kind = type(one).__name__
        assert type(other) is type(one), path
        assert kind in DERIVED, f"{path}: is {kind} part of the state?"
        if isinstance(one, Cells):
            self._cells(one, other, path)
        for name in fields_of(one):
            if name in DERIVED[kind]:
                continue
            a, b = getattr(one, name), getattr(other, name)
            if kind == "Accounts" and isinstance(a, np.ndarray):  # of no meaning for rows that are free
                a, b = a[self._rows], b[self._rows]
            self.seen.setdefault((kind, name), set()).add(_told_by(a))
            if kind in ("Newest", "Dropped") and isinstance(a, dict):  # the oldest make room
                assert list(a) == list(b), path
            self.same(a, b, f"{path}.{name}")
        if kind == "Fronts":
            self.same(one.committed_watermarks(), other.committed_watermarks(), f"{path}.floors")
        if kind == "EventLog":
            assert one.read_kept(0, 0, 10**9) == other.read_kept(0, 0, 10**9), path
        if kind == "Tombstones":
            assert sorted(zip(*one.all(), strict=True)) == sorted(zip(*other.all(), strict=True)), path

    def _cells(self, one: Cells, other: Cells, path: str) -> None:
        rows = self._rows
        for a, b in zip(one.touched(rows), other.touched(rows), strict=True):
            assert (a == b).all(), path
        pairs = np.repeat(rows, one.segments), np.tile(np.arange(one.segments), len(rows))
        assert (one.reasons(*pairs) == other.reasons(*pairs)).all(), path

    _rows = np.empty(0, np.int64)

    def of(self, one: Any, other: Any) -> None:
        """Compare two jobs whose rows are the same."""
        self._rows = one.accounts.in_use(0)
        self.jobs(one, other)


def _told_by(value: Any) -> str:
    """Return a text that tells a field's values apart: the value, or whether there is anything in it."""
    if isinstance(value, np.ndarray):
        return str(bool(value.any()))
    if isinstance(value, dict | list | set | frozenset | tuple | deque):
        return str(bool(value))
    return repr(value) if type(value).__module__ == "builtins" or not hasattr(value, "__dict__") else "object"


def walked() -> Walk:
    """Walk through the states on the way of many sequences of commands."""
    walk = Walk()
    for seed in range(60):
        with (
            mock.patch.object(accounts, "DENSE", 1 if seed % 3 == 0 else accounts.DENSE),
            mock.patch.object(log, "MOST_PLACES", 1 if seed % 4 == 0 else log.MOST_PLACES),
        ):
            driver = Driver(Tracker("core"))
            for number, line in enumerate(generate(seed)):
                driver.run(line)
                if number % 10 == 0:
                    compare(walk, driver.tracker)
    return walk


def compare(walk: Walk, tracker: Any) -> None:
    """Dump and load a tracker, and compare its jobs with what has come back."""
    loaded = Tracker.load(decode(b"".join(encode(tracker.dump()))))
    assert loaded._jobs.keys() == tracker._jobs.keys()
    for name, job in tracker._jobs.items():
        walk.of(job, loaded._jobs[name])


@pytest.mark.thorough
def test_every_field_survives_a_dump_and_load() -> None:
    walk = walked()
    objects = {each for each, told in walk.seen.items() if "object" in told}
    unproved = {each for each, told in walk.seen.items() if len(told) < 2} - CONSTANT - objects
    assert not unproved, "of these the states have shown one value only, so nothing shows that it comes back"
    classes = {kind for kind, _ in walk.seen}
    assert classes == set(DERIVED), "some have no state any more, or were not looked at"


def test_a_field_that_is_forgotten_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Tracker.load.__func__  # type: ignore[attr-defined]

    def forgetful(cls: type[Tracker], dump: dict[str, Any]) -> Tracker:
        tracker: Tracker = load(cls, dump)
        for job in tracker._jobs.values():
            job.late_reports = 0
        return tracker

    monkeypatch.setattr(Tracker, "load", classmethod(forgetful))
    with pytest.raises(AssertionError, match="late_reports"):
        walked()
