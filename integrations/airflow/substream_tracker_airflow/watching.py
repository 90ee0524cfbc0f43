"""The ends of substreams update an asset, and so start DAGs: the trigger of an `AssetWatcher`.

An end is acknowledged at the tracker once Airflow has stored the asset's event, so every end updates the asset at least
once, whatever is killed meanwhile. It comes twice only if the triggerer dies in the moments between the two.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from substream_tracker_airflow import ends, hook
from substream_tracker_airflow.subscribing import Position, SubscriptionReader
from tracker.client import Ended, Event

_LONGEST_NAME = 512  # bytes: the longest name of a subscription


class SubstreamEnds(BaseEventTrigger):
    """Updates an asset with each end of a substream.

    The payload of the asset's event has the fields of `tracker.client.Ended`, `job`, `deployment`, `time`, and an `id`
    that is the same if the end comes again.

    Args:
        name: the name of the watcher's subscription at the tracker, ``airflow/`` and this. Every watcher of a job needs
            a name of its own, also in other Airflows. With another name it begins again, with the oldest kept end.
        job: the job's name.
        segments: only ends on these; empty: on all.
        scopes: only ends in these; empty: in all.
        reasons: those of ends that update the asset.
        by_drain: whether the ends of substreams that only a drain has closed do, too.
        conn_id: the connection.

    >>> day = AssetWatcher("clean-days", trigger=SubstreamEnds(name="clean-days", job="flights", segments=["clean"]))
    """

    def __init__(
        self,
        name: str,
        job: str,
        segments: Sequence[str] = (),
        scopes: Sequence[str] = (),
        reasons: Sequence[str] = (ends.COMPLETE,),
        by_drain: bool = False,
        conn_id: str = hook.DEFAULT_CONNECTION,
    ) -> None:
        super().__init__()
        if not name or len(subscription_of(name).encode()) > _LONGEST_NAME:
            raise ValueError(f"name={name!r}: give 1 to {_LONGEST_NAME - len(subscription_of(''))} bytes")
        for given in (segments, scopes):
            if isinstance(given, str):
                raise ValueError(f"{given!r} is no list: give [{given!r}]")
        self.name = name
        self.job = job
        self.segments = list(segments)
        self.scopes = list(scopes)
        self.reasons = list(ends.checked_reasons(reasons))
        self.by_drain = by_drain
        self.conn_id = conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class and its arguments, as Airflow keeps them."""
        names = ("name", "job", "segments", "scopes", "reasons", "by_drain", "conn_id")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Hashable:
        """Returns what makes Airflow read it by a producer, which learns what was stored. No two watchers share one."""
        return repr(self.serialize())

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Returns what reads the subscription."""
        return _Ends(cls(**kwargs))

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yields an event for each end."""
        async for payload in shared_stream:
            yield TriggerEvent(payload)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Is not used: an `AssetWatcher` reads the shared stream.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("SubstreamEnds is for an AssetWatcher; a task waits by SubstreamSensor")
        yield

    def concerns(self, event: Event) -> bool:
        """Tells whether an event updates the asset."""
        kind = event.kind
        return isinstance(kind, Ended) and not ends.complaint(ends.fields_of(kind), self.reasons, self.by_drain)


def subscription_of(name: str) -> str:
    """Returns the name of a watcher's subscription at the tracker."""
    return f"airflow/{name}"


class _Ends(SharedStreamProducer):
    """Reads a watcher's subscription, and acknowledges what Airflow has stored."""

    def __init__(self, trigger: SubstreamEnds) -> None:
        self._trigger = trigger
        self._reader: SubscriptionReader | None = None

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], Position]]:
        """Yields what the asset's events have, and where it stands."""
        of = self._trigger
        client = await hook.connected(of.conn_id)
        self._reader = SubscriptionReader(client, of.job, subscription_of(of.name), of.segments, of.scopes, of.concerns)
        async for event, position in self._reader.events():
            yield ends.payload_of(of.job, position.subscription.log_id, event), position

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledges ends whose events are stored.

        Raises:
            RuntimeError: one is not, so that Airflow begins again after the last one that is.
        """
        stored = [item.broker_payload for item in batch]
        for number, item in enumerate(batch):
            if not item.outcome.is_clean:
                stored = stored[:number]
                break
        if stored and self._reader is not None:
            self._reader.done(stored)
        if len(stored) < len(batch):
            raise RuntimeError(f"Airflow has not stored {len(batch) - len(stored)} ends, which come again")

    async def aclose(self) -> None:
        """Ends the reading."""
        if self._reader is not None:
            await self._reader.close()
