"""Records of a journal in an object store that every recovery leaves out."""

from __future__ import annotations

import base64
import json

from tracker.store import ConditionalStore

from ..interface import LeftOut, Record

_FOLDER = "set-aside"


class SetAside:
    """The records, each in an object that people can read.

    Args:
        objects: the store.
    """

    def __init__(self, objects: ConditionalStore) -> None:
        self._objects = objects

    def add(self, number: int, record: Record, why: str) -> None:
        """Leave a record out from now on.

        Args:
            number: the record's number.
            record: the record.
            why: the reason, for people.
        """
        text = {
            "method": record.method,
            "at": record.at,
            "why": why,
            "payload": base64.b64encode(record.payload).decode(),
        }
        self._objects.put(f"{_FOLDER}/{number}", json.dumps(text).encode())

    def all(self) -> frozenset[LeftOut]:
        """Return the records."""
        found = set()
        for name in self._objects.names(_FOLDER):
            number = name.rpartition("/")[2]
            if number.isdecimal() and (content := self._objects.get(name)) is not None:
                values = json.loads(content)
                found.add(LeftOut(int(number), values["method"], values["at"]))
        return frozenset(found)
