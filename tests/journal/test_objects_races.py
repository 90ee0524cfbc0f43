"""Trackers that race for one log in an object store, killed and paused at every request, while the store misbehaves.

Each tracker acts in steps, and others act between any two requests of a step: so one that is paused in the middle of
a write goes on when the log has long been another's. At the end a tracker without faults reads the log.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.journal.faulty_objects import FaultyObjects, KilledError, Shelf
from tracker.journal import JournalError, Record
from tracker.journal.objects import lease as leases
from tracker.journal.objects import log as logs
from tracker.journal.objects import snapshots
from tracker.journal.objects.journal import ObjectsJournal
from tracker.journal.objects.log import name_of
from tracker.store import NoAnswerError, StoreError

_STEPS = 60
_DEPTH = 3  # how many are in the middle of something, one within the other
_LEASE = 10.0


class SameThread:
    """A reader in the caller's thread, so that a seed always gives the same run."""

    def __init__(self, *_: Any) -> None:
        pass

    map = staticmethod(map)

    def shutdown(self, **_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "ThreadPoolExecutor", SameThread)
    monkeypatch.setattr(logs, "_PAUSE_S", 0)
    monkeypatch.setattr(snapshots, "_PAUSE_S", 0)
    monkeypatch.setattr(leases.Lease, "_keep", lambda _: None)


class World:
    """The trackers, the store, the time, and what was acknowledged."""

    def __init__(self, seed: int, marks: Path) -> None:
        self.random = Random(seed)
        self.marks = marks
        self.shelf = Shelf(self.random)
        self.now = 0.0
        self.acknowledged: dict[int, bytes] = {}
        self.made = 0
        self.led = 0
        self.trackers = [Tracker(self) for _ in range(3)]
        self._depth = 0

    def meanwhile(self) -> None:
        """Let others act between two requests of a tracker."""
        if self._depth < _DEPTH and self.random.random() < 0.05:
            self.step()

    def step(self) -> None:
        self._depth += 1
        try:
            self.now += self.random.choice((0.1, 2.0, 6.0))
            if self.random.random() < 0.3:
                self.shelf.deliver()
            idle = [tracker for tracker in self.trackers if not tracker.acts]
            if idle:
                self.random.choice(idle).act()
        finally:
            self._depth -= 1

    def read(self) -> list[bytes]:
        """Return all records, as a tracker without faults recovers them."""
        while True:
            self.now += _LEASE
            journal = ObjectsJournal(
                FaultyObjects(self.shelf, self.random), "test", _LEASE, str(self.marks), True, lambda: self.now
            )
            for _ in range(3):
                self.now += _LEASE
                if journal.try_to_own():
                    recovery = journal.recover()
                    assert recovery.damage == ()
                    journal._marks.close()
                    return [*(recovery.state or []), *(record.payload for record in recovery.records)]


class Tracker:
    """One that leads, wants to, or is in the middle of something."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._journal: ObjectsJournal | None = None
        self._following: Any = None
        self._records: list[bytes] = []
        self._leads = False
        self.acts = False

    def act(self) -> None:
        self.acts = True
        try:
            self._step()
        except KilledError:
            if self._journal is not None:
                self._journal._marks.close()  # as the system closes the files of who was killed
            self._journal = None
        except JournalError:
            if self._journal is not None:
                with suppress(KilledError):
                    self._journal.close()
            self._journal = None
        finally:
            self.acts = False

    def _step(self) -> None:
        random = self._world.random
        if self._journal is None:
            self._start()
        elif not self._leads:
            self._want()
        else:
            action = random.choice(["append"] * 4 + ["snapshot"] * 4 + ["beat", "close", "kill"])
            if action == "kill":
                raise KilledError
            getattr(self, f"_{action}")()

    def _start(self) -> None:
        world = self._world
        objects = FaultyObjects(world.shelf, world.random, 0.06, world.meanwhile)
        self._leads = False
        self._journal = ObjectsJournal(objects, "test", _LEASE, str(world.marks), True, lambda: world.now)
        state, self._following = self._journal.follow()
        self._records = list(state or [])

    def _want(self) -> None:
        assert self._journal is not None
        for number, record in self._following.records():
            assert number == len(self._records) + 1
            self._records.append(record.payload)
        if self._journal.try_to_own():
            recovery = self._journal.recover(followed=self._following.place)
            assert recovery.damage == ()
            assert recovery.number == len(self._records)
            self._records += [record.payload for record in recovery.records]
            self._leads = True
            self._world.led += 1

    def _append(self) -> None:
        assert self._journal is not None
        group = []
        for _ in range(self._world.random.randint(1, 3)):
            self._world.made += 1
            group.append(b"%d" % self._world.made)
        number = self._journal.append([Record(1, 0, payload) for payload in group])
        self._records += group
        assert number == len(self._records)
        for each, payload in enumerate(group, number - len(group) + 1):
            assert each not in self._world.acknowledged, "two trackers have acknowledged the same number"
            self._world.acknowledged[each] = payload

    def _snapshot(self) -> None:
        assert self._journal is not None
        if self._records:
            self._journal.snapshot(len(self._records), list(self._records))

    def _beat(self) -> None:
        assert self._journal is not None
        with suppress(StoreError):
            self._journal._lease.beat()

    def _close(self) -> None:
        assert self._journal is not None
        self._journal.close()
        self._journal = None


def run(seed: int, marks: Path) -> World:
    """Let the trackers race, and check what is left."""
    world = World(seed, marks)
    for _ in range(_STEPS):
        world.step()
    found = world.read()
    assert len(set(found)) == len(found), "a record is there twice"
    for number, payload in world.acknowledged.items():
        assert found[number - 1] == payload, f"record {number} was acknowledged and is not there"
    return world


@pytest.mark.parametrize(
    "seeds", [range(15), pytest.param(range(15, 6_000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_whoever_races_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, seeds: range) -> None:
    led = sum(run(seed, tmp_path).led for seed in seeds)
    assert led > len(seeds), "the trackers hardly ever led, so nothing was tried"


# ---------------------------------------------------------------- whether a fault would be found


def _ignore_the_condition(shelf: Shelf, name: str, data: bytes) -> bool:
    shelf.put(name, data)
    return True


def _remove_claims(log: logs.Log, position: int) -> None:
    log._objects.delete([name_of(each) for each in log.positions() if each < position])


def _trust_any_claim(*_: object) -> bool:
    return True


def _acknowledge_without_an_answer(log: logs.Log, position: int, content: bytes) -> None:
    with suppress(NoAnswerError):
        name = name_of(position)
        if not log._objects.create(name, content) and log._objects.get(name) != content:
            log._moved(log.read(position))


def _take_any_entry_for_its_own(log: logs.Log, position: int, content: bytes) -> None:
    while True:
        with suppress(NoAnswerError):
            log._objects.create(name_of(position), content)
            return


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (Shelf, "create", _ignore_the_condition),
        (logs.Log, "_insist", _acknowledge_without_an_answer),
        (logs.Log, "_insist", _take_any_entry_for_its_own),
        pytest.param(leases.Lease, "_is_valid", _trust_any_claim, marks=pytest.mark.slow),
        pytest.param(logs.Log, "trim", _remove_claims, marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: type, name: str, fault: Any
) -> None:
    monkeypatch.setattr(where, name, fault)
    for seed in range(6_000):
        try:
            run(seed, tmp_path)
        except (AssertionError, JournalError, LookupError):
            return
    raise AssertionError("6,000 runs have not found it")
