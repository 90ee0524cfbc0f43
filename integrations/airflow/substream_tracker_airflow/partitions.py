"""Ends as partitions of an asset, and rollups of Airflow that wait for a window in each of some scopes.

A trigger cannot give an asset's event a partition (Airflow 3.3), and a task can: it publishes each end, under the key
that `partition_key` makes, with the end as the event's extra. Airflow's own rollups then wait for all keys, or for so
many. Those that it has know either times or names; `Scopes` are names at a time, for `RollupMapper`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from airflow.partition_mappers.base import PartitionMapper
from airflow.partition_mappers.window import Window
from airflow.plugins_manager import AirflowPlugin

_BETWEEN: Final = "|"  #: as in the keys of Airflow's `ProductMapper`


def partition_key(end: Mapping[str, Any]) -> str:
    """Return the key of an end: its scope, if it has one, and the start of its window, as Airflow's mappers read it.

    Args:
        end: the fields of an end. The name of a substream that is no window is taken as it is.

    >>> partition_key({"scope": "JFK", "name": "2013-01-01T05:00:00Z/2013-01-01T06:00:00Z"})
    'JFK|2013-01-01T05:00:00'
    >>> partition_key({"scope": "", "name": "2013-01-01"})
    '2013-01-01'
    """
    start, is_window, _ = end["name"].partition("/")
    name = start.removesuffix("Z") if is_window else end["name"]
    return f"{end['scope']}{_BETWEEN}{name}" if end["scope"] else name


class WindowOfKey(PartitionMapper):
    """Map the key of a scope's window to that of the window.

    >>> WindowOfKey().to_downstream("JFK|2013-01-01T05:00:00")
    '2013-01-01T05:00:00'
    """

    def to_downstream(self, key: str) -> str:
        """Return the part after the scope."""
        return key.rpartition(_BETWEEN)[2]

    def serialize(self) -> dict[str, Any]:
        """Return what Airflow keeps of this mapper."""
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> WindowOfKey:
        """Return a mapper as it was serialized."""
        return cls()


class Scopes(Window):
    """Keys of one window in each of some scopes, which `RollupMapper` waits for, or for so many of them.

    Args:
        scopes: those that have the window.

    >>> sorted(Scopes(["JFK", "LGA"]).to_upstream("2013-01-01"))
    ['JFK|2013-01-01', 'LGA|2013-01-01']
    """

    expected_decoded_type: ClassVar[type] = str

    def __init__(self, scopes: Sequence[str]) -> None:
        super().__init__()
        if isinstance(scopes, str) or not all(scopes) or not scopes:
            raise ValueError(f"scopes={scopes!r}: give a list of names, such as ['JFK', 'LGA']")
        self.scopes = sorted({*scopes})

    def to_upstream(self, decoded_downstream: Any) -> list[str]:
        """Return the keys of a window."""
        return [f"{scope}{_BETWEEN}{decoded_downstream}" for scope in self.scopes]

    def serialize(self) -> dict[str, Any]:
        """Return what Airflow keeps of this window."""
        return {"scopes": self.scopes}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Scopes:
        """Return a window as it was serialized."""
        return cls(data["scopes"])


class RollupPlugin(AirflowPlugin):
    """Registration of these classes, without which Airflow refuses a DAG that names them."""

    name = "substream_tracker_rollups"
    partition_mappers: ClassVar[list[Any]] = [WindowOfKey]
    windows: ClassVar[list[Any]] = [Scopes]
