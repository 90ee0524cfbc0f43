"""The kinds of faults: what each does to a cluster, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

from tests.checker.cluster import Cluster, Place
from tests.checker.store import RedisStore
from tests.client.processes import Line

Options: TypeAlias = dict[str, Any]
#: Strikes; returns what was found out, and what ends the fault.
Strike: TypeAlias = Callable[[Cluster, str, Options], tuple[dict[str, Any], Callable[[], None]]]

REDIS: Final = ("redis",)
OBJECTS: Final = ("objects",)
ANY: Final = ("redis", "sqlite", "objects")
LEASE_S: Final = 1.0  # of the checked trackers


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
    """Holds back bytes; at the end they arrive late, or their connections end."""
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
    _store(cluster).fill_the_disk()
    return {}, _store(cluster).free_the_disk


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
    """Copies the data, and loses some at the end, with the leader dead or alive; the standby has read what is lost."""
    store = _store(cluster)
    if not store.answers:
        return {"missed": True}, _nothing
    store.keep_a_copy()
    found: dict[str, Any] = {}

    def end() -> None:
        leader = cluster.leader()
        if not store.answers or leader is None or not cluster.places[1 - leader.number].stands_by:
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
        weight=0.5,
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
    "reset": Kind(_reset, ANY, (0.1, 2)),
    "clock": Kind(_clock, ANY, (0.5, 5), lambda random: {"seconds": random.choice([-3600, -5, 5, 30, 3600])}, 2),
    "late objects": Kind(_late_objects, OBJECTS, (2, 6), lambda random: {"share": random.choice([0.1, 0.3, 0.6])}, 3),
    "end lease": Kind(_end_lease, REDIS, (0, 0), weight=2),
    "kill redis": Kind(_kill_redis, REDIS, (0.1, 2)),
    "sleep redis": Kind(_sleep_redis, REDIS, LONG),
    "fill redis": Kind(_fill_redis, REDIS, (0.5, 3)),
    "fill disk": Kind(
        _fill_disk,
        REDIS if RedisStore.can_have_a_disk() else (),
        (0.5, 2),
        weight=0.5,
        prepare=lambda cluster: _store(cluster).use_a_small_disk(),
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
