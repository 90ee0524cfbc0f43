"""Bounded memory of past runs and deployments, so that a job does not grow for ever.

Of names that only guard against those who come back very late, the newest are kept: a process would have to outlive a
thousand successors to be taken for a new one, and whatever it reports is refused all the same, since its run is not the
current one. The numbers by which accumulators refer to producers are used again once no accumulator does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

NEWEST = 1000  #: fenced runs of a producer, and deployments that a job has left, that are remembered


class Newest:
    """A set of names of which the newest are kept, in the order in which they were added.

    >>> names = Newest()
    >>> for i in range(NEWEST + 1):
    ...     names.add(str(i))
    >>> "0" in names, "1" in names
    (False, True)
    """

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: dict[str, None] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Remember a name, as the newest."""
        self._names.pop(name, None)
        self._names[name] = None
        if len(self._names) > NEWEST:
            del self._names[next(iter(self._names))]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Numbers:
    """Numbers for producers' names: a forgotten name has its number for as long as anything refers to it.

    Attributes:
        names: by number; empty for numbers that are free.
    """

    __slots__ = ("_collect_at", "_free", "_numbers", "names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(self.names) if name}
        self._free = [number for number, name in enumerate(self.names) if not name]
        self._collect_at = 64

    def of(self, name: str) -> int:
        """Return the number of a name, from now on if it had none."""
        number = self._numbers.get(name)
        if number is None:
            if self._free:
                number = self._free.pop()
                self.names[number] = name
            else:
                number = len(self.names)
                self.names.append(name)
            self._numbers[name] = number
        return number

    def collect(self, known: Iterable[str], used: Callable[[], set[int]]) -> None:
        """Free the numbers that nothing refers to, if there may be enough of them to be worth a look.

        Args:
            known: the names that are in use.
            used: finds the numbers that anything refers to; called seldom enough to be paid for by what was added.
        """
        if len(self._numbers) < self._collect_at:
            return
        kept = used() | {self._numbers[name] for name in known}
        for name, number in list(self._numbers.items()):
            if number not in kept:
                del self._numbers[name]
                self.names[number] = ""
                self._free.append(number)
        self._collect_at = 2 * len(self._numbers) + 64
