"""The judgement itself: each thing that it is to find is planted into a round that is exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from tests.chaos.plan import Shape, files
from tests.chaos.truth import of_counts, of_events
from tracker.client import Ended, Event, Late, Reason

SHAPE = Shape(1, "job", "", "", seal=True, audit=True, splits=False, drains=False)
SPLITTING = replace(SHAPE, splits=True)
Ends = dict[tuple[str, str, str], int]

FED = [row for rows in files(5, 6, marked=True) for row in rows]
CHILDREN = [row for row in FED if row["kind"] != "z"]


def exact(shape: Shape, children: list[dict[str, Any]]) -> Ends:
    """Return the ends of a round in which everything was counted once."""
    ends: Ends = {}
    windows = {_window(row) for row in FED}
    for segment in ("in", "clean", "audit"):
        for window in windows:
            ends[(segment, *window)] = 0
    for row in FED:
        ends[("audit", *_window(row))] += 1
        if row["kind"] == "z" or not shape.splits:
            ends[("in", *_window(row))] += 1
    for child in children:
        ends[("clean", *_window(child))] += 1
        if shape.splits:
            ends[("in", *_window(child))] += 1
    return ends


def _window(row: Mapping[str, Any]) -> tuple[str, str]:
    start = datetime.fromisoformat(row["ts"]).replace(minute=0, second=0, microsecond=0)
    return row["tenant"], f"{start.isoformat()}Z/{start.replace(hour=start.hour + 1).isoformat()}Z"


def _split() -> list[dict[str, Any]]:
    return [row for number, row in enumerate(CHILDREN) for row in [row] * (1 + number % 2)]


@pytest.mark.parametrize(("shape", "children"), [(SHAPE, CHILDREN), (SPLITTING, _split())], ids=["plain", "splitting"])
def test_a_round_that_counted_everything_once_is_exact(shape: Shape, children: Any) -> None:
    assert of_counts(shape, FED, children, exact(shape, children)) == []


PLANTED: dict[str, Callable[[Ends, tuple[str, str]], object]] = {
    "too many at the source": lambda ends, window: ends.update({("in", *window): 999}),
    "too few at the source": lambda ends, window: ends.update({("in", *window): 1}),
    "no end at the source": lambda ends, window: ends.pop(("in", *window)),
    "one too many in the channel": lambda ends, window: ends.update({("clean", *window): ends["clean", *window] + 1}),
    "no end in the channel": lambda ends, window: ends.pop(("clean", *window)),
    "one too few for the audit": lambda ends, window: ends.update({("audit", *window): ends["audit", *window] - 1}),
    "a substream that was never fed": lambda ends, _: ends.update({("in", "nobody", "never"): 777}),
    "one that was never fed, and is empty": lambda ends, _: ends.update({("clean", "nobody", "never"): 0}),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize(("shape", "children"), [(SHAPE, CHILDREN), (SPLITTING, _split())], ids=["plain", "splitting"])
def test_a_wrong_count_or_end_is_found(shape: Shape, children: Any, plant: Any) -> None:
    ends = exact(shape, children)
    plant(ends, max({_window(row) for row in FED}, key=lambda window: ends["in", *window]))
    assert len(of_counts(shape, FED, children, ends)) == 1


def _event(seq: int, kind: Any) -> Event:
    return Event(seq, seq * 10**9, "d1", kind)


LOG = [_event(seq, Ended("in", "a", f"{seq}", None, 3, Reason.COMPLETE, 0)) for seq in range(1, 6)]


def test_a_subscriber_that_received_the_whole_log_is_content() -> None:
    assert of_events(LOG, LOG, None) == []


@pytest.mark.parametrize(
    "received",
    [[], LOG[:3], LOG[1:], [*LOG, LOG[-1]], [LOG[1], LOG[0], *LOG[2:]], [*LOG[:4], _event(5, LOG[0].kind)]],
    ids=["nothing", "the beginning", "all but the first", "one twice", "in another order", "another event"],
)
def test_a_subscriber_that_missed_or_received_anything_else_is_found(received: list[Event]) -> None:
    assert len(of_events(LOG, received, None)) == 1


def test_a_subscriber_that_died_is_found() -> None:
    assert "gone" in of_events(LOG, LOG, RuntimeError("gone"))[0]


def test_what_must_not_happen_is_found_in_the_log() -> None:
    late = _event(6, Late("in", "a", "1", "p", 1, 0))
    twice = _event(7, LOG[0].kind)
    incomplete = _event(8, Ended("in", "a", "8", None, 3, Reason.EXPIRED, 1))
    for wrong in ([*LOG, late], [*LOG, _event(6, twice.kind)], [*LOG, _event(6, incomplete.kind)], LOG[1:]):
        assert len(of_events(wrong, wrong, None)) == 1
