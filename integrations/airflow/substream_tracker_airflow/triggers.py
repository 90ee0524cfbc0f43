"""Triggers, which wait for a sensor.

A trigger waits in the triggerer's event loop, without a thread. It ends only with an answer or a refusal: while the
tracker is away it tries again, and after a restart of the triggerer it starts anew. That is safe, since the tracker
answers about an end that has been before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from substream_tracker_airflow import ends, hook
from tracker.client import TrackerClient, TrackerError, TrackerUnavailable, WrongJobError


class _Waiting(BaseTrigger):
    """Trigger that waits until a tracker has answered or refused.

    Its event has ``answer``, or ``refused``, a text.
    """

    def __init__(self, conn_id: str) -> None:
        super().__init__()
        self.conn_id = conn_id

    @abstractmethod
    def _fields(self) -> dict[str, Any]:
        """Return the trigger's arguments."""

    @abstractmethod
    async def _wait(self, client: TrackerClient) -> Any:
        """Wait once."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, as Airflow keeps them."""
        return f"{type(self).__module__}.{type(self).__name__}", {"conn_id": self.conn_id, **self._fields()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield one event."""
        with await hook.connected(self.conn_id) as client:
            while True:
                try:
                    found = {"answer": await self._wait(client)}
                except TrackerUnavailable as error:
                    self.log.warning("Waiting for the tracker to come back: %s", error)
                    continue
                except (TrackerError, WrongJobError) as error:
                    found = {"refused": str(error)}
                break
        yield TriggerEvent(found)


class EndTrigger(_Waiting):
    """Trigger that waits until a substream has ended on a segment. Its answer has the fields of `tracker.client.Ended`.

    Args:
        conn_id: the connection.
        job: the job's name.
        segment: where to wait.
        scope: the substream's.
        name: the substream's.
        end_time: the substream's, in the job's unit, if it is known.
    """

    def __init__(
        self, conn_id: str, job: str, segment: str, scope: str, name: str, end_time: int | None = None
    ) -> None:
        super().__init__(conn_id)
        self.job = job
        self.segment = segment
        self.scope = scope
        self.name = name
        self.end_time = end_time

    def _fields(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "segment": self.segment,
            "scope": self.scope,
            "name": self.name,
            "end_time": self.end_time,
        }

    async def _wait(self, client: TrackerClient) -> dict[str, Any]:
        return ends.fields_of(await client.await_end(self.job, self.segment, self.scope, self.name, self.end_time))


class ProgressTrigger(_Waiting):
    """Trigger that waits until every substream up to an end time has ended on a segment. Its answer is that progress.

    Args:
        conn_id: the connection.
        job: the job's name.
        segment: where to wait.
        up_to: the end time, in the job's unit.
    """

    def __init__(self, conn_id: str, job: str, segment: str, up_to: int) -> None:
        super().__init__(conn_id)
        self.job = job
        self.segment = segment
        self.up_to = up_to

    def _fields(self) -> dict[str, Any]:
        return {"job": self.job, "segment": self.segment, "up_to": self.up_to}

    async def _wait(self, client: TrackerClient) -> int:
        return await client.await_progress(self.job, self.segment, self.up_to)
