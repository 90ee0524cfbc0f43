"""Versions of a query's own state: a small file after each batch.

A batch, and each repetition of it, begins with the one before. Nothing here knows what is in them.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from spark_client.storage.folder import Folder

_VERSION: Final = re.compile(r"version-(\d+)\.json")


class Version(NamedTuple):
    """State after a batch."""

    epoch: int
    content: Any


class Versions:
    """The newest versions of one state.

    Args:
        folder: that has them, among others of that state.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._last: list[Version] = []  # those that are there, oldest first, as far as they were looked for

    def before(self, epoch: int) -> Version | None:
        """Return the newest version that an epoch can begin with, as the folder has it; None: there is none."""
        numbers = sorted(int(found[1]) for name in self._folder.names() if (found := _VERSION.fullmatch(name)))
        earlier = [number for number in numbers if number < epoch]
        content = self._folder.read(_name(earlier[-1])) if earlier else None
        self._last = [*(Version(number, None) for number in earlier[:-1]), *(Version(n, content) for n in earlier[-1:])]
        return self._last[-1] if earlier else None

    def put(self, epoch: int, content: Any) -> Any:
        """Publish the version after an epoch, and remove all but the one before, which it has begun with.

        Returns:
            The content of the one before; None: there is none.
        """
        self._folder.put(_name(epoch), content)
        earlier = [each for each in self._last if each.epoch < epoch]
        if old := earlier[:-1]:
            self._folder.delete(_name(each.epoch) for each in old)
        self._last = [*earlier[-1:], Version(epoch, content)]
        return earlier[-1].content if earlier else None


def _name(epoch: int) -> str:
    return f"version-{epoch:012d}.json"
