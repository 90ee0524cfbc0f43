"""The work of one job: what each epoch of each producer contains.

Two segments, `a` feeds `b`. Each producer has a front. Its epoch n sends elements of windows above its front's
frontier, receives elements that others have sent, sends on `b` what it received on `a`, and then raises its frontier
above window n. So windows end when all their elements have arrived, wherever these were.

Each epoch also closes a substream of its own, its marker: the producer is its scope, and the epoch its name. The
marker's end is an event of exactly this epoch, so the event log tells in which order the epochs took effect.
"""

from __future__ import annotations

import hashlib
import threading
from random import Random
from typing import Any, Final, TypeAlias

Line: TypeAlias = dict[str, Any]  # as in tests.model.lines
Element: TypeAlias = tuple[str, str, int, str, int]  # scope, name, end time, segment, label

SEGMENTS: Final = {"a": ["b"], "b": []}
FIRST, LAST = SEGMENTS
_WIDTH: Final = 10
_SCOPES: Final = 3
_REACH: Final = 3  # windows that are sent at a time
_CLEANING: Final = 2  # epochs in which producer 0 receives what is left: first on `a`, and then on `b`


def parts(line: Line) -> tuple[Line, Line]:
    """Split an epoch that is reported in two steps: it is promised with the second one."""
    cut = len(line["entries"]) // 2
    return line | {"entries": line["entries"][:cut], "promises": []}, line | {"entries": line["entries"][cut:]}


class Flow:
    """Elements that the producers of a job send each other.

    Args:
        job: its name.
        random: decides.
        producers: how many.
        epochs: that each of them commits; then producer 0 receives what is left, in two more.
    """

    def __init__(self, job: str, random: Random, producers: int, epochs: int) -> None:
        self.job = job
        self.producers = producers
        self.epochs = epochs
        self._random = random
        self._lock = threading.Lock()
        self._flight: list[Element] = []
        self._count = 0

    @property
    def fronts(self) -> list[str]:
        """The fronts' names."""
        return [f"f{place}" for place in range(self.producers)]

    def last(self, producer: int) -> int:
        """Return the last epoch of a producer."""
        return self.epochs + (_CLEANING if producer == 0 else 0) - 1

    def epoch(self, producer: int, number: int) -> Line:
        """Return the next epoch of a producer, from 0."""
        with self._lock:
            if number >= self.epochs:
                entries, promises = self._arrivals(len(self._flight)), []
            else:
                entries = self._departures(number) + self._arrivals(self._random.randint(0, 5))
                promises = [["frontier", f"f{producer}", None, (number + 1) * _WIDTH]]
            if number == self.last(producer):
                promises.append(["finish", f"f{producer}"])
        marker = ["close", "", f"p{producer}", str(number), None]
        units = [f"u{number}", f"v{number}"][: self._random.randint(1, 2)]
        return {
            "do": "report",
            "producer": f"p{producer}",
            "run": "r",
            "epoch": number,
            "units": units,
            "entries": entries,
            "promises": [*promises, marker],
            "commit": True,
        }

    def _departures(self, number: int) -> list[list[Any]]:
        entries = []
        for _ in range(self._random.randint(1, 3)):
            window = number + self._random.randrange(_REACH)
            entries.append(self._sent(f"t{window % _SCOPES}", f"w{window}", (window + 1) * _WIDTH, FIRST))
        return entries

    def _sent(self, scope: str, name: str, end_time: int, segment: str) -> list[Any]:
        self._count += 1
        text = f"{self.job} {self._count}"
        label = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        self._flight.append((scope, name, end_time, segment, label))
        return [scope, name, end_time, segment, label, 1, 0]

    def _arrivals(self, count: int) -> list[list[Any]]:
        self._random.shuffle(self._flight)
        arrived, self._flight = self._flight[:count], self._flight[count:]
        entries = []
        for scope, name, end_time, segment, label in arrived:
            entries.append([scope, name, end_time, segment, label, 0, 1])
            if segment == FIRST:
                entries.append(self._sent(scope, name, end_time, LAST))
        return entries
