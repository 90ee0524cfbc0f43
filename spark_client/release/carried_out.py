"""What carries out a release, as it was declared: what it keeps of rows, and how what has ended becomes results."""

from __future__ import annotations

from spark_client.plan.releases import ReleasePlan
from spark_client.release.aggregation import Aggregation
from spark_client.release.keptrows import KeptRows
from spark_client.release.nested_ends import NestedEnds
from spark_client.release.nested_windows import NestedWindows
from spark_client.release.session_ends import SessionEnds
from spark_client.release.sessions import Sessions
from spark_client.release.shared_ends import SharedEnds
from spark_client.release.state import PartialState


def aggregation(plan: ReleasePlan) -> Aggregation:
    """Return what a release keeps: partial rows by window, step or piece; or the rows themselves."""
    if plan.kept:
        return KeptRows(plan)
    if plan.rule.gap:
        return Sessions(plan)
    return NestedWindows(plan) if plan.rule.levels else Aggregation(plan)


def shared_ends(released: Aggregation, state: PartialState, segment: str) -> SharedEnds | None:
    """Return what has ended, where each row is an element of several substreams; None: each is one of one.

    Args:
        released: what the release keeps.
        state: its own.
        segment: whose ends release.
    """
    if isinstance(released, Sessions):
        return SessionEnds(released, state, segment)
    return NestedEnds(released, state, segment) if isinstance(released, NestedWindows) else None
