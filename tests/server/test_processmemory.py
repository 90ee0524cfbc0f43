"""A server looks at all its objects rarely, since nobody is served meanwhile; but it does so."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from tracker.server import intake


class Knot:
    """An object that only the garbage collector removes."""

    def __init__(self) -> None:
        self.itself = self


def old_garbage() -> weakref.ref[Knot]:
    """Leave garbage of the oldest generation, which collections of the young ones do not find."""
    knot = Knot()
    gc.collect()
    return weakref.ref(knot)


@pytest.mark.thorough
def test_full_collections_are_not_left_to_python_and_still_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_PAUSE_S", 0.05)
    before = gc.get_threshold()

    async def collects() -> None:
        task = asyncio.create_task(intake.collect_garbage_rarely())
        await asyncio.sleep(0)
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 10**6
        knot = old_garbage()
        while knot() is not None:
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(collects(), 60))
    assert gc.get_threshold() == before
