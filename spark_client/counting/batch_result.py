"""What a batch has done, to be reported in its epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from spark_client.counting.batch_input import BatchInput
from spark_client.counting.groups import add_groups
from spark_client.plan.fronts import Group
from spark_client.plan.outputs import Counted
from spark_client.windows.substreams import Substreams
from tracker.client import Event, Report


class StateSize(NamedTuple):
    """How much the state of a release holds."""

    substreams: int
    rows: int  #: of the stream, which the partial results are made of


@dataclass(frozen=True)
class BatchResult:
    """Made by whoever has processed a batch, after its actions: so a report cannot be built before its rows are read.

    Attributes:
        sent: the rows that were sent on, by segment and substream.
        received: likewise, those that were received on segments other than the input's.
        groups: the input's rows by substream; None: they were not counted so.
        set_aside: how many rows were set aside: late ones, and those of no substream (quarantined).
        released: of how many rows the results were made; None: nothing is released.
        ended: the ends that were acted on.
    """

    sent: Counted = field(default_factory=dict)
    received: Counted = field(default_factory=dict)
    groups: Sequence[Group] | None = None
    set_aside: Mapping[str, int] = field(default_factory=dict)
    released: int | None = None
    ended: Sequence[Event] = ()

    @property
    def rows(self) -> dict[str, int]:
        """How many rows the driver has counted, by what became of them."""
        received = {"received": _rows(self.groups)} if self.groups is not None else {}
        sent = {"sent": sum(map(_rows, self.sent.values()))} if self.sent else {}
        released = {"released": self.released} if self.released is not None else {}
        return {**received, **sent, **released, **self.set_aside}

    def add_to(self, report: Report, batch_input: BatchInput | None, rule: Substreams) -> None:
        """Put it into the report of the batch's epoch, with what the source promises.

        Args:
            report: of the epoch.
            batch_input: the batch's rows; None: it had none.
            rule: how rows of the query fall into substreams.
        """
        for segment, groups in self.sent.items():
            add_groups(report, segment, "sent", groups, rule)
        for segment, groups in self.received.items():
            add_groups(report, segment, "received", groups, rule)
        if batch_input is not None:
            batch_input.add_to(report, self.groups)


def _rows(groups: Sequence[Group]) -> int:
    return sum(int(values["_rows"]) for _, values in groups)
