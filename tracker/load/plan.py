"""The plan of a run: what is sent and when. It depends only on the scenario and its seed, and exists before the run.

Every process computes the same plan for itself. So a producer that was killed reports after its restart exactly what it
would have reported, and the verdict knows which ends must be announced without asking the producers.

Time proceeds in ticks: tick t of producer p is its report number t, and its epoch t. Producer p is the only source of
its own substreams. The elements that it sends at tick t on the first segment are received by the next producer (p + 1),
at that producer's first tick that is at least a hop later. In the same report, the next producer sends them on the
second segment; and so on to the end of the last segment.

A producer has slots. Each slot has one substream after the other (its generations), all with the same lifetime. The
slots begin at different moments, so that ends come evenly. Half of the substreams are closed together with their last
elements, so that the last receipt ends them. The other half are closed after all elements have been received, so that
the promise ends them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracker.load.scenario import Scenario

Integers = NDArray[np.int64]
Times = NDArray[np.float64]
Words = NDArray[np.uint64]

_DRAWS_AT_ONCE: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Rows:
    """Elements that travel together: one row each time that a report sends elements to a substream."""

    ticks: Integers  #: the ticks at which the source sent them
    slots: Integers
    generations: Integers
    words: Words  #: from which their labels are made

    def labels(self, segment: int) -> Words:
        """Return, for each row, the XOR of its elements' labels on a segment."""
        return _mixed(self.words ^ np.uint64(segment))


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected ends of one source's substreams."""

    elements: Integers  #: the number of elements of each substream, the same on each segment
    last_ticks: Integers  #: the tick at which the last of them was sent; -1: the substream has none


