"""The kinds of faults: what each does to a cluster, and how it ends."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

from tests.checker.cluster import Cluster, Place
from tests.checker.store import Disk, RedisStore
from tests.client.processes import TRACKER, Line
from tracker.client import TrackerClient, TrackerError, TrackerUnavailable

Options: TypeAlias = dict[str, Any]
#: Strikes; returns what was found out, and what ends the fault.
Strike: TypeAlias = Callable[[Cluster, str, Options], tuple[dict[str, Any], Callable[[], None]]]

REDIS: Final = ("redis",)
OBJECTS: Final = ("objects",)
ANY: Final = ("redis", "sqlite", "objects")
LEASE_S: Final = 1.0  # of the checked trackers
_LOOK_S: Final = 0.005
_ANSWER_S: Final = 2.0


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Args:
        strike: makes it.
        journals: for which it is possible.
        lasts: seconds, the least and the most.
        options: draws what else it needs.
        weight: how often it is drawn.
        prepare: what the cluster needs for it.
        alone: whether nothing else may happen at the same time, since who knows of a loss must live.
    """

    strike: Strike
    journals: tuple[str, ...]
    lasts: tuple[float, float]
    options: Callable[[Random], Options] = lambda _: {}
    weight: float = 1.0
    prepare: Callable[[Cluster], None] = lambda _: None
    alone: bool = False


def _nothing() -> None:
    pass


