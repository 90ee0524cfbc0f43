"""Counts across deployments: what a drain leaves of them.

At the tracker, a job that starts afresh after a drain has no substreams that have ended. A schedule that is given again
names substreams that are done, and must not be waited for once more. Of those that only the drain has closed, the rows
that were missing then are expected now. Files in the source's checkpoint list the substreams that were given. The
tracker's events name those that a drain has closed, with their elements; a subscription keeps these events until the
next start has read them.

A deployment that goes on with what is open, since the job was not drained before it, is given all counts again, as by a
restart: the tracker has kept what has ended, and a number that it has changes nothing there. So a revision arrives, and
the counts that a driver had written down, but not sent when it died.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from typing import Any, Final, NamedTuple

from spark_client.counting.runs import Run
from spark_client.errors import UsageError, torn
from spark_client.fronts.front import Front, GivenCounts
from spark_client.plan.state import changed_forms
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substream
from tracker.client import Ended
from tracker.contract.values import EVERY_SCOPE

_ACKNOWLEDGE_EVERY: Final = 10.0  #: seconds
_DRAINED: Final = "drained.json"
_IDENTITY: Final = "identity.json"  #: the expression that identified the rows that the last run has counted
_PIECES: Final = 16  #: of a deployment, above which a start makes them one
#: A piece of a deployment's counts; and all that version 0.2 has appended to a file.
_FILE: Final = re.compile(r"(\d+)(?:-[0-9a-f]+\.json|\.jsonl)")


def forget_shared(run: Run) -> None:
    """Remove the subscription that the sources of a query had together, before each had its own.

    Called when all of them have begun: each begins its own where that one was.

    Raises:
        TrackingError: the tracker cannot be reached.
    """
    run.news.unsubscribe(_shared(run))


def check_identified(folder: Folder, run: Run, segment: str, front: Front) -> None:
    """Refuse to identify rows otherwise than those of open substreams were: no XOR of both is ever the promised one.

    Args:
        folder: in the checkpoint of the query that reads the source.

    Raises:
        UsageError: substreams are open of which rows came without an identity, or with another one; or the tracker
            has yet to be told of such rows.
        TrackingError: the tracker cannot be reached.
    """
    known, now = folder.read(_IDENTITY), front.identified
    if known == now:
        return
    others = known is None or changed_forms({"": {"identity": known}}, {"": {"identity": now}}, "")
    if now is not None and others and ((begun := run.news.begun(segment)) or len(run.outbox)):
        before = "not given" if known is None else known["text"]
        come = (
            f"{begun} substreams are open of which rows have come" if begun else "rows have come that wait to be told"
        )
        raise UsageError(
            f"{front!r}: its identity was {before}, is {now['text']}, and {come}, whose XOR would never be the "
            "promised one. Start the query as it was until they have ended, or drain the job first (tracking.drain())"
        )
    folder.put(_IDENTITY, now)


def _shared(run: Run) -> str:
    return f"{run.query}/counts"


class _Deployment(NamedTuple):
    """The counts that one deployment was given: files that begin with its number.

    Attributes:
        incarnation: how often the job had started afresh, after drains; 0 in files that do not have it yet.
    """

    name: str
    incarnation: int
    given: set[Substream]
    files: list[str]


class RecordedCounts(GivenCounts):
    """The counts that one source was given, by deployment, in files.

    Args:
        folder: in the checkpoint of the query that reads the source.

    Raises:
        TrackingError: the tracker cannot be reached, or has kept ends for counts that are gone from the checkpoint.
    """

    def __init__(self, folder: Folder, checkpoint: Folder, run: Run, segment: str) -> None:
        self._folder = folder
        self._run = run
        files = _deployments(folder)
        name = f"{_shared(run)}/{segment}"
        if not files and run.resume_epoch and run.news.acknowledged(name) is not None:
            raise torn(f"{folder} is empty", run.resume_epoch, checkpoint)
        after = run.news.acknowledged(_shared(run)) or run.place
        self._subscription = run.news.subscribe(after, [segment], None, name=name)
        own = next((number for number, each in files.items() if each.name == run.deployment), None)
        self._number = max(files, default=-1) + 1 if own is None else own
        before_it = [] if own is None else files[own].files
        self._given: set[Substream] = set() if own is None else files[own].given
        # Version 0.2 may not have had its incarnation yet.
        if own is None or files[own].incarnation != run.incarnation or len(before_it) > _PIECES:
            self._write(self._given)
            folder.delete(before_it)
        going_on: list[_Deployment] = []  # those that were not drained before this one began
        before: list[_Deployment] = []
        for number, each in files.items():
            (going_on if number == own or each.incarnation == run.incarnation else before).append(each)
        # Up to where the counts given before were said to be complete; None: nowhere, or the counts are unknown.
        self._through: int | None = None
        if any(each.given for each in going_on):
            self._through = run.news.frontiers().get(segment, {}).get(EVERY_SCOPE)
        self._known = {substream for each in going_on for substream in each.given}
        self._drained = self._drained_by(segment, {run.deployment, *(each.name for each in files.values())})
        self.done = {substream for each in before for substream in each.given}
        drained = [self._drained.get(each.name, {}) for each in before]
        self.taken = _taken([(each.given, closed) for each, closed in zip(before, drained, strict=True)])
        self.released = _taken([(closed.keys(), closed) for closed in drained])
        self._acknowledge_at = time.monotonic() + _ACKNOWLEDGE_EVERY

    def too_late(self, substreams: Iterable[Substream]) -> list[Substream]:
        through = self._through
        return [
            each
            for each in substreams
            if through is not None
            and each.end_time is not None
            and each.end_time <= through
            and each not in self._known
            and each not in self.done
        ]

    def give(self, substreams: Iterable[Substream]) -> None:
        news = [substream for substream in substreams if substream not in self._given]
        if news:
            self._write(news)
            self._given.update(news)

    def keep_only(self, listed: Set[Substream]) -> None:
        files = _deployments(self._folder)
        needed = listed or {substream for each in files.values() for substream in each.given}
        for number, each in files.items():
            if number != self._number and needed.isdisjoint(each.given | self._drained.get(each.name, {}).keys()):
                self._folder.delete(each.files)

    def follow(self) -> None:
        if time.monotonic() >= self._acknowledge_at:
            self._acknowledge_at = time.monotonic() + _ACKNOWLEDGE_EVERY
            self._run.news.acknowledge_before_drain(self._subscription)

    def _drained_by(self, segment: str, deployments: Set[str]) -> dict[str, dict[Substream, int]]:
        """Return what only drains have closed, by deployment, with its elements; what is new of it is written down.

        Args:
            deployments: those whose counts are known; what is known of others is forgotten.
        """
        known: dict[str, dict[Substream, int]] = {
            deployment: {Substream(*key): elements for key, elements in entries}
            for deployment, entries in (self._folder.read(_DRAINED) or {}).items()
            if deployment in deployments
        }
        events, last = self._run.news.events(self._subscription.acknowledged, None, [segment])
        for event in events:
            kind = event.kind
            if (
                isinstance(kind, Ended)
                and kind.by_drain
                and kind.segment == segment
                and event.deployment in deployments
            ):
                substream = Substream(kind.scope, kind.name, kind.end_time)
                known.setdefault(event.deployment, {})[substream] = kind.elements
        self._folder.put(
            _DRAINED,
            {
                deployment: [[list(substream), elements] for substream, elements in entries.items()]
                for deployment, entries in known.items()
            },
        )
        self._subscription.ack(last)
        return known

    def _write(self, given: Iterable[Substream]) -> None:
        piece = [self._run.deployment, self._run.incarnation, *map(list, given)]
        self._folder.put(f"{self._number:06d}-{uuid.uuid4().hex[:8]}.json", piece)


def _taken(deployments: Iterable[tuple[Set[Substream], Mapping[Substream, int]]]) -> dict[Substream, int]:
    """Return the substreams that were given, and that only a drain has closed since, with what all drains have
    released.

    Args:
        deployments: in their order, what each was given and what its drain has closed.
    """
    released: dict[Substream, int] = {}
    given_before: set[Substream] = set()
    open_since: set[Substream] = set()
    for given, drained in deployments:
        given_before |= given
        open_since -= given
        open_since |= given_before & drained.keys()
        for substream, elements in drained.items():
            released[substream] = released.get(substream, 0) + elements
    return {substream: released[substream] for substream in open_since}


def _deployments(folder: Folder) -> dict[int, _Deployment]:
    """Return what each deployment was given, by its number, in their order."""
    files: dict[int, list[str]] = {}
    for name in sorted(folder.names()):
        if found := _FILE.fullmatch(name):
            files.setdefault(int(found[1]), []).append(name)
    return {number: _read(folder, names) for number, names in sorted(files.items())}


def _read(folder: Folder, names: list[str]) -> _Deployment:
    name, incarnation, substreams = "", 0, set()
    for value in (value for each in names for value in _values(folder, each)):
        if isinstance(value, str):
            name = value
        elif isinstance(value, int):
            incarnation = value
        else:
            substreams.add(Substream(*value))
    return _Deployment(name, incarnation, substreams, names)


def _values(folder: Folder, name: str) -> Iterable[Any]:
    """Yield what is in a file; in one of version 0.2, a line that was being written when its driver died is not
    there."""
    if name.endswith(".json"):
        yield from folder.read(name) or ()
        return
    for line in (folder.content(name) or b"").decode().split("\n"):
        with suppress(json.JSONDecodeError):
            yield json.loads(line)
