"""A durable reader gets every event that it asks for, once and in order, whatever retention drops and whoever dies.

The commands of a seed run on the core, and readers read beside them: they subscribe, read pages, acknowledge some of
what they have read, die and come back, while the tracker is rebuilt from its dump. A list of everything that ever
happened judges what they get. Readers without a subscription keep a position of their own: they get everything after
it, or are refused because something that they asked for was dropped.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.model.generate import generate
from tests.model.lines import JOB, Driver
from tracker.contract.commands import Ack, Subscribe, Unsubscribe
from tracker.contract.events import Advanced, Ended, Event, Excess, Late
from tracker.contract.refusal import Refusal, Refused
from tracker.core import Tracker
from tracker.core.log import EventFilter
from tracker.core.subscriptions import Subscriptions


class Reader:
    """One reader and what it knows.

    Args:
        name: of its subscription; empty: it keeps its own position.
    """

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self.random = random
        self.subscribed = False
        self.place = 0
        self.acknowledged = 0
        self.segments = random.choice([(), (), ("a",), ("b",), ("a", "c")])
        self.scopes = random.choice([(), (), ("t0",), ("t1", "t2")])

    def asks_for(self, event: Event) -> bool:
        body = event.kind
        if isinstance(body, Ended | Late | Excess | Advanced) and self.segments and body.segment not in self.segments:
            return False
        return not (isinstance(body, Ended | Late | Excess) and self.scopes and body.scope not in self.scopes)

    def step(self, tracker: Tracker, now: int, history: list[Event]) -> None:
        """Do something. Raise AssertionError, or Refused, if the tracker wrongs the reader."""
        r = self.random
        if not self.name:
            self._read_at_own_risk(tracker, history)
        elif not self.subscribed:
            self._subscribe(tracker, now)
        elif r.random() < 0.6:
            self._read(tracker, history, subscription=self.name)
        elif r.random() < 0.7:
            self.acknowledged = r.randint(self.acknowledged, self.place)
            tracker.apply(Ack(JOB, self.name, self.acknowledged), now)
        elif r.random() < 0.7:
            self.place = self.acknowledged  # it died, and what it knew is gone
        elif r.random() < 0.2:
            tracker.apply(Unsubscribe(JOB, self.name), now)
            self.subscribed = False

    def _subscribe(self, tracker: Tracker, now: int) -> None:
        try:
            answer = tracker.apply(Subscribe(JOB, self.name, self.segments, self.scopes, max_age=10**18), now)
        except Refused as refused:
            if refused.reason != Refusal.UNKNOWN_SEGMENT:
                raise
            return
        self.subscribed = True
        self.place = self.acknowledged = answer.acknowledged  # type: ignore[union-attr]

    def _read(self, tracker: Tracker, history: list[Event], **how: object) -> None:
        limit = self.random.choice([1, 3, 1000])
        looked_at, last = tracker.view(JOB).events(self.place, limit=limit, **how)  # type: ignore[arg-type]
        got = [event for event in looked_at if self.asks_for(event)]
        wanted = [event for event in history[self.place : last] if self.asks_for(event)]
        assert got == wanted, f"{self.name}: {got} instead of {wanted}"
        assert last == len(history) or len(looked_at) == limit
        self.place = last

    def _read_at_own_risk(self, tracker: Tracker, history: list[Event]) -> None:
        wanted = EventFilter(self.segments, self.scopes)
        try:
            self._read(tracker, history, wanted=wanted, own=True)
        except Refused as refused:
            if refused.reason != Refusal.EVENTS_EXPIRED:
                raise
            lost = tracker.view(JOB).first_seq(wanted) - 1
            assert lost > self.place, "it is refused, though nothing was dropped after its place"
            assert self.asks_for(history[lost - 1]), "it is refused for an event that it never asked for"
            self.place = lost


def run(seed: int) -> int:
    """Run one seed. Return how many events retention had dropped."""
    random = Random(seed)
    driver = Driver(Tracker("log"))
    readers = [Reader(name, random) for name in ("r0", "r1", "", "")]
    history: list[Event] = []
    dropped = 0
    for line in generate(seed):
        if line["do"] == "define":  # everything is short: events go while others are still read
            line = line | {"durations": line.get("durations", {}) | {"retention": 3 * 10**9}}
        said, _ = driver.run(line)
        if line["do"] == "delete" and said == {}:
            readers = [Reader(reader.name, random) for reader in readers]
            history = []
        if JOB not in driver.tracker.jobs():
            continue
        assert isinstance(driver.tracker, Tracker)
        history += driver.tracker.view(JOB).events(len(history), limit=10**6)[0]
        driver.run({"do": "tick", "wait": random.choice([0, 0, 1, 2]) * 10**9})
        history += driver.tracker.view(JOB).events(len(history), limit=10**6)[0]
        if random.random() < 0.1:
            driver.tracker = Tracker.load(driver.tracker.dump())
        for reader in readers:
            if random.random() < 0.3:
                reader.step(driver.tracker, driver.now, history)
        dropped = max(dropped, driver.tracker.view(JOB).status().first_seq - 1)
    return dropped


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, 20])
def test_a_durable_reader_misses_nothing(first: int) -> None:
    dropped = [run(seed) for seed in range(first, first + 20)]
    assert any(dropped), "retention has dropped nothing"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_a_durable_reader_misses_nothing_in_many(first: int) -> None:
    for seed in range(first, first + 100):
        run(seed)


def _forgets_readers(self: Subscriptions, event: Event) -> int:
    del self, event
    return 0


def _acknowledges_too_much(self: Subscriptions, command: Ack, now: int) -> object:
    return _acknowledge(self, replace(command, seq=self._log.last_seq), now)


_acknowledge = Subscriptions.acknowledge


@pytest.mark.parametrize(
    ("method", "fault"), [("_count_readers", _forgets_readers), ("acknowledge", _acknowledges_too_much)]
)
def test_a_tracker_that_keeps_too_little_is_found_out(
    monkeypatch: pytest.MonkeyPatch, method: str, fault: object
) -> None:
    monkeypatch.setattr(Subscriptions, method, fault)
    for seed in range(40):
        try:
            run(seed)
        except (AssertionError, Refused):
            return
    pytest.fail("nobody noticed")


@pytest.mark.thorough
def test_what_goes_in_pieces_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that retention or a reader lets go of, many at a time, take several ticks, and lose nobody anything."""
    monkeypatch.setattr("tracker.core.subscriptions._PIECE", 3)
    assert any([run(seed) for seed in range(15)])  # noqa: C419 - each of them has to run


