"""Nothing acknowledged is lost without a decision, whatever is killed and whatever the store loses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.journal.redis_server import RedisServer, needs_redis
from tracker.journal import Record
from tracker.server import lanes

from .files import Sqlite
from .judging import FoundOut
from .machines import Machines
from .plants import PLANTS
from .schedule import Process, Schedule, StuckError, installed
from .stores import Objects, Redis, Weather
from .world import World

_PACKAGES = ("tracker.journal", "tracker.server")


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), appendonly="no")
    yield server
    server.kill()


def play_objects(seed: int, base: Path, losses: bool) -> World:
    """Play a seed over an object store."""

    def store(schedule: Schedule, weather: Weather) -> Objects:
        return Objects(schedule, weather, Machines(schedule, base, apart=schedule.random.random() < 0.3))

    return _play(World(seed, store, losses=losses), seed)


def play_redis(seed: int, port: int, base: Path, losses: bool) -> World:
    """Play a seed over Redis."""

    def store(schedule: Schedule, weather: Weather) -> Redis:
        machines = Machines(schedule, base, apart=schedule.random.random() < 0.3)
        return Redis(port, f"sim{seed}", schedule, weather, machines)

    world = World(seed, store, losses=losses)
    assert isinstance(world.store, Redis)
    with ExitStack() as stack:
        stack.callback(world.store.close)
        stack.enter_context(world.store.interrupted())
        return _play(world, seed)


def play_sqlite(seed: int, base: Path, losses: bool) -> World:
    """Play a seed over a file."""
    world = World(seed, lambda schedule, weather: Sqlite(base, schedule, weather), losses=losses)
    assert isinstance(world.store, Sqlite)
    with ExitStack() as stack:
        stack.callback(world.store.close)
        stack.enter_context(world.store.interrupted())
        return _play(world, seed)


def play(journal: str, seed: int, port: int, base: Path, losses: bool) -> World:
    """Play a seed over one of the journals: ``redis``, at a port, ``file`` or ``objects``."""
    if journal == "redis":
        return play_redis(seed, port, base, losses)
    return {"file": play_sqlite, "objects": play_objects}[journal](seed, base, losses)


def _play(world: World, seed: int) -> World:
    logging.disable(logging.CRITICAL)
    try:
        machines = world.store.machines.interrupted()
        with installed(world.schedule, _PACKAGES), machines, pytest.MonkeyPatch.context() as change:
            if seed % 2:  # all commands are carried out in threads
                change.setattr(lanes, "LONG", -1)
                change.setattr(lanes, "_VERY_LONG", -1)
            world.run()
    except (FoundOut, StuckError) as found:
        raise AssertionError("\n".join([str(found), *world.story[:60]])) from found
    finally:
        logging.disable(logging.NOTSET)
    return world


FEW_AND_MANY = pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 5_000), marks=pytest.mark.slow)], ids=["few", "many"]
)
KILLS_AND_LOSSES = pytest.mark.parametrize("losses", [False, True], ids=["kills", "losses"])


@pytest.mark.thorough
@FEW_AND_MANY
@KILLS_AND_LOSSES
def test_over_an_object_store_whatever_is_acknowledged_stays(tmp_path: Path, seeds: range, losses: bool) -> None:
    led = sum(play_objects(seed, tmp_path / str(seed), losses).led for seed in seeds)
    assert led > 2 * len(seeds), "the trackers hardly ever led, so nothing was tried"


@FEW_AND_MANY
@KILLS_AND_LOSSES
def test_over_a_file_whatever_is_acknowledged_stays(tmp_path: Path, seeds: range, losses: bool) -> None:
    led = sum(play_sqlite(seed, tmp_path / str(seed), losses).led for seed in seeds)
    assert led > 2 * len(seeds), "the trackers hardly ever led, so nothing was tried"


@pytest.mark.thorough
@needs_redis
@FEW_AND_MANY
@KILLS_AND_LOSSES
def test_over_redis_whatever_is_acknowledged_stays(
    redis_server: RedisServer, tmp_path: Path, seeds: range, losses: bool
) -> None:
    led = sum(play_redis(seed, redis_server.port, tmp_path / str(seed), losses).led for seed in seeds)
    assert led > 2 * len(seeds), "the trackers hardly ever led, so nothing was tried"


@pytest.mark.thorough
@needs_redis
def test_reporters_repeat_what_a_late_restore_takes_away(redis_server: RedisServer, tmp_path: Path) -> None:
    play_redis(30_024, redis_server.port, tmp_path, losses=False)  # the restore is over after all else has ended


def test_a_process_that_ends_closes_its_file_whoever_has_the_lock(tmp_path: Path) -> None:
    schedule = Schedule(Random(1))
    store = Sqlite(tmp_path / "files", schedule, Weather(schedule, 0.0))
    ended, other, found = Process("one"), Process("two"), list[Record]()
    told = [Record(1, 2, b"three")]

    def leave() -> None:
        journal = store.journal()
        journal.recover()
        journal.append(told)
        journal._ownership.release()
        schedule.pause(None)

    def follow() -> None:
        schedule.pause(1.0)
        journal = store.journal()
        schedule.kill(ended)
        found.extend(journal.recover().records)
        journal.close()

    with ExitStack() as stack:
        stack.callback(store.close)
        for each in (installed(schedule, _PACKAGES), store.machines.interrupted(), store.interrupted()):
            stack.enter_context(each)
        schedule.start(ended, leave)
        strand = schedule.start(other, follow)
        schedule.run(lambda: strand.done)
        assert found == told, "what was written stays, and no lock"


# ---------------------------------------------------------------- whether a fault would be found

SOON = {  # within 25 seeds
    "S1: a tracker compares nothing": [],
    "S2: marks outlast answers": [pytest.mark.thorough],
    "S7: a demoted master confirms who leads": [pytest.mark.thorough],
}


@pytest.mark.thorough
@needs_redis
@pytest.mark.parametrize("plant", [pytest.param(each, marks=SOON.get(each, [pytest.mark.slow])) for each in PLANTS])
def test_a_mend_that_is_taken_out_is_found_out(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    store, losses, take_out = PLANTS[plant]
    take_out(monkeypatch)
    for seed in range(1_000):
        try:
            play(store, seed, redis_server.port, tmp_path / str(seed), losses)
        except AssertionError:
            return
    pytest.fail("1,000 runs have not found it")
