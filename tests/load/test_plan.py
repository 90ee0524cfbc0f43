"""Promises of a plan to those who act on it. No tracker is needed to see it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest

from tracker.load.plan import Plan
from tracker.load.scenario import read

SMALL = {"rate": 40, "warm_up": 0.5, "duration": 4, "producers": 3, "processes": 1, "open": 60, "lifetime": 2}

PLANS = pytest.mark.parametrize(
    "said",
    [
        SMALL,
        SMALL | {"arrival": "constant", "segments": 1, "hop": 0},
        SMALL | {"skew": 1.5, "segments": 4},
        SMALL | {"producers": 1, "open": 7},
        SMALL | {"lifetime": 100, "open": 3},
    ],
)


@PLANS
def test_each_element_is_sent_and_received_once_on_each_segment(said: dict[str, Any]) -> None:
    plan = Plan(read(said))
    accounts: defaultdict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for producer in range(plan.producers):
        for tick in range(plan.ticks):
            for stage, source, rows in plan.batches(producer, tick):
                assert producer == plan.handler(source, stage)
                if stage > 0 and tick < plan.ticks - 1:
                    sent = plan.handled(source, stage - 1)[rows.ticks]
                    waited = plan.due[producer, tick] - plan.due[plan.handler(source, stage - 1)][sent]
                    assert waited.min() >= plan.scenario.hop
                for segment, column in ((stage, 2), (stage + 1, 1)):
                    if 0 < segment <= plan.scenario.segments:
                        labels = rows.labels(segment).tolist()
                        places = plan.place(rows.slots, rows.generations).tolist()
                        for place, label in zip(places, labels, strict=True):
                            account = accounts[source, place, segment]
                            account[0] ^= label
                            account[column] += plan.scenario.elements
    assert all(xor == 0 and sent == received for xor, sent, received in accounts.values())
    for source in range(plan.producers):
        elements = plan.expected(source).elements
        for segment in range(1, plan.scenario.segments + 1):
            counted = [accounts[source, place, segment][1] for place in range(plan.substreams)]
            assert counted == elements.tolist()


@PLANS
def test_each_substream_is_closed_once_and_gets_nothing_later(said: dict[str, Any]) -> None:
    plan = Plan(read(said))
    closed = Counter[int]()
    for tick in range(plan.ticks):
        slots, generations = plan.closes(tick)
        places = plan.place(slots, generations)
        closed.update(places.tolist())
        assert (plan.close_ticks[places] == tick).all()
    assert closed == Counter(np.flatnonzero(plan.exists).tolist())
    for source in range(plan.producers):
        expected = plan.expected(source)
        assert (expected.last_ticks[plan.exists] <= plan.close_ticks[plan.exists]).all()
        assert not expected.elements[~plan.exists].any()


@PLANS
def test_it_is_the_same_in_every_process_and_another_with_another_seed(said: dict[str, Any]) -> None:
    one, same, other = Plan(read(said)), Plan(read(said)), Plan(read(said | {"seed": 7}))
    assert (one.due == same.due).all()
    assert (one.rows(0, 0, 20).words == same.rows(0, 0, 20).words).all()
    assert set(one.rows(0, 0, 20).words.tolist()).isdisjoint(other.rows(0, 0, 20).words.tolist())


def test_what_is_sent_together_is_what_is_sent_tick_by_tick() -> None:
    plan = Plan(read(SMALL | {"skew": 1.0}))
    together = plan.rows(1, 0, 50)
    one_by_one = [plan.rows(1, tick, tick + 1) for tick in range(50)]
    assert together.words.tolist() == [word for rows in one_by_one for word in rows.words.tolist()]
    assert together.slots.tolist() == [slot for rows in one_by_one for slot in rows.slots.tolist()]


def test_skew_gives_most_to_a_few() -> None:
    plan = Plan(read(SMALL | {"open": 3_000, "lifetime": 60, "skew": 1.2, "entries": 1_000}))
    slots = np.bincount(plan.rows(0, 0, 20).slots, minlength=plan.slots)
    assert slots[:10].sum() > slots[10:].sum() / 2
    assert slots[0] > slots[1] > slots[4] > slots[50:].max()


def test_names_are_found_again_and_others_are_not() -> None:
    plan = Plan(read(SMALL))
    places = np.flatnonzero(plan.exists)
    slots, generations = np.divmod(places, plan.generations)
    scopes, names = plan.names(2, slots, generations)
    assert [plan.find(scope, name) for scope, name in zip(scopes, names, strict=True)] == [(2, int(p)) for p in places]
    for scope, name in [("tenant-0", "no name"), ("tenant-0", "9-0-0"), ("tenant-1", "0-0-0"), ("tenant-0", "0-0--1")]:
        assert plan.find(scope, name) is None