def test_ticks_go_on_until_all_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracker.core.subscriptions._PIECE", 500)
    tracker = Tracker("log")
    driver = Driver(tracker)
    define = {"do": "define", "deployment": "d1", "segments": [["a", []]], "fronts": [], "ordering": "NONE"}
    driver.run(define | {"durations": {"retention": 1}})
    driver.run({"do": "open", "producer": "p", "run": "r", "mode": "STAGED"})
    for name in ("s0", "s1"):
        driver.run({"do": "subscribe", "name": name})
    closes = [["close", "", "t0", f"w{number}", None] for number in range(3_000)]
    report = {"do": "report", "producer": "p", "run": "r", "epoch": 0, "units": ["u"], "entries": [], "commit": True}
    driver.run(report | {"promises": closes})

    def tick_until_nothing_is_due() -> int:
        ticks = 0
        while (due := tracker.next_due()) is not None and due <= driver.now:
            driver.run({"do": "tick"})
            ticks += 1
        return ticks

    driver.now += 2
    assert tick_until_nothing_is_due() > 3
    assert [each.retained for each in tracker.view(JOB).subscriptions()] == [3_000, 3_000]
    driver.run({"do": "ack", "name": "s0", "seq": 3_000})
    assert tracker.view(JOB).subscriptions()[0].retained == 0
    driver.run({"do": "unsubscribe", "name": "s1"})
    driver.tracker = tracker = Tracker.load(tracker.dump())
    assert tick_until_nothing_is_due() > 3
    assert tracker.view(JOB).first_seq() == 3_001
    assert tracker.view(JOB).counts().events == 0