class Plan:
    """The plan of a scenario.

    Attributes:
        ticks: the number of reports of each producer.
        due: when each report is to be sent, in seconds after the start; one row a producer.
        substreams: the number of places for substreams of each producer; some stay empty, see `exists`.
        exists: for each place, whether it has a substream.
        close_ticks: for each place, the tick at which the source promises to send no more.
        measured: begin and end of the time in which due reports are measured, in seconds after the start.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.producers = scenario.producers
        per_second = scenario.rate / self.producers
        self._life = max(2, round(scenario.lifetime * per_second))
        self._lasts = max(1, math.ceil((scenario.warm_up + scenario.duration) * per_second))
        self._winds_down = max(1, round(scenario.wind_down * per_second))
        self._lingers = math.ceil(scenario.in_flight * per_second) + 1
        self.ticks = self._lasts + self._winds_down + self._lingers
        self.due = self._arrivals()
        self.measured = (scenario.warm_up, scenario.warm_up + scenario.duration)

        self.slots = -(-scenario.open // self.producers)
        places = np.arange(self.slots)
        self._phases = places * self._life // self.slots
        self._final_closes = self._lasts + places * self._winds_down // self.slots
        self._final_generations = (self._lasts + self._phases) // self._life
        self.generations = int(self._final_generations.max()) + 1
        self.substreams = self.slots * self.generations
        slots, generations = np.divmod(np.arange(self.substreams), self.generations)
        self.exists = generations <= self._final_generations[slots]
        natural = (generations + 1) * self._life - self._phases[slots] - 1
        self.close_ticks = np.where(natural < self._lasts, natural, self._final_closes[slots])

        weights = 1.0 / (1.0 + places) ** scenario.skew
        self._shares = np.cumsum(weights) / weights.sum()
        self._stages = self._hops()

    @property
    def reports(self) -> int:
        """The number of reports of all producers."""
        return self.producers * self.ticks

    @property
    def ends(self) -> int:
        """The number of ends that must be announced, on all segments together."""
        return int(self.exists.sum()) * self.producers * self.scenario.segments

    # ---------------------------------------------------------------- when

    def _arrivals(self) -> Times:
        shape = (self.producers, self.ticks)
        gap = self.producers / self.scenario.rate
        if self.scenario.arrival == "constant":
            return gap * (np.arange(self.ticks) + np.arange(self.producers)[:, None] / self.producers)
        # In a Poisson process with a known number of arrivals, these are independent and uniform.
        times: Times = np.sort(np.random.default_rng(self.scenario.seed).uniform(0, gap * self.ticks, shape), axis=1)
        return times

    def _hops(self) -> list[Integers]:
        """Return, for each stage, by source and tick, the tick at which its producer handles what was sent then.

        Elements that would be handled after the last tick are handled at the last tick.
        """
        stages = [np.tile(np.arange(self.ticks), (self.producers, 1))]
        for stage in range(1, self.scenario.segments + 1):
            handled = np.empty_like(stages[0])
            for source in range(self.producers):
                sender, receiver = self.handler(source, stage - 1), self.handler(source, stage)
                arrive = self.due[sender][stages[-1][source]] + self.scenario.hop
                handled[source] = np.searchsorted(self.due[receiver], arrive)
            stages.append(np.minimum(handled, self.ticks - 1))
        return stages

    def handler(self, source: int, stage: int) -> int:
        """Return the producer that handles a source's elements at a stage; stage 0 is the source itself."""
        return (source + stage) % self.producers

    def handled(self, source: int, stage: int) -> Integers:
        """Return, by the source's tick, the tick at which the stage's producer handles what was sent then."""
        handled: Integers = self._stages[stage][source]
        return handled

    # ---------------------------------------------------------------- what

    def batches(self, producer: int, tick: int) -> Iterator[tuple[int, int, Rows]]:
        """Yield what a producer handles in one report: (stage, source, rows), without stages that have no rows."""
        for stage in range(self.scenario.segments + 1):
            source = (producer - stage) % self.producers
            handled = self._stages[stage][source]
            first, last = np.searchsorted(handled, tick, "left"), np.searchsorted(handled, tick, "right")
            if first < last:
                rows = self.rows(source, int(first), int(last))
                if len(rows.slots):
                    yield stage, source, rows

    def rows(self, source: int, first: int, last: int) -> Rows:
        """Return what a source sends at its ticks from `first` to before `last`."""
        ticks = np.arange(first, last)
        draws = self.scenario.entries
        words = _mixed(np.array([self.scenario.seed * 2**32 + source], np.uint64))
        words = _mixed(words ^ ticks.astype(np.uint64))
        words = _mixed((words[:, None] ^ np.arange(draws, dtype=np.uint64)[None, :]).ravel())
        slots = np.searchsorted(self._shares, (words >> np.uint64(11)) * 2.0**-53, "right")
        np.minimum(slots, self.slots - 1, out=slots)  # rounding may leave the sum of the shares just below 1
        ticks = np.repeat(ticks, draws)
        generations = np.minimum((ticks + self._phases[slots]) // self._life, self._final_generations[slots])
        closes = self.close_ticks[self.place(slots, generations)]
        quiet = np.where(slots % 2 == 0, self._lingers, 0)
        taken = np.flatnonzero(ticks <= closes - quiet)
        return Rows(ticks[taken], slots[taken], generations[taken], words[taken])

    def closes(self, tick: int) -> tuple[Integers, Integers]:
        """Return the slots and generations that every producer closes at a tick."""
        if tick < self._lasts:
            phase = -(tick + 1) % self._life
            slots = _range(self._phases, phase)
            return slots, (tick + 1 + phase) // self._life - 1 + 0 * slots
        slots = _range(self._final_closes, tick)
        return slots, self._final_generations[slots]

    # ---------------------------------------------------------------- names

    def place(self, slots: Integers, generations: Integers) -> Integers:
        """Return the places of substreams among those of their source."""
        return slots * self.generations + generations

    def scope(self, slot: int) -> str:
        return f"tenant-{slot % self.scenario.scopes}"

    def names(self, source: int, slots: Integers, generations: Integers) -> tuple[list[str], list[str]]:
        """Return the scopes and names of a source's substreams."""
        pairs = zip(slots.tolist(), generations.tolist(), strict=True)
        return [self.scope(slot) for slot in slots.tolist()], [f"{source}-{slot}-{number}" for slot, number in pairs]

    def find(self, scope: str, name: str) -> tuple[int, int] | None:
        """Return the source and place of a substream; None if the plan does not have it."""
        try:
            source, slot, generation = map(int, name.split("-"))
        except ValueError:
            return None
        if not (0 <= source < self.producers and 0 <= slot < self.slots and 0 <= generation < self.generations):
            return None
        place = slot * self.generations + generation
        return (source, place) if self.exists[place] and scope == self.scope(slot) else None

    # ---------------------------------------------------------------- what must come of it

    def expected(self, source: int) -> Expected:
        """Return the ends that must be announced for a source's substreams."""
        elements = np.zeros(self.substreams, np.int64)
        last_ticks = np.full(self.substreams, -1)
        at_once = max(1, _DRAWS_AT_ONCE // self.scenario.entries)
        for first in range(0, self.ticks, at_once):
            rows = self.rows(source, first, min(first + at_once, self.ticks))
            places = self.place(rows.slots, rows.generations)
            elements += np.bincount(places, minlength=self.substreams) * self.scenario.elements
            np.maximum.at(last_ticks, places, rows.ticks)
        return Expected(elements, last_ticks)


def segment(number: int) -> str:
    """Return a segment's name; the first segment has number 1.

    >>> segment(1)
    'segment-01'
    """
    return f"segment-{number:02}"


def graph(scenario: Scenario) -> dict[str, list[str]]:
    """Return the job's segments, each with the segments that it feeds."""
    last = scenario.segments
    return {segment(number): [segment(number + 1)] if number < last else [] for number in range(1, last + 1)}


def _range(ascending: Integers, value: int) -> Integers:
    """Return the positions at which ascending numbers have a value."""
    return np.arange(np.searchsorted(ascending, value, "left"), np.searchsorted(ascending, value, "right"))


def _mixed(words: Words) -> Words:
    """Apply the last step of SplitMix64: a bijection whose results look independent of each other."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = words ^ (words >> np.uint64(31))
    return mixed
