"""What every writer of a tracked query takes: options, a name, a trigger."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from spark_client.api.refusals import check_option, check_trigger

OWN: Final = (
    "checkpointlocation",
    "path",
    "late_path",
    "early_path",
    "compact_from",
    "seal",
)  #: options that are not Spark's writer's

W = TypeVar("W", bound="QueryOptions")


class QueryOptions:
    """Takes what a query is to be started with."""

    def __init__(self) -> None:
        self.options_given: dict[str, str] = {}
        self.name: str | None = None
        self.trigger_given: dict[str, Any] = {}

    def option(self: W, key: str, value: Any) -> W:
        """One option, as Spark's."""
        check_option(key, value)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self.options_given[key.lower() if key.lower() in OWN else key] = text
        return self

    def options(self: W, **options: Any) -> W:
        """Several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def queryName(self: W, name: str) -> W:  # noqa: N802
        """The query's name, in Spark's pages and in logs."""
        self.name = name
        return self

    def trigger(self: W, **trigger: Any) -> W:
        """When batches are made, as Spark's: ``processingTime="1 second"`` or, to take what is there, ``availableNow``.

        With ``availableNow`` the backlog is taken in batches if its source bounds them (``maxFilesPerTrigger``,
        ``maxOffsetsPerTrigger``, `receive`'s ``max_epochs_per_trigger``), and a last one releases what they have ended,
        before the run ends. Before Spark 4.2 it is one batch, and the next start releases.
        """
        check_trigger(trigger)
        self.trigger_given = trigger
        return self
