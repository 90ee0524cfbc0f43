"""Ends as materializations of an external asset, each with an evaluation of its check `complete`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetKey,
    AssetMaterialization,
    asset_check,
)

CHECK: Final = "complete"
_SHOWN: Final = ("segment", "scope", "name", "reason", "elements", "expected", "in_flight", "by_drain")


def asset_events(
    asset: str | Sequence[str], end: Mapping[str, Any], partition: str | None
) -> tuple[AssetMaterialization, AssetCheckEvaluation]:
    """Return what an end is for an asset: one of its partitions is there, and complete or not.

    Args:
        asset: the asset's key.
        end: the fields of an end.
        partition: the partition that the end has completed; None: the asset has none.
    """
    key, shown = AssetKey(asset), {name: end[name] for name in _SHOWN}
    return (
        AssetMaterialization(key, description=end["account"], metadata=shown, partition=partition),
        AssetCheckEvaluation(
            asset_key=key,
            check_name=CHECK,
            passed=end["complete"],
            description=end["account"],
            metadata=shown,
            partition=partition,
        ),
    )


def completeness_check(asset: str | Sequence[str]) -> AssetChecksDefinition:
    """Return the definition of the check `complete`, without which Dagster does not show what the sensor has found.

    The sensor evaluates the check for each partition. A run of the check repeats the newest evaluation.

    Args:
        asset: the asset's key.

    >>> definitions = Definitions(assets=[days], asset_checks=[completeness_check("days")], sensors=[noted])
    """
    key = AssetKey(asset)

    @asset_check(asset=key, name=CHECK, description="Passes if the substream has ended with all of its elements.")
    def complete(context) -> AssetCheckResult:  # Dagster refuses a type that is written as text
        records = context.instance.event_log_storage.get_asset_check_execution_history(
            AssetCheckKey(key, CHECK), limit=100
        )
        for found in (record.evaluation for record in records):
            if isinstance(found, AssetCheckEvaluation):  # else a run that is to evaluate it, such as this one
                return AssetCheckResult(passed=found.passed, description=found.description, metadata=found.metadata)
        return AssetCheckResult(passed=False, description="no substream has ended")

    return complete
