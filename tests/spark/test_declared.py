"""A query that is not that of its checkpoint: what is refused, and that the advice helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from spark_client.errors import UsageError
from spark_client.runtime import declared
from spark_client.storage.folder import Folder
from spark_client.windows.fixed import Fixed
from spark_client.windows.named import Named
from spark_client.windows.nested import Level, NestedWindows
from spark_client.windows.sessions import SessionSteps
from spark_client.windows.sliding import SlidingWindows
from spark_client.windows.substreams import Substreams

HOUR = 3_600_000_000
HOURS = Fixed(HOUR, scope="shop")
DAYS = replace(HOURS, length=24 * HOUR)
NAMED = Named("load", scope="shop")


def query(rule: Substreams = HOURS, **aspects: object) -> Mapping[str, object]:
    what = {"job": "j", "segment": "in", "substreams": {**rule.to_json(), "zone": None}, declared.ZONE: None}
    return {**what, "keys": {"kind": "string"}, "aggregates": {"n": "count(1)"}, "parts": {"count(1)": 0}, **aspects}


def refused(path: Path, now: Mapping[str, object], kept: int) -> str:
    """Return why a query cannot go on from a checkpoint of `query()`; empty: it can."""
    declared.write(Folder(path / "tracker"), query())
    try:
        declared.checked(Folder(path), "", now, kept, None)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "now", [query(keys={"kind": "string", "shop": "string"}), query(aggregates={"m": "max(a)"})], ids=["keys", "new"]
)
def test_what_only_shapes_the_state_changes_once_nothing_is_open(tmp_path: Path, now: Mapping[str, object]) -> None:
    assert "drain" in refused(tmp_path, now, kept=3).lower()
    assert refused(tmp_path, now, kept=0) == ""


@pytest.mark.parametrize(
    "now",
    [
        query(DAYS),
        query(replace(HOURS, offset=60)),
        query(replace(HOURS, scope="tenant")),
        query(SessionSteps(HOUR, gap=HOUR, at="at", scope="shop")),
        query(NestedWindows((Level("1 hour", HOUR, 0, None), Level("1 day", 24 * HOUR, 0, None)), scope="shop")),
        query(NAMED),
        query(job="other"),
        query(segment="other"),
    ],
    ids=["length", "offset", "scope", "sessions", "levels", "names", "job", "segment"],
)
@pytest.mark.parametrize("kept", [0, 3])
def test_a_lasting_property_of_a_checkpoint_is_left_to_another_job(
    tmp_path: Path, now: Mapping[str, object], kept: int
) -> None:
    said = refused(tmp_path, now, kept)
    assert "drain" not in said.lower()
    assert "a new job, with new checkpoints" in said
    assert refused(tmp_path / "new", query(), 0) == "", "a new checkpoint takes any query"


def test_windows_of_another_length_are_taken_over_by_export_and_restore(tmp_path: Path) -> None:
    assert "Snapshots" in refused(tmp_path, query(DAYS), 0)
    for rule in (NAMED, SlidingWindows(HOUR, slide=60, scope="shop"), replace(HOURS, scope="tenant")):
        assert "Snapshots" not in refused(tmp_path, query(rule), 0)
