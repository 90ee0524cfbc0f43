"""Tasks that wait for substreams, and give their slot back meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from substream_tracker_airflow import ends
from substream_tracker_airflow.hook import DEFAULT_CONNECTION
from substream_tracker_airflow.triggers import EndTrigger, ProgressTrigger, _Waiting


class _Deferred(BaseSensorOperator):
    """A sensor that waits in the triggerer."""

    def _wait_by(self, trigger: _Waiting) -> NoReturn:
        self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout))

    @staticmethod
    def _answer(event: dict[str, Any]) -> Any:
        """Return the trigger's answer.

        Raises:
            AirflowException: the tracker has refused; another try may get an answer, such as when the job is there.
        """
        if "refused" in event:
            raise AirflowException(f"the tracker refuses to wait: {event['refused']}")
        return event["answer"]


class SubstreamSensor(_Deferred):
    """Sensor that waits until a substream has ended on a segment, and returns how, as `tracker.client.Ended` has it.

    It fails if the substream ended otherwise than complete: by EXPIRED or ABANDONED, for good, since no substream ends
    twice; or if a drain has closed it. Arguments that are texts are templates.

    Args:
        job: the job's name.
        segment: where to wait for the end.
        scope: the substream's.
        name: the substream's. If no report has named it yet, this waits for it, too.
        end_time: the substream's: a number in the job's unit, or a time. With it, the sensor does not wait for ever for
            a substream that has ended and is forgotten.
        reasons: those of ends that are good enough.
        by_drain: whether the end of a substream that only a drain has closed is: the next deployment may bring more.
        conn_id: the connection.
        **more: as for every sensor: `timeout`, `soft_fail`, …

    >>> clean = SubstreamSensor(
    ...     task_id="clean", job="flights", segment="clean", scope="JFK", name="{{ ds }}", timeout=6 * 3600
    ... )
    """

    template_fields: Sequence[str] = ("job", "segment", "scope", "name", "end_time", "conn_id")

    def __init__(
        self,
        *,
        job: str,
        segment: str,
        scope: str,
        name: str,
        end_time: int | str | datetime | None = None,
        reasons: Sequence[str] = (ends.COMPLETE,),
        by_drain: bool = False,
        conn_id: str = DEFAULT_CONNECTION,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.job = job
        self.segment = segment
        self.scope = scope
        self.name = name
        self.end_time = end_time
        self.reasons = ends.checked_reasons(reasons)
        self.by_drain = by_drain
        self.conn_id = conn_id

    def execute(self, context: Any) -> NoReturn:
        """Begin to wait."""
        end_time = None if self.end_time is None else ends.end_time_of(self.end_time)
        self._wait_by(EndTrigger(self.conn_id, self.job, self.segment, self.scope, self.name, end_time))

    def resume(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """Return the end's fields.

        Raises:
            AirflowFailException: the end is not good enough.
        """
        end: dict[str, Any] = self._answer(event)
        if wrong := ends.complaint(end, self.reasons, self.by_drain):
            raise AirflowFailException(wrong)
        self.log.info("Ended: %s", end)
        return end


class ProgressSensor(_Deferred):
    """Sensor that waits until every substream of every scope with an end time up to this one has ended on a segment.

    Returns how far the segment has come. The job needs `progress`.

    Args:
        job: the job's name.
        segment: where to wait.
        up_to: the end time: a time, or a number in the job's unit. A template.
        conn_id: the connection.
        **more: as for every sensor: `timeout`, `soft_fail`, …

    >>> all_clean = ProgressSensor(task_id="all", job="flights", segment="clean", up_to="{{ data_interval_end }}")
    """

    template_fields: Sequence[str] = ("job", "segment", "up_to", "conn_id")

    def __init__(
        self,
        *,
        job: str,
        segment: str,
        up_to: int | str | datetime,
        conn_id: str = DEFAULT_CONNECTION,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.job = job
        self.segment = segment
        self.up_to = up_to
        self.conn_id = conn_id

    def execute(self, context: Any) -> NoReturn:
        """Begin to wait."""
        self._wait_by(ProgressTrigger(self.conn_id, self.job, self.segment, ends.end_time_of(self.up_to)))

    def resume(self, context: Any, event: dict[str, Any]) -> int:
        """Return how far the segment has come."""
        come: int = self._answer(event)
        return come