def _kill(cluster: Cluster, target: str, _: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    place = cluster.place(target)
    cluster.down(place, place.server.kill)
    return {"place": place.number}, lambda: cluster.up(place)


def _kill_both(cluster: Cluster, _: str, __: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    for place in cluster.places:
        cluster.down(place, place.server.kill)

    def end() -> None:
        for place in cluster.places:
            cluster.up(place)

    return {}, end


def _stop(cluster: Cluster, target: str, _: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    place = cluster.place(target)
    if not place.server.is_running:
        return {"place": place.number, "missed": True}, _nothing
    cluster.down(place, place.server.ask_to_stop)
    return {"place": place.number}, lambda: cluster.up(place)


def _sleep(cluster: Cluster, target: str, _: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    place = cluster.place(target)
    if not place.server.is_running:
        return {"place": place.number, "missed": True}, _nothing
    process = place.process
    place.sleeps += 1
    place.server.freeze()

    def end() -> None:
        if place.process == process and place.server.is_running:
            place.sleeps = max(0, place.sleeps - 1)
            if not place.sleeps:
                place.server.thaw()

    return {"place": place.number}, end


def _hold(lines: list[Line], options: Options) -> Callable[[], None]:
    """Hold back bytes; at the end they arrive late, or their connections end."""
    for line in lines:
        line.hold(options["requests"], options["answers"])

    def end() -> None:
        for line in lines:
            if options["late"]:
                line.release()
            else:
                line.cut()

    return end


def _wires(place: Place) -> list[Line]:
    return [place.wire] if place.wire is not None else []


def _cut_clients(cluster: Cluster, target: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    place = cluster.place(target)
    lines = place.lines if options["everyone"] else place.lines[::2]
    return {"place": place.number}, _hold(lines, options)


def _cut_journal(cluster: Cluster, target: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    place = cluster.place(target)
    return {"place": place.number}, _hold(_wires(place), options)


def _isolate(cluster: Cluster, target: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    place = cluster.place(target)
    return {"place": place.number}, _hold([*place.lines, *_wires(place)], options)


def _reset(cluster: Cluster, target: str, _: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    place = cluster.place(target)
    lines = [*place.lines, *_wires(place)]
    for line in lines:
        line.refuses = True
        line.cut()

    def end() -> None:
        for line in lines:
            line.refuses = False

    return {"place": place.number}, end


def _clock(cluster: Cluster, target: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    place = cluster.place(target)
    place.weather.set(clock=options["seconds"])
    return {"place": place.number}, place.weather.set


def _slow_redis(cluster: Cluster, target: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    place = cluster.place(target)
    lines = [line for each in cluster.places for line in _wires(each)] if options["everyone"] else _wires(place)
    for line in lines:
        line.delay = options["seconds"]

    def end() -> None:
        for line in lines:
            line.delay = 0.0

    return {"place": place.number}, end


def _half_open(cluster: Cluster, target: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    """Leave connections half open for good: neither end is notified later, either."""
    place = cluster.place(target)
    for line in [*_wires(place), *place.lines[:: options["every"]]]:
        line.forget(options["callers"])
    return {"place": place.number}, _nothing


def _meanwhile(
    work: Callable[[threading.Event, dict[str, Any]], None],
) -> tuple[dict[str, Any], Callable[[], None]]:
    """Do work that takes a while beside other faults; it notes what it finds out, and ends when it is asked to."""
    found: dict[str, Any] = {}
    ends = threading.Event()
    thread = threading.Thread(target=work, args=[ends, found], daemon=True)
    thread.start()

    def end() -> None:
        ends.set()
        thread.join()

    return found, end


def _kill_heirs(cluster: Cluster, _: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    """Kill the leader, and then those who follow it, while they recover."""

    def kill(place: Place) -> None:
        cluster.down(place, place.server.kill)

    def work(ends: threading.Event, found: dict[str, Any]) -> None:
        leader = cluster.place("leader")
        kill(leader)
        cluster.up(leader)
        found["in recovery"] = 0
        while found["in recovery"] < options["times"] and not ends.wait(_LOOK_S):
            heir = next((place for place in cluster.places if place.recovers), None)
            if heir is not None:
                time.sleep(options["after"])
                found["in recovery"] += heir.recovers
                kill(heir)
                cluster.up(heir)

    return _meanwhile(work)


def _move(cluster: Cluster, _: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    """Have the leader hand over, or stop, and kill one of both meanwhile."""

    def work(ends: threading.Event, found: dict[str, Any]) -> None:
        leader = cluster.place("leader")
        if options["by"] == "stop":
            cluster.down(leader, leader.server.ask_to_stop if leader.server.is_running else _nothing)
            cluster.up(leader)
        else:
            with TrackerClient(leader.server.address, timeout=_ANSWER_S, retry_for=0) as client:
                try:
                    found["to"] = client.move_leader()
                except (TrackerError, TrackerUnavailable) as error:
                    found["error"] = str(error)[:200]
        struck = {"leader": leader, "standby": cluster.places[1 - leader.number]}.get(options["kill"])
        if struck is not None:
            ends.wait(options["after"])
            cluster.down(struck, struck.server.kill)
        if "to" in found and struck is not leader:
            leader.begins_again()
        if struck is not None:
            ends.wait()
            cluster.up(struck)

    return _meanwhile(work)


def _restore(cluster: Cluster, _: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    """Move the journal into a backup and back; the restore is killed, and repeated if no tracker starts after it."""
    for place in cluster.places:
        cluster.down(place, place.server.kill)
    found: dict[str, Any] = {}
    if cluster.store is None or cluster.store.answers:
        file = str(cluster.data / "backup")
        restore = [*TRACKER, "restore", file, "--journal", cluster.journal, "--same-log", "--replace"]
        backup = [*TRACKER, "backup", file, "--journal", cluster.journal, "--final"]
        made = subprocess.run(backup, check=False, capture_output=True, text=True)
        if made.returncode == 0:
            process = subprocess.Popen(restore, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while process.poll() is None and not cluster.awaits_backup:
                time.sleep(0.0005)
            time.sleep(options["after"])
            process.kill()
            found["killed"] = process.wait() < 0
            place = cluster.places[0]
            place.restart()  # by somebody who does not know that the restore was interrupted
            while place.server.is_running and "msg=serving" not in place.last_words:
                time.sleep(_LOOK_S)
            found["refused"] = not place.server.is_running
            if found["refused"]:
                found["why"] = place.last_words[-200:]
                subprocess.run(restore, check=True, capture_output=True)
        else:
            found["missed"] = made.stderr[-200:]
    for place in cluster.places:
        cluster.up(place)
    return found, _nothing


def _late_objects(cluster: Cluster, _: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    for place in cluster.places:
        place.weather.set(late=options["share"])

    def end() -> None:
        for place in cluster.places:
            place.weather.set()

    return {}, end


def _store(cluster: Cluster) -> RedisStore:
    assert cluster.store is not None
    return cluster.store


def _end_lease(cluster: Cluster, _: str, __: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    if not _store(cluster).answers:
        return {"missed": True}, _nothing
    _store(cluster).end_lease()
    return {}, _nothing


def _kill_redis(cluster: Cluster, _: str, __: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    _store(cluster).kill()
    return {}, _store(cluster).start_again


def _sleep_redis(cluster: Cluster, _: str, __: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    if not _store(cluster).server.is_running:
        return {"missed": True}, _nothing
    _store(cluster).sleep()
    return {}, _store(cluster).wake


def _fill_redis(cluster: Cluster, _: str, __: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    if not _store(cluster).answers:
        return {"missed": True}, _nothing
    _store(cluster).fill()
    return {}, _store(cluster).empty


def _fill_disk(cluster: Cluster, _: str, __: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    cluster.fill_the_disk()
    return {}, cluster.free_the_disk


def _promote(cluster: Cluster, _: str, __: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    return {"lost": _store(cluster).promote(waits=True)}, _nothing


def _promote_older(cluster: Cluster, _: str, __: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    store = _store(cluster)
    store.hold_replication()
    found: dict[str, Any] = {}

    def end() -> None:
        cluster.accepts_loss = True
        found["lost"] = store.promote(waits=False)

    return found, end


def _lose(cluster: Cluster, _: str, options: Options) -> tuple[dict[str, Any], Callable[[], None]]:
    """Copy the data, and lose some at the end, with the leader dead or alive; the standby has read what is lost.

    With `unread` there is no standby that reads.
    """
    store = _store(cluster)
    if not store.answers:
        return {"missed": True}, _nothing
    found: dict[str, Any] = {"copied": store.keep_a_copy()}

    def end() -> None:
        leader = cluster.leader()
        stands_by = leader is not None and cluster.places[1 - leader.number].stands_by
        read = store.answers and (options.get("unread") or store.has_been_read())
        if leader is None or not stands_by or not read or store.last <= found["copied"]:
            found["missed"] = True
            return
        cluster.accepts_loss = True
        if options["dead"]:
            cluster.down(leader, leader.server.kill)
        found["lost"] = store.lose(options["how"])
        cluster.up(leader)

    return found, end


def _losing(*hows: str) -> Kind:
    return Kind(
        _lose,
        REDIS,
        (0.8, 2),
        lambda random: {"how": random.choice(hows), "dead": random.random() < 0.5},
        weight=0.3,
        alone=True,
    )


def _cut_options(random: Random) -> Options:
    requests, answers = random.choice([(True, True), (True, True), (True, False), (False, True)])
    return {"requests": requests, "answers": answers, "late": random.random() < 0.5}


LONG: Final = (1.2 * LEASE_S, 3 * LEASE_S)

KINDS: Final[dict[str, Kind]] = {
    "kill": Kind(_kill, ANY, (0.1, 2), weight=3),
    "kill both": Kind(_kill_both, ANY, (0.1, 1)),
    "stop": Kind(_stop, ANY, (0.1, 2)),
    "sleep": Kind(_sleep, ANY, LONG, weight=3),
    "nap": Kind(_sleep, ANY, (0.1, 0.7 * LEASE_S)),
    "cut clients": Kind(
        _cut_clients, ANY, (0.3, 3), lambda random: {**_cut_options(random), "everyone": random.random() < 0.5}
    ),
    "cut journal": Kind(_cut_journal, REDIS, (LONG[0], 6 * LEASE_S), _cut_options, 3),
    "isolate": Kind(_isolate, REDIS, LONG, _cut_options, 2),
    "slow redis": Kind(
        _slow_redis,
        REDIS,
        (3, 7),
        lambda random: {"seconds": random.choice([0.1, 5.0]), "everyone": random.random() < 0.5},
    ),
    "half open": Kind(
        _half_open,
        ANY,
        (0, 0),
        lambda random: {"callers": random.random() < 0.5, "every": random.choice([1, 2])},
        weight=1.5,
    ),
    "kill heirs": Kind(
        _kill_heirs, ANY, (4, 8), lambda random: {"times": 2, "after": random.choice([0, 0.005, 0.02, 0.05])}
    ),
    "move": Kind(
        _move,
        ANY,
        (1, 3),
        lambda random: {
            "by": random.choice(["move", "move", "stop"]),
            "kill": random.choice(["", "leader", "standby"]),
            "after": random.choice([0, 0.05, 0.2, 0.5]),
        },
    ),
    "restore": Kind(
        _restore,
        ("redis", "sqlite"),
        (0, 0),
        lambda random: {"after": random.choice([0, 0, 0.005, 0.02])},
        weight=0.3,
        alone=True,
    ),
    "reset": Kind(_reset, ANY, (0.1, 2)),
    "clock": Kind(_clock, ANY, (0.5, 5), lambda random: {"seconds": random.choice([-3600, -5, 5, 30, 3600])}, 2),
    "late objects": Kind(_late_objects, OBJECTS, (2, 6), lambda random: {"share": random.choice([0.1, 0.3, 0.6])}, 3),
    "end lease": Kind(_end_lease, REDIS, (0, 0), weight=2),
    "kill redis": Kind(_kill_redis, REDIS, (0.1, 2)),
    "sleep redis": Kind(_sleep_redis, REDIS, LONG),
    "fill redis": Kind(_fill_redis, REDIS, (0.5, 3)),
    "fill disk": Kind(
        _fill_disk,
        ANY if Disk.can_be_had() else (),
        (0.5, 2),
        weight=0.5,
        prepare=lambda cluster: cluster.use_a_small_disk(),
    ),
    "promote": Kind(_promote, REDIS, (0, 0), weight=0.5, prepare=lambda cluster: _store(cluster).add_replica()),
    "promote older": Kind(
        _promote_older,
        REDIS,
        (0.5, 2),
        weight=0.7,
        prepare=lambda cluster: _store(cluster).add_replica(),
        alone=True,
    ),
    "older redis": _losing("older"),
    "empty redis": _losing("empty"),
    "part of redis": _losing("no log", "no top"),
    "evicting redis": _losing("evicted"),
}
