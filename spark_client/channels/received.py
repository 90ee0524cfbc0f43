"""Rows that another query has sent into a channel, as the input of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark_client.channels.channel import Channel
from spark_client.fronts.front import Front
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.streams import Direction
from spark_client.windows.belonging import Belonging
from spark_client.windows.substreams import Substreams


@dataclass(frozen=True, eq=False)
class Received:
    """Rows that another query has sent into a channel.

    Attributes:
        channel: it.
        rule: how its rows fall into substreams.
        layout: whose key columns name a row's substream, if its files are laid out so.
    """

    channel: Channel
    rule: Substreams
    layout: DerivedLayout | None

    @classmethod
    def of(cls, channel: Channel) -> Received:
        """Return the rows of a channel that a sender has described.

        Raises:
            UsageError: none has.
        """
        _, rule = channel.description()
        return cls(channel, rule, channel.layout if isinstance(channel.layout, DerivedLayout) else None)

    @property
    def segment(self) -> str:
        return self.channel.segment

    @property
    def direction(self) -> Direction:
        return "received"

    @property
    def front(self) -> Front | None:
        return None

    @property
    def named(self) -> bool:
        return True

    @property
    def counted(self) -> bool:
        return True

    @property
    def belonging(self) -> Belonging | None:
        return None

    def rows(self, batch: DataFrame, query: str, epoch: int, woken: bool) -> DataFrame | None:  # noqa: ARG002
        return self.channel.rows(batch, query, epoch)

    def all_rows(self, batch: DataFrame, woken: bool) -> DataFrame:  # noqa: ARG002
        return batch

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:  # noqa: ARG002
        return rows
