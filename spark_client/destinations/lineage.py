"""Line of a table's commits: whether the table still has the results that a query has committed to it.

A table's own record of epochs is of no use once somebody has dropped the table, or set it back: Delta's transaction
identifiers outlive a ``RESTORE``, so a replay would be passed over, and a table that was made again takes the next
epoch as if nothing were missing. So after each commit its place in the line is noted in the query's checkpoint, and
before the next one the line has to lead there. Rows that others delete, rewrite or compact are commits in that line. An
epoch that was not noted yet is replayed: where the table was set back to before it, it is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from spark_client.storage.folder import Folder

FOLDER: Final = "tables"  #: in what a query keeps: a file for each name that it writes under


class Commit(NamedTuple):
    """One commit of a table.

    Attributes:
        number: the version of a Delta table, the id of an Iceberg snapshot.
        at: its time, in microseconds since 1970.
        query: that wrote it, from its note; None: it has none.
        in_line: whether the table's present state follows from it.
    """

    number: int
    at: int
    query: str | None
    epoch: int | None
    in_line: bool


@dataclass(frozen=True)
class Line:
    """Commits of a table, the newest first.

    Attributes:
        whole: whether they go back to the table's first one.
        restored: the version at which a Delta table was set back or replaced last; 0: it never was.
    """

    commits: Sequence[Commit]
    whole: bool
    restored: int = 0

    def last(self, query: str, epoch: int) -> Commit | None:
        """Return the commit of an epoch; None: the present state follows from none that is known."""
        own = (each for each in self.commits if each.in_line and (each.query, each.epoch) == (query, epoch))
        return next(own, None)


@dataclass(frozen=True)
class Mark:
    """Last commit of a query, as the query has noted it."""

    table: str
    epoch: int
    number: int
    at: int
    restored: int = 0

    def is_lost(self, query: str, line: Line) -> bool:
        """Return whether the table was set back to before it, or is another one.

        Commits that the table has forgotten, as its maintenance makes it do, are not lost.
        """
        same = next((each for each in line.commits if each.number == self.number), None)
        if same is not None:
            return not same.in_line or (same.query, same.epoch) != (query, self.epoch)
        newest = next((each.at for each in line.commits if each.in_line), self.at)
        return line.whole or newest < self.at


class Marks:
    """Marks of what a query has written into one table.

    Args:
        kept: the folder in the query's checkpoint.
    """

    def __init__(self, kept: Folder, table: str) -> None:
        self._folder = kept / FOLDER
        self._table = table
        self._known: dict[str, Mark | None] = {}

    def __iter__(self) -> Iterator[tuple[str, Mark]]:
        names = (unquote(name.removesuffix(".json")) for name in self._folder.names())
        return ((query, mark) for query in names if (mark := self.get(query)) is not None)

    def get(self, query: str) -> Mark | None:
        """Return the mark of what is written under a name; None: nothing was, or into another table."""
        if query not in self._known:
            found: dict[str, Any] | None = self._folder.read(_file(query))
            self._known[query] = None if found is None or found["table"] != self._table else Mark(**found)
        return self._known[query]

    def put(self, query: str, epoch: int, line: Line) -> None:
        """Note the commit of an epoch, if it is known."""
        if (own := line.last(query, epoch)) is None:
            return
        mark = Mark(self._table, epoch, own.number, own.at, line.restored)
        if mark != self._known.get(query):
            self._folder.put(_file(query), asdict(mark))
            self._known[query] = mark

    def url(self, query: str) -> str:
        """Return where the mark is."""
        return self._folder.url(_file(query))


def _file(query: str) -> str:
    return f"{quote(query, safe='')}.json"
