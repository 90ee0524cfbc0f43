"""Outbox of a query: the reports of its batches that wait in the checkpoint for a tracker that is away.

A batch's reports are kept before Spark commits the batch, and are sent in the order of the batches once the tracker is
back. The contract's rules stay as they are: a producer that is far behind has reported nothing of its later epochs yet,
and nothing ends without them.
"""

from __future__ import annotations

import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from spark_client.storage.folder import Folder
from tracker.contract.commands import Contents
from tracker.contract.values import NO_END_TIME
from tracker.wire.codec import read_report, write_report
from tracker.wire.gen.tracker_pb2 import ReportRequest

_log = logging.getLogger("spark_client")

_FILE: Final = re.compile(r"(\d+)\.json")


class KeptEpoch(NamedTuple):
    """The reports of one batch.

    Attributes:
        units: as `packed` has made them of each unit.
        sealed: the units that count, if the query seals its batches; None: all do.
    """

    units: Sequence[bytes]
    sealed: Sequence[str] | None = None


class Outbox:
    """Kept epochs of one query, oldest first. Not for several threads at once.

    Args:
        folder: in the query's checkpoint.
        patience: seconds for which a tracker that cannot be reached is waited for before reports are kept; None: no
            report is kept, and the batch fails.

    Attributes:
        away: whether the tracker is away, or batches are still to be reported.
        unsent: units of the epoch in hand that tasks could not send, as `packed` has made them.
    """

    def __init__(self, folder: Folder | None = None, patience: float | None = None) -> None:
        self._kept = folder
        self.patience = patience
        self.unsent: Sequence[bytes] = ()
        self.look()

    def look(self) -> None:
        """Learn what is kept, where another driver may have kept something."""
        names = [] if self._kept is None else self._kept.names()
        self._epochs = sorted(int(found[1]) for name in names if (found := _FILE.fullmatch(name)))
        self.away = bool(self._epochs)

    @property
    def _folder(self) -> Folder:
        assert self._kept is not None, "an outbox without a folder keeps nothing"
        return self._kept

    def __len__(self) -> int:
        return len(self._epochs)

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._epochs

    @property
    def first(self) -> int | None:
        """The oldest epoch that is kept; None: there is none."""
        return self._epochs[0] if self._epochs else None

    def first_up_to(self, epoch: int) -> int:
        """Return the first epoch up to this one that is still to be reported."""
        return epoch if self.first is None else min(self.first, epoch)

    def settled(self, epoch: int) -> int:
        """Return the last epoch up to this one that has taken effect at the tracker, or does when it is committed."""
        return self.first_up_to(epoch + 1) - 1

    def leave(self, query: str, error: BaseException) -> None:
        """Go on without the tracker."""
        _log.warning(
            "query %s goes on without the tracker: results wait, and reports are kept in the checkpoint: %s",
            query,
            error,
        )
        self.away = True

    def keep(self, epoch: int, kept: KeptEpoch) -> None:
        """Keep the reports of an epoch, in place of those of an earlier attempt."""
        self._folder.put(
            _name(epoch),
            {"units": [b64encode(unit).decode() for unit in kept.units], "sealed": kept.sealed and [*kept.sealed]},
        )
        self._epochs = sorted({*self._epochs, epoch})

    def read(self, epoch: int) -> KeptEpoch:
        """Return the reports of an epoch that is kept."""
        file = self._folder.read(_name(epoch))
        return KeptEpoch([b64decode(unit) for unit in file["units"]], file["sealed"])

    def remove(self, epochs: Iterable[int]) -> None:
        """Forget epochs: the tracker has them, or Spark has not committed them."""
        gone = set(epochs)
        if not gone:
            return
        self._folder.delete(map(_name, gone))
        self._epochs = [epoch for epoch in self._epochs if epoch not in gone]

    def remove_from(self, epoch: int) -> None:
        """Forget all epochs from this one on: Spark has not committed them, and runs them again."""
        self.remove(each for each in self._epochs if each >= epoch)


def packed(unit: str, contents: Contents) -> bytes:
    """Return a unit of a report as bytes, without the names of job, producer and run."""
    message, _ = write_report(contents, "", [None] * len(contents.substreams), False)
    message.units.append(unit)
    return message.SerializeToString(deterministic=True)


def unpacked(unit: bytes) -> tuple[str, Contents]:
    """Return what `packed` was given."""
    report = read_report(ReportRequest.FromString(unit))
    scopes = [report.scopes[place] for place in report.scope_index]
    times = report.end_times if len(report.end_times) else np.full(len(report.names), NO_END_TIME, np.int64)
    contents = Contents(
        substreams=list(zip(scopes, report.names, strict=True)),
        end_times=times,
        segments=list(report.segments),
        substream_index=report.substream_index,
        segment_index=report.segment_index,
        xor=report.xor,
        sent=report.sent,
        received=report.received,
        promises=tuple(report.promises),
    )
    return report.units[0], contents


def _name(epoch: int) -> str:
    return f"{epoch:012d}.json"
