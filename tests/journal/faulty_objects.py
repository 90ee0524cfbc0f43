"""An object store in memory whose requests fail, take effect late, and are interrupted, as a seed has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from tracker.store import NoAnswerError


class KilledError(BaseException):
    """The process of the one who asked has ended."""


class Shelf:
    """The objects themselves. Each change is one step."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.objects: dict[str, bytes] = {}
        self._created: list[str] = []  # names, newest last
        self._late: list[Callable[[], object]] = []  # requests that are still under way

    def create(self, name: str, data: bytes) -> bool:
        if name in self.objects:
            return False
        self.put(name, data)
        return True

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data
        self._created.append(name)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)

    def listed(self, lag: int) -> set[str]:
        """Return the names as of a few changes ago."""
        hidden = set(self._created[len(self._created) - lag :]) if lag else set()
        return {name for name in self.objects if name not in hidden}

    def keep_for_later(self, request: Callable[[], object]) -> None:
        self._late.append(request)

    def deliver(self) -> None:
        """Let requests that were under way take effect, in any order."""
        if self._late:
            self._late.pop(self._random.randrange(len(self._late)))()


class FaultyObjects:
    """A shelf as one process sees it.

    Args:
        shelf: the objects.
        random: decides on faults.
        faults: the part of requests that fail; 0: none.
        meanwhile: called before and after each request: what others do.
    """

    def __init__(
        self, shelf: Shelf, random: Random, faults: float = 0.0, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        self._shelf = shelf
        self._random = random
        self._meanwhile = meanwhile
        self.faults = faults

    def create(self, name: str, data: bytes) -> bool:
        created: list[bool] = []
        self._ask(lambda: created.append(self._shelf.create(name, bytes(data))))
        return created[0]

    def put(self, name: str, data: bytes) -> None:
        self._ask(lambda: self._shelf.put(name, bytes(data)))

    def get(self, name: str, first: int | None = None, soon: bool = False) -> bytes | None:
        self._look()
        found = self._shelf.objects.get(name)
        return found if found is None else found[:first]

    def names(self, folder: str, after: str = "") -> Sequence[str]:
        self._look()
        lag = self._random.choice((0, 0, 1, 2, 3)) if self.faults else 0
        listed = self._shelf.listed(lag)
        return sorted(name for name in listed if name.startswith(f"{folder}/") and name > after)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._ask(lambda name=name: self._shelf.delete([name]))  # type: ignore[misc]

    def _ask(self, change: Callable[[], object]) -> None:
        """Send a request that changes something: its effect may be missing or late, and so may its answer."""
        self._meanwhile()
        fault = self._random.random() < self.faults and self._random.choice(("lost", "late", "unanswered", "killed"))
        if fault == "late":
            self._shelf.keep_for_later(change)
        elif fault != "lost" and not (fault == "killed" and self._random.random() < 0.5):
            change()
        self._meanwhile()
        if fault == "killed":
            raise KilledError
        if fault:
            raise NoAnswerError(f"a fault: {fault}")

    def _look(self) -> None:
        self._meanwhile()
        if self._random.random() < self.faults / 3:
            raise self._random.choice((NoAnswerError("a fault: no answer"), KilledError()))
