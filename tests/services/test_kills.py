"""Services that are killed at any step: ends and their counts are those of an independent list of the orders."""

from __future__ import annotations

import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.processes import Server
from tests.services.lives import Task, command
from tests.services.shop import Shop

WAYS = pytest.mark.parametrize("way", ["transactions", "outbox"])
_LATEST = 45  #: a step that most lives reach
_PATIENCE = 240


def live(shop: Shop, tracker: Server, path: Path, way: str, kills: tuple[list[int], list[int]], seed: int = 1) -> None:
    """Let a producer and a consumer work side by side, with these kills of each, and judge what has become of it."""
    outbox = str(path / "outbox") if way == "outbox" else None
    task = Task(
        "produce", tracker.address, shop.servers, shop.job, shop.topic, kills[0], outbox, seed, str(path / "seen")
    )
    tasks = [task, replace(task, service="consume", kills=kills[1])]
    logs = [path / f"{each.service}.log" for each in tasks]
    running = [
        subprocess.Popen(command(each), stdout=log.open("w"), stderr=subprocess.STDOUT)
        for each, log in zip(tasks, logs, strict=True)
    ]
    try:
        codes = [each.wait(_PATIENCE) for each in running]
    finally:
        for each in running:
            each.kill()
    told = [log.read_text() for log in logs]
    print(
        *(
            f"{len(each.kills)} kills drawn, {text.count('has ended at step')} came"
            for each, text in zip(tasks, told, strict=True)
        )
    )
    assert codes == [0, 0], told
    assert shop.ended() == task.truth, told
    seen = (path / "seen").read_text().split()
    assert {*seen} == {number for _, number in task.orders}
    status = shop.client.job(shop.job)
    assert (status.open_substreams, status.in_flight, status.late_reports, status.staged_units) == (0, 0, 0, 0)


def drawn(number: int, seed: int) -> list[int]:
    return [random.Random(f"{seed}/{each}").randrange(1, _LATEST) for each in range(number)]


@WAYS
def test_services_that_are_killed_bring_exactly_the_ends_of_what_was_sent(
    shop: Shop, tracker: Server, tmp_path: Path, way: str
) -> None:
    live(shop, tracker, tmp_path, way, (drawn(8, 1), drawn(5, 2)))


@pytest.mark.thorough
@WAYS
def test_a_producer_is_killed_at_every_step(shop: Shop, tracker: Server, tmp_path: Path, way: str) -> None:
    live(shop, tracker, tmp_path, way, ([*range(1, _LATEST)], []))


@pytest.mark.thorough
def test_a_consumer_is_killed_at_every_step(shop: Shop, tracker: Server, tmp_path: Path) -> None:
    live(shop, tracker, tmp_path, "transactions", ([], [*range(1, _LATEST)]))


@pytest.mark.thorough
@WAYS
@pytest.mark.parametrize("seed", range(2, 6))
def test_drawn_lives(shop: Shop, tracker: Server, tmp_path: Path, way: str, seed: int) -> None:
    live(shop, tracker, tmp_path, way, (drawn(20, seed), drawn(20, seed + 100)), seed)
