"""The rows of the journal's SQLite file: a numbered group of records each, with a checksum over number and content."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from .groups import checksum, unpack
from .interface import JournalError, Record

APPLICATION = 0x54524B31  #: "TRK" and the version of the file's format, "1": in the head of the file
PAGE = 16384  #: bytes of a page of the file


@dataclass(frozen=True, slots=True)
class Row:
    """A group of records: the number of the first, how many they are, and what `groups.pack` has made of them."""

    first: int
    count: int
    data: bytes


def create(connection: sqlite3.Connection) -> None:
    """Make the table of an empty file."""
    connection.execute(f"PRAGMA application_id={APPLICATION}")
    connection.execute(
        "CREATE TABLE log ("
        " first INTEGER PRIMARY KEY,"  # the number of the group's first record
        " count INTEGER NOT NULL,"  # the number of records in the group
        " checksum INTEGER NOT NULL,"
        " data BLOB NOT NULL)"
    )


def insert(connection: sqlite3.Connection, row: Row) -> None:
    """Write a row down."""
    connection.execute(
        "INSERT INTO log VALUES (?, ?, ?, ?)",
        (row.first, row.count, checksum(row.first, row.count, row.data), row.data),
    )


def check(connection: sqlite3.Connection) -> str | None:
    """Return what SQLite itself finds wrong with a file; None: nothing."""
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        found = str(error)
    return None if found == "ok" else f"it is inconsistent: {found}"


class Rows:
    """The rows after a record, up to the first that does not match; once they are read, `problem` describes it."""

    def __init__(self, connection: sqlite3.Connection, after: int) -> None:
        self._connection = connection
        self._next = after + 1
        self.problem: str | None = None

    def __iter__(self) -> Iterator[Row]:
        try:
            for first, count, written, data in self._connection.execute(
                "SELECT first, count, checksum, data FROM log WHERE first >= ? ORDER BY first", (self._next,)
            ):
                if first != self._next:
                    self.problem = f"records {self._next} to {first - 1} are missing"
                    return
                row = Row(first, count, data)
                if not isinstance(count, int) or not isinstance(data, bytes) or checksum(first, count, data) != written:
                    self.problem = "a checksum is wrong"
                    return
                self._next = first + count
                yield row
        except sqlite3.DatabaseError as error:
            self.problem = f"it cannot be read: {error}"


def records_of(rows: Rows) -> Iterator[Record]:
    """Return the records of rows that were read once before."""
    for row in rows:
        yield from unpack(row.data)
    if rows.problem:
        raise JournalError(f"the journal could be read a moment ago and now cannot: {rows.problem}")
