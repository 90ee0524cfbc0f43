"""Ends that come in order: who holds them back is named, and no kill of the server changes the order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tracker.client import Ended, JobStatus, TrackerClient, label
from tracker.client.texts import why_open

SCOPES = ["BOS", "JFK", "SEA"]
DAYS = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


def days_of_all_but_one(client: TrackerClient, ordering: str, hanging: str) -> JobStatus:
    """Give each scope its days, all promised; of the first day of one scope, an element is missing."""
    client.define_job(spec("flights", ordering=ordering, fronts=["schedule"]))
    producer = client.open_producer("flights", "q", "r1")
    for day in reversed(range(DAYS)):
        report = producer.epoch(DAYS - 1 - day)
        for scope in SCOPES:
            report.sent("raw", scope, f"day {day}", label("x"), end_time=day)
            if (scope, day) != (hanging, 0):
                report.received("raw", scope, f"day {day}", label("x"), end_time=day)
        report.report(units=["a"], commit=True)
    last = producer.epoch(DAYS)
    last.frontier("schedule", DAYS)
    last.report(units=["a"], commit=True)
    return client.job("flights")


def ends(client: TrackerClient) -> list[tuple[str, int | None]]:
    kinds = [event.kind for event in client.list_events("flights", limit=1000).events]
    return [(kind.scope, kind.end_time) for kind in kinds if isinstance(kind, Ended)]


@pytest.mark.parametrize(
    ("ordering", "held"), [("global", SCOPES), pytest.param("scope", ["SEA"], marks=pytest.mark.thorough)]
)
def test_who_holds_others_back_is_named_though_the_server_is_killed(
    server: Server, ordering: str, held: list[str]
) -> None:
    with TrackerClient(server.address) as client:
        job = days_of_all_but_one(client, ordering, hanging="SEA")
        free = [(scope, day) for day in range(DAYS) for scope in SCOPES if scope not in held]
        first = [(scope, 0) for scope in SCOPES if scope != "SEA" and scope in held]
        before = ends(client)
        assert sorted(before) == sorted(free + first)
        for scope in held:
            found = client.explain("flights", scope, "day 3")
            own = (DAYS - 2) * (len(SCOPES) if ordering == "global" else 1)
            assert found.earlier_count == own + 1  # the days between, and the one that hangs
            assert (found.earlier[0].scope, found.earlier[0].name) == ("SEA", "day 0")
            why = list(why_open(job, found))
            assert (
                why[0]
                == f"its end waits for {own + 1} substreams that end earlier and have not ended (ordering {ordering})"
            )
            assert why[1].startswith("day 0 of scope 'SEA' holds it back: segment 'raw': 1 in flight")
            assert why[2].endswith(f"`tracker explain flights {found.earlier[1].scope} 'day 1'` tells why")
        found = client.explain("flights", "SEA", "day 0")
        assert (found.earlier, found.earlier_count) == ((), 0)  # it waits for its own element
        server.kill()
        server.start()
        assert client.explain("flights", held[0], "day 3").earlier[0].scope == "SEA"
        assert ends(client) == before
        client.abandon("flights", "SEA", "day 0")
        after = ends(client)
        server.kill()
        server.start()
        assert ends(client) == after
    assert len(set(after)) == len(after) == DAYS * len(SCOPES)
    for scopes in [SCOPES] if ordering == "global" else [[scope] for scope in SCOPES]:
        days = [day for scope, day in after if scope in scopes]
        assert days == sorted(days)  # type: ignore[type-var]


def test_without_an_ordering_nothing_is_held_back(server: Server) -> None:
    with TrackerClient(server.address) as client:
        days_of_all_but_one(client, "none", hanging="SEA")
        assert len(ends(client)) == DAYS * len(SCOPES) - 1
        found = client.explain("flights", "SEA", "day 0")
        assert (found.earlier, found.earlier_count) == ((), 0)
