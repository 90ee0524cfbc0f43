"""The ends of substreams update an asset, and so start DAGs: the trigger of an `AssetWatcher`.

An end is acknowledged at the tracker once Airflow has stored the asset's event, so every end updates the asset at least
once, whatever is killed meanwhile. It comes twice only if the triggerer dies in the moments between the two.

Airflow starts one run for all events that an asset gets before its scheduler looks. But an event that is stored while
it creates the run is in no run before the asset's next event comes (apache/airflow, issues 54659 and 56050). So ends of
one moment are in one event, and the next event comes some seconds later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from substream_tracker_airflow import ends, hook
from substream_tracker_airflow.subscribing import Batch, SubscriptionReader
from tracker.client import Ended, Event

_LONGEST_NAME = 512  # bytes: the longest name of a subscription


class SubstreamEnds(BaseEventTrigger):
    """Updates an asset when substreams have ended.

    The payload of the asset's event is a list, ``ends``: each with the fields of `tracker.client.Ended`, `account`,
    `job`, `deployment`, `time`, and an `id` that is the same if the end comes again.

    Args:
        name: the name of the watcher's subscription at the tracker, ``airflow/`` and this. Every watcher of a job needs
            a name of its own, also in other Airflows. With another name it begins again, with the oldest kept end.
        job: the job's name.
        segments: only ends on these; empty: on all.
        scopes: only ends in these; empty: in all.
        reasons: those of ends that update the asset.
        by_drain: whether the ends of substreams that only a drain has closed do, too.
        every: seconds between two updates of the asset, in which Airflow's scheduler has to start what the first one
            starts. Ends meanwhile come together with the second one.
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
        every: float = 20.0,
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
        self.every = every
        self.conn_id = conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, as Airflow keeps them."""
        names = ("name", "job", "segments", "scopes", "reasons", "by_drain", "every", "conn_id")
        return f"{__name__}.{type(self).__name__}", {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Hashable:
        """Return a key of this watcher alone, for which Airflow reads by a producer, which learns what was stored."""
        return repr(self.serialize())

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the reader of the subscription."""
        return _Ends(cls(**kwargs))

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each batch of ends."""
        async for payload in shared_stream:
            yield TriggerEvent(payload)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Remain unused: an `AssetWatcher` reads the shared stream.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("SubstreamEnds is for an AssetWatcher; a task waits by SubstreamSensor")
        yield

    def concerns(self, event: Event) -> bool:
        """Return whether an event updates the asset."""
        kind = event.kind
        return isinstance(kind, Ended) and not ends.complaint(ends.fields_of(kind), self.reasons, self.by_drain)


def subscription_of(name: str) -> str:
    """Return the name of a watcher's subscription at the tracker."""
    return f"airflow/{name}"


class _Ends(SharedStreamProducer):
    """Reader of a watcher's subscription, which acknowledges what Airflow has stored."""

    def __init__(self, trigger: SubstreamEnds) -> None:
        self._trigger = trigger
        self._reader: SubscriptionReader | None = None
        self._is_stored = asyncio.Event()

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], Batch]]:
        """Yield the content of the asset's events, each once the one before it is stored and some seconds old."""
        of = self._trigger
        client = await hook.connected(of.conn_id)
        reader = SubscriptionReader(client, of.job, subscription_of(of.name), of.segments, of.scopes, of.concerns)
        self._reader = reader
        while True:
            batch = await reader.next_batch()
            self._is_stored.clear()
            log_id = batch.subscription.log_id
            yield {"ends": [ends.payload_of(of.job, log_id, event) for event in batch.events]}, batch
            await self._is_stored.wait()
            await asyncio.sleep(of.every)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledge ends whose event is stored.

        Raises:
            RuntimeError: the event is not, so that Airflow begins again after the last one that is.
        """
        for item in batch:
            if not item.outcome.is_clean:
                raise RuntimeError("Airflow has not stored an event of the asset; its ends come again")
            if self._reader is not None:
                self._reader.done(item.broker_payload)
        self._is_stored.set()

    async def aclose(self) -> None:
        """End the reading."""
        if self._reader is not None:
            await self._reader.close()
