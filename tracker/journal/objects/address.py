"""The address of a journal in an object store, and how it is opened."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from tracker.store import ConditionalStore, NoAnswerError, RefusedError, StoreError, missing_package
from tracker.store.address import StoreAddress
from tracker.store.directory import DirectoryStore, sync

from ..interface import JournalError

_AT_ONCE: Final = 8  # writers of the trial
_ATTEMPTS: Final = 4
_PAUSE_S: Final = 0.2


@dataclass(frozen=True)
class ObjectsAddress:
    """Address of a journal.

    Args:
        lease: seconds without a sign of life after which another tracker may take over.
        marks: a directory of this machine, where the process notes which commands it carries out; empty: see
            `tracker.journal.mark.Marks`.

    Raises:
        ValueError: a value is out of its range.

    >>> address = ObjectsAddress.parse("s3://state/trackers/billing?region=eu-central-1&lease=5")
    >>> address.store.bucket, address.lease
    ('state', 5.0)
    """

    store: StoreAddress
    lease: float = 10.0
    marks: str = ""

    def __post_init__(self) -> None:
        if not 0.5 <= self.lease <= 3600:
            raise ValueError(f"lease={self.lease} is out of range; use 0.5 to 3600 seconds")

    @classmethod
    def parse(cls, text: str) -> ObjectsAddress:
        """Read an address such as ``s3://BUCKET/PREFIX?lease=5``; see `StoreAddress.parse`.

        Raises:
            ValueError: it has another form; the message has what to write.
        """
        store, own = StoreAddress.parse(text, "a journal", fields(cls)[1:])
        return cls(store, **own)

    def __str__(self) -> str:
        return str(self.store)

    def open(self) -> ConditionalStore:
        """Return the store.

        Raises:
            JournalError: its settings cannot be used, or the package `obstore` is missing.
        """
        try:
            if self.store.scheme != "file":
                # Loaded when used: the package `obstore` takes a while.
                from tracker.store.objects import ObjectStore

                return ObjectStore.of(self.store)
            root = Path(self.store.prefix)
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync(root.parent)
            return DirectoryStore(root)
        except ModuleNotFoundError as missing:
            raise JournalError(f"a journal in {self} cannot be used: {missing_package(missing)}") from missing
        except (RefusedError, OSError) as error:
            raise JournalError(f"{self} cannot be used: {error}") from error


def unusable(where: str, error: StoreError) -> JournalError:
    """Return the error that a store cannot be used."""
    if isinstance(error, RefusedError):
        return JournalError(
            f"{where} does not let this tracker in, or is not there: {error}; check the bucket, and the "
            "credentials (in the environment, or ?credentials-file=FILE) with what they allow"
        )
    return JournalError(f"{where} cannot be reached: {error}; check that it runs, its address, and its region")


def try_conditions(objects: ConditionalStore, where: str) -> None:
    """Try whether a store creates an object for one of several writers only, at once and one after the other.

    Args:
        where: its address, for messages.

    Raises:
        JournalError: two writers have created the same object, or one over another's.
        NoAnswerError, RefusedError: the store cannot be used.
    """
    for attempt in range(_ATTEMPTS):
        answers, problem = _race(objects, f"trial/{secrets.token_hex(8)}")
        if sum(answers) > 1:
            raise JournalError(
                f"{where} has created one object {sum(answers)} times: it does not keep the condition of a write "
                "(If-None-Match), so two trackers could write one log; use a store that does"
            )
        if len(answers) > 1:
            return
        if attempt < _ATTEMPTS - 1:
            time.sleep(_PAUSE_S * 2**attempt)
    raise problem or NoAnswerError("there was no answer")


def _race(objects: ConditionalStore, name: str) -> tuple[list[bool], NoAnswerError | None]:
    """Create one object several times; return the answers, and why there were not more of them."""
    problems: list[NoAnswerError] = []

    def create(place: int) -> list[bool]:
        try:
            return [objects.create(name, b"%d" % place)]
        except NoAnswerError as error:
            problems.append(error)
            return []

    with ThreadPoolExecutor(_AT_ONCE) as writers:
        answers = [answer for some in writers.map(create, range(_AT_ONCE)) for answer in some]
    answers += create(_AT_ONCE)
    with suppress(NoAnswerError):
        objects.delete([name])
    return answers, problems[0] if problems else None
