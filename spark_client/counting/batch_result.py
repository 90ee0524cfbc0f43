"""What a batch has done, to be reported in its epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_client.counting.batch_input import BatchInput
from spark_client.counting.groups import add_groups
from spark_client.plan.fronts import Group
from spark_client.plan.outputs import Counted
from tracker.client import Report


@dataclass(frozen=True)
class BatchResult:
    """Made by whoever has processed a batch, after its actions: so a report cannot be built before its rows are read.

    Attributes:
        sent: the rows that were sent on, by segment and substream.
        received: likewise, those that were received on segments other than the input's.
        groups: the input's rows by substream; None: they were not counted so.
    """

    sent: Counted = field(default_factory=dict)
    received: Counted = field(default_factory=dict)
    groups: Sequence[Group] | None = None

    def add_to(self, report: Report, batch_input: BatchInput | None) -> None:
        """Puts it into the report of the batch's epoch, with what the source promises.

        Args:
            report: of the epoch.
            batch_input: the batch's rows; None: it had none.
        """
        for segment, groups in self.sent.items():
            add_groups(report, segment, "sent", groups)
        for segment, groups in self.received.items():
            add_groups(report, segment, "received", groups)
        if batch_input is not None:
            batch_input.add_to(report, self.groups)
