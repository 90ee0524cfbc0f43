"""The newest groups of a log, which a standby does not replay yet.

The leader appends a group once it has carried out the one before the last. So a command that ends the process does not
end the standby's, too: whoever recovers leaves it out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from .groups import unpack
from .interface import LeftOut, Place, Record

_GROUPS: Final = 2


@dataclass(frozen=True, slots=True)
class Group:
    """An entry of a log with records."""

    entry: str
    first: int  #: the number of its first record
    data: bytes


class HeldBack:
    """The groups that were read and not replayed yet.

    Args:
        place: where reading begins.

    Attributes:
        place: up to where records were returned.
    """

    def __init__(self, place: Place) -> None:
        self._groups: deque[Group] = deque()
        self.place = place

    def add(self, group: Group, left_out: Collection[LeftOut]) -> Iterator[tuple[int, Record]]:
        """Add the next group, and return the records that may be replayed now, with their numbers.

        Args:
            group: the next one.
            left_out: records that are not to be replayed.
        """
        self._groups.append(group)
        while len(self._groups) > _GROUPS:
            oldest = self._groups.popleft()
            number = oldest.first - 1
            for number, record in enumerate(unpack(oldest.data), oldest.first):
                if LeftOut.of(number, record) not in left_out:
                    yield number, record
            self.place = Place(oldest.entry, number)
