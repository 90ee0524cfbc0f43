"""Knowledge of dropped events answers every filter: exactly while there is room, and never with too little."""

from __future__ import annotations

from random import Random

import pytest

from tracker.contract.events import Advanced, Body, Drained, Ended, Event, Late
from tracker.contract.values import Reason
from tracker.core import log as module
from tracker.core.codec import dump_dropped, load_dropped
from tracker.core.log import Dropped, EventFilter


def _body(random: Random, segments: int, scopes: int) -> Body:
    segment, scope = f"g{random.randrange(segments)}", f"t{random.randrange(scopes)}"
    match random.randrange(8):
        case 0:
            return Drained("d")
        case 1:
            return Advanced(segment, 1)
        case 2:
            return Late(segment, scope, "w", "p", 1, 0)
    return Ended(segment, scope, "w", None, 1, Reason.COMPLETE, 0)


@pytest.mark.parametrize("places", [5, 10_000], ids=["full", "roomy"])
@pytest.mark.parametrize("seed", range(6))
def test_any_filter_against_a_list_of_what_was_dropped(seed: int, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PLACES", places)
    monkeypatch.setattr(module, "MOST_SEGMENTS", max(1, places // 4))
    random = Random(seed)
    dropped, gone = Dropped(), []
    numbers = list(range(1, 400))
    for number in numbers:  # mostly in order; what subscriptions let go later is older
        other = min(len(numbers) - 1, number + random.randrange(4))
        numbers[number - 1], numbers[other] = numbers[other], numbers[number - 1]
    careful = 0
    for number in numbers:
        event = Event(number, 0, "d", _body(random, 4, 6))
        dropped.note(event)
        gone.append(event)
        if random.random() < 0.2:
            dropped = load_dropped(dump_dropped(dropped))
        wanted = EventFilter(
            random.sample([f"g{n}" for n in range(5)], random.randrange(3)),
            random.sample([f"t{n}" for n in range(7)], random.randrange(3)),
        )
        truth = max((each.seq for each in gone if wanted.passes(each)), default=0)
        said = dropped.last_passing(wanted)
        assert said >= truth
        assert places < 100 or said == truth
        assert len(dropped._places) <= places
        careful += said > truth
    assert (careful > 0) == (places < 100)
