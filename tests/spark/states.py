"""A release's state, as tests change it."""

from __future__ import annotations

from pathlib import Path


def hinder(state: Path, restarts: int = 0) -> Path:
    """Put a directory where the next version would be published, so that its batch does everything but that.

    Args:
        state: the state's directory.
        restarts: how often the query will have been started again by then.
    """
    _, epoch, acts, driver = max(state.glob("version-*.json")).stem.split("-")
    hindrance = state / f"version-{int(epoch) + 1:012d}-{int(acts) + 1:012d}-{int(driver) + restarts:06d}.json"
    hindrance.mkdir()
    return hindrance
