"""Positions in a job's events. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_client.errors import TrackingError


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the log of a job's events, or in the logs of its shards, in their order.

    If there is one log, its parts are a number and a text in JSON, as they were before there could be several.

    Attributes:
        seqs: for each log, the number of the last event that was taken.
        log_ids: for each log, its id.

    >>> place = Place.of([7, 2], ["a", "b"])
    >>> place.numbers, place.ids, Place.of(7, "a").numbers
    ([7, 2], ['a', 'b'], 7)
    """

    seqs: tuple[int, ...]
    log_ids: tuple[str, ...]

    @classmethod
    def of(cls, numbers: int | Sequence[int], ids: str | Sequence[str]) -> Place:
        """Read `numbers` and `ids`."""
        return cls(
            (numbers,) if isinstance(numbers, int) else tuple(numbers), (ids,) if isinstance(ids, str) else tuple(ids)
        )

    @property
    def numbers(self) -> int | list[int]:
        """The numbers, for JSON."""
        return self.seqs[0] if len(self.seqs) == 1 else list(self.seqs)

    @property
    def ids(self) -> str | list[str]:
        """The logs' ids, for JSON."""
        return self.log_ids[0] if len(self.log_ids) == 1 else list(self.log_ids)

    @property
    def log_id(self) -> str:
        """One id for all logs."""
        return "+".join(self.log_ids)

    def is_beyond(self, other: Place) -> bool:
        """Return whether there are events in some log that this position has and the other has not."""
        return any(own > its for own, its in zip(self.seqs, other.seqs, strict=True))

    def check(self, logs: int) -> Place:
        """Return this position if it is one in so many logs.

        Raises:
            TrackingError: it is one in another number of logs.
        """
        if len(self.seqs) != logs:
            raise TrackingError(
                f"the checkpoint has a position in {len(self.seqs)} logs of events, and the job has {logs}: it was "
                "written for another list of servers, or without sharded=True. A job keeps its servers for its whole "
                "life: use those that it was started with, or start it from the beginning, with new checkpoints"
            )
        return self
